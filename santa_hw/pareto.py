"""Cost beside accuracy: rows of ``santa-hw accuracy`` with a price, and what equal accuracy costs.

A row's own tally is priced: what the run did, not what a formula expects. Costs are per token: energy of all layers'
attention for one query position, at the lengths that the run saw.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from santa_hw.accuracy_rows import FIXED, at_row, check_rows, check_tally, short
from santa_hw.cost import cost_row
from santa_hw.cycles import Machine
from santa_hw.design import Design
from santa_hw.energy import Bill, Memory, Table, bill
from santa_hw.events import METHODS, SHAPES, Layout, Shape, Tally, Workload, operations, total
from santa_hw.sweep import IDENTITY

Row = dict[str, Any]

RESAMPLES = 2000
SETTING = tuple(name for name in IDENTITY if name not in ("method", "samples", "schedule", "design", "teams", "seed"))
"""Columns that say what a row was measured on: scores are comparable where all of them are the same."""


class Interval(NamedTuple):
    """A value and the ends of its 95 % bootstrap interval; an end is None where it cannot be told."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Priced:
    """A design point of an accuracy file with its cost, over all its seeds.

    Attributes
    ----------
    method : str
        One of :data:`santa_hw.events.METHODS`.
    family : str
        Setting and design but for the budget: points of one family differ in budget alone.
    samples : int or None
    score : numpy.ndarray
        (seeds, pieces): divergence, or accuracy, of each window or trial.
    cost : dict
        Cost columns per token, of the mean over seeds.
    row : dict
        One of its rows.
    """

    method: str
    family: str
    samples: int | None
    score: NDArray[np.float64]
    cost: Row
    row: Row

    @property
    def pj(self) -> float:
        """Energy of a token."""
        return float(self.cost["total_pj"])

    @property
    def setting(self) -> Row:
        """What it was measured on: the columns ``SETTING``."""
        return {name: self.row.get(name) for name in SETTING}


def differing(points: Iterable[Priced]) -> tuple[str, ...]:
    """Columns of ``SETTING`` in which points differ; none where they may be compared."""
    settings = [point.setting for point in points]
    return tuple(name for name in SETTING if any(setting[name] != settings[0][name] for setting in settings))


# Prices ---------------------------------------------------------------------------------------------------------------


def method_of(row: Mapping[str, Any]) -> str | None:
    """The cost method of an accuracy row; None for methods that have no fixed-point datapath, and for schedules."""
    design = row.get("design")
    if row.get("method") not in FIXED or not isinstance(design, Mapping) or "layers" in design:
        return None
    if design["method"] == "santa" and design["scores"] == "ternary":
        return "santa-ternary"
    if design["method"] == "santa" and design["sampler"] == "iid":
        return "iid"
    return str(design["method"])


def shape_of(row: Mapping[str, Any], shape: Shape | None = None) -> Shape:
    """The attention shape that a row was measured on: the one given, else the row's own, else its model's, by name."""
    if shape is not None:
        return shape
    sizes = [row.get(name) for name in ("heads", "kv_heads", "layers")]
    if all(isinstance(size, int) for size in sizes):
        return Shape(sizes[0], sizes[1], row["design"]["head_dim"], sizes[2])  # type: ignore[arg-type]
    name = str(row.get("model", "")).lower()
    for known, found in SHAPES.items():
        if name.rsplit("/", 1)[-1].startswith(known):
            return found
    raise ValueError(
        f"model = {row.get('model')!r}: no shape of that name is known; give --shape, "
        "or --heads, --kv-heads and --layers"
    )


def tally_of(row: Mapping[str, Any], shape: Shape) -> tuple[Tally, tuple[str, ...]]:
    """What a row's run did, and what of it is assumed.

    A row holds its tally. Without one, a perplexity row's window and unique rows are enough, but for the union over a
    group, which is then bounded.
    """
    design = Design.from_dict(row["design"])
    if row.get("tally"):
        check_tally(row["tally"])
        tally = Tally(**row["tally"])
        if tally.head_steps % (shape.heads * shape.layers) or tally.head_steps * shape.kv_heads != (
            tally.group_steps * shape.heads
        ):
            raise ValueError(
                f"tally has {tally.head_steps} head steps and {tally.group_steps} group steps: whole steps of "
                f"{shape.layers} layers, {shape.heads} heads and {shape.kv_heads} KV heads are allowed"
            )
        return tally, ()
    window, windows, unique = (row.get(name) for name in ("window", "windows", "unique_rows"))
    if not window or not windows or unique is None:
        raise ValueError(
            f"a row of method {row.get('method')!r} holds no tally: run santa-hw accuracy again, or give rows of "
            "perplexity windows"
        )
    if design.scores == "ternary":
        raise ValueError("a row with ternary scores holds no tally: run santa-hw accuracy again")
    seen = np.arange(1, window + 1)
    drawn = {"santa": np.full(window, design.samples), "top-k": np.minimum(seen, design.samples), "dense": seen}
    heads, groups = (shape.layers * count * windows for count in (shape.heads, shape.kv_heads))
    bound = np.minimum(seen, shape.group * np.minimum(unique, seen)).sum()
    tally = Tally(
        head_steps=heads * window,
        group_steps=groups * window,
        visible_keys=heads * int(seen.sum()),
        group_keys=groups * int(seen.sum()),
        feature_reads=groups * int(seen.sum()) * design.head_dim,
        key_features=groups * int(seen.sum()) * design.head_dim,
        score_terms=heads * int(seen.sum()) * design.head_dim,
        unique_rows=round(unique * heads * window),
        group_rows=groups * (int(seen.sum()) if design.method == "dense" else round(bound)),
        value_terms=heads * int(drawn[design.method].sum()),
    )
    return tally, () if design.method == "dense" else ("group_rows: upper bound",)


def price(
    rows: Iterable[Row],
    table: Table,
    memory: Memory,
    *,
    machine: Machine | None = None,
    shape: Shape | None = None,
    layout: Layout | None = None,
    file: str | Path | None = None,
) -> list[Priced]:
    """Accuracy rows with their cost per token, seeds brought together; rows that cannot be costed are left out.

    Parameters
    ----------
    rows : iterable of dict
    table : Table
    memory : Memory
    machine : Machine, optional
    shape : Shape, optional
        Default: each row's own, see :func:`shape_of`.
    layout : Layout, optional
        Default: the memory's.
    file : path, optional
        Where the rows come from, for messages.

    Raises
    ------
    ValueError
        No row that can be costed, or one that is damaged or without what its cost takes.
    """
    rows = list(rows)
    check_rows(rows, file)
    groups: dict[tuple[str, str, int | None], list[tuple[int, Row]]] = {}
    for number, row in enumerate(rows, 1):
        method = method_of(row)
        if method is not None:
            samples = row["samples"] if row["design"]["method"] != "dense" else None
            groups.setdefault((method, _family(row), samples), []).append((number, row))
    if not groups:
        where = "rows hold" if file is None else f"{file} holds"
        raise ValueError(f"{where} no fixed-point design: rows of method santa, top-k or dense are allowed")
    return [
        _price(method, family, samples, members, table, memory, machine or Machine(), shape, layout, file)
        for (method, family, samples), members in groups.items()
    ]


def _family(row: Row) -> str:
    """A row's setting and design but for budget and seed, as text."""
    # Dense has no budget: what its design holds there decides its guard bits.
    design = {name: value for name, value in row["design"].items() if name != "samples" or row["method"] == "dense"}
    return json.dumps([{name: row.get(name) for name in SETTING}, design], sort_keys=True)


def _price(
    method: str,
    family: str,
    samples: int | None,
    members: Sequence[tuple[int, Row]],
    table: Table,
    memory: Memory,
    machine: Machine,
    given: Shape | None,
    layout: Layout | None,
    file: str | Path | None,
) -> Priced:
    rows = [row for _, row in members]
    design = Design.from_dict(rows[0]["design"])
    counted = []
    for number, row in members:
        with at_row(number, file):
            shape = shape_of(row, given)
            if design.head_dim != shape.head_dim:
                raise ValueError(f"shape has head_dim = {shape.head_dim}: the rows' {design.head_dim} is allowed")
            counted.append(tally_of(row, shape))
    tallies, notes = zip(*counted, strict=True)
    tally = total(tallies)
    work = Workload(method, design, tally, "int", notes[0])
    cost = cost_row(work, table, memory, machine=machine, parallel_heads=shape.heads, layout=layout)
    return Priced(method, family, samples, _scores(rows), per_token(cost, tally, shape), rows[0])


def per_token(cost: Row, tally: Tally, shape: Shape) -> Row:
    """Cost columns of one token: a tally's, divided by its query positions."""
    tokens = tally.head_steps / (shape.heads * shape.layers)

    def divide(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: divide(part) for name, part in value.items()}
        return value / tokens

    divided = ("total_pj", "compute_pj", "memory_pj", "stages", "events", "traffic", "bytes", "cycles",
               "roofline_cycles", "busy", "cycle_stages", "seconds")  # fmt: skip
    return {name: divide(value) if name in divided else value for name, value in cost.items()} | {"tokens": tokens}


def floating_reference(
    priced_rows: Sequence[Priced],
    table: Table,
    memory: Memory,
    *,
    numbers: str = "bf16",
    shape: Shape | None = None,
    layout: Layout | None = None,
) -> float | None:
    """pJ a token of floating-point dense attention on the steps of the rows, which are the same for all of them.

    None where there are no rows, or rows of several settings, which saw different keys.
    """
    if not priced_rows or differing(priced_rows):
        return None
    row = priced_rows[0].row
    own = shape_of(row, shape)
    tally, _ = tally_of(row, own)
    dense = Design.from_dict(row["design"]).replace(method="dense", scores="dense")
    everything = dataclasses.replace(tally, group_rows=tally.group_keys, unique_rows=tally.visible_keys)
    made: Bill = bill(operations(dense, everything, layout or memory.layout(), numbers=numbers), table, memory)
    return made.total_pj * own.heads * own.layers / tally.head_steps


def _scores(rows: Sequence[Row]) -> NDArray[np.float64]:
    """(seeds, pieces) of divergence, or of accuracy where there is none."""
    pieces = []
    for row in rows:
        if row.get("kl_to_dense") is not None:
            pieces.append([piece["kl"] for piece in row.get("per_window") or ()] or [row["kl_to_dense"]])
        elif row.get("accuracy") is not None:
            pieces.append([piece["score"] for piece in row.get("per_trial") or ()] or [row["accuracy"]])
        else:
            raise ValueError(f"a row of method {row['method']!r} holds neither kl_to_dense nor accuracy")
    if len({len(piece) for piece in pieces}) > 1:
        raise ValueError("rows of one design hold different numbers of windows or trials")
    return np.array(pieces, dtype=np.float64)


# Equal accuracy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Equal:
    """The cheapest design of a method that reaches a target.

    Attributes
    ----------
    method : str
    status : str
        ``"interpolated"`` between two budgets; ``"measured"`` where the design has no budget, or its smallest budget
        is good enough: then the cost is an upper bound; ``"not reached"``.
    samples : Interval or None
        Budget, between the measured ones.
    pj : Interval or None
        Energy of a token.
    ratio : Interval or None
        The same over the cheapest dense design's that reaches the target.
    reached : float
        Share of the bootstrap samples in which the target is reached.
    row : dict or None
        A row of the design's family.
    cost : dict or None
        Its cost columns per token where they were measured; None between two budgets.
    """

    method: str
    status: str
    samples: Interval | None
    pj: Interval | None
    ratio: Interval | None
    reached: float
    row: Row | None
    cost: Row | None = None


def equal_accuracy(
    points: Sequence[Priced], target: float, *, seed: int = 0, resamples: int = RESAMPLES
) -> list[Equal]:
    """What each method costs at a target that was chosen beforehand.

    Budgets are interpolated in log S: log divergence (or accuracy) linearly, between the first two budgets that bracket
    the target; cost linearly in S between them. Intervals are bootstrapped over windows or trials (the same for all
    designs, which read the same text) and over seeds; the choice of the cheapest design is made anew in each.

    Parameters
    ----------
    points : sequence of Priced
    target : float
        Greatest divergence in nats a token, or least accuracy.
    seed, resamples : int

    Raises
    ------
    ValueError
        A target that no score can have, points of several settings (another window, model, text, calibration, ...), or
        points with divergences beside points with accuracies.
    """
    if not points:
        raise ValueError("points is empty: one point at least is allowed")
    kinds = {point.row.get("kl_to_dense") is not None for point in points}
    if len(kinds) > 1:
        raise ValueError("rows hold divergences and accuracies: rows of one task are allowed")
    differ = differing(points)
    if differ:
        values = {json.dumps(point.setting[differ[0]]): None for point in points}
        raise ValueError(
            f"rows differ in {', '.join(differ)} ({differ[0]} = {' and '.join(short(v)[1:-1] for v in values)}): "
            "rows of one setting are allowed with a target"
        )
    divergence = kinds == {True}
    if not (target > 0 and (divergence or target <= 1) and math.isfinite(target)):
        allowed = "a number above zero" if divergence else "a number above 0, at most 1,"
        raise ValueError(f"target = {target}: {allowed} is allowed")
    methods = [method for method in METHODS if any(point.method == method for point in points)]
    central = _cheapest(points, target, divergence, [float(point.score.mean()) for point in points])
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[_Reached | None]] = {method: [] for method in methods}
    for _ in range(resamples):
        made = _cheapest(points, target, divergence, _resample(points, rng))
        for method in methods:
            drawn[method].append(made.get(method))
    return [_equal(method, central, drawn) for method in methods]


class _Reached(NamedTuple):
    status: str
    samples: float | None
    pj: float
    row: Row
    cost: Row | None


def _resample(points: Sequence[Priced], rng: np.random.Generator) -> list[float]:
    """Mean scores of one bootstrap sample: pieces drawn once for all designs with as many, seeds for each design."""
    pieces: dict[int, NDArray[np.int64]] = {}
    scores = []
    for point in points:
        seeds, count = point.score.shape
        if count not in pieces:
            pieces[count] = rng.integers(0, count, size=(count,))
        picked = point.score[rng.integers(0, seeds, seeds)]
        scores.append(float(picked[:, pieces[count]].mean()))
    return scores


def _cheapest(
    points: Sequence[Priced], target: float, divergence: bool, scores: Sequence[float]
) -> dict[str, _Reached]:
    """The cheapest way of each method to the target, for these mean scores."""
    families: dict[tuple[str, str], list[tuple[Priced, float]]] = {}
    for point, score in zip(points, scores, strict=True):
        families.setdefault((point.method, point.family), []).append((point, score))
    best: dict[str, _Reached] = {}
    for (method, _), members in families.items():
        found = _reach(sorted(members, key=lambda member: member[0].samples or 0), target, divergence)
        if found is not None and (method not in best or found.pj < best[method].pj):
            best[method] = found
    return best


def _reach(members: Sequence[tuple[Priced, float]], target: float, divergence: bool) -> _Reached | None:
    """Where a family first reaches the target, budgets ascending."""
    sign = 1.0 if divergence else -1.0
    for index, (point, score) in enumerate(members):
        if sign * score > sign * target:
            continue
        if index == 0 or point.samples is None:
            return _Reached("measured", point.samples, point.pj, point.row, point.cost)
        before, worse = members[index - 1]
        share = _share(worse, score, target, divergence)
        assert before.samples is not None
        samples = before.samples * (point.samples / before.samples) ** share
        along = (samples - before.samples) / (point.samples - before.samples)
        return _Reached("interpolated", samples, before.pj + along * (point.pj - before.pj), point.row, None)
    return None


def _share(worse: float, better: float, target: float, divergence: bool) -> float:
    """How far from one budget to the next the target lies, in log S."""
    if divergence and better > 0:
        worse, better, target = math.log(worse), math.log(better), math.log(target)
    return (worse - target) / (worse - better)


def _equal(method: str, central: Mapping[str, _Reached], drawn: Mapping[str, Sequence[_Reached | None]]) -> Equal:
    found = central.get(method)
    reached = (
        float(np.mean([made is not None for made in drawn[method]])) if drawn[method] else float(found is not None)
    )
    if found is None:
        return Equal(method, "not reached", None, None, None, reached, None)
    pj = _interval(found.pj, [math.inf if made is None else made.pj for made in drawn[method]])
    samples = None
    if found.samples is not None:
        draws = [math.inf if made is None or made.samples is None else made.samples for made in drawn[method]]
        samples = _interval(found.samples, draws)
    dense = central.get("dense")
    ratio = None
    if dense is not None:
        pairs = zip(drawn[method], drawn["dense"], strict=True)
        draws = [math.inf if a is None or b is None else a.pj / b.pj for a, b in pairs]
        ratio = _interval(found.pj / dense.pj, draws)
    return Equal(method, found.status, samples, pj, ratio, reached, found.row, found.cost)


def _interval(value: float, draws: Sequence[float]) -> Interval:
    """2.5 and 97.5 percentiles; an end that falls on samples which miss the target is None."""
    if len(draws) < 2:
        return Interval(value, None, None)
    ordered = np.sort(np.asarray(draws))
    ends = [float(ordered[round(share * (len(ordered) - 1))]) for share in (0.025, 0.975)]
    low, high = (end if math.isfinite(end) else None for end in ends)
    return Interval(value, low, high)
