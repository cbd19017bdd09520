"""The command `santa-hw energy`: parse, call, print. Registered by `santa_hw.cli`; nothing heavy is imported here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from santa_hw.cli_energy_options import (
    check_given,
    check_methods,
    check_own_files,
    design_of,
    memories_of,
    methods_of,
    naming_options,
    shape_of,
    stated_fields,
    tables_of,
)
from santa_hw.console import WIDTH, print_table, reporting

if TYPE_CHECKING:
    from santa_hw.cycles import Machine
    from santa_hw.design import Design
    from santa_hw.energy import Memory, Table
    from santa_hw.events import Shape

_SHAPE, _BUDGET, _TABLES, _MACHINE, _FROM = (
    "Shape", "Methods and budgets", "Energy tables", "Accelerator", "Beside accuracy",
)  # fmt: skip
KEYS = 32768
SAMPLES = 128
METHODS = "dense-bf16,dense,top-k,santa"
MOST_KEYS = 1 << 30


def energy(
    ctx: typer.Context,
    *,
    shape: Annotated[
        str | None,
        typer.Option(help="A known model, all its layers: llama-3.1-8b, smollm2-135m, ...", rich_help_panel=_SHAPE),
    ] = None,
    keys: Annotated[int, typer.Option(help="Cached keys that the step sees.", rich_help_panel=_SHAPE)] = KEYS,
    heads: Annotated[int | None, typer.Option(help="Query heads. Default: 32.", rich_help_panel=_SHAPE)] = None,
    kv_heads: Annotated[int | None, typer.Option(help="KV heads. Default: 8.", rich_help_panel=_SHAPE)] = None,
    head_dim: Annotated[int | None, typer.Option(help="Head dimension. Default: 128.", rich_help_panel=_SHAPE)] = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers, one after another. Default: 1, or the shape's.", rich_help_panel=_SHAPE)
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences, each with its own keys.", rich_help_panel=_SHAPE)] = 1,
    methods: Annotated[
        str,
        typer.Option(
            help="dense-bf16, dense-fp16, dense (int8 like the others), top-k, santa, santa-ternary, iid; or all.",
            rich_help_panel=_BUDGET,
        ),
    ] = METHODS,
    samples: Annotated[
        int | None, typer.Option(help="Budget S. Default: the design file's, or 128.", rich_help_panel=_BUDGET)
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="k of top-k. Default: S.", rich_help_panel=_BUDGET)] = None,
    ternary_samples: Annotated[
        int | None, typer.Option(help="Budget B of santa-ternary.", rich_help_panel=_BUDGET)
    ] = None,
    bits: Annotated[int | None, typer.Option(help="q, k and v bits together.", rich_help_panel=_BUDGET)] = None,
    design: Annotated[
        Path | None, typer.Option(help="TOML file of a design: every other width and choice.", rich_help_panel=_BUDGET)
    ] = None,
    unique_rows: Annotated[
        float | None,
        typer.Option(help="Distinct value rows a head reads, measured. Default: the bound.", rich_help_panel=_BUDGET),
    ] = None,
    group_rows: Annotated[
        float | None,
        typer.Option(
            help="The same for a KV head, after the union over its heads. Default: the bound.", rich_help_panel=_BUDGET
        ),
    ] = None,
    features: Annotated[
        float | None,
        typer.Option(
            help="Key features a KV head reads with ternary scores, measured. Default: as for normal queries.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    additions: Annotated[
        float | None,
        typer.Option(
            help="Additions a key and head with ternary scores, measured. Default: as for normal queries.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    table: Annotated[
        str, typer.Option(help="Logic tables: names, .toml files, or all.", rich_help_panel=_TABLES)
    ] = "horowitz-45nm",
    memory: Annotated[
        str, typer.Option(help="Off-chip memories: names, .toml files, or all.", rich_help_panel=_TABLES)
    ] = "hbm2",
    key_layout: Annotated[
        str, typer.Option(help="How keys lie in memory.", metavar="row|feature", rich_help_panel=_TABLES)
    ] = "row",
    burst: Annotated[
        int | None, typer.Option(help="Bytes of a burst. Default: the memory's.", rich_help_panel=_TABLES)
    ] = None,
    interleave: Annotated[
        int | None,
        typer.Option(help="Bytes in one channel before the next. Default: the memory's.", rich_help_panel=_TABLES),
    ] = None,
    score_memory: Annotated[
        int | None, typer.Option(help="Bytes of a head's score memory. Default: all keys.", rich_help_panel=_MACHINE)
    ] = None,
    engines: Annotated[int, typer.Option(help="Heads computed at once.", rich_help_panel=_MACHINE)] = 32,
    lanes: Annotated[int, typer.Option(help="Terms a cycle and engine.", rich_help_panel=_MACHINE)] = 128,
    weights_per_cycle: Annotated[
        int, typer.Option(help="Exponentials a cycle and engine in the mass pass.", rich_help_panel=_MACHINE)
    ] = 1,
    clock: Annotated[float, typer.Option(help="GHz.", rich_help_panel=_MACHINE)] = 1.0,
    bandwidth: Annotated[float, typer.Option(help="GB/s of off-chip memory.", rich_help_panel=_MACHINE)] = 256.0,
    latency: Annotated[float, typer.Option(help="ns of one access to it.", rich_help_panel=_MACHINE)] = 100.0,
    outstanding: Annotated[int, typer.Option(help="Value rows under way at once.", rich_help_panel=_MACHINE)] = 64,
    from_file: Annotated[
        Path | None, typer.Option("--from", help="File that santa-hw accuracy wrote.", rich_help_panel=_FROM)
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="KL, or accuracy, at which methods are compared: chosen beforehand.", rich_help_panel=_FROM),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Rows go here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot file: .png, .svg or .pdf.")] = None,
) -> None:
    """
    Energy, traffic and cycles of a decode step's attention, every pJ from a cited table.

    One table and memory: a bill by stage. Several (or all): which conclusions survive. With --from, cost beside the
    accuracy of a file's design points, and with --target the cost of equal accuracy.
    """

    with reporting(), naming_options(ctx):
        from santa_hw.cycles import Machine

        check_given(ctx, from_file)
        check_own_files(plot, json_file, from_file, design)
        if not 0 <= keys <= MOST_KEYS:
            raise ValueError(f"--keys {keys}: 0 to {MOST_KEYS} is allowed")
        tables, memories = tables_of(table), memories_of(memory)
        layout = {
            "key_layout": key_layout,
            "burst_bytes": burst,
            "interleave_bytes": interleave,
            "score_memory_bytes": score_memory,
        }
        layout = {name: value for name, value in layout.items() if value is not None}
        machine = Machine(engines, lanes, weights_per_cycle, clock, bandwidth, latency, outstanding)
        if from_file is not None:
            sizes = (heads, kv_heads, layers)
            rows = _beside_accuracy(from_file, shape, sizes, tables, memories, machine, layout, target, plot)
        else:
            where = shape_of(shape, heads, kv_heads, head_dim, layers, batch)
            named = methods_of(methods)
            check_methods(ctx, named)
            stated = stated_fields(design)
            rows = _bills(
                where,
                keys,
                named,
                design_of(design, keys, bits, ternary_samples),
                {"samples": stated.get("samples", SAMPLES) if samples is None else samples, "top_k": top_k},
                {"unique_rows": unique_rows, "group_rows": group_rows, "features": features, "additions": additions},
                tables,
                memories,
                machine,
                layout,
                plot,
                ctx=ctx,
                file=design,
                stated=stated,
            )
        if json_file is not None:
            _write(json_file, rows)
            typer.echo(f"{len(rows)} rows in {json_file}", err=True)


def _write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The whole file or none of it; a link stays a link."""
    text = json.dumps(rows, indent=1, allow_nan=False) + "\n"
    file = file.resolve()
    part = file.with_name(f".{file.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)


def _print_overridden(console: Any, file: Path, stated: Mapping[str, Any], work: Sequence[Any]) -> None:
    """Fields of a design file that methods, shape or keys take the place of."""
    for name in ("method", "scores", "sampler", "head_dim", "max_keys"):
        others = [item for item in work if item.numbers == "int" and stated.get(name) != getattr(item.design, name)]
        # A sampler is read by the methods that sample, scores by those that compute in fixed point.
        if name == "sampler":
            others = [item for item in others if item.design.method == "santa"]
        if name in stated and others:
            instead = ", ".join(f"{getattr(item.design, name)} for {item.method}" for item in others)
            console.print(f"{file}: {name} = {stated[name]} gives way to {instead}", highlight=False)


# Running and showing --------------------------------------------------------------------------------------------------


def _bills(
    shape: Shape,
    keys: int,
    methods: Sequence[str],
    design: Design,
    budgets: dict[str, Any],
    given: dict[str, float | None],
    tables: Sequence[Table],
    memories: Sequence[Memory],
    machine: Machine,
    layout: dict[str, Any],
    plot: Path | None,
    *,
    ctx: typer.Context,
    file: Path | None,
    stated: Mapping[str, Any],
) -> list[dict[str, Any]]:
    from santa_hw import report_cost
    from santa_hw.cost import cost_row
    from santa_hw.events import workload

    work = []
    for method in methods:
        own = {"samples": "top_k"} if method == "top-k" and budgets["top_k"] is not None else {}
        with naming_options(ctx, **own):
            work.append(workload(method, shape, keys, design=design, given=given, **budgets))
    rows = [
        cost_row(
            item,
            table,
            memory,
            machine=machine,
            parallel_heads=shape.heads * shape.batch,
            layout=memory.layout(**layout),
        )
        for table in tables
        for memory in memories
        for item in work
    ]
    console = _console()
    console.print(f"{shape}, {keys} keys", highlight=False)
    if len(tables) * len(memories) == 1:
        print_table(report_cost.cost_table(rows))
        print_table(report_cost.stage_table(rows))
        _print_sources(console, rows)
    else:
        print_table(report_cost.sensitivity_table(rows))
        console.print(report_cost.LIMITS)
    if file is not None:
        _print_overridden(console, file, stated, work)
    for note in dict.fromkeys(note for item in work for note in item.notes):
        named = ", ".join(item.method for item in work if note in item.notes)
        console.print(f"{note} ({named})", highlight=False)
    if plot is not None:
        report_cost.plot_cost(rows, plot)
        typer.echo(f"plot in {plot}", err=True)
    return rows


def _print_sources(console: Any, rows: Sequence[dict[str, Any]]) -> None:
    """How much of each bill rests on scaled numbers and on which confidence."""
    for row in rows:
        shares = ", ".join(f"{share:.0%} {name}" for name, share in row["confidence"].items() if share >= 0.005)
        console.print(f"{row['method']}: {row['scaled_share']:.0%} from scaled numbers; {shares}", highlight=False)


def _beside_accuracy(
    file: Path,
    shape_name: str | None,
    sizes: tuple[int | None, int | None, int | None],
    tables: Sequence[Table],
    memories: Sequence[Memory],
    machine: Machine,
    layout: dict[str, Any],
    target: float | None,
    plot: Path | None,
) -> list[dict[str, Any]]:
    from santa_hw import pareto, report_cost
    from santa_hw.events import Shape, shape_named
    from santa_hw.sweep import read_rows

    if plot is not None and len(tables) * len(memories) > 1:
        raise ValueError("--plot with --from: one --table and one --memory are allowed")
    found = read_rows(file)
    shape = None if shape_name is None else shape_named(shape_name)
    pareto.check_rows(found, file)
    if sizes[0] is not None and sizes[1] is not None and sizes[2] is not None:
        dims = {row["design"]["head_dim"] for row in found if pareto.method_of(row) is not None}
        shape = Shape(sizes[0], sizes[1], dims.pop() if len(dims) == 1 else 1, sizes[2])
    left_out = sum(pareto.method_of(row) is None for row in found)
    console = _console()
    rows: list[dict[str, Any]] = []
    for table in tables:
        for memory in memories:
            place = memory.layout(**layout)
            points = pareto.price(found, table, memory, machine=machine, shape=shape, layout=place, file=file)
            score = report_cost.score_name(points)
            reference = pareto.floating_reference(points, table, memory, shape=shape, layout=place)
            equal = [] if target is None else pareto.equal_accuracy(points, target)
            print_table(report_cost.priced_table(points))
            if reference is not None:
                console.print(f"dense-bf16 on the same steps: {report_cost.energy_text(reference)} a token")
            else:
                differ = ", ".join(pareto.differing(points))
                console.print(f"rows of several settings ({differ} differ): compare only those of one", highlight=False)
            if target is not None:
                print_table(report_cost.equal_table(equal, target, score))
            for note in dict.fromkeys(note for point in points for note in point.cost["notes"]):
                console.print(note, highlight=False)
            rows += [point.cost | {"score": score, "value": float(point.score.mean())} for point in points]
            rows += [_equal_row(item, target, table.name, memory.name) for item in equal]
            if plot is not None:
                report_cost.plot_pareto(points, plot, target=target, found=equal, reference=reference)
                typer.echo(f"plot in {plot}", err=True)
    if left_out:
        typer.echo(f"{left_out} rows of schedules or floating-point methods are left out", err=True)
    return rows


def _equal_row(item: Any, target: float | None, table: str, memory: str) -> dict[str, Any]:
    numbers = {"samples": item.samples, "total_pj": item.pj, "ratio_to_dense": item.ratio}
    cost = item.cost or {}
    return {
        "method": item.method,
        "table": table,
        "memory": memory,
        "target": target,
        "status": item.status,
        **{name: None if interval is None else interval.value for name, interval in numbers.items()},
        **{
            f"{name}_interval": None if interval is None else {"low": interval.low, "high": interval.high}
            for name, interval in numbers.items()
        },
        # Known where they were measured: a design between two budgets did not run.
        **{name: cost.get(name) for name in ("compute_pj", "memory_pj", "stages", "events", "cycles", "bound")},
        "reached": item.reached,
        "design": item.row and item.row["design"],
    }


def _console() -> Any:
    from rich.console import Console

    console = Console()
    # A file or a pipe has no width to keep to.
    return console if console.is_terminal else Console(width=WIDTH)
