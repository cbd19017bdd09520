"""The grid that options span: every different point once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from santa_hw.design import FIELDS, Design, DesignLike, Schedule, budgets_text
from santa_hw.team_design import TeamDesign

METHODS = ("santa", "top-k", "dense")
FLOAT_METHODS = (
    "float-dense", "float-top-k", "float-santa", "float-strat", "float-sys", "float-prop", "float-flash"
)  # fmt: skip
TEAM_METHODS = ("santapp", "top-teams", "top-means", "top-bounds")


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
