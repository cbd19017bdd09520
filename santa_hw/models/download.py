"""Downloads from PyPI through the user's own pip, checked against a digest, into the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, time
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from santa_hw import assets

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds after which a wait gets a progress display."""

ABANDONED = 86400.0
"""Seconds without a new file after which nobody works in a work folder any more."""


class FetchError(ConnectionError, ValueError):
    """A download failed; also a ValueError, so that a command line reports it in one line."""


def cache_dir(cache: str | Path | None = None) -> Path:
    """The folder of everything that santa-hw downloads or converts.

    Parameters
    ----------
    cache : path, optional
        Wins over the environment.

    Returns
    -------
    Path
        `cache`, else what :func:`santa_hw.assets.cache` says. It need not exist.
    """
    return assets.cache() if cache is None else Path(cache).expanduser()


def pip_download(requirement: str, sha256: str, folder: Path, *, source: bool = False) -> Path:
    """Download one release without its dependencies, by the pip and the pip configuration of this Python.

    Parameters
    ----------
    requirement : str
        ``name==version``.
    sha256 : str
        Of the file. pip checks it before it looks inside, so a source archive that was tampered with is never
        run.
    folder : Path
        Where the file goes.
    source : bool
        The source archive instead of the wheel.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    FetchError
        With pip's own last error.
    """
    name = requirement.partition("==")[0]
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    target = folder / "download"
    options = ["--no-deps", "--require-hashes", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    options += ["--quiet", "--disable-pip-version-check", "--no-binary" if source else "--only-binary", name]
    command = [sys.executable, "-m", "pip", "download", *options]
    command += ["--dest", str(target), "--requirement", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    files = list(target.glob("*")) if target.is_dir() else []
    if result.returncode or len(files) != 1:
        raise FetchError(f"pip could not download {requirement}: {_pip_error(result.stderr)}")
    return files[0]


def _pip_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return " ".join(errors) or (lines[-1] if lines else "it says nothing")


def verify_sha256(path: Path, expected: str) -> None:
    """Raise ValueError if the file's SHA-256 is not `expected`."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise ValueError(f"{path.name} has sha256 {actual}: {expected} is allowed; the file is corrupt")


@contextmanager
def published(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A work folder beside `folder`; what the caller leaves in its ``out`` becomes `folder`, all at once.

    A reader sees the whole folder or none. If another process was faster, its folder stays; with `replace`, what is
    there stays until the new folder is whole. An exception publishes nothing, and the work folder is removed either
    way; one that a kill left, a day later.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}-*"):
        with suppress(FileNotFoundError):  # its own process has removed it
            if time() - left.stat().st_mtime > ABANDONED:
                remove(left)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        work = Path(name)
        (work / "out").mkdir()
        yield work
        if replace:
            remove(folder)
        try:
            (work / "out").rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def remove(folder: Path) -> None:
    """Delete a published folder, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Tell on stderr what a long wait is for: a spinner on a terminal, one line elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        console.print(f"{text} ...", markup=False, highlight=False, soft_wrap=True)
        yield


def track(items: Sequence[T], text: str) -> Iterator[T]:
    """Yield `items`; a progress bar appears on stderr once two seconds have passed."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(text, total=len(items))
    begin = monotonic()
    try:
        for item in items:
            yield item
            bar.advance(task)
            if not bar.live.is_started and monotonic() - begin > PATIENCE:
                bar.start()
    finally:
        if bar.live.is_started:
            bar.stop()
