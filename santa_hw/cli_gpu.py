"""The commands `santa-hw gpu build`, `validate` and `bench`: parse, call, print. Registered by `santa_hw.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FAULT = 1

gpu = typer.Typer(name="gpu", help="CUDA decode kernels: build, validate, measure.", no_args_is_help=True)


@gpu.command()
def build(
    arch: Annotated[
        str | None, typer.Option(help="Architectures, a comma list such as sm_80,sm_90. Default: this machine's GPU.")
    ] = None,
) -> None:
    """Compile the kernels now instead of at first use."""
    from santa_hw.console import reporting

    with reporting():
        from santa_hw.gpu.build import build as build_library

        names = None if arch is None else [name.strip() for name in arch.split(",")]
        typer.echo(build_library(names))


@gpu.command()
def validate(
    json_file: Annotated[Path | None, typer.Option("--json", help="Results as JSON.")] = None,
    only: Annotated[str | None, typer.Option(help="Checks to run, a comma list. Default: all.")] = None,
    captured: Annotated[Path | None, typer.Option(help="File from santa-hw capture.")] = None,
    record: Annotated[Path | None, typer.Option(help="Folder for vectors that tests compare the CPU with.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random operands.", min=0)] = 0,
) -> None:
    """Check the kernels against the golden model and the float64 references; exit code 1 if a check fails."""
    from santa_hw.console import check_files, progress, reporting

    with reporting():
        import json

        from santa_hw.gpu import recorded
        from santa_hw.gpu import validate as validation
        from santa_hw.gpu.environment import environment, require_gpu

        check_files({"--json": json_file}, {"--captured": captured})
        checks = validation.select(only)
        require_gpu()
        if record is not None:
            for path in recorded.record(record, seed):
                typer.echo(f"{path}: {path.stat().st_size} bytes")
        results = []
        with progress("Checks", len(checks)) as (_, advance):
            for check in checks:
                found = validation.run(check, seed, captured)
                results += found
                advance()
                failed = [result for result in found if not result.passed]
                name, total = check.__name__, len(found)
                typer.echo(f"{name}: {total - len(failed)} of {total} passed")
                for result in failed[:5]:
                    typer.echo(f"  failed: {result.shape}: {result.measured}")
        if json_file is not None:
            document = {"environment": environment(), "checks": [result.to_dict() for result in results]}
            json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        typer.echo(f"{sum(result.passed for result in results)} of {len(results)} results passed")
    if not all(result.passed for result in results):
        raise typer.Exit(FAULT)


@gpu.command()
def bench(
    shapes: Annotated[str | None, typer.Option(help="Sequences x keys, a comma list such as 1x4k,16x32k.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods to measure, a comma list. Default: all.")] = None,
    persist_l2: Annotated[
        int, typer.Option(help="Megabytes of L2 set aside for persisting data, for the whole device.", min=0)
    ] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Results as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot file: .png, .svg or .pdf.")] = None,
) -> None:
    """Time the kernels beside dense attention and the read floors."""
    from santa_hw.console import check_files, print_table, progress, reporting

    with reporting():
        import json

        from santa_hw.gpu import bench as benchmark
        from santa_hw.report import check_suffix

        check_files({"--json": json_file, "--plot": plot}, {})
        if plot is not None:
            check_suffix(plot)
        chosen_shapes = benchmark.SHAPES if shapes is None else tuple(part.strip() for part in shapes.split(","))
        chosen = benchmark.select(methods)
        with progress("Measurements", len(chosen_shapes) * len(chosen)) as (_, advance):
            found = benchmark.run(chosen_shapes, chosen, persist_l2=persist_l2, tick=advance)
        for table in benchmark.tables(found):
            print_table(table)
        if json_file is not None:
            document = {
                "environment": benchmark.setting(persist_l2),
                "measurements": [measurement.to_dict() for measurement in found],
            }
            json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if plot is not None:
            benchmark.plot(found, plot)
