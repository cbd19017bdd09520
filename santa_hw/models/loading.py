"""Loading a causal language model, and knowing it again."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from transformers import AutoModelForCausalLM, AutoTokenizer

from santa_hw.models.defaults import AGAIN, DEFAULT_MODEL, fetch_model
from santa_hw.models.download import FetchError, stage
from santa_hw.models.gguf import quiet, read_gguf

ALLOWED = f"allowed are {DEFAULT_MODEL}, a Hugging Face hub id, a model folder, or a .gguf file"
HUB_TIMEOUT = 10.0
"""Seconds to wait for the hub before it counts as unreachable."""


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model with what the rest of santa-hw asks of it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode.
    tokenizer : transformers tokenizer, or None
    name : str
        What the user called it.
    identity : str
        Short and stable: it names the weights, not the place they came from (see :func:`identify`).
    layers, heads, kv_heads, head_dim : int
        Of the attention.
    """

    model: Any
    tokenizer: Any
    name: str
    identity: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def load(
    name: str | Path = DEFAULT_MODEL,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    cache: str | Path | None = None,
) -> LoadedModel:
    """Load a causal language model and its tokenizer.

    Parameters
    ----------
    name : str or path
        The default model (downloaded and converted at first need), a model folder as ``save_pretrained``
        writes it, a ``.gguf`` file, or an id of the Hugging Face hub.
    device : str or torch.device
    dtype : torch.dtype or its name, optional
        Default float32.
    cache : path, optional
        Where the default model lives, see :func:`~santa_hw.models.download.cache_dir`. The hub's own cache is
        left to ``HF_HOME``.

    Returns
    -------
    LoadedModel

    Raises
    ------
    ValueError
        In one line: there is no such model, it is corrupt or not a causal language model. Its subclass
        ``FetchError``: it had to be downloaded and could not be.
    """
    kind = _torch_dtype(dtype)
    text = str(name)
    if text.lower() == DEFAULT_MODEL:
        fetched = fetch_model(cache)
        try:
            model, tokenizer = _read(str(fetched), kind, local=True)
        except ValueError as error:
            raise ValueError(f"{error}; {AGAIN}") from error
    elif text.lower().endswith(".gguf"):
        with stage(f"Reading {text}"):
            model, tokenizer = read_gguf(Path(expanduser(text)), kind)
    elif Path(expanduser(text)).is_dir():
        folder = Path(expanduser(text))
        if not (folder / "config.json").is_file():
            raise ValueError(f"model {text!r}: the folder has no config.json; {ALLOWED}")
        model, tokenizer = _read(str(folder), kind, local=True)
    else:
        model, tokenizer = _read(text, kind, local=_only_cached(text))
    return from_model(model.to(device), tokenizer, text)


def from_model(model: Any, tokenizer: Any = None, name: str = "model") -> LoadedModel:
    """Wrap a causal language model that is in memory already.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> loaded = from_model(LlamaForCausalLM(config))
    >>> loaded.layers, loaded.heads, loaded.kv_heads, loaded.head_dim
    (2, 4, 2, 4)
    """
    config = model.config.get_text_config()
    try:
        layers, heads = int(config.num_hidden_layers), int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"model {name!r} ({config.model_type}): its configuration names no attention heads; "
            "a transformer with equal attention layers is allowed"
        ) from error
    model.eval()
    identity = identify(model, (layers, heads, kv_heads, head_dim))
    return LoadedModel(model, tokenizer, name, identity, layers, heads, kv_heads, head_dim)


def identify(model: Any, attention: tuple[int, ...]) -> str:
    """``<model type>-<parameters>-<12 hex digits>`` of a model's weights.

    The digits hash the attention's dimensions, the position embedding's parameters, and for each parameter
    its name, its shape, the sum of its bit patterns as float32 (exact, in any order, on any device) and a
    sample of its values. So the name does not depend on where a model was loaded from, nor on loading it in a
    wider dtype than it was saved in; any single changed weight changes it. It tells models apart, and is no
    protection against forgery.
    """
    config = model.config.get_text_config()
    shape = {
        "type": config.model_type,
        "attention": attention,
        "rope": getattr(config, "rope_parameters", None),
        "window": getattr(config, "sliding_window", None),
    }
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
    parameters = 0
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.is_meta:
                raise ValueError(f"parameter {name} is not in memory: a model in memory is allowed")
            values = parameter.detach().flatten().to(torch.float32)
            bits = int(values.view(torch.int32).sum(dtype=torch.int64))
            sample = values[:: max(1, values.numel() // 64)].cpu().numpy().tobytes()
            digest.update(f"{name} {tuple(parameter.shape)} {bits}".encode() + sample)
            parameters += parameter.numel()
    return f"{config.model_type}-{_short(parameters)}-{digest.hexdigest()[:12]}"


def _short(number: int) -> str:
    """A number in three digits or fewer: 134515008 is 135M."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _torch_dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    kind = torch.float32 if dtype is None else dtype
    if isinstance(kind, str):
        kind = getattr(torch, kind, kind)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"dtype {str(dtype)!r}: a float dtype of torch is allowed, such as float32")
    return kind


def _read(place: str, dtype: torch.dtype, *, local: bool) -> tuple[Any, Any]:
    """A model folder, or an id of the hub that is known to exist."""
    try:
        with quiet() if local else nullcontext():
            tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=local)
            model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, local_files_only=local)
    except Exception as error:  # from OSError for a missing file to whatever a corrupt one provokes
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"model {place!r} does not load ({type(error).__name__}: {reason})") from error
    return model, tokenizer


def _only_cached(name: str) -> bool:
    """Ask the hub for a model: False if it has it, True if it is unreachable but its cache has the model."""
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except HFValidationError as error:
        raise ValueError(f"model {name!r}: not a folder, a file, nor a hub id; {ALLOWED}") from error
    except GatedRepoError as error:
        raise ValueError(f"model {name!r} is gated: ask for access on the hub, then log in to it") from error
    except RepositoryNotFoundError as error:
        raise ValueError(f"model {name!r}: not a folder, a file, nor known to the hub; {ALLOWED}") from error
    except Exception as error:  # one kind for each HTTP library that the hub's client has used, and offline mode
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return True
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FetchError(
            f"model {name!r}: not a folder nor a file, and the hub is unreachable ({reason}); {ALLOWED}"
        ) from error
    return False
