"""The command `santa-hw`: parse, call, print. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from santa_hw import __version__
from santa_hw.cli_budget import budget
from santa_hw.cli_energy import energy
from santa_hw.cli_fields import (
    FIELD_HELP,
    OWN_HELP,
    TEAM_HELP,
    base_and_axes,
    changes,
    comma_list,
    field_value,
    numbers,
    team_value,
    with_fields,
)
from santa_hw.cli_gpu import gpu
from santa_hw.cli_rtl import cosim, vectors
from santa_hw.cli_synth import synth
from santa_hw.console import check_files, print_table, progress, reporting

if TYPE_CHECKING:
    from santa_hw.models import LoadedModel

app = typer.Typer(
    name="santa-hw",
    help="Accuracy of a causal language model under bit-accurate, multiplier-free, sampled attention.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

CALIBRATION_TOKENS = 4096

_MADE = ("needle", "niah-multivalue", "fwe")
_DATA = ("qa", "gsm8k", "mmlu")
CHOICES = {"task": ("perplexity", *_MADE, *_DATA), "phases": ("decode", "prefill", "both")}
# Which task knows which option; given with another task, it is an error.
TASK_OPTIONS = {
    "windows": ("perplexity",),
    "window": ("perplexity",),
    "text": ("perplexity", "needle", "niah-multivalue"),
    "data": ("niah-multivalue", "fwe", *_DATA),
    "context": _MADE,
    "trials": (*_MADE, *_DATA),
    "phases": (*_MADE, *_DATA),
    "needles": ("needle", "niah-multivalue"),
}
# What made prompts need and given ones do not.
MADE_OPTIONS = ("text", "context", "needles")

SCHEDULE_HELP = "Budgets by layer: 16x10,64x20 (16 in ten layers, 64 in twenty), or a TOML file."


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    """Accuracy of a causal language model under bit-accurate, multiplier-free, sampled attention."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
@with_fields(FIELD_HELP | TEAM_HELP)
def accuracy(
    ctx: typer.Context,
    *,
    model: Annotated[str, typer.Option(help="Built-in model, hub id, folder or .gguf file.")] = "smollm2-135m-instruct",
    task: Annotated[str, typer.Option(help="What to score.", metavar="|".join(CHOICES["task"]))] = "perplexity",
    method: Annotated[
        str | None,
        typer.Option(
            help="santa, top-k, dense (fixed point); float-dense, -top-k, -santa, -strat, -sys, -prop, "
            "-flash (reference); santapp, top-teams, -means, -bounds (teams of keys). Default: santa,top-k,dense; "
            "santa on a CUDA device."
        ),
    ] = None,
    samples: Annotated[str | None, typer.Option(help="Budgets S, k of top-k, or teams M. Default: 16,64,256.")] = None,
    schedule: Annotated[str | None, typer.Option(help=SCHEDULE_HELP, metavar="SxLAYERS,...|FILE.toml")] = None,
    bits: Annotated[str | None, typer.Option(help="q, k and v bits together.")] = None,
    design: Annotated[
        Path | None, typer.Option(help="TOML file of a design, or of a schedule; other options change it.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 4,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    text: Annotated[
        str, typer.Option(help="Text to predict, or to hide needles in: a file or a built-in one.")
    ] = "shakespeare-eval",
    data: Annotated[
        str | None,
        typer.Option(
            help="Records: a file with a JSON object a line, or hub:dataset "
            "(needed by qa, gsm8k, mmlu; in place of made prompts with niah-multivalue, fwe)."
        ),
    ] = None,
    windows: Annotated[int, typer.Option(help="Windows of the text (perplexity).")] = 2,
    window: Annotated[int, typer.Option(help="Tokens of a window (perplexity).")] = 1024,
    context: Annotated[int, typer.Option(help="Tokens of prompt and reply (made prompts).")] = 1024,
    needles: Annotated[
        int | None,
        typer.Option(help="Numbers hidden in a prompt (needle, niah-multivalue). Default: 1, with multivalue 4."),
    ] = None,
    trials: Annotated[int, typer.Option(help="Prompts (all but perplexity).")] = 12,
    phases: Annotated[
        str,
        typer.Option(
            help="Replace attention in decode steps only, or in the prompt too (all but perplexity).",
            metavar="decode|prefill|both",
        ),
    ] = "decode",
    calibration: Annotated[Path | None, typer.Option(help="File from santa-hw calibrate.")] = None,
    calibration_text: Annotated[
        str, typer.Option(help="Text to calibrate on, where no file is given.")
    ] = "shakespeare-calibration",
    device: Annotated[str, typer.Option(help="Device of the model.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Number type of the model.")] = "float32",
    json_file: Annotated[
        Path, typer.Option("--json", help="Rows go here; rows that are there are not run again.")
    ] = Path("santa-hw-accuracy.json"),
    plot: Annotated[Path | None, typer.Option(help="Plot file: .png, .svg or .pdf.")] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after so many new rows.", min=1)] = None,
    **fields: str | None,
) -> None:
    """
    Accuracy of a model at design points, beside top-k and dense attention.

    Comma lists (--q-bits 4,6,8) make a grid. Rows are written as they come; a run that was killed resumes.
    """
    with reporting():
        from santa_hw import sweep
        from santa_hw.accuracy_rows import check_shown
        from santa_hw.design import load_budgets

        _check_given(ctx)
        if seeds < 1:
            raise ValueError(f"seeds = {seeds}: 1 or more is allowed")
        if not 0 <= seed <= (1 << 32) - seeds:
            raise ValueError(f"seed = {seed}: 0 to {(1 << 32) - seeds} is allowed")
        # The kernels sample; the multiplying baselines run on the CPU.
        standard = ["santa"] if device.startswith("cuda") else list(sweep.METHODS)
        methods = comma_list(method) or (None if design else standard)
        budgets = None if schedule is None else load_budgets(schedule)
        unbudgeted = {"dense", "float-dense"}
        defaults = None if design or budgets or methods is None or set(methods) <= unbudgeted else [16, 64, 256]
        teams = {name: text for name, text in fields.items() if name in TEAM_HELP}
        points = sweep.grid(
            *base_and_axes({name: text for name, text in fields.items() if name not in teams}, bits, design),
            methods=methods,
            samples=numbers("samples", samples) or defaults,
            schedule=budgets,
            seeds=range(seed, seed + seeds),
            team_axes=changes(teams, team_value),
        )
        needs_calibration = any(point.design is not None for point in points)
        if calibration is not None and not needs_calibration:
            raise ValueError(f"--calibration has no effect with method {method}: leave it out")
        size = window if task == "perplexity" else context
        sweep.check_keys(points, size)
        _check_plot(plot, {"--json": json_file, "--text": text, "--data": data, "--design": design, "--model": model})
        rows = sweep.Rows(json_file)
        if rows.rows:
            check_shown(rows.rows, json_file)
        with _keeping(json_file):
            _say(f"Loading {model}")
            loaded = _load(model, device, dtype)
            work, setting = sweep.open_task(
                loaded, task, text=text, data=data, windows=windows, window=window, context=context, needles=needles,
                trials=trials, phases=phases,
            )  # fmt: skip
            sweep.check_keys(points, work.keys)
            fixed = None
            if needs_calibration:
                count = max(1, CALIBRATION_TOKENS // size)
                fixed = sweep.open_calibration(
                    loaded, file=calibration, text=calibration_text, windows=count, window=size, task=work
                )
            with progress("Windows or trials", work.preparations + work.units * len(points)) as (bar, advance):

                def show(row: dict[str, Any], fresh: bool) -> None:
                    if fresh:
                        bar.console.print(_line(row), markup=False, highlight=False)
                    else:
                        advance(work.units)

                found = sweep.run(
                    loaded, work, setting, points, rows, calibration=fixed, on_row=show, tick=advance, limit=limit
                )
            _show(found, plot)
        _say(f"{len(found)} of {len(points)} rows in {json_file}")


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="File that santa-hw accuracy wrote.")],
    plot: Annotated[Path | None, typer.Option(help="Plot file: .png, .svg or .pdf.")] = None,
    x: Annotated[
        str | None, typer.Option("--x", help="samples, bits, kv_reads, group_kv_reads or a design field.")
    ] = None,
) -> None:
    """Table and plot of a file's rows."""
    with reporting():
        from santa_hw import sweep
        from santa_hw.accuracy_rows import check_shown

        _check_plot(plot, {"FILE": file})
        rows = sweep.read_rows(file)
        check_shown(rows, file)
        _show(rows, plot, x)


@app.command()
@with_fields(OWN_HELP | FIELD_HELP)
def design(
    file: Annotated[Path | None, typer.Option(help="TOML file of a design or a schedule; options change it.")] = None,
    schedule: Annotated[str | None, typer.Option(help=SCHEDULE_HELP, metavar="SxLAYERS,...|FILE.toml")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print TOML, for --file and --design.")] = False,
    **fields: str | None,
) -> None:
    """A design point with all its derived widths."""
    with reporting():
        from santa_hw.design import Design, Schedule, load_budgets, load_design

        changed = {name: field_value(name, text) for name, text in fields.items() if text is not None}
        chosen = (load_design(file) if file else Design()).replace(**changed)
        if schedule is not None:
            chosen = chosen.with_samples(load_budgets(schedule))
        layers = chosen.designs if isinstance(chosen, Schedule) else (chosen,)
        if as_json and as_toml:
            raise ValueError("--json and --toml: one of them is allowed")
        if as_json:
            described = [{"design": layer.to_dict(), "derived": layer.derived()} for layer in layers]
            typer.echo(json.dumps({"layers": described} if isinstance(chosen, Schedule) else described[0], indent=2))
        elif as_toml:
            typer.echo(chosen.to_toml(), nl=False)
        else:
            from santa_hw.report import design_table

            for layer in dict.fromkeys(layers):
                print_table(design_table(layer.to_dict(), layer.derived(), str(layer)))
            if isinstance(chosen, Schedule):
                typer.echo(str(chosen))


@app.command()
def calibrate(
    model: Annotated[str, typer.Option(help="Built-in model, hub id, folder or .gguf file.")] = "smollm2-135m-instruct",
    text: Annotated[str, typer.Option(help="Text; not the one that is evaluated.")] = "shakespeare-calibration",
    windows: Annotated[int, typer.Option(help="Windows of the text.")] = 4,
    window: Annotated[int, typer.Option(help="Tokens of a window.")] = 1024,
    out: Annotated[Path, typer.Option(help="File for --calibration.")] = Path("calibration.npz"),
    device: Annotated[str, typer.Option(help="Device of the model.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Number type of the model.")] = "float32",
) -> None:
    """Fix the K and V exponents of a model on a text of their own."""
    with reporting():
        from santa_hw import sweep

        check_files({"--out": out}, {"--text": text, "--model": model})
        _say(f"Loading {model}")
        found = sweep.open_calibration(_load(model, device, dtype), text=text, windows=windows, window=window)
        found.save(out)
        typer.echo(f"{out}: {found.tokens} tokens, model {found.identity}")


@app.command()
def capture(
    out: Annotated[Path, typer.Option(help="File for cosim --captured.")] = Path("capture.npz"),
    model: Annotated[str, typer.Option(help="Built-in model, hub id, folder or .gguf file.")] = "smollm2-135m-instruct",
    design: Annotated[Path | None, typer.Option(help="TOML file of a design. Default: the default design.")] = None,
    text: Annotated[str, typer.Option(help="Text: a file or a built-in one.")] = "shakespeare-eval",
    window: Annotated[int, typer.Option(help="Tokens of the text.")] = 256,
    layers: Annotated[str | None, typer.Option(help="Layers. Default: four, from the first to the last.")] = None,
    positions: Annotated[int, typer.Option(help="Positions, from the first to the last of the window.", min=1)] = 84,
    seed: Annotated[int, typer.Option(help="Seed of the random words.", min=0, max=(1 << 32) - 1)] = 0,
    calibration: Annotated[Path | None, typer.Option(help="File from santa-hw calibrate. Default: made now.")] = None,
    device: Annotated[str, typer.Option(help="Device of the model.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Number type of the model.")] = "float32",
) -> None:
    """Keep operand codes of a model's decode steps, for co-simulation."""
    with reporting():
        import numpy as np

        from santa_hw import models, sweep
        from santa_hw.design import Design
        from santa_hw.evaluate.perplexity import windows

        inputs = {"--text": text, "--model": model, "--design": design, "--calibration": calibration}
        check_files({"--out": out}, inputs)
        chosen = Design() if design is None else Design.from_toml(design)
        if positions > window:
            raise ValueError(f"--positions {positions}: at most the window's {window} tokens is allowed")
        _say(f"Loading {model}")
        loaded = _load(model, device, dtype)
        tokens = windows(loaded, models.load_text(text), 1, window)[0]
        fixed = sweep.open_calibration(loaded, file=calibration, text=models.CALIBRATION_TEXT)
        spread = np.linspace(0, loaded.layers - 1, min(4, loaded.layers)).round().astype(int).tolist()
        found = models.capture(
            loaded, chosen, fixed, tokens, seed=seed, layers=numbers("layers", layers) or spread,
            positions=np.linspace(0, window - 1, positions).round().astype(int).tolist(),
        )  # fmt: skip
        found.save(out)
        typer.echo(f"{out}: {len(found)} steps of groups of {found.group} heads, up to {window} keys, model {model}")


@app.command()
def fetch(
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is there.")] = False,
) -> None:
    """Get the default model and texts, for use without a network."""
    with reporting():
        from santa_hw import models

        typer.echo(models.fetch(force=force))


app.command()(budget)
app.command()(energy)
app.command()(cosim)
app.command()(vectors)
app.command()(synth)
app.add_typer(gpu)


def main() -> None:
    """Entry point of the console script."""
    app()


# Options ------------------------------------------------------------------------------------------


def _check_given(ctx: typer.Context) -> None:
    """Refuse a task or phases that there are not, and options that the task or another option makes idle."""
    task = ctx.params["task"]
    for name, allowed in CHOICES.items():
        if ctx.params[name] not in allowed:
            raise ValueError(f"--{name} {ctx.params[name]!r}: allowed are {', '.join(allowed)}")
    given = {name for name in ctx.params if ctx.get_parameter_source(name).name == "COMMANDLINE"}  # type: ignore[union-attr]
    for name, tasks in TASK_OPTIONS.items():
        if name in given and task not in tasks:
            raise ValueError(f"--{name} has no effect with --task {task}: leave it out, or choose {', '.join(tasks)}")
    if ctx.params["data"] is None and task in _DATA:
        raise ValueError(f"--task {task} needs --data: a file of JSON lines, or hub:dataset")
    for name in MADE_OPTIONS:
        if {"data", name} <= given:
            raise ValueError(f"--data and --{name}: one of them is allowed")
    if {"calibration", "calibration_text"} <= given:
        raise ValueError("--calibration and --calibration-text: one of them is allowed")


def _check_plot(plot: Path | None, inputs: Mapping[str, str | Path | None]) -> None:
    if plot is None:
        return
    from santa_hw.report import check_suffix

    check_suffix(plot)
    check_files({"--plot": plot}, inputs)


# Running and showing ------------------------------------------------------------------------------


def _load(model: str, device: str, dtype: str) -> LoadedModel:
    import torch
    import transformers

    from santa_hw import models

    transformers.logging.set_verbosity_error()
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device!r}: {str(error).splitlines()[0]}") from error
    return models.load(model, device=device, dtype=dtype)


@contextmanager
def _keeping(file: Path) -> Iterator[None]:
    """Whatever ends the run says where its results are."""
    try:
        yield
    except BaseException as error:
        if file.exists():
            error.add_note(f"results so far kept in {file}")
        raise


def _line(row: Mapping[str, Any]) -> str:
    """A row in one line, as it comes."""
    from santa_hw.design import budgets_text

    scores = [("KL", "kl_to_dense"), ("perplexity", "perplexity"), ("accuracy", "accuracy")]
    parts = [f"{title} {row[name]:.4g}" for title, name in scores if row[name] is not None]
    changed = row["design"] or {}
    budgets = row["schedule"] or [layer["samples"] for layer in changed.get("layers", ())]
    bits = [f"{name[0]}{changed[name]}" for name in ("q_bits", "k_bits", "v_bits") if name in changed]
    budget = budgets_text(budgets) if budgets else row["samples"]
    name = " ".join(str(part) for part in (row["method"], budget, *bits) if part is not None)
    return f"{name}, seed {row['seed']}: {', '.join(parts)} ({row['seconds']:.1f} s)"


def _show(rows: list[dict[str, Any]], plot: Path | None, x: str | None = None) -> None:
    from santa_hw import report as reports

    print_table(reports.table(rows))
    if plot is not None:
        reports.plot(rows, plot, x=x)
        _say(f"plot in {plot}")


def _say(line: str) -> None:
    typer.echo(line, err=True)
