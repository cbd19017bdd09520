"""Reading GGUF files through transformers, as plain float models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

MAGIC = b"GGUF"


def read_gguf(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A causal LM and its tokenizer from a GGUF file, every weight unpacked to `dtype`.

    Raises
    ------
    ValueError
        One line that names the file: it is missing, no GGUF, corrupt, or of an architecture that transformers
        cannot read.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; a GGUF file is allowed")
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path}: not a GGUF file (it does not start with {MAGIC.decode()})")
    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):
        # Newer releases keep the weights packed where they have a kernel for it; the datapath is fed floats.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
            model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=dtype, **options)
    except Exception as error:  # the readers raise anything, from KeyError to struct.error, at a corrupt file
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{path}: unreadable GGUF file ({type(error).__name__}: {reason})") from error
    return _plain(model), tokenizer


def _plain(model: Any) -> Any:
    """The model without the marks of its quantised origin, so that it saves and moves like any other."""
    model.hf_quantizer = None
    for name in ("is_quantized", "quantization_method"):
        if hasattr(model, name):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' own progress bars, for loads that take a second or report progress otherwise."""
    logging = transformers.utils.logging
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
