"""Compiles the CUDA kernels into one shared library, kept in the user's cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from santa_hw import assets

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100")
"""What the kernels are compiled for in the project's own tests."""

LIBRARY, DIGEST = "libsanta_hw.so", "sha256"
"""Names in a build's folder."""

INSTALL = "pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl"
FLAGS = ("-std=c++17", "-O3", "-Xcompiler=-fPIC", "-Xptxas=-v", "--threads=1")
EXTRA_FLAGS = "SANTA_HW_NVCC_FLAGS"
"""Environment variable with flags to add: ``-DSANTA_RACECHECK`` for compute-sanitizer's racecheck."""


class CompilerMissing(ValueError):  # noqa: N818 (it says what it is)
    """There is no nvcc; the message says how to install one."""


@dataclass(frozen=True)
class Spill:
    """A kernel that keeps registers in memory: its mangled name, architecture, and bytes stored and loaded."""

    kernel: str
    architecture: str
    stores: int
    loads: int


def cache() -> Path:
    """Where builds go: a folder in the user's cache (:func:`santa_hw.assets.cache`)."""
    return assets.cache() / "gpu"


def compiler() -> tuple[str, list[str]]:
    """The nvcc to use and the flags that it needs: of ``PATH``, of ``$CUDA_HOME``, or of NVIDIA's wheels.

    Raises
    ------
    CompilerMissing
    """
    if found := shutil.which("nvcc"):
        return found, []
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    if (Path(home) / "bin" / "nvcc").is_file():
        return str(Path(home) / "bin" / "nvcc"), []
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for nvcc in sorted(Path(folder).glob("cu*/bin/nvcc"), reverse=True):
            return str(nvcc), [f"-L{nvcc.parent.parent / 'lib'}"]
    raise CompilerMissing(f"nvcc is not on PATH, in $CUDA_HOME or among NVIDIA's wheels: {INSTALL}")


def build(arch: str | Iterable[str] | None = None) -> Path:
    """The library for some architectures, compiled unless the cache has it.

    Parameters
    ----------
    arch : str or iterable of str, optional
        Such as ``"sm_90"``, or ``"compute_80"`` for code that the driver translates. Default: this machine's GPU.

    Returns
    -------
    Path
        Of ``libsanta_hw.so``; ``build.log`` beside it holds what the compiler said.

    Raises
    ------
    ValueError
        If an architecture is no such name, there is no nvcc, or the compiler fails.
    """
    names = _architectures(arch)
    sources = assets.path("gpu")
    files = sorted([*sources.glob("*.cuh"), *sources.glob("*.cu")])
    flags = [*FLAGS, *os.environ.get(EXTRA_FLAGS, "").split()]
    digest = hashlib.sha256(repr((names, flags, platform.machine())).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    name = f"{'-'.join(names)}-{digest.hexdigest()[:16]}"
    try:
        nvcc, extra = compiler()
    except CompilerMissing:
        built = [library for library in cache().glob(f"{name}-*/{LIBRARY}") if _is_whole(library)]
        if not built:
            raise
        return max(built, key=lambda library: library.stat().st_mtime)
    # A driver refuses what a newer compiler built: the one that is installed then has its own.
    version = subprocess.run([nvcc, "--version"], capture_output=True).stdout
    folder = cache() / f"{name}-{hashlib.sha256(version).hexdigest()[:8]}"
    library = folder / LIBRARY
    if _is_whole(library):
        return library
    with _locked(folder):
        if not _is_whole(library):
            _compile(nvcc, flags, extra, names, [file for file in files if file.suffix == ".cu"], folder)
    return library


def _is_whole(library: Path) -> bool:
    """Whether a library is there as it was built."""
    digest = library.with_name(DIGEST)
    return library.is_file() and digest.is_file() and digest.read_text("ascii") == _digest(library)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def spills(library: Path) -> list[Spill]:
    """Kernels of a built library that spill registers, from the compiler's report."""
    found = []
    kernel = architecture = ""
    for line in (library.parent / "build.log").read_text(encoding="utf-8").splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            kernel, architecture = match.groups()
        elif match := re.search(r"Function properties for (\S+)", line):
            kernel = match.group(1)
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stores, loads = int(match.group(1)), int(match.group(2))
            if stores or loads:
                found.append(Spill(kernel, architecture, stores, loads))
    return found


def _architectures(arch: str | Iterable[str] | None) -> tuple[str, ...]:
    if arch is None:
        import torch

        if not torch.cuda.is_available():
            raise ValueError(f"arch = None: this machine has no CUDA GPU; allowed are names such as {ARCHITECTURES}")
        major, minor = torch.cuda.get_device_capability()
        return (f"sm_{major}{minor}",)
    names = (arch,) if isinstance(arch, str) else tuple(arch)
    for name in names:
        if not re.fullmatch(r"(sm|compute)_\d+[af]?", name):
            raise ValueError(f"arch = {name!r}: names such as {', '.join(ARCHITECTURES)} are allowed")
    if not names:
        raise ValueError("arch = (): at least one architecture is allowed")
    return names


def _target(name: str) -> str:
    number = name.split("_")[1]
    return f"-gencode=arch=compute_{number},code={name}"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One builder at a time for a folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(
    nvcc: str, flags: list[str], extra: list[str], names: tuple[str, ...], sources: list[Path], folder: Path
) -> None:
    """Compile each source, for all architectures in one object, beside the others; link; put the folder in place."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        objects = {source: Path(work) / f"{source.stem}.o" for source in sources}

        def run(source: Path) -> str:
            return _call([nvcc, *flags, *map(_target, names), "-c", str(source), "-o", str(objects[source])])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            logs = list(pool.map(run, sources))
        made = Path(work) / "made"
        made.mkdir()
        _call([nvcc, "-shared", *extra, *map(str, objects.values()), "-o", str(made / LIBRARY)])
        (made / DIGEST).write_text(_digest(made / LIBRARY), encoding="ascii")
        (made / "build.log").write_text("".join(logs), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise ValueError(f"the compiler failed: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr
