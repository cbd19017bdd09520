"""Many design points: the grid that options span, and a file of rows that grows and resumes."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from santa_hw import __version__
from santa_hw.design import FIELDS, Design, DesignLike, Schedule, budgets_text
from santa_hw.team_design import TeamDesign

if TYPE_CHECKING:
    from santa_hw.evaluate.decoding import Decoding
    from santa_hw.evaluate.perplexity import Perplexity
    from santa_hw.models import AttentionHook, Calibration, LoadedModel

    Task = Perplexity | Decoding

Row = dict[str, Any]
Tick = Callable[[], None]

METHODS = ("santa", "top-k", "dense")
FLOAT_METHODS = (
    "float-dense", "float-top-k", "float-santa", "float-strat", "float-sys", "float-prop", "float-flash"
)  # fmt: skip
TEAM_METHODS = ("santapp", "top-teams", "top-means", "top-bounds")

TASKS = ("perplexity", "needle", "niah-multivalue", "fwe", "qa", "gsm8k", "mmlu")
DATA_TASKS = ("qa", "gsm8k", "mmlu")
"""Tasks that have no prompts without data."""

IDENTITY = (
    "task", "model_identity", "dtype", "device", "text_sha256", "calibration_sha256", "windows", "window", "context",
    "needles", "trials", "phases", "method", "samples", "schedule", "design", "teams", "seed", "version",
)  # fmt: skip
"""Columns that say which result a row holds: a row with the same ones is not computed again."""

SCORES = ("perplexity", "kl_to_dense", "top1_agreement", "accuracy")
COUNTS = ("unique_rows", "kv_reads", "group_kv_reads", "saturations", "lost_mass")
DETAILS = ("per_window", "per_trial")


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


@dataclass(frozen=True)
class Point:
    """
    One grid point and seed; `design` is None for the float methods, `samples` for the dense ones.

    A `schedule` is a float method's budgets, one a layer; `samples` is then what they have in common, or None. A
    fixed-point point has its budgets in its design. `teams` is the design of a method of `TEAM_METHODS`, whose
    `samples` is M; None for the others.
    """

    method: str
    samples: int | None
    design: DesignLike | None
    seed: int
    schedule: tuple[int, ...] | None = None
    teams: TeamDesign | None = None

    def __str__(self) -> str:
        if self.design is None:
            budget = self.samples if self.schedule is None else budgets_text(self.schedule)
            return " ".join(str(part) for part in (self.method, budget, self.teams) if part is not None)
        return str(self.design)


# The grid -----------------------------------------------------------------------------------------


def grid(
    base: DesignLike,
    axes: Sequence[Sequence[Mapping[str, Any]]],
    *,
    methods: Sequence[str] | None = None,
    samples: Sequence[int] | None = None,
    schedule: Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    team_axes: Sequence[Sequence[Mapping[str, Any]]] = (),
) -> list[Point]:
    """
    Every combination of methods, design fields, budgets and seeds, each different point once.

    Parameters
    ----------
    base : Design or Schedule
        What the axes change.
    axes : sequence of axes
        An axis is a list of changes, one value each: ``[{"q_bits": 6}, {"q_bits": 8}]``.
    methods, samples : sequence, optional
        Names of `METHODS`, `FLOAT_METHODS` and `TEAM_METHODS`, and budgets; None keeps the base's own.
    schedule : sequence of int, optional
        A budget for each layer, in place of `samples`.
    seeds : sequence of int
        A method that draws no random word runs with the first seed only.
    team_axes : sequence of axes
        What they change is a `TeamDesign`.

    Raises
    ------
    ValueError
        An unknown method, a design that is refused, or an axis or budget that no point of the grid uses.
    """
    if samples is not None and schedule is not None:
        raise ValueError("samples and schedule: one of them is allowed")
    names: list[str | None] = list(methods) if methods is not None else [None]
    for name in names:
        if name is not None and name not in METHODS + FLOAT_METHODS + TEAM_METHODS:
            allowed = ", ".join(METHODS + FLOAT_METHODS + TEAM_METHODS)
            raise ValueError(f"method = {name!r}: allowed are {allowed}")
    points: dict[Point, None] = {}
    for name in names:
        if name in FLOAT_METHODS:
            points |= dict.fromkeys(_float_points(name, base, samples, schedule, seeds))
            continue
        if name in TEAM_METHODS:
            points |= dict.fromkeys(_team_points(name, base, team_axes, samples, seeds))
            continue
        for changes in itertools.product(*axes):
            design = base.replace(**{key: value for change in changes for key, value in change.items()})
            points |= dict.fromkeys(_fixed_points(design, name, samples, schedule, seeds))
    used = set().union(*(used_fields(point.design) for point in points if point.design is not None))
    used |= set().union(*(point.teams.used(point.method) for point in points if point.teams is not None))
    idle = sorted({key for axis in (*axes, *team_axes) for change in axis for key in change} - used)
    if samples is not None and all(point.samples is None for point in points):
        idle.append("samples")
    if schedule is not None and all(point.method in ("dense", "float-dense") for point in points):
        idle.append("schedule")
    if idle:
        raise ValueError(f"{idle[0]} has no effect with {_describe(points)}: leave it out")
    return list(points)


def used_fields(design: DesignLike) -> set[str]:
    """Fields of a design that can change its result; the others may hold anything."""
    if isinstance(design, Schedule):
        return set().union(*map(used_fields, design.designs))
    unused = set()
    if design.scores != "ternary":
        unused |= {"ternary_samples", "ternary_draw", "ternary_offset", "ternary_block"}
    if design.method == "santa":
        return set(FIELDS) - unused - {"guard_bits"}
    unused |= {"sampler", "gather"} | (set() if design.scores == "ternary" else {"rng", "rng_bits"})
    # Dense takes its default guard bits from the budget, and nothing else.
    unused |= {"samples"} if design.method == "dense" and design.guard_bits is not None else set()
    return set(FIELDS) - unused


def is_random(method: str, design: DesignLike | None) -> bool:
    """Whether a method's result depends on the seed."""
    return method in (*FLOAT_METHODS[2:], "santapp") if design is None else "rng" in used_fields(design)


def check_keys(points: Iterable[Point], keys: int) -> None:
    """Refuse designs with room for fewer keys than the task will show them, and draws of more teams than they make."""
    for point in points:
        if point.teams is not None and (point.samples or 1) > point.teams.teams(keys):
            raise ValueError(
                f"samples = {point.samples}: at most {point.teams.teams(keys)}, the teams of the task's {keys} keys "
                f"({point.teams}), is allowed with {point.method}"
            )
        for design in _designs(point.design):
            if design.max_keys < keys:
                raise ValueError(f"max_keys = {design.max_keys}: at least the task's {keys} keys are allowed")


def check_layers(points: Iterable[Point], layers: int) -> None:
    """Refuse schedules that miss a layer of the model, or have one too many."""
    for point in points:
        count = len(point.design) if isinstance(point.design, Schedule) else len(point.schedule or ()) or layers
        if count < layers:
            raise ValueError(f"schedule has {count} layers: it misses layer {count}; the model's {layers} are allowed")
        if count > layers:
            raise ValueError(f"schedule has {count} layers: the model's {layers} are allowed")


def _designs(design: DesignLike | None) -> tuple[Design, ...]:
    if design is None:
        return ()
    return design.designs if isinstance(design, Schedule) else (design,)


def _common(design: DesignLike, name: str) -> Any:
    """A field's value where all layers agree on it, else None."""
    values = {getattr(layer, name) for layer in _designs(design)}
    return values.pop() if len(values) == 1 else None


def _fixed_points(
    design: DesignLike,
    method: str | None,
    samples: Sequence[int] | None,
    schedule: Sequence[int] | None,
    seeds: Sequence[int],
) -> list[Point]:
    if method is not None:
        # Method and budget together: the base's budget may be a k that santa refuses, and 1 is none.
        first = samples[0] if samples else 1 if schedule else None
        design = design.replace(method=method, **({"samples": first} if first and method != "dense" else {}))
    budgeted = _common(design, "method") != "dense"
    if schedule is not None and budgeted:
        design = design.with_samples(schedule)
    points = []
    for budget in samples if samples is not None and budgeted else [None]:
        changed = _settled(design if budget is None else design.replace(samples=budget))
        name = _common(changed, "method") or "schedule"
        size = _common(changed, "samples") if budgeted else None
        points += [Point(name, size, changed, seed) for seed in _seeds(name, changed, seeds)]
    return points


def _float_points(
    method: str,
    base: DesignLike,
    samples: Sequence[int] | None,
    schedule: Sequence[int] | None,
    seeds: Sequence[int],
) -> list[Point]:
    if method == "float-dense":
        return [Point(method, None, None, seed) for seed in _seeds(method, None, seeds)]
    if samples is None and schedule is None and _common(base, "samples") is None:
        schedule = [layer.samples for layer in _designs(base)]
    budgets = schedule or samples or [_common(base, "samples")]
    if any(budget < 1 for budget in budgets):
        raise ValueError(f"samples = {min(budgets)}: 1 or more is allowed with {method}")
    if schedule is None:
        return [Point(method, budget, None, seed) for budget in budgets for seed in _seeds(method, None, seeds)]
    common = budgets[0] if len(set(budgets)) == 1 else None
    return [Point(method, common, None, seed, tuple(budgets)) for seed in _seeds(method, None, seeds)]


def _team_points(
    method: str,
    base: DesignLike,
    axes: Sequence[Sequence[Mapping[str, Any]]],
    samples: Sequence[int] | None,
    seeds: Sequence[int],
) -> list[Point]:
    points = []
    for changes in itertools.product(*axes):
        chosen = TeamDesign().replace(**{key: value for change in changes for key, value in change.items()})
        points += [
            replace(point, teams=chosen.settled(method)) for point in _float_points(method, base, samples, None, seeds)
        ]
    return points


def _seeds(method: str, design: DesignLike | None, seeds: Sequence[int]) -> Sequence[int]:
    return seeds if is_random(method, design) else seeds[:1]


def _settled(design: DesignLike) -> DesignLike:
    """The design with unused fields at their defaults, so that points with equal results are equal."""
    standard = Design()
    layers = [
        layer.replace(**{name: getattr(standard, name) for name in set(FIELDS) - used_fields(layer)})
        for layer in _designs(design)
    ]
    return Schedule(tuple(layers)) if isinstance(design, Schedule) else layers[0]


def _describe(points: Iterable[Point]) -> str:
    methods = list(dict.fromkeys(point.method for point in points))
    scores = sorted({layer.scores for point in points for layer in _designs(point.design)})
    return f"method {', '.join(methods)}" + (f" and {', '.join(scores)} scores" if scores else "")


# The file -----------------------------------------------------------------------------------------


class Rows:
    """
    A JSON list of rows in a file that is valid at every moment: each row replaces the whole file, atomically.

    Rows that are there already are kept, whatever setting they come from.

    Parameters
    ----------
    path : path
        Made with the first row if it is not there.

    Raises
    ------
    ValueError
        The file is not a JSON list of objects, or cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        # A link stays a link: what it points to is replaced.
        self.path = Path(path).expanduser().resolve()
        try:
            self.rows = read_rows(self.path) if self.path.exists() else []
            # A place that cannot be written is found out now, not after the first row's work.
            with self._locked():
                self._part.touch()
                self._part.unlink()
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error
        self._known = {row_key(row): row for row in self.rows}

    def find(self, row: Mapping[str, Any]) -> Row | None:
        """The row with the same identity, if it is there."""
        return self._known.get(row_key(row))

    def add(self, row: Row) -> None:
        """Append a row, on disk when this returns; rows that another run added meanwhile are kept."""
        with self._locked():
            if self.path.exists():
                for other in read_rows(self.path):
                    if row_key(other) not in self._known:
                        self._known[row_key(other)] = other
                        self.rows.append(other)
            self.rows.append(row)
            self._known[row_key(row)] = row
            self._write()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One run at a time reads, merges and replaces a file of this folder."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self) -> None:
        text = "[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in self.rows) + "\n]\n"
        try:
            with self._part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._part, self.path)
        finally:
            self._part.unlink(missing_ok=True)

    @property
    def _part(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}.part")


def read_rows(path: str | Path) -> list[Row]:
    """
    The rows of a file that `Rows` wrote.

    Raises
    ------
    ValueError
        There is no such file, or it is not a JSON list of objects.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8-sig"), parse_constant=_refuse_constant)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); allowed: a list of rows") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} holds no list of rows; allowed: a file that santa-hw accuracy wrote, or none")
    return rows


def _refuse_constant(name: str) -> None:
    """Python reads NaN and Infinity, which others write; what holds them could not be written again."""
    raise ValueError(f"{name} is no number of JSON")


def row_key(row: Mapping[str, Any], *, without: Iterable[str] = ()) -> str:
    """The identity of a row as text, some columns left out."""
    return json.dumps({name: row.get(name) for name in IDENTITY if name not in set(without)}, sort_keys=True)


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
        "calibration_sha256": calibration.text_sha256 if uses and calibration is not None else None,
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
