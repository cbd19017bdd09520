"""Models that are kept: what a crash, a kill, a move or another machine does to them."""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path

import pytest

from santa_hw import assets, rtl
from santa_hw.design import Design
from santa_hw.rtl import simulation


def need(simulator: str) -> None:
    """Skip without the simulator; on CI nothing may be skipped."""
    if (lack := simulation.missing(simulator)) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(lack)


def build(simulator: str) -> Path:
    return simulation._build(rtl.load("exp2_weight"), Design(), simulator, {}, None, "exp2_weight", waves=False)


DAMAGE = {
    "empty": lambda file: file.write_bytes(b""),
    "torn": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "other": lambda file: file.write_bytes(b"?" * file.stat().st_size),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_damaged_is_made_anew(how, tmp_path: Path) -> None:
    folder, made = tmp_path / "model", []

    def make(place: Path) -> None:
        assert [file.name for file in place.iterdir()] == ["lock"]
        (place / "model").write_text("runs")
        (place / "model.o").write_text("object")
        made.append(1)

    assert simulation._once(folder, make, "model") == folder
    simulation._once(folder, make, "model")
    assert len(made) == 1
    DAMAGE[how](folder / "model")
    simulation._once(folder, make, "model")
    assert len(made) == 2
    assert (folder / "model").read_text() == "runs"


def test_what_a_kill_leaves_is_swept_away(tmp_path: Path) -> None:
    """make takes a torn object for done: it is newer than its source."""
    folder = tmp_path / "model"

    def killed(place: Path) -> None:
        (place / "torn.o").touch()
        (place / "part").mkdir()
        raise KeyboardInterrupt

    def make(place: Path) -> None:
        assert [file.name for file in place.iterdir()] == ["lock"]

    with pytest.raises(KeyboardInterrupt):
        simulation._once(folder, killed)
    simulation._once(folder, make)
    assert sorted(file.name for file in folder.iterdir()) == ["built", "lock"]


def test_a_model_that_is_there_needs_no_lock(tmp_path: Path, monkeypatch) -> None:
    """So that a folder which others filled, and nobody else may write, serves as a cache."""
    simulation._once(tmp_path / "model", lambda place: None)
    (tmp_path / "model" / "lock").unlink()
    monkeypatch.setattr(fcntl, "flock", lambda *_: pytest.fail("locked"))
    simulation._once(tmp_path / "model", lambda place: pytest.fail("made anew"))
    assert not (tmp_path / "model" / "lock").exists()


def test_a_damaged_model_runs_again(tmp_path: Path, monkeypatch) -> None:
    need("icarus")
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path))
    (build("icarus") / "sim.vvp").write_bytes(b"")
    assert rtl.cosimulate("exp2_weight", simulator="icarus", vectors=1).mismatch is None


def test_another_machine_has_models_of_its_own(tmp_path: Path, monkeypatch) -> None:
    """A home folder that several machines share is one cache for all of them."""
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path))
    monkeypatch.setattr(simulation, "_compile", lambda *_: None)
    need("icarus")
    places = {build("icarus")}
    for name, value in (("machine", "riscv128"), ("libc_ver", ("glibc", "9.9"))):
        monkeypatch.setattr(platform, name, lambda value=value: value)
        simulation._versions.cache_clear()
        places.add(build("icarus"))
    simulation._versions.cache_clear()
    assert len(places) == 3


def test_a_header_that_did_not_compile_is_none_until_it_does(tmp_path: Path, monkeypatch) -> None:
    need("verilator")
    (make := tmp_path / "make").write_text(
        "#!/bin/sh\necho torn > $2/model.h.fast.gch\necho >> $2/../tries\n[ -e $2/../space ]\n"
    )
    make.chmod(0o755)
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with simulation._environment(tmp_path):
        assert [simulation._header() for _ in range(2)] == [None, None]
        (simulation.cache() / "space").touch()
        header = simulation._header()
        assert header is not None and header.is_file()
        assert header.with_name("model.h.gch").read_text() == "torn\n"
        assert simulation._header() == header
    assert (simulation.cache() / "tries").read_text() == "\n" * 3


def test_a_cache_that_make_cannot_build_in_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path / "my cache"))
    with pytest.raises(ValueError, match=r"SANTA_HW_CACHE = .*my cache: a folder without spaces is allowed"):
        build("verilator")


def test_a_file_of_another_encoding_is_compiled(tmp_path: Path, monkeypatch) -> None:
    """Comments in Latin-1 are no matter to a simulator."""
    need("icarus")
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(simulation, "_compile", lambda *_: None)
    places = set()
    for word in ("Zähler", "Zahler"):
        (dut := tmp_path / "dut.sv").write_text(f"// {word}\nmodule mine; endmodule\n", encoding="latin-1")
        places.add(simulation._build(rtl.load("mass"), Design(), "icarus", {}, dut, "mine", waves=False))
    assert len(places) == 2


HOW = {
    "string": '`include "{}"',
    "macro": '`define WHERE "{}"\n`include `WHERE',
    "by another": '`include "{}.by"',
}


@pytest.mark.parametrize("how", HOW)
def test_a_change_in_an_included_file_is_compiled(how: str, tmp_path: Path, monkeypatch) -> None:
    """lfsr32 with its mask in a file of its own, right and then wrong."""
    need("icarus")
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path / "cache"))
    module = (assets.path("rtl_models") / "lfsr32" / "lfsr32.sv").read_text()
    assert module.count("32'hA3000000") == 1
    dut, mask = tmp_path / "dut.sv", tmp_path / "mask.svh"
    dut.write_text(HOW[how].format(mask) + "\n" + module.replace("32'hA3000000", "`MASK"))
    mask.with_name("mask.svh.by").write_text(f'`include "{mask}"')
    found = []
    for value in ("A3000000", "A3000001", "A3000000"):
        mask.write_text(f"`define MASK 32'h{value}\n")
        found.append(rtl.cosimulate("lfsr32", simulator="icarus", vectors=3, dut=dut).mismatch is None)
    assert found == [True, False, True]
    assert len(list((tmp_path / "cache" / "rtl").iterdir())) == 2


def test_files_that_include_each_other_are_read_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one.svh", tmp_path / "two.svh"
    one.write_text(f'`include <{two}> // "/{"x" * 300}", "/nowhere", "{tmp_path}"')
    two.write_text(f'`include "{one}"')
    assert sorted(simulation._included([one])) == [one, two]


def test_a_verilator_that_is_broken_speaks_for_itself(tmp_path: Path, monkeypatch) -> None:
    need("verilator")
    (broken := tmp_path / "verilator").write_text("#!/bin/sh\necho %Error: out of order\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    simulation._versions.cache_clear()
    with pytest.raises(ValueError, match="verilator cannot compile module exp2_weight: %Error: out of order"):
        build("verilator")
    simulation._versions.cache_clear()
