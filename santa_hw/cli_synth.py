"""The command `santa-hw synth`: parse, call, print. Registered by `santa_hw.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def synth(
    block: Annotated[str | None, typer.Argument(help="Block. Default: all of them.", show_default=False)] = None,
    design: Annotated[Path | None, typer.Option(help="TOML file of a design. Default: the default design.")] = None,
    liberty: Annotated[Path | None, typer.Option(help="Library to map to. Default: two-input gates.")] = None,
    fpga: Annotated[
        str | None, typer.Option(help="Place and route on this family instead: ecp5.", show_default=False)
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of an RTL parameter that no design names; again for more.")
    ] = None,
    dut: Annotated[Path | None, typer.Option(help="SystemVerilog file in place of the block's.")] = None,
    top: Annotated[str | None, typer.Option(help="Module in that file. Default: the block's name.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Results as JSON.")] = None,
) -> None:
    """Count what RTL is made of: adders, multipliers, memory, register bits, gates, depth; or place it on an FPGA."""
    from santa_hw.console import check_files, print_table, reporting

    with reporting():
        import json

        from santa_hw import fpga as placing
        from santa_hw import synth as synthesis
        from santa_hw.cli_rtl import _design, _parameters

        if dut is not None and not dut.is_file():
            raise ValueError(f"--dut {dut}: there is no such file")
        if block is None and (dut is not None or parameter):
            raise ValueError("--dut and --parameter: name the block that they are for")
        if top is not None and dut is None:
            raise ValueError("--top has no effect without --dut: leave it out")
        if fpga is not None and liberty is not None:
            raise ValueError("--liberty has no effect with --fpga: leave it out")
        check_files({"--json": json_file}, {"--dut": dut, "--design": design, "--liberty": liberty})
        chosen = _design(design)
        what: dict[str, Any] = {
            "design": chosen,
            "parameters": _parameters(parameter or []),
            "files": None if dut is None else [dut],
        }
        names = [top or name for name in (synthesis.blocks() if block is None else (block,))]
        if fpga is None:
            netlists = [synthesis.netlist(name, mapped=True, liberty=liberty, **what) for name in names]
            found, shown = [netlist.to_dict() for netlist in netlists], synthesis.table(netlists)
        else:
            placements = [placing.place(name, fpga, **what) for name in names]
            found, shown = [placement.to_dict() for placement in placements], placing.table(placements)
        print_table(shown)
        if json_file is not None:
            document = {"design": chosen.to_dict(), "blocks": found}
            json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
