"""Cost made readable: tables and plots of rows of cost, of sensitivity, and of cost beside accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from santa_hw.cost import Row, baseline_of, pairs
from santa_hw.events import STAGES
from santa_hw.pareto import Equal, Interval, Priced
from santa_hw.report import check_suffix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

LIMITS = "Control, wires, clock tree, leakage and refresh are not modelled."
_GROUPS = {
    "K reads": ("key rows",),
    "scores": ("score", "query"),
    "softmax": ("score memory", "maximum", "exponential", "mass"),
    "sampling, selection": ("random words", "offset", "sampler", "selection"),
    "V reads": ("value rows",),
    "values": ("value", "accumulators", "normalise", "output"),
    "append": ("append",),
}
"""Stages put together for a plot: each in one group, all of them."""
assert sorted(stage for group in _GROUPS.values() for stage in group) == sorted(STAGES)

_METHOD_STYLE = {
    "dense-bf16": ("#4d4d4d", "s"),
    "dense-fp16": ("#999999", "D"),
    "dense": ("#1f77b4", "o"),
    "top-k": ("#ff7f0e", "^"),
    "santa": ("#2ca02c", "v"),
    "santa-ternary": ("#9467bd", "P"),
    "iid": ("#8c564b", "X"),
}


# Tables ---------------------------------------------------------------------------------------------------------------


def cost_table(rows: Sequence[Row]) -> Table:
    """A line a method: energy, its parts, its ratio to the baseline, traffic, cycles and what bounds them.

    All rows are of one pair of tables.
    """
    from rich.table import Table

    baseline = baseline_of(rows)
    named = baseline["method"] if baseline else "dense"
    title = f"{rows[0]['table']}, {rows[0]['memory']}"
    result = Table(title=title, caption=LIMITS, title_justify="left", caption_justify="left")
    result.add_column("Method", no_wrap=True)
    headings = ("S or k", "Energy", "compute", "memory", "K reads", f"x {named}", "Traffic", "Cycles", "bound",
                "Speed-up", "roofline")  # fmt: skip
    for heading in headings:
        result.add_column(heading, justify="right")
    for row in rows:
        result.add_row(
            row["method"],
            "–" if row["samples"] is None else f"{row['samples']:g}",
            *(energy_text(row[name]) for name in ("total_pj", "compute_pj", "memory_pj")),
            f"{row['key_share']:.0%}",
            _ratio(row, baseline, "total_pj"),
            bytes_text(row["bytes"]),
            f"{row['cycles']:,.0f}",
            row["bound"],
            _ratio(baseline, row, "cycles") if baseline else "–",
            _ratio(baseline, row, "roofline_cycles") if baseline else "–",
        )
    return result


def _ratio(row: Mapping[str, Any] | None, other: Mapping[str, Any] | None, column: str) -> str:
    if row is None or other is None or not other[column]:
        return "–"
    return f"{row[column] / other[column]:.3g}"


def stage_table(rows: Sequence[Row]) -> Table:
    """A line a stage, a column a method; the columns add up to the totals in the last line."""
    from rich.table import Table

    result = Table(title=f"{rows[0]['table']}, {rows[0]['memory']}: energy by stage", title_justify="left")
    result.add_column("Stage", no_wrap=True)
    for row in rows:
        result.add_column(row["method"], justify="right")
    for stage in STAGES:
        result.add_row(stage, *(energy_text(row["stages"][stage]) for row in rows))
    result.add_section()
    result.add_row("total", *(energy_text(row["total_pj"]) for row in rows))
    return result


def sensitivity_table(rows: Sequence[Row]) -> Table:
    """A line a pair of tables: the baseline's energy, and every other method's as a share of it."""
    from rich.table import Table

    methods = list(dict.fromkeys(row["method"] for row in rows))
    baseline = baseline_of(rows)
    named = baseline["method"] if baseline else methods[0]
    result = Table(title=f"Energy over {named}'s, under every table", title_justify="left")
    result.add_column("Table", no_wrap=True)
    result.add_column("Memory", no_wrap=True)
    result.add_column(named, justify="right")
    others = [method for method in methods if method != named]
    for method in others:
        result.add_column(method, justify="right")
    for (table, memory), members in pairs(rows).items():
        by_method = {row["method"]: row for row in members}
        base = by_method[named]["total_pj"]
        shares = [f"{by_method[method]['total_pj'] / base:.3f}" if base else "–" for method in others]
        result.add_row(table, memory, energy_text(base), *shares)
    return result


def priced_table(points: Sequence[Priced]) -> Table:
    """A line a design point: its score and its cost per token."""
    from rich.table import Table

    score = score_name(points)
    first = points[0].cost
    result = Table(
        title=f"{first['table']}, {first['memory']}: cost per token beside accuracy", caption=LIMITS,
        title_justify="left", caption_justify="left",
    )  # fmt: skip
    result.add_column("Method", no_wrap=True)
    for heading in ("S or k", "bits", score, "Energy", "compute", "K reads", "Traffic", "Cycles", "bound"):
        result.add_column(heading, justify="right")
    for point in points:
        result.add_row(
            point.method,
            "–" if point.samples is None else str(point.samples),
            _bits(point.row),
            f"{point.score.mean():.4g}",
            *(energy_text(point.cost[name]) for name in ("total_pj", "compute_pj")),
            f"{point.cost['key_share']:.0%}",
            bytes_text(point.cost["bytes"]),
            f"{point.cost['cycles']:,.0f}",
            point.cost["bound"],
        )
    return result


def equal_table(found: Sequence[Equal], target: float, score: str) -> Table:
    """A line a method: the budget and cost that reach the target, with intervals, and the ratio to dense."""
    from rich.table import Table

    result = Table(
        title=f"Equal accuracy: {score} {'at most' if score.startswith('KL') else 'at least'} {target:g}",
        caption="95 % bootstrap intervals over windows or trials and seeds; – beyond an end that misses the target",
        title_justify="left",
        caption_justify="left",
    )
    result.add_column("Method", no_wrap=True)
    for heading in ("how", "S or k", "bits", "Energy of a token", "x dense"):
        result.add_column(heading, justify="right")
    for equal in found:
        result.add_row(
            equal.method,
            equal.status,
            _interval(equal.samples, lambda value: f"{value:.3g}"),
            _bits(equal.row) if equal.row else "–",
            _interval(equal.pj, energy_text),
            _interval(equal.ratio, lambda value: f"{value:.3f}"),
        )
    return result


def score_name(points: Sequence[Priced]) -> str:
    """What the points were scored by."""
    return "KL to dense" if points[0].row.get("kl_to_dense") is not None else "accuracy"


def _bits(row: Mapping[str, Any]) -> str:
    design = row["design"]
    bits = [design[name] for name in ("q_bits", "k_bits", "v_bits")]
    return str(bits[0]) if len(set(bits)) == 1 else "/".join(map(str, bits))


def _interval(interval: Interval | None, text: Any) -> str:
    if interval is None:
        return "–"
    low, high = ("–" if end is None else text(end) for end in (interval.low, interval.high))
    return text(interval.value) if low == high == "–" else f"{text(interval.value)} ({low} to {high})"


def energy_text(pj: float) -> str:
    """Picojoules with a fitting prefix and three digits."""
    return _scaled(pj, "pJ", ("pJ", "nJ", "µJ", "mJ", "J"), 1000)


def bytes_text(count: float) -> str:
    """Bytes with a fitting prefix and three digits."""
    return _scaled(count, "B", ("B", "kB", "MB", "GB", "TB"), 1000)


def _scaled(value: float, unit: str, units: Sequence[str], step: float) -> str:
    if not value:
        return f"0 {unit}"
    for unit in units:
        if abs(value) < 0.9995 * step or unit == units[-1]:
            return f"{value:.3g} {unit}"
        value /= step
    raise AssertionError("units is empty")


# Plots ----------------------------------------------------------------------------------------------------------------


def plot_cost(rows: Sequence[Row], path: str | Path) -> None:
    """Bars of energy by group of stages, a bar a method; a panel a pair of tables if there are few, else ratios.

    Raises
    ------
    ValueError
        A suffix that is not drawn, or no rows.
    """
    check_suffix(path)
    if not rows:
        raise ValueError("rows is empty: one row at least is allowed")
    panels = pairs(rows)
    if len(panels) > 2:
        _plot_sensitivity(panels, path)
        return
    figure, axes = _figure(len(panels), (6.5, 3.2))
    for axis, ((table, memory), members) in zip(axes, panels.items(), strict=True):
        _bars(axis, members)
        axis.set_title(f"{table}, {memory}", fontsize=9)
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)


def _bars(axis: Axes, rows: Sequence[Row]) -> None:
    scale, unit = _axis_unit(max(row["total_pj"] for row in rows))
    names = [row["method"] + ("" if row["samples"] is None else f" {row['samples']}") for row in rows]
    left = [0.0] * len(rows)
    for index, (group, stages) in enumerate(_GROUPS.items()):
        widths = [sum(row["stages"][stage] for stage in stages) / scale for row in rows]
        axis.barh(names, widths, left=left, label=group, color=f"C{index}", height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.invert_yaxis()
    axis.set_xlabel(f"energy, {unit}")
    axis.grid(True, axis="x", alpha=0.25)


def _axis_unit(pj: float) -> tuple[float, str]:
    for scale, unit in ((1e9, "mJ"), (1e6, "µJ"), (1e3, "nJ")):
        if pj >= scale:
            return scale, unit
    return 1.0, "pJ"


def _plot_sensitivity(panels: Mapping[tuple[str, str], Sequence[Row]], path: str | Path) -> None:
    """A line a pair of tables, a mark a method: energy over the baseline's."""
    methods = list(dict.fromkeys(row["method"] for members in panels.values() for row in members))
    figure, (axis,) = _figure(1, (7.5, 1.0 + 0.4 * len(panels)))
    baseline = baseline_of(next(iter(panels.values())))
    named = baseline["method"] if baseline else methods[0]
    for place, method in enumerate(methods):
        shares = []
        for members in panels.values():
            by_method = {row["method"]: row["total_pj"] for row in members}
            shares.append(by_method[method] / by_method[named])
        # Marks that would hide each other stand side by side.
        offset = 0.6 * ((place + 0.5) / len(methods) - 0.5)
        colour, marker = _METHOD_STYLE[method]
        rows = [index + offset for index in range(len(panels))]
        axis.plot(shares, rows, marker, color=colour, label=method, markersize=4)
    axis.set_yticks(range(len(panels)), [f"{table}, {memory}" for table, memory in panels], fontsize=8)
    axis.axvline(1.0, color="black", linewidth=0.6)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}")
    axis.tick_params(axis="x", which="both", labelsize=7)
    axis.invert_yaxis()
    axis.set_xlabel(f"energy over {named}'s")
    axis.grid(True, which="both", axis="x", alpha=0.25)
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)


def plot_pareto(
    points: Sequence[Priced],
    path: str | Path,
    *,
    target: float | None = None,
    found: Iterable[Equal] = (),
    reference: float | None = None,
) -> None:
    """Score against energy of a token: a line a design over its budgets; the target and where each method meets it.

    Parameters
    ----------
    points : sequence of Priced
    path : path
    target : float, optional
    found : iterable of Equal
    reference : float, optional
        pJ of floating-point dense attention, a line of its own: its divergence was not measured.

    Raises
    ------
    ValueError
        A suffix that is not drawn, or nothing to draw.
    """
    check_suffix(path)
    score = score_name(points)
    drawn = [point for point in points if score != "KL to dense" or point.score.mean() > 0]
    if not drawn:
        raise ValueError("points hold neither a divergence above zero nor an accuracy: nothing to plot")
    scale, unit = _axis_unit(max(point.pj for point in drawn))
    figure, (axis,) = _figure(1, (7.5, 4.8))
    families: dict[tuple[str, str], list[Priced]] = {}
    for point in drawn:
        families.setdefault((point.method, point.family), []).append(point)
    widths = list(dict.fromkeys(_bits(point.row) for point in drawn))
    labelled: set[str] = set()
    for (method, _), members in families.items():
        colour, marker = _METHOD_STYLE[method]
        bits = _bits(members[0].row)
        label = f"{method}, {bits} bits" if len(widths) > 1 else method
        ordered = sorted(members, key=lambda point: point.samples or 0)
        axis.plot(
            [point.pj / scale for point in ordered],
            [point.score.mean() for point in ordered],
            marker=marker, color=colour, linewidth=1.0, markersize=5,
            linestyle=("-", "--", ":", "-.")[widths.index(bits) % 4],
            markerfacecolor=colour if widths.index(bits) == 0 else "white",
            label=None if label in labelled else label,
        )  # fmt: skip
        labelled.add(label)
        for point in ordered:
            if point.samples is not None:
                where = (point.pj / scale, point.score.mean())
                axis.annotate(str(point.samples), where, fontsize=6, xytext=(3, 3), textcoords="offset points")
    if target is not None:
        axis.axhline(target, color="black", linewidth=0.8, linestyle="--", label=f"target {target:g}")
    for equal in found:
        if equal.pj is not None and target is not None:
            ends = [equal.pj.value if end is None else end for end in (equal.pj.low, equal.pj.high)]
            colour = _METHOD_STYLE[equal.method][0]
            axis.plot([end / scale for end in ends], [target, target], color=colour, linewidth=3, alpha=0.5)
    if reference is not None:
        axis.axvline(reference / scale, color="#4d4d4d", linewidth=0.8, linestyle=":", label="dense bf16 (energy only)")
    if score == "KL to dense":
        axis.set_yscale("log")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}")
    axis.tick_params(axis="x", which="both", labelsize=7)
    axis.set_xlabel(f"energy of a token's attention, {unit}")
    axis.set_ylabel("KL to dense float model, nats a token" if score == "KL to dense" else score)
    axis.set_title(f"{points[0].cost['table']}, {points[0].cost['memory']}", fontsize=9)
    axis.grid(True, which="both", alpha=0.25)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _figure(panels: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * panels, size[1]), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])
