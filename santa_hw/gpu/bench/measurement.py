"""What a benchmark has measured, as tables and as a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

RECENT = "-recent"
"""Ends the names of methods that are told that the kernel ahead writes at most the newest key."""

OURS = ("sys", f"sys{RECENT}", "fixed", f"fixed{RECENT}")
"""The kernels that are measured; the others are what they are compared with."""

DENSE = ("cudnn", "torch-flash", "flashinfer", "flash-attention")
"""Backends that read all of K and V in bf16; the best of them is what a speed-up is over."""


@dataclass(frozen=True)
class Measurement:
    """One method at one shape.

    Parameters
    ----------
    method, shape : str
        Shape is sequences x keys.
    graph_us, eager_us : float or None
        Medians in microseconds; None if not measured.
    bytes : int
        What the method must read in one call: keys, and the value rows it uses.
    floor_us : float or None
        Graph time of a kernel that only reads as much: K in the method's dtype for sampled methods, K and V for dense.
    over_dense, over_fp8 : float or None
        How much faster than the best dense bf16 backend of the same run, and than FlashInfer's fp8 decode (graph).
    note : str
        Why it was not measured, or the version and the configuration.
    """

    method: str
    shape: str
    graph_us: float | None
    eager_us: float | None
    bytes: int
    floor_us: float | None = None
    over_dense: float | None = None
    over_fp8: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields, and what follows from them."""
        return asdict(self) | {"bytes_per_second": self.bytes_per_second, "floor_share": self.floor_share}

    @property
    def bytes_per_second(self) -> float | None:
        """Achieved in the graph protocol."""
        return None if self.graph_us is None else self.bytes / (self.graph_us * 1e-6)

    @property
    def floor_share(self) -> float | None:
        """Time of the floor over the method's own, in the graph protocol."""
        return None if self.graph_us is None or self.floor_us is None else self.floor_us / self.graph_us


def tables(found: Sequence[Measurement]) -> Iterator[Table]:
    """A table for each shape."""
    for shape in dict.fromkeys(row.shape for row in found):
        table = Table(title=f"{shape}: microseconds a decode step", title_justify="left")
        for column in ("method", "graph", "eager, cold", "TB/s", "share of floor", "over dense", "over fp8", "note"):
            table.add_column(column, justify="left" if column in ("method", "note") else "right")
        for row in found:
            if row.shape == shape:
                speed = row.bytes_per_second
                table.add_row(
                    row.method,
                    _number(row.graph_us, ".1f"),
                    _number(row.eager_us, ".1f"),
                    _number(None if speed is None else speed / 1e12, ".2f"),
                    _number(row.floor_share, ".2f"),
                    _number(row.over_dense, ".2f"),
                    _number(row.over_fp8, ".2f"),
                    row.note,
                )
        yield table


def _number(x: float | None, form: str) -> str:
    return "-" if x is None else format(x, form)


def plot(found: Sequence[Measurement], path: Path) -> None:
    """Speed over the best dense backend at each shape, with the floor that reads only K."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(row.shape for row in found))
    floats, integers = OURS[:2], OURS[2:]
    drawn = ("read K, int8", *integers, "read K, bf16", *floats, "prop", "flash", "flashinfer-fp8")
    times = {(row.method, row.shape): row.over_dense for row in found}
    present = [name for name in drawn if any(times.get((name, shape)) is not None for shape in shapes)]
    figure = Figure(figsize=(1.1 * len(shapes) + 3, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(present))
    for i, name in enumerate(present):
        heights = [times.get((name, shape)) or 0.0 for shape in shapes]
        at = [x + (i - (len(present) - 1) / 2) * width for x in range(len(shapes))]
        axes.bar(at, heights, width, label=name, alpha=0.45 if name.startswith("read") else 1.0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(shapes)), shapes)
    axes.set_xlabel("sequences x keys")
    axes.set_ylabel("speed over the best dense backend")
    axes.legend(fontsize="small")
    figure.savefig(path)
