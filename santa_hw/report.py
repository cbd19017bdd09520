"""Rows made readable: a table and a plot, seeds brought together with 95 % intervals."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from santa_hw.evaluate.statistics import Estimate, bootstrap
from santa_hw.sweep import Row, row_key

if TYPE_CHECKING:
    from rich.table import Table

SUFFIXES = (".png", ".svg", ".pdf")
LEVEL = "95 % bootstrap interval over windows or trials and seeds"
BITS = ("q_bits", "k_bits", "v_bits")
SETTING = {
    "task": "{}",
    "model": "{}",
    "dtype": "{}",
    "device": "{}",
    "text": "{}",
    "windows": "windows {}",
    "window": "window {}",
    "context": "context {}",
    "needles": "needles {}",
    "trials": "trials {}",
    "phases": "phases {}",
}
"""Columns that say what was measured, and how a title says it."""
READS = {"kv_reads": "KV rows read by a head", "group_kv_reads": "KV rows read by a group of heads"}
"""Columns that a plot can have as its x, besides budgets and fields: what was read, as a share of dense attention."""
# Design fields that tell no designs apart: they have a column of their own, or follow from the model.
_OWN = ("method", "samples", "head_dim")


@dataclass(frozen=True)
class Group:
    """
    One design point on one task, over all its seeds.

    Attributes
    ----------
    row : dict
        One of its rows, for the columns that all of them share.
    seeds : int
    perplexity, kl_to_dense, top1_agreement, accuracy : Estimate or None
    unique_rows, kv_reads, group_kv_reads, lost_mass, saturations, seconds : float or None
        Means over seeds.
    """

    row: Row
    seeds: int
    perplexity: Estimate | None
    kl_to_dense: Estimate | None
    top1_agreement: Estimate | None
    accuracy: Estimate | None
    unique_rows: float | None
    kv_reads: float | None
    group_kv_reads: float | None
    lost_mass: float | None
    saturations: float | None
    seconds: float | None

    @property
    def method(self) -> str:
        """The row's method."""
        return str(self.row["method"])

    @property
    def samples(self) -> int | None:
        """The row's budget."""
        return self.row.get("samples")

    @property
    def fields(self) -> dict[str, Any]:
        """What tells groups apart besides method and samples: the setting's columns, the fields of design and teams."""
        design = self.row.get("design") or {}
        layers = design if "layers" in design else self.row.get("schedule")
        if layers:
            text = json.dumps(layers, sort_keys=True)
            design = {"schedule": hashlib.sha256(text.encode()).hexdigest()[:8]}
        setting = {name: self.row.get(name) for name in SETTING}
        calibration = {"calibration": (self.row.get("calibration_sha256") or "")[:8] or None}
        design = design | (self.row.get("teams") or {})
        return setting | calibration | {name: value for name, value in design.items() if name not in _OWN}


def summarise(rows: Iterable[Row]) -> list[Group]:
    """Groups of rows that differ in the seed alone, in order; rows without a method are skipped."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("method"):
            groups.setdefault(row_key(row, without=["seed"]), []).append(row)
    return [_group(members) for members in groups.values()]


def _group(rows: list[Row]) -> Group:
    nll = _estimate(rows, "per_window", "nll")
    accuracy = _estimate(rows, "per_trial", "score", "accuracy")
    return Group(
        row=rows[0],
        seeds=len(rows),
        # The interval is that of the mean loss: perplexity is its exponential.
        perplexity=Estimate(*(None if end is None else _exp(end) for end in nll)) if nll else None,  # type: ignore[arg-type]
        kl_to_dense=_estimate(rows, "per_window", "kl", "kl_to_dense"),
        top1_agreement=_estimate(rows, "per_window", "agreement", "top1_agreement"),
        accuracy=accuracy,
        unique_rows=_mean(rows, "unique_rows"),
        kv_reads=_mean(rows, "kv_reads"),
        group_kv_reads=_mean(rows, "group_kv_reads"),
        lost_mass=_mean(rows, "lost_mass"),
        saturations=_mean(rows, "saturations"),
        seconds=_mean(rows, "seconds"),
    )


def _exp(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(value))


def _estimate(rows: Sequence[Row], details: str, name: str, column: str | None = None) -> Estimate | None:
    """Over the pieces of all rows; over the rows' own column if they hold no pieces."""
    values = [piece[name] for row in rows for piece in row.get(details) or ()]
    if not values and column is not None:
        values = [row[column] for row in rows if row.get(column) is not None]
    return bootstrap(values) if values else None


def _mean(rows: Sequence[Row], column: str) -> float | None:
    values = [row[column] for row in rows if row.get(column) is not None]
    return sum(values) / len(values) if values else None


# What tells designs apart -------------------------------------------------------------------------


def varying(groups: Sequence[Group]) -> list[str]:
    """Names of `Group.fields` in which groups differ; `bits` stands for q, k and v bits that move together."""
    fields = [group.fields for group in groups]
    names = [
        name
        for name in dict.fromkeys(name for some in fields for name in some)
        # A group that lacks a field, or holds None, does not differ by it; one without a schedule does.
        if len({str(some.get(name)) for some in fields if some.get(name) is not None or name == "schedule"}) > 1
    ]
    together = all(len({some.get(name) for name in BITS}) == 1 for some in fields)
    if together and "q_bits" in names:
        names = ["bits", *(name for name in names if name not in BITS)]
    return names


def value_of(group: Group, name: str) -> Any:
    """A group's value of a name from `varying`, its samples, or its share of KV reads."""
    if name == "samples" or name in READS:
        return getattr(group, name)
    return group.fields.get(BITS[0] if name == "bits" else name)


def label(group: Group, names: Sequence[str]) -> str:
    """Method and the values that tell it from other groups."""
    values = [
        f"{name.replace('_', ' ')} {value_of(group, name)}" for name in names if value_of(group, name) is not None
    ]
    return ", ".join([group.method, *values])


# Table --------------------------------------------------------------------------------------------


def table(rows: Iterable[Row]) -> Table:
    """A rich table, one line a design point; the ends of the interval stand below each mean."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    groups = summarise(rows)
    names = varying(groups)
    scores = {
        "Perplexity": "perplexity",
        "KL to dense": "kl_to_dense",
        "Top-1": "top1_agreement",
        "Accuracy": "accuracy",
    }
    teams = any(group.row.get("teams") for group in groups)
    counts = {
        "Unique rows": "unique_rows",
        **({"KV reads": "kv_reads", "Group reads": "group_kv_reads"} if teams else {}),
        "Lost mass": "lost_mass",
        "Saturated codes": "saturations",
        "s": "seconds",
    }
    shown_scores = {title: name for title, name in scores.items() if any(getattr(group, name) for group in groups)}
    # Without outer rules the default columns fit a terminal of 80 characters, and nothing is ever cut off.
    result = Table(title=_title(groups), caption=LEVEL, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    result.title_justify = result.caption_justify = "left"
    result.add_column("Method", no_wrap=True)
    for title in ("S,k,M" if teams else "S,k", *(name.replace("_", " ") for name in names), *shown_scores, *counts):
        words = title.split(" ", 1)
        result.add_column(
            "\n".join(words), justify="right", overflow="fold", min_width=max(map(len, words)), vertical="top"
        )
    for group in groups:
        result.add_row(
            group.method,
            *(_cell(value_of(group, name)) for name in ("samples", *names)),
            *(_interval(getattr(group, name)) for name in shown_scores.values()),
            *(_cell(getattr(group, name)) for name in counts.values()),
        )
    return result


def _title(groups: Sequence[Group]) -> str:
    """What all groups share: task, sizes, and the number of seeds."""
    parts = []
    for name, text in SETTING.items():
        values = {group.row.get(name) for group in groups} - {None}
        parts += [text.format(*values)] if len(values) == 1 else []
    seeds = max((group.seeds for group in groups), default=0)
    return ", ".join([*parts, f"{seeds} seed{'' if seeds == 1 else 's'}"])


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.2g}"
    return str(value)


def _interval(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    mean, low, high = (
        value if value is None else f"{value:.4g}" if abs(value) >= 0.1 else f"{value:.3g}" for value in estimate
    )
    return f"{mean}" if low is None or low == high else f"{mean}\n[dim]{low} to\n{high}[/dim]"


# Plot ---------------------------------------------------------------------------------------------


def check_suffix(path: str | Path) -> None:
    """Refuse a plot file of a kind that is not drawn."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ValueError(f"plot file {path}: a name that ends in {', '.join(SUFFIXES)} is allowed")


def plot(rows: Iterable[Row], path: str | Path, *, x: str | None = None) -> None:
    """
    Draw KL to dense (or accuracy) against budget or bit width, a line for each method and design.

    Parameters
    ----------
    path : path
        Its suffix says the format: .png, .svg or .pdf.
    x : str, optional
        ``samples``, ``bits``, ``kv_reads``, ``group_kv_reads`` or a field of a design; by default samples if they vary,
        else the number that varies most.

    Raises
    ------
    ValueError
        Another suffix, rows without anything to draw, or an x that none of them has.
    """
    check_suffix(path)
    groups = summarise(rows)
    score = "kl_to_dense" if any(_drawable(group.kl_to_dense) for group in groups) else "accuracy"
    # Zero divergence has no place on a logarithmic axis; the float model itself is such a line.
    groups = [group for group in groups if _drawable(getattr(group, score), positive=score == "kl_to_dense")]
    if not groups:
        raise ValueError("rows hold neither a divergence above zero nor an accuracy: nothing to plot")
    names = varying(groups)
    axis = x if x is not None else _axis(groups, names)
    if all(value_of(group, axis) is None for group in groups):
        raise ValueError(
            f"x = {axis!r}: samples, {', '.join(READS)}, or one of the fields that vary ({', '.join(names) or 'none'}) "
            "is allowed"
        )
    _draw(groups, score, axis, [name for name in names if name != axis], Path(path))


def _drawable(estimate: Estimate | None, *, positive: bool = True) -> bool:
    return estimate is not None and (estimate.mean > 0 or not positive)


def _axis(groups: Sequence[Group], names: Sequence[str]) -> str:
    def spread(name: str) -> int:
        return len({value for group in groups if isinstance(value := value_of(group, name), int)})

    return "samples" if spread("samples") > 1 or not names else max(names, key=spread)


def _draw(groups: Sequence[Group], score: str, axis: str, names: Sequence[str], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

    if axis not in ("samples", *READS) and len({group.samples for group in groups} - {None}) > 1:
        names = ["samples", *names]
    lines: dict[str, list[Group]] = {}
    for group in groups:
        lines.setdefault(label(group, names), []).append(group)
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if score == "kl_to_dense":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    if axis == "samples":
        axes.set_xscale("log", base=2)
    ticks = sorted({value for group in groups if (value := value_of(group, axis)) is not None})
    for index, (name, members) in enumerate(lines.items()):
        colour, marker = f"C{index % 10}", "osD^vPX*"[index % 8]
        placed = sorted((m for m in members if value_of(m, axis) is not None), key=lambda m: value_of(m, axis))
        for member in (m for m in members if value_of(m, axis) is None):
            estimate = getattr(member, score)
            axes.axhline(estimate.mean, color=colour, linestyle="--", label=name)
            if estimate.low is not None:
                axes.axhspan(estimate.low, estimate.high, color=colour, alpha=0.12, linewidth=0)
        if placed:
            axes.errorbar(
                [value_of(m, axis) for m in placed],
                [getattr(m, score).mean for m in placed],
                yerr=np.array([_reach(getattr(m, score)) for m in placed]).T,
                color=colour, marker=marker, markersize=5, capsize=3, label=name,
            )  # fmt: skip
    if ticks and all(isinstance(tick, int) for tick in ticks):
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:.0f}")
    titles = {"samples": "samples S, or k", "bits": "q, k and v bits"}
    titles |= {name: f"{title}, share of dense attention" for name, title in READS.items()}
    axes.set_xlabel(titles.get(axis, axis.replace("_", " ")))
    axes.set_ylabel({"kl_to_dense": "KL to dense float model, nats a token", "accuracy": "accuracy"}[score])
    axes.set_title(textwrap.fill(_title(groups), 90), fontsize=9)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _reach(estimate: Estimate) -> tuple[float, float]:
    """How far the interval reaches below and above the mean."""
    mean, low, high = estimate
    return (0.0, 0.0) if low is None or high is None else (mean - low, high - mean)


def design_table(fields: Mapping[str, Any], derived: Mapping[str, int], title: str) -> Table:
    """A design point: fields on top, derived widths below."""
    from rich.table import Table

    result = Table(title=title, title_justify="left", show_header=False)
    result.add_column("name", no_wrap=True)
    result.add_column("value", justify="right")
    for name, value in fields.items():
        result.add_row(name, "–" if value is None else str(value))
    result.add_section()
    for name, value in derived.items():
        result.add_row(f"[bold]{name}[/bold]", f"{value:,}")
    return result
