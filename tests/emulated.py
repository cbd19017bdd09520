"""The CUDA kernels' own source, run thread by thread on the processor, behind the GPU's operators."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from santa_hw import assets
from santa_hw.gpu import checks, fixed, library, operators, systematic

EMULATOR = Path(__file__).parent / "emulator"
LAUNCHES = ("santa_hw_decode", "santa_hw_trace", "santa_hw_union")


class EmulationError(RuntimeError):
    """No thread can go on, or a copy outlives its block."""


def build(folder: Path, *flags: str, edit: dict[str, tuple[str, str]] | None = None) -> ctypes.CDLL:
    """The kernels for the emulator, after `edit`: of a file, a text and what stands in its place."""
    for source in (*assets.path("gpu").glob("*.cuh"), assets.path("gpu") / "library.cu", *EMULATOR.iterdir()):
        shutil.copy(source, folder)
    for name, (old, new) in (edit or {}).items():
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text, (name, old)
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")
    always = ["-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-fno-strict-aliasing", "-fno-gnu-unique"]
    command = ["g++", *always, *flags, "kernels.cpp", "-o", "emulated.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(folder / "emulated.so"))


@contextlib.contextmanager
def on_processor(emulated: ctypes.CDLL, seed: int) -> Iterator[None]:
    """Calls of the operators with tensors of the processor run emulated, in a schedule drawn from `seed`."""

    def call(name: str, *arguments: Any) -> None:
        if code := getattr(emulated, name)(*arguments):
            raise library.KernelError(f"{name}: code {code}")
        if name in LAUNCHES and (wrong := emulated.emulator_synchronize()):
            raise EmulationError(f"{name}, schedule {seed}: {wrong.decode()}")

    emulated.emulator_synchronize.restype = ctypes.c_char_p
    for name, (result, arguments) in library._FUNCTIONS.items():
        if hasattr(emulated, name):
            function = getattr(emulated, name)
            function.restype, function.argtypes = result, arguments
    emulated.emulator_seed(ctypes.c_uint32(seed))
    implementations = torch.library.Library("santa_hw", "IMPL")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "call", call)
        patch.setattr(library, "library", lambda: emulated)
        patch.setattr(checks, "DEVICE_TYPE", "cpu")
        for module in (operators, fixed, systematic):
            patch.setattr(module, "stream", lambda: None)
        patch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        for name in ("decode_fixed", "decode_sys"):
            implementations.impl(name, operators.IMPLEMENTATIONS[name], "CPU")
        try:
            yield
        finally:
            implementations._destroy()
