"""Rows of cost: energy, traffic and cycles of a method under a pair of tables, as a file and a report hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from santa_hw.cycles import Machine, cycles
from santa_hw.energy import Bill, Memory, Table, bill
from santa_hw.events import Layout, Operation, Workload, operations, traffic

Row = dict[str, Any]

KEYS_SHARE = ("key rows",)
"""Stages that read the keys."""


def cost_row(
    workload: Workload,
    table: Table,
    memory: Memory,
    *,
    machine: Machine,
    parallel_heads: int,
    layout: Layout | None = None,
) -> Row:
    """The whole cost of a workload under one pair of tables.

    Parameters
    ----------
    workload : Workload
    table : Table
    memory : Memory
    machine : Machine
    parallel_heads : int
        Query heads times batch, see :func:`santa_hw.cycles.cycles`.
    layout : Layout, optional
        Default: the memory's.

    Returns
    -------
    dict
        ``method``, ``samples``, ``design``, ``table``, ``memory``; ``total_pj`` = ``compute_pj`` + ``memory_pj``;
        ``stages`` (stage to pJ), ``key_share``; ``events`` (stage to operation to count), ``traffic`` (rows), ``bytes``
        off chip; ``cycles``, ``roofline_cycles``, ``bound``, ``busy``, ``cycle_stages``, ``seconds``; ``provenance`` of
        every pJ, ``scaled_share``, ``confidence``; ``notes``.
    """
    layout = layout or memory.layout()
    found = operations(workload.design, workload.tally, layout, numbers=workload.numbers)
    made = bill(found, table, memory)
    time = cycles(
        workload.design, workload.tally, layout, machine, parallel_heads=parallel_heads, numbers=workload.numbers
    )
    return {
        "method": workload.method,
        "samples": None if workload.design.method == "dense" else workload.design.samples,
        "design": workload.design.to_dict() if workload.numbers == "int" else None,
        **priced(made),
        "events": counted(found),
        "traffic": traffic(workload.design, workload.tally),
        "bytes": moved_bytes(found),
        "cycles": time.total,
        "roofline_cycles": time.roofline,
        "bound": time.bound,
        "busy": time.busy,
        "cycle_stages": time.stages,
        "seconds": time.seconds,
        "provenance": made.provenance,
        "notes": list(workload.notes),
    }


def priced(made: Bill) -> Row:
    """A bill's columns."""
    return {
        "table": made.table,
        "memory": made.memory,
        "total_pj": made.total_pj,
        "compute_pj": made.compute_pj,
        "memory_pj": made.memory_pj,
        "stages": made.stages,
        "key_share": made.share(*KEYS_SHARE),
        "scaled_share": made.scaled_share,
        "confidence": made.confidence_shares(),
    }


def counted(found: Iterable[Operation]) -> dict[str, dict[str, int]]:
    """Operations as plain data: stage to name to count."""
    events: dict[str, dict[str, int]] = {}
    for operation in found:
        stage = events.setdefault(operation.stage, {})
        stage[operation.name] = stage.get(operation.name, 0) + operation.count
    return events


def moved_bytes(found: Iterable[Operation]) -> int:
    """Bytes moved to and from off-chip memory, whole bursts."""
    return sum(op.count * op.bits[0] // 8 for op in found if op.kind.startswith("dram"))


def baseline_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row that others are compared with: int8 dense, else the first floating-point dense one, else none."""
    for name in ("dense", "dense-bf16", "dense-fp16"):
        for row in rows:
            if row["method"] == name:
                return row
    return None


def pairs(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by (table, memory), in order."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["table"], row["memory"]), []).append(row)
    return found
