"""Functions that numba compiles; their machine code is kept in the user's cache as long as no source changes."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
from numba.core import config

from santa_hw import assets

_PACKAGE = Path(__file__).resolve().parent
_IMPORT = b"from santa_hw.compiled import"


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`numba.njit` with a cache: a decorator, with or without options."""
    return partial(compiled, **options) if function is None else kept(partial(numba.njit, **options))(function)


def kept(decorator: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator of numba's (`njit`, or `vectorize` with its signatures), with a cache.

    numba looks at the file of the function itself. Machine code holds what the function calls too, wherever that
    stands, so each state of all these files has a folder of its own.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        place = folder()
        if place is None:
            return decorator()(function)
        before, config.CACHE_DIR = config.CACHE_DIR, str(place)
        try:
            return decorator(cache=True)(function)
        finally:
            config.CACHE_DIR = before

    return decorate


@cache
def folder() -> Path | None:
    """Where machine code goes: below ``$NUMBA_CACHE_DIR`` or the user's cache; None where nothing can be written."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources())).hexdigest()[:16]
    try:
        place = (Path(config.CACHE_DIR or assets.cache() / "numba") / digest).absolute()
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
        for file in place.glob("*/*.nb[ic]"):
            with suppress(FileNotFoundError):  # another process was faster
                if not _is_whole(file):
                    file.unlink()
    except (OSError, ValueError):  # every process compiles anew: slower, nothing else
        return None
    return place


def _is_whole(file: Path) -> bool:
    """Whether a file of numba's ends as pickles do, which numba would not ask before it fails on the file."""
    return file.read_bytes().endswith(b".")


def sources() -> list[Path]:
    """Files of the package with compiled functions."""
    return [file for file in sorted(_PACKAGE.rglob("*.py")) if _IMPORT in file.read_bytes()]
