"""The command `santa-hw budget`: parse, call, print. Registered by `santa_hw.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from santa_hw.budget.reward import OpenReward, TaskReward
    from santa_hw.budget.workers import Crew

SCHEDULE = "schedule.toml"
_RUN, _TASK = "Where it runs", "Task"


def budget(
    ctx: typer.Context,
    *,
    total: Annotated[int, typer.Option(help="Sum of all layers' budgets S.")],
    episodes: Annotated[int, typer.Option(help="Schedules to try, those of earlier runs in the folder included.")],
    out: Annotated[Path, typer.Option(help="Folder of the run: episodes that are there are not run again.")],
    method: Annotated[
        str,
        typer.Option(
            help="santa, top-k (fixed point); float-top-k, -santa, -strat, -sys, -prop, -flash (reference). "
            "Budgets of santa are powers of two."
        ),
    ] = "float-sys",
    design: Annotated[Path | None, typer.Option(help="TOML file of a design, for santa and top-k.")] = None,
    seed: Annotated[int, typer.Option(help="Of schedules and random words.")] = 0,
    rate: Annotated[float | None, typer.Option(help="Learning rate. Default: 0.06.")] = None,
    model: Annotated[str, typer.Option(help="Built-in model, hub id, folder or .gguf file.")] = "smollm2-135m-instruct",
    task: Annotated[
        str, typer.Option(help="What to score: a task of santa-hw accuracy.", rich_help_panel=_TASK)
    ] = "perplexity",
    text: Annotated[
        str, typer.Option(help="Text to learn on; judge the schedule by another.", rich_help_panel=_TASK)
    ] = "shakespeare-calibration",
    data: Annotated[
        str | None,
        typer.Option(
            help="Records to learn on, for tasks that take them: a file, or hub:dataset.", rich_help_panel=_TASK
        ),
    ] = None,
    windows: Annotated[int, typer.Option(help="Windows of the text (perplexity).", rich_help_panel=_TASK)] = 1,
    window: Annotated[int, typer.Option(help="Tokens of a window (perplexity).", rich_help_panel=_TASK)] = 512,
    context: Annotated[
        int, typer.Option(help="Tokens of prompt and reply (made prompts).", rich_help_panel=_TASK)
    ] = 1024,
    needles: Annotated[
        int | None,
        typer.Option(
            help="Numbers hidden in a prompt (needle, niah-multivalue). Default: 1, with multivalue 4.",
            rich_help_panel=_TASK,
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Prompts (all but perplexity).", rich_help_panel=_TASK)] = 12,
    phases: Annotated[
        str,
        typer.Option(
            help="Replace attention in decode steps only, or in the prompt too (all but perplexity).",
            metavar="decode|prefill|both",
            rich_help_panel=_TASK,
        ),
    ] = "decode",
    calibration: Annotated[
        Path | None, typer.Option(help="File from santa-hw calibrate, for santa and top-k.", rich_help_panel=_TASK)
    ] = None,
    calibration_text: Annotated[
        str, typer.Option(help="Text to calibrate on, where no file is given.", rich_help_panel=_TASK)
    ] = "shakespeare-calibration",
    device: Annotated[str, typer.Option(help="Device of the model.", rich_help_panel=_RUN)] = "cpu",
    dtype: Annotated[str, typer.Option(help="Number type of the model.", rich_help_panel=_RUN)] = "float32",
    workers: Annotated[
        int, typer.Option(help="Schedules that are evaluated at once, each by a process.", rich_help_panel=_RUN)
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster to run the workers on: auto, or host:port. The folder must be one that all its "
            "machines see.",
            metavar="ADDRESS",
            rich_help_panel=_RUN,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds of silence after which a worker's schedule is given to another.", rich_help_panel=_RUN
        ),
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """
    Learn how to share a sample budget out among the layers.

    Each episode draws a schedule, scores it on the task and moves the policy (REINFORCE). Workers and this command
    may be killed at any time: the same command goes on. The learned schedule is written to the folder as schedule.toml.
    """
    from santa_hw.console import progress, reporting

    with reporting():
        from dataclasses import asdict

        from santa_hw import cli, sweep
        from santa_hw.budget.coordinator import learn
        from santa_hw.budget.folder import Folder
        from santa_hw.budget.policy import RATE, Settings, uniform
        from santa_hw.budget.reward import TaskReward
        from santa_hw.design import Design

        cli._check_given(ctx)
        if workers < 1:
            raise ValueError(f"workers = {workers}: 1 or more is allowed")
        if not timeout > 0:
            raise ValueError(f"timeout = {timeout}: more than 0 seconds is allowed")
        size = window if task == "perplexity" else context
        source = TaskReward(
            model=model,
            task=task,
            options={
                "text": text, "data": data, "windows": windows, "window": window, "context": context,
                "needles": needles, "trials": trials, "phases": phases,
            },
            method=method,
            design=Design.from_toml(design) if design is not None else Design(),
            device=device,
            dtype=dtype,
            calibration=calibration,
            calibration_text=calibration_text,
            calibration_windows=max(1, cli.CALIBRATION_TOKENS // size),
            calibration_window=size,
        )  # fmt: skip
        if not source.fixed_point:
            for name, value in (("design", design), ("calibration", calibration)):
                if value is not None:
                    raise ValueError(f"--{name} has no effect with method {method}: leave it out")
        cli._say(f"Loading {model}")
        opened = source.open(loaded=cli._load(model, device, dtype))
        if source.fixed_point:
            sweep.check_keys([sweep.Point(method, None, source.design, seed)], opened.task.keys)
        settings = Settings(opened.loaded.layers, total, source.powers, seed, RATE if rate is None else rate)
        folder = Folder(out)
        crew, about = _crew(folder, source, opened, workers, ray, timeout), opened.about()
        # Workers in other processes load the model themselves: two copies here would be one too many.
        del opened
        rewards: list[float] = []
        with progress("Episodes", episodes) as (_, advance):

            def show(episode: dict[str, Any], fresh: bool) -> None:
                rewards.append(episode["reward"])
                advance()

            policy = learn(folder, settings, about, episodes, crew, on_episode=show)
        samples = policy.learned()
        file = folder.path / SCHEDULE
        file.write_text(_toml(source, samples), encoding="utf-8")
        found = {
            **asdict(settings),
            "method": method,
            "episodes": policy.version,
            "samples": samples,
            "uniform": uniform(settings),
            "probabilities": policy.probabilities.tolist(),
            "rewards": rewards,
            "schedule": str(file),
        }
        _show(found, as_json)


def _crew(folder: Any, source: TaskReward, opened: OpenReward, workers: int, ray: str | None, timeout: float) -> Crew:
    from santa_hw.budget.workers import InProcess, Processes, Ray

    if ray is not None:
        return Ray(folder, source, workers, ray, timeout)
    if workers > 1:
        return Processes(folder, source, workers, timeout)
    return InProcess(folder, opened, timeout)


def _toml(source: TaskReward, samples: Sequence[int]) -> str:
    """The schedule as `santa-hw accuracy` takes it."""
    from santa_hw.design import budgets_toml

    if source.fixed_point:
        return source.schedule(samples).to_toml()
    return budgets_toml(samples)


def _show(found: dict[str, Any], as_json: bool) -> None:
    import json

    if as_json:
        typer.echo(json.dumps(found))
        return
    from rich.table import Table

    from santa_hw.console import print_table

    table = Table("layer", "S", "uniform")
    for name in ("S", "uniform"):
        table.columns[["layer", "S", "uniform"].index(name)].justify = "right"
    for layer, (size, even) in enumerate(zip(found["samples"], found["uniform"], strict=True)):
        table.add_row(str(layer), str(size), str(even))
    table.add_section()
    table.add_row("sum", str(sum(found["samples"])), str(sum(found["uniform"])))
    print_table(table)
    rewards = found["rewards"]
    quarter = max(1, len(rewards) // 4)
    first, last = (sum(part) / quarter for part in (rewards[:quarter], rewards[-quarter:]))
    typer.echo(f"mean reward of the first {quarter} episodes: {first:.4g}, of the last {quarter}: {last:.4g}")
    typer.echo(f"schedule in {found['schedule']}")
