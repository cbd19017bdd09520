"""The commands `santa-hw cosim` and `santa-hw vectors`: parse, call, print. Registered by `santa_hw.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from santa_hw.design import Design
    from santa_hw.rtl import Block

MISMATCH = 1


def cosim(
    block: Annotated[str | None, typer.Argument(help="Block. Default: all of them.", show_default=False)] = None,
    simulator: Annotated[str, typer.Option(help="Simulator.", metavar="verilator|icarus")] = "verilator",
    design: Annotated[Path | None, typer.Option(help="TOML file of a design. Default: the default design.")] = None,
    vectors: Annotated[int, typer.Option(help="Vectors of each block.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of vectors, idle cycles and back-pressure.", min=0)] = 0,
    pattern: Annotated[
        str, typer.Option(help="Idle cycles and back-pressure.", metavar="full|idle|stall|both|slow|after")
    ] = "both",
    parameter: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of an RTL parameter that no design names; again for more.")
    ] = None,
    dut: Annotated[Path | None, typer.Option(help="SystemVerilog file to run in place of the block's.")] = None,
    top: Annotated[str | None, typer.Option(help="Module in that file. Default: the block's name.")] = None,
    captured: Annotated[
        Path | None, typer.Option(help="Steps from santa-hw capture, their design included, for block santa_decode.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Results as JSON.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Results as JUnit XML.")] = None,
) -> None:
    """Run RTL in a simulator against the golden model; stop at the first difference."""
    from santa_hw.console import check_files, progress, reporting

    with reporting():
        from santa_hw import rtl
        from santa_hw.rtl.results import write_json, write_junit

        if block is None and (dut is not None or parameter or captured is not None):
            raise ValueError("--dut, --parameter and --captured: name the block that they are for")
        if top is not None and dut is None:
            raise ValueError("--top has no effect without --dut: leave it out")
        inputs = {"--dut": dut, "--design": design, "--captured": captured}
        check_files({"--json": json_file, "--junit": junit}, inputs)
        if block is None:
            chosen, blocks = _design(design), [rtl.load(name) for name in rtl.NAMES]
        else:
            chosen, one = _work(block, design, captured)
            blocks = [one]
        reports = []
        with progress("Vectors", vectors * len(blocks)) as (_, advance):
            for each in blocks:
                report = rtl.cosimulate(
                    each, design=chosen, simulator=simulator, vectors=vectors, seed=seed, pattern=pattern,
                    parameters=_parameters(parameter or []), dut=dut, top=top, waves=True, advance=advance,
                )  # fmt: skip
                reports.append(report)
                typer.echo(f"{report.block}, {simulator}: {report.cycles} cycles, values compared: {report.values}")
                if report.mismatch is not None:
                    typer.echo(str(report))
                    break
        if json_file is not None:
            write_json(reports, json_file)
        if junit is not None:
            write_junit(reports, junit)
        if reports[-1].mismatch is None:
            typer.echo(f"{sum(report.vectors for report in reports)} vectors, 0 mismatches")
    if reports[-1].mismatch is not None:
        raise typer.Exit(MISMATCH)


def vectors(
    block: Annotated[str, typer.Argument(help="Block.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    design: Annotated[Path | None, typer.Option(help="TOML file of a design. Default: the default design.")] = None,
    count: Annotated[int, typer.Option("--vectors", help="Vectors.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed.", min=0)] = 0,
    parameter: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of an RTL parameter that no design names; again for more.")
    ] = None,
    captured: Annotated[
        Path | None, typer.Option(help="Steps from santa-hw capture, their design included, for block santa_decode.")
    ] = None,
) -> None:
    """Write a block's stimulus and expected values as $readmemh hex, npz and a manifest."""
    from santa_hw.console import progress, reporting

    with reporting():
        from santa_hw.rtl.export import write_vectors

        chosen, one = _work(block, design, captured)
        with progress("Vectors", count) as (_, advance):
            manifest = write_vectors(one, chosen, count, seed, out, _parameters(parameter or []), advance)
        beats = sum(stream["beats"] for stream in manifest["streams"])
        typer.echo(f"{out}: {count} vectors, {beats} beats in {len(manifest['streams'])} streams")


def _design(path: Path | None) -> Design:
    from santa_hw.design import Design

    return Design() if path is None else Design.from_toml(path)


def _work(block: str, design: Path | None, captured: Path | None) -> tuple[Design, Block]:
    """The design and the block, whose vectors are captured steps if there are any."""
    from santa_hw.rtl import load

    if captured is None:
        return _design(design), load(block)
    if block != "santa_decode":
        raise ValueError(f"--captured with block {block}: santa_decode is allowed")
    if design is not None:
        raise ValueError("--design and --captured: one of them is allowed, a capture has its own design")
    from santa_hw.capture import Capture
    from santa_hw.rtl.blocks import santa_decode

    capture = Capture.load(captured)
    return capture.design, santa_decode.captured(capture)


def _parameters(given: list[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value.isdecimal():
            raise ValueError(f"--parameter {text!r}: NAME=VALUE with a whole number is allowed")
        found[name] = int(value)
    return found
