"""The compiled kernels that are kept, with a compiler that only pretends: damage, other compilers, other machines."""

import platform

import pytest

from santa_hw.gpu import build as building
from santa_hw.gpu.library import KernelError
from santa_hw.gpu.library import library as load

NVCC = """#!/bin/sh
echo called "$@" >> {log}
case "$*" in *--version*) echo {version}; exit 0;; esac
while [ $# -gt 0 ]; do case $1 in -o) echo {version} > "$2";; esac; shift; done
"""


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """Put a compiler of some version on the path."""
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "bin").mkdir()

    def install(version):
        file = tmp_path / "bin" / "nvcc"
        file.write_text(NVCC.format(log=tmp_path / "log", version=version))
        file.chmod(0o755)

    install("13.0")
    return install


def compilations(tmp_path):
    return sum(" -shared " in line for line in (tmp_path / "log").read_text().splitlines())


def test_a_library_is_built_once(nvcc, tmp_path):
    assert building.build("sm_90") == building.build("sm_90")
    assert compilations(tmp_path) == 1


@pytest.mark.parametrize("content", [b"", b"13", None])
def test_a_damaged_library_is_built_anew(nvcc, tmp_path, content):
    library = building.build("sm_90")
    library.unlink() if content is None else library.write_bytes(content)
    assert building.build("sm_90").read_text() == "13.0\n"
    assert compilations(tmp_path) == 2


def test_another_compiler_builds_anew(nvcc):
    """What CUDA 13 built, a driver of CUDA 12 refuses, whatever is installed afterwards."""
    newer = building.build("sm_90")
    nvcc("12.4")
    assert building.build("sm_90").read_text() == "12.4\n"
    nvcc("13.0")
    assert building.build("sm_90") == newer


def test_a_library_outlives_its_compiler(nvcc, monkeypatch):
    def missing():
        raise building.CompilerMissing("no nvcc")

    with monkeypatch.context() as before:
        before.setattr(building, "compiler", missing)
        with pytest.raises(building.CompilerMissing):
            building.build("sm_90")
    library = building.build("sm_90")
    monkeypatch.setattr(building, "compiler", missing)
    assert building.build("sm_90") == library
    library.write_bytes(b"")
    with pytest.raises(building.CompilerMissing):
        building.build("sm_90")


def test_another_machine_builds_anew(nvcc, monkeypatch):
    library = building.build("sm_90")
    monkeypatch.setattr(platform, "machine", lambda: "riscv128")
    assert building.build("sm_90") != library


def test_a_library_that_cannot_be_loaded_is_told(tmp_path):
    library = tmp_path / building.LIBRARY
    library.write_text("from a newer machine")
    with pytest.raises(KernelError, match=f"without {tmp_path} it is built anew"):
        load(library)
