"""What a set of operations costs: its bill, a line an operation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from santa_hw.energy.table import CONFIDENCES, MEMORY_KINDS, Cost, Memory, Table
from santa_hw.events import STAGES, Operation


@dataclass(frozen=True)
class Line:
    """One operation's share of a bill: `pj` for all of its count, with the cost of one."""

    operation: Operation
    cost: Cost

    @property
    def pj(self) -> float:
        """pJ of all such operations."""
        return self.cost.pj * self.operation.count

    @property
    def off_chip(self) -> bool:
        """Whether the memory's table paid it."""
        return self.operation.kind in MEMORY_KINDS


@dataclass(frozen=True)
class Bill:
    """Energy of a set of operations, by line; stages always add up to the total, and so do compute and memory.

    Attributes
    ----------
    table, memory : str
        Names of the tables.
    lines : tuple of Line
    """

    table: str
    memory: str
    lines: tuple[Line, ...]

    @cached_property
    def stages(self) -> dict[str, float]:
        """pJ of each stage, all of ``STAGES`` in order."""
        sums = dict.fromkeys(STAGES, 0.0)
        for line in self.lines:
            sums[line.operation.stage] += line.pj
        return sums

    @property
    def total_pj(self) -> float:
        """pJ in all."""
        return math.fsum(line.pj for line in self.lines)

    @property
    def memory_pj(self) -> float:
        """pJ of off-chip memory."""
        return math.fsum(line.pj for line in self.lines if line.off_chip)

    @property
    def compute_pj(self) -> float:
        """pJ of everything on chip: logic, registers and on-chip memory."""
        return math.fsum(line.pj for line in self.lines if not line.off_chip)

    def share(self, *stages: str) -> float:
        """Share of the total that stages take, 0 of an empty bill."""
        total = self.total_pj
        return sum(self.stages[stage] for stage in stages) / total if total else 0.0

    @property
    def provenance(self) -> list[dict[str, Any]]:
        """For each different operation: pJ, the rule that scaled it (empty if none), sources and confidence."""
        seen = {line.operation.name: line for line in self.lines}
        return [
            {
                "operation": name,
                "pj": line.cost.pj,
                "scaled": line.cost.rule,
                "sources": list(dict.fromkeys(entry.source for entry in line.cost.entries)),
                "confidence": line.cost.confidence,
            }
            for name, line in seen.items()
        ]

    @property
    def scaled_share(self) -> float:
        """Share of the total that rests on scaled numbers."""
        total = self.total_pj
        return math.fsum(line.pj for line in self.lines if line.cost.rule) / total if total else 0.0

    def confidence_shares(self) -> dict[str, float]:
        """Share of the total by confidence."""
        total = self.total_pj or 1.0
        return {
            name: math.fsum(line.pj for line in self.lines if line.cost.confidence == name) / total
            for name in CONFIDENCES
        }


def bill(operations: Iterable[Operation], table: Table, memory: Memory) -> Bill:
    """Price operations.

    Parameters
    ----------
    operations : iterable of Operation
        From :func:`santa_hw.events.operation`, with the memory's :meth:`Memory.layout`.
    table : Table
    memory : Memory

    Raises
    ------
    ValueError
        If the table has no entry for an operation, or the layout is not the memory's.

    Examples
    --------
    >>> from santa_hw.events import Operation
    >>> made = bill([Operation("mass", "add", (32,), 5)], load_table("horowitz-45nm"), load_memory("hbm2"))
    >>> made.stages["mass"] == made.total_pj == 0.5
    True
    """
    lines = []
    for operation in operations:
        if operation.count < 0:
            raise ValueError(f"operation {operation.name} has count = {operation.count}: 0 or more is allowed")
        payer = memory if operation.kind in MEMORY_KINDS else table
        lines.append(Line(operation, payer.cost(operation)))
    return Bill(table.name, memory.name, tuple(lines))


def alone_and_streamed(memory: Memory, row_bits: int) -> tuple[float, float]:
    """pJ a bit of one row read by itself, and of the same row in a stream: the price of scattered reads."""
    burst, chunk = 8 * memory.burst_bytes, 8 * min(memory.interleave_bytes, memory.row_bytes)
    opening = 0.0 if memory.activation is None else memory.activation.energy
    bursts = -(-row_bits // burst) * burst * memory.transfer.energy
    alone = (bursts + -(-row_bits // chunk) * opening) / row_bits
    return alone, memory.transfer.energy + opening / (8 * memory.row_bytes)
