"""Many design points: the grid that options span, a file of rows that grows and resumes, and the run that fills it."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from santa_hw import __version__
from santa_hw.sweep.points import (
    FLOAT_METHODS,
    METHODS,
    TEAM_METHODS,
    Point,
    check_keys,
    check_layers,
    grid,
    is_random,
    used_fields,
)
from santa_hw.sweep.rows import COUNTS, DETAILS, IDENTITY, SCORES, Row, Rows, read_rows, row_key

if TYPE_CHECKING:
    from santa_hw.evaluate.decoding import Decoding
    from santa_hw.evaluate.perplexity import Perplexity
    from santa_hw.models import AttentionHook, Calibration, LoadedModel

    Task = Perplexity | Decoding

__all__ = [
    "COUNTS",
    "DATA_TASKS",
    "DETAILS",
    "FLOAT_METHODS",
    "IDENTITY",
    "METHODS",
    "SCORES",
    "TASKS",
    "TEAM_METHODS",
    "Point",
    "Row",
    "Rows",
    "Setting",
    "Tick",
    "check_keys",
    "check_layers",
    "grid",
    "hook_of",
    "identify",
    "is_random",
    "measure",
    "open_calibration",
    "open_task",
    "read_rows",
    "row_key",
    "run",
    "used_fields",
]

Tick = Callable[[], None]

TASKS = ("perplexity", "needle", "niah-multivalue", "fwe", "qa", "gsm8k", "mmlu")
DATA_TASKS = ("qa", "gsm8k", "mmlu")
"""Tasks that have no prompts without data."""


@dataclass(frozen=True)
class Setting:
    """What all points of a run share; a field that the task does not know is None."""

    task: str
    model: str
    model_identity: str
    dtype: str
    phases: str
    device: str = "cpu"
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    text: str | None = None
    text_sha256: str | None = None
    windows: int | None = None
    window: int | None = None
    context: int | None = None
    needles: int | None = None
    trials: int | None = None


# Task and calibration -----------------------------------------------------------------------------


def open_task(
    loaded: LoadedModel,
    name: str,
    *,
    text: str = "",
    data: str | None = None,
    windows: int = 2,
    window: int = 1024,
    context: int = 1024,
    needles: int | None = None,
    trials: int = 12,
    phases: str = "decode",
) -> tuple[Task, Setting]:
    """
    A task by name, with the columns that its rows share.

    Parameters
    ----------
    name : one of `TASKS`
    text : str
        What `models.load_text` takes, for perplexity, needle and niah-multivalue; fwe makes its own text.
    data : str, optional
        What `models.load_records` takes: for `DATA_TASKS`, and in place of made prompts for niah-multivalue and fwe.
        It takes the place of the text in the columns too.
    windows, window : int
        Of perplexity.
    context, trials, phases, needles :
        Of the tasks that decode; context of prompts that are made, needles of needle (None: 1) and niah-multivalue
        (None: 4).
    """
    from santa_hw import models
    from santa_hw.evaluate.gsm8k import gsm8k
    from santa_hw.evaluate.mmlu import mmlu
    from santa_hw.evaluate.perplexity import Perplexity
    from santa_hw.evaluate.perplexity import windows as first_windows
    from santa_hw.evaluate.retrieval import VALUES, needle
    from santa_hw.evaluate.ruler import ruler
    from santa_hw.evaluate.words import fwe

    if name not in TASKS:
        raise ValueError(f"task = {name!r}: allowed are {', '.join(TASKS)}")
    if data is None and name in DATA_TASKS:
        raise ValueError(f"data is None: a file of JSON lines, or hub:dataset is allowed with {name}")
    shared: Row = {
        "task": name,
        "model": loaded.name,
        "model_identity": loaded.identity,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": loaded.model.device.type,
        "layers": loaded.layers,
        "heads": loaded.heads,
        "kv_heads": loaded.kv_heads,
    }
    if data is not None:
        records = models.load_records(data)
        content = "".join(json.dumps(record, sort_keys=True) for record in records)
        shared |= {"text": data, "text_sha256": hashlib.sha256(content.encode()).hexdigest()}
        if name in ("gsm8k", "mmlu"):
            graded = {"gsm8k": gsm8k, "mmlu": mmlu}[name](loaded, records, trials=trials, phases=phases)
        else:
            graded = ruler(loaded, name, records, trials=trials, phases=phases)
        return graded, Setting(**shared, phases=phases, trials=trials)
    if name == "fwe":
        words = fwe(loaded, context=context, trials=trials, phases=phases)
        return words, Setting(**shared, phases=phases, context=context, trials=trials)
    content = models.load_text(text)
    shared |= {"text": text, "text_sha256": hashlib.sha256(content.encode()).hexdigest()}
    if name in ("needle", "niah-multivalue"):
        one_key = name == "niah-multivalue"
        count = needles if needles is not None else VALUES if one_key else 1
        hidden = needle(loaded, content, context=context, needles=count, trials=trials, phases=phases, one_key=one_key)
        return hidden, Setting(**shared, phases=phases, context=context, needles=count, trials=trials)
    task = Perplexity(loaded, first_windows(loaded, content, windows, window))
    return task, Setting(**shared, phases=task.phases, windows=windows, window=window)


def open_calibration(
    loaded: LoadedModel,
    *,
    file: str | Path | None = None,
    text: str,
    windows: int = 4,
    window: int = 1024,
    task: Task | None = None,
) -> Calibration:
    """A calibration from its file, or else made now on the first windows of a text, which may not be the task's."""
    from santa_hw import models
    from santa_hw.evaluate.perplexity import windows as first_windows

    if file is not None:
        return models.Calibration.load(file, loaded.identity)
    chosen = first_windows(loaded, models.load_text(text), windows, window)
    return models.calibrate(loaded, chosen, disjoint_from=None if task is None else task.token_windows)


# The run ------------------------------------------------------------------------------------------


def run(
    loaded: LoadedModel,
    task: Task,
    setting: Setting,
    points: Sequence[Point],
    rows: Rows,
    *,
    calibration: Calibration | None = None,
    on_row: Callable[[Row, bool], None] = lambda row, fresh: None,
    tick: Tick = lambda: None,
    limit: int | None = None,
) -> list[Row]:
    """
    Compute the rows that `rows` lacks, one after another, and store each as it comes.

    Parameters
    ----------
    calibration : Calibration, optional
        Needed by points that have a design; its text may not be the task's.
    on_row : (row, fresh) -> None
        Called for every point's row; fresh is False if the file had it.
    tick : () -> None
        Called once a window or trial, those of the reference pass included.
    limit : int, optional
        Stop after so many fresh rows.

    Returns
    -------
    list of dict
        The rows of `points`, in their order, old and new.
    """
    if calibration is not None:
        calibration.require_disjoint(task.token_windows)
    check_layers(points, loaded.layers)
    results = []
    fresh = 0
    # The row says what ran: the head dimension is the model's.
    fitted = [
        point if point.design is None else replace(point, design=point.design.replace(head_dim=loaded.head_dim))
        for point in points
    ]
    for point in fitted:
        identity = identify(setting, point, calibration)
        row = rows.find(identity)
        known = row is not None
        if row is None:
            if limit is not None and fresh >= limit:
                continue
            if not fresh:
                task.prepare(tick)
            fresh += 1
            row = identity | measure(task, point, hook_of(loaded, point, calibration), tick)
            rows.add(row)
        results.append(row)
        on_row(row, not known)
    return results


def identify(setting: Setting, point: Point, calibration: Calibration | None) -> Row:
    """The columns of a row that are known before it is measured."""
    uses = point.design is not None and calibration is not None
    return {
        "method": point.method,
        "samples": point.samples,
        "schedule": None if point.schedule is None else list(point.schedule),
        "design": None if point.design is None else point.design.to_dict(),
        "teams": None if point.teams is None else point.teams.to_dict(),
        "seed": point.seed,
        **vars(setting),
        "calibration_sha256": calibration.sha256 if uses and calibration is not None else None,
        "version": __version__,
    }


def hook_of(loaded: LoadedModel, point: Point, calibration: Calibration | None) -> AttentionHook | None:
    """The attention that a point names; None is the library's own."""
    from santa_hw import models

    if point.method == "float-dense":
        return None
    if point.teams is not None:
        return models.team_method(point.method, point.samples or 1, point.teams, point.seed)
    if point.design is None:
        return models.float_method(point.method, point.schedule or point.samples or 1, point.seed)
    if calibration is None:
        raise ValueError(f"calibration is None: a calibration of the model is allowed with {point.method}")
    return models.fixed_point(loaded, point.design, calibration, seed=point.seed)


def measure(task: Task, point: Point, hook: AttentionHook | None, tick: Tick = lambda: None) -> Row:
    """All result columns of one point on one task; what does not apply is None."""
    start = time.perf_counter()
    scores = task.evaluate(hook, tick)
    seconds = time.perf_counter() - start
    row: Row = dict.fromkeys([*SCORES, *COUNTS, "tally"]) | {"seconds": seconds} | dict.fromkeys(DETAILS) | scores
    if hook is None:
        row |= {"kv_reads": 1.0, "group_kv_reads": 1.0}
    tally = getattr(hook, "tally", None)
    if tally is not None and tally.head_steps:
        row["unique_rows"] = tally.mean_unique_rows
        row |= {"kv_reads": tally.kv_reads, "group_kv_reads": tally.group_kv_reads}
        if point.design is not None:
            row |= {"saturations": tally.total_saturations, "lost_mass": tally.mean_lost_mass}
            row["tally"] = asdict(tally)
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
