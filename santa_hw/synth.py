"""What a block is made of: its netlist by yosys, before and after mapping.

Before mapping, a netlist still has adders and multipliers as cells with widths, which is where "multiplier-free" can be
checked and adders be counted. Yosys runs as a process of its own, through the ``pyosys`` wheel and its slang reader.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from santa_hw import assets
from santa_hw.design import Design
from santa_hw.rtl.lanes import lanes_of
from santa_hw.rtl.package import FILE, key_bits, keys_bits, package

if TYPE_CHECKING:
    from rich.table import Table

MULTIPLIERS = ("$mul", "$div", "$mod", "$divfloor", "$modfloor", "$pow", "$macc", "$macc_v2")
"""Cells that a multiplier-free netlist lacks."""

ADDERS = ("$add", "$sub", "$neg", "$alu")
"""Cells that add; a subtraction and a negation cost what an addition costs."""

INSTALL = "pip install 'santa-hw[rtl]'"
_MEMORIES = "written_memories"
_YOSYS = "import sys; from pyosys import libyosys as y; y.run_pass('script ' + sys.argv[1], y.Design())"


@dataclass(frozen=True)
class Netlist:
    """Cells of a module, flattened.

    Parameters
    ----------
    top : str
    cells : dict
        Cells before mapping by type, ``"$add"`` and so on.
    adders : dict
        Adders before mapping by the width of their result.
    rom_bits, memory_bits, register_bits : int
        Bits of read-only tables, of memories that are written, and of registers.
    gates : dict or None
        Cells after mapping to two-input gates or to a library, less the memories; None if it was not mapped.
    depth : int or None
        Gates on the longest path between registers or ports, two-input gates only.
    area : float or None
        In the library's unit.
    """

    top: str
    cells: dict[str, int]
    adders: dict[int, int]
    rom_bits: int
    memory_bits: int
    register_bits: int
    gates: dict[str, int] | None = None
    depth: int | None = None
    area: float | None = None

    @property
    def multipliers(self) -> dict[str, int]:
        """Cells that multiply or divide, by type."""
        return {name: n for name, n in self.cells.items() if name in MULTIPLIERS}

    @property
    def adder_bits(self) -> int:
        """Sum of the adders' widths."""
        return sum(width * n for width, n in self.adders.items())

    @property
    def gate_count(self) -> int | None:
        """Mapped cells in all, flip-flops among them."""
        return None if self.gates is None else sum(self.gates.values())

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, for JSON."""
        return {
            "block": self.top,
            "cells": self.cells,
            "adders": {str(width): n for width, n in sorted(self.adders.items())},
            "adder_bits": self.adder_bits,
            "multipliers": self.multipliers,
            "rom_bits": self.rom_bits,
            "memory_bits": self.memory_bits,
            "register_bits": self.register_bits,
            "gates": self.gates,
            "gate_count": self.gate_count,
            "depth": self.depth,
            "area": self.area,
        }


def missing() -> str | None:
    """How to install yosys if it is missing, or None."""
    return None if importlib.util.find_spec("pyosys") else f"yosys is not installed: {INSTALL}"


def netlist(
    top: str,
    *,
    design: Design | None = None,
    parameters: Mapping[str, int] | None = None,
    files: Sequence[Path] | None = None,
    mapped: bool = False,
    liberty: Path | None = None,
) -> Netlist:
    """Elaborate a module and count its cells.

    Parameters
    ----------
    top : str
        A block, or a module in `files`.
    design : Design, optional
        Its package is what the block takes its defaults from.
    parameters : mapping, optional
        Parameters of the module.
    files : sequence of Path, optional
        SystemVerilog files in place of the block's own.
    mapped : bool
        Also map to two-input gates, and measure depth.
    liberty : Path, optional
        Map to this library's cells instead, and add up their area.

    Raises
    ------
    ValueError
        If yosys is missing, or refuses the module; the message holds its own words.

    Examples
    --------
    >>> netlist("offset_scale").multipliers                                            # doctest: +SKIP
    {}
    """
    if (lack := missing()) is not None:
        raise ValueError(lack)
    if liberty is not None and not liberty.is_file():
        raise ValueError(f"liberty {liberty}: there is no such file")
    with tempfile.TemporaryDirectory(prefix="santa-hw-") as name:
        folder = Path(name)
        if liberty is not None:
            shutil.copy(liberty, folder / "library.lib")
        script = [
            *read(top, folder, design, parameters, files),
            "proc",
            "flatten",
            "opt_clean",
            "write_json generic.json",
        ]
        if mapped or liberty is not None:
            # A memory that is written is a macro: it is set aside, as a cell of its own.
            script += [
                "memory_collect",
                f"submod -name {_MEMORIES} t:$mem_v2 r:WR_PORTS>0 %i",
                f"setattr -mod -set blackbox 1 {_MEMORIES}",
            ]
            script += [f"synth -flatten -top {top}"]
            script += (
                ["dfflibmap -liberty library.lib", "abc -liberty library.lib", "opt_clean"]
                if liberty is not None
                else ["abc -g AND,OR,XOR,MUX", "opt_clean", "tee -q -o depth.txt ltp -noff"]
            )
            stat = "stat -json" + (" -liberty library.lib" if liberty is not None else "")
            script.append(f"tee -q -o stat.json {stat}")
        yosys(script, folder, top)
        found = _count(top, module_of(folder / "generic.json", top))
        if not mapped and liberty is None:
            return found
        stat_text = (folder / "stat.json").read_text()
        report = json.loads(stat_text[stat_text.index("{") :])["design"]
        depth = None
        if liberty is None:
            match = re.search(r"length=(\d+)", (folder / "depth.txt").read_text())
            depth = int(match.group(1)) if match else 0
        area = report.get("area")
        gates = {cell: n for cell, n in report["num_cells_by_type"].items() if cell != _MEMORIES}
        return replace(found, gates=gates, depth=depth, area=None if area is None else float(area))


def read(
    top: str,
    folder: Path,
    design: Design | None = None,
    parameters: Mapping[str, int] | None = None,
    files: Sequence[Path] | None = None,
) -> list[str]:
    """Copy a module's files into `folder`; the lines of a yosys script that read and elaborate it.

    Arguments as in :func:`netlist`.
    """
    (folder / FILE).write_text(package(design or Design()), encoding="utf-8")
    given = list(files or _sources(top))
    # Copies with plain names: a script's words are cut at blanks.
    names = [FILE, *(f"{i}_{file.name}".replace(" ", "_") for i, file in enumerate(given))]
    for copy, file in zip(names[1:], given, strict=True):
        shutil.copy(file, folder / copy)
    overrides = [f"-G {key}={int(value)}" for key, value in (parameters or {}).items()]
    return [
        " ".join(["read_slang -D SYNTHESIS --top", top, *overrides, *names]),
        f"hierarchy -check -top {top}",
    ]


def _sources(top: str) -> list[Path]:
    from santa_hw.rtl.blocks import load
    from santa_hw.rtl.simulation import sources

    return sources(load(top))


def blocks() -> tuple[str, ...]:
    """Every block of the datapath that has RTL; santa_decode multiplies if its scores are dense, and there alone."""
    return tuple(name for name in FORMULAS if (assets.path("rtl_models") / name / f"{name}.sv").is_file())


def yosys(script: Sequence[str], folder: Path, top: str) -> None:
    """Run a script in `folder`; ValueError with yosys' own words if it refuses module `top`."""
    file = folder / "script.ys"
    file.write_text("\n".join(script) + "\n", encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-c", _YOSYS, str(file)],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=folder,
        check=False,
    )
    if run.returncode:
        lines = (run.stdout + run.stderr).splitlines()
        told = next((line for line in lines if "error:" in line.lower()), lines[-1] if lines else "no message")
        raise ValueError(f"yosys refuses module {top}: {told.strip()}")


def module_of(file: Path, top: str) -> dict[str, Any]:
    """The top module of a netlist that yosys wrote as JSON."""
    modules: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["modules"]
    for name, module in modules.items():
        if name == top or "top" in module.get("attributes", {}):
            return module
    raise ValueError(f"yosys kept no module {top}")


def _count(top: str, module: dict[str, Any]) -> Netlist:
    cells: Counter[str] = Counter()
    adders: Counter[int] = Counter()
    registers = 0
    memories = {name: memory["size"] * memory["width"] for name, memory in module.get("memories", {}).items()}
    written = set()
    for cell in module["cells"].values():
        kind, values = cell["type"], cell.get("parameters", {})
        cells[kind] += 1
        if kind in ADDERS:
            adders[_integer(values["Y_WIDTH"])] += 1
        elif "dff" in kind:
            registers += _integer(values["WIDTH"])
        elif kind.startswith("$memwr"):
            written.add(values["MEMID"].removeprefix("\\"))
    ram = sum(bits for name, bits in memories.items() if name in written)
    rom = sum(memories.values()) - ram
    return Netlist(top, dict(sorted(cells.items())), dict(sorted(adders.items())), rom, ram, registers)


def _integer(value: str | int) -> int:
    return int(value, 2) if isinstance(value, str) else value


def table(netlists: Sequence[Netlist]) -> Table:
    """A row a block: adders as count x width, multipliers, table, memory and register bits, gates, depth or area."""
    from rich.table import Table

    mapped_area = any(n.area is not None for n in netlists)
    found = Table()
    found.add_column("block")
    found.add_column("adders (count x bits)")
    for title in (
        "multipliers",
        "table bits",
        "memory bits",
        "register bits",
        "gates",
        "area" if mapped_area else "depth",
    ):
        found.add_column(title, justify="right")
    for n in netlists:
        adders = ", ".join(f"{count} x {width}" for width, count in sorted(n.adders.items(), reverse=True)) or "none"
        last = f"{n.area:g}" if n.area is not None else n.depth
        found.add_row(
            n.top, adders, *(str(x) for x in (sum(n.multipliers.values()), n.rom_bits, n.memory_bits, n.register_bits)),
            *("" if x is None else str(x) for x in (n.gate_count, last)),
        )  # fmt: skip
    return found


# Adders of each block -------------------------------------------------------------------------------------------------
#
# What a block may add, before mapping, as {width: how many}. A product spelt as shifts and additions, or a multiplier
# that a synthesiser has unrolled, needs more. Counters are adders too.


def _counter(*widths: int) -> Counter[int]:
    return Counter(widths)


def _beat_bits(design: Design, lanes: int) -> int:
    """Width of a counter over the beats of a row."""
    return max(1, (design.head_dim // lanes - 1).bit_length())


def _gather_accumulate(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    derived, lanes = design.derived(), parameters.get("Lanes", lanes_of(None, design))
    counters = [_beat_bits(design, lanes)] + ([] if design.gather == "shift_add" else [derived["count"]])
    return _counter(*[derived["accumulator"]] * lanes, *counters)


def _shift_normalise(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    bits = parameters.get("InBits", design.derived()["accumulator"])
    return _counter(*[bits + 1] * parameters.get("Lanes", lanes_of(None, design)))


def _threefry2x32(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    # A round's sum; an injection's key for each half and its number; the first injection for each half; two counters.
    return _counter(*[32] * 6, 3, 5)


def _lfsr32(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    return _counter(6, parameters.get("CountBits", 18))


def _exp2_weight(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    shift = design.derived()["score_integer_part"]
    return _counter(shift, *([shift, design.W + 1] if design.weight_rounding == "half_up" else []))


def _mass(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    return _counter(design.derived()["mass"], *[keys_bits(design)] * 2)


def _offset_scale(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    return _counter(design.derived()["mass"] + 1, 6)


def _systematic_sampler(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    # The residual's sum and its carry in are two cells for one adder.
    derived = design.derived()
    return _counter(*[derived["residual"]] * 2, *[derived["count"]] * 2, *[key_bits(design)] * 2, keys_bits(design))


def _ternary_query(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    magnitude, count = design.q_bits - 1, design.beta + 1
    draw = [count, count] if design.ternary_draw == "iid" else [magnitude + count]
    return _counter(magnitude, *draw, count + 1)


def _ternary_dot(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    lanes, k = parameters.get("Lanes", lanes_of(None, design)), design.k_bits
    total = design.replace(scores="ternary", ternary_block=None).derived()["score_accumulator"]
    tree = [k + level for level in range(1, lanes.bit_length()) for _ in range(lanes >> level)]
    counters = [max(1, (design.head_dim - 1).bit_length()), _beat_bits(design, lanes), design.beta + 1]
    return _counter(*[k] * lanes, *tree, total, design.beta + 1, *counters)


def _score_sampler(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    parts = (_exp2_weight, _mass, _offset_scale, _systematic_sampler)
    own = _counter(key_bits(design), keys_bits(design), *[design.derived()["count"]] * 2)
    return sum((part(design, parameters) for part in parts), own)


def _mac_dot(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    lanes, term = parameters.get("Lanes", lanes_of(None, design)), design.q_bits + design.k_bits - 1
    tree = [term + level for level in range(1, lanes.bit_length()) for _ in range(lanes >> level)]
    counters = [max(1, (design.head_dim - 1).bit_length()), _beat_bits(design, lanes)]
    return _counter(*tree, design.replace(scores="dense").derived()["score_accumulator"], *counters)


def _santa_decode(design: Design, parameters: Mapping[str, int]) -> Counter[int]:
    lanes, group = parameters.get("Lanes", lanes_of(None, design)), parameters.get("Group", 1)
    dots = (_ternary_query, _ternary_dot) if design.scores == "ternary" else (_mac_dot,)
    found = Counter(
        {
            width: n * group
            for width, n in sum(
                (part(design, parameters) for part in (*dots, _score_sampler, _gather_accumulate)), Counter()
            ).items()
        }
    )
    found += _shift_normalise(design, {"Lanes": group, "InBits": design.derived()["score_accumulator"]})
    if design.out_bits is not None:
        found += _shift_normalise(design, {"Lanes": group * lanes})
    rows = parameters.get("Outstanding", 4).bit_length()
    features = max(1, (design.head_dim - 1).bit_length())
    return found + _counter(features, _beat_bits(design, lanes), keys_bits(design), rows, rows)


Formula = Callable[[Design, Mapping[str, int]], Counter[int]]

FORMULAS: dict[str, Formula] = {
    "threefry2x32": _threefry2x32,
    "lfsr32": _lfsr32,
    "exp2_weight": _exp2_weight,
    "mass": _mass,
    "offset_scale": _offset_scale,
    "systematic_sampler": _systematic_sampler,
    "ternary_query": _ternary_query,
    "ternary_dot": _ternary_dot,
    "gather_accumulate": _gather_accumulate,
    "shift_normalise": _shift_normalise,
    "score_sampler": _score_sampler,
    "santa_decode": _santa_decode,
}
"""Adders of each block of the datapath, (design, parameters) -> {width: how many}."""


def expected_adders(block: str, design: Design, parameters: Mapping[str, int] | None = None) -> dict[int, int]:
    """The adders that `block` has, by width, before mapping."""
    return dict(sorted(FORMULAS[block](design, parameters or {}).items()))


def expected_multipliers(block: str, design: Design, parameters: Mapping[str, int] | None = None) -> dict[str, int]:
    """None, but for the lanes of santa_decode's dense scores."""
    if block != "santa_decode" or design.scores == "ternary":
        return {}
    given = parameters or {}
    return {"$mul": given.get("Group", 1) * given.get("Lanes", lanes_of(None, design))}


def expected_rom_bits(block: str, design: Design, parameters: Mapping[str, int] | None = None) -> int:
    """The table's bits, 2**score_frac * weight_bits, in the blocks that have it; santa_decode has one a head."""
    tables = {"exp2_weight": 1, "score_sampler": 1, "santa_decode": (parameters or {}).get("Group", 1)}
    return tables.get(block, 0) * design.derived()["table_bits"]


def expected_memory_bits(block: str, design: Design, parameters: Mapping[str, int] | None = None) -> int:
    """Bits of the score memory and of the drawn keys' FIFO, where there are any; santa_decode has both a head."""
    samplers = {"score_sampler": 1, "santa_decode": (parameters or {}).get("Group", 1)}
    entry = key_bits(design) + design.derived()["count"] + 1
    return samplers.get(block, 0) * (design.max_keys * (design.score_bits + 1) + design.samples * entry)
