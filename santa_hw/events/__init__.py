"""What decode steps do: tallies counted from a run or worked out for a shape, and the operations that they stand for.

:class:`Tally` holds the counts. They come from :func:`santa_hw.datapath.attend`, or from :func:`analytic` for a shape
that nobody runs; :func:`operations` turns either into the same list of operations, with widths.
"""

from santa_hw.events.operation import (
    KINDS,
    NUMBERS,
    STAGES,
    Layout,
    Operation,
    heap_insertions,
    operations,
    traffic,
    value_element,
)
from santa_hw.events.tally import Tally, TeamTally, total
from santa_hw.events.workloads import (
    METHODS,
    SHAPES,
    Shape,
    Workload,
    analytic,
    bounded,
    expected_ternary,
    shape_named,
    workload,
)

__all__ = [
    "KINDS",
    "METHODS",
    "NUMBERS",
    "SHAPES",
    "STAGES",
    "Layout",
    "Operation",
    "Shape",
    "Tally",
    "TeamTally",
    "Workload",
    "analytic",
    "bounded",
    "expected_ternary",
    "heap_insertions",
    "operations",
    "shape_named",
    "total",
    "traffic",
    "value_element",
    "workload",
]
