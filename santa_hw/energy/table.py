"""What one operation costs: tables of logic and on-chip memory, and of one off-chip memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from santa_hw.events import Layout, Operation

CONFIDENCES = ("primary", "secondary", "estimate")
"""Best first. Primary: read in the source itself. Secondary: as others quote the source. Estimate: ours, or ascribed to
a source that nobody has checked it against."""

TABLE_OPERATIONS = ("add", "multiply", "divide", "shift", "compare", "xor", "register", "sram")
"""What a logic table may have entries for. Without entries of their own, a comparison is an addition, and a division
one addition of the divisor's width for each bit of the quotient."""

MEMORY_KINDS = ("dram-read", "dram-write", "activation")
"""Operations that a memory's table pays; all others are the logic table's."""

_SIGNIFICANDS = {"bf16": 8, "fp16": 11, "fp32": 24}


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    Attributes
    ----------
    operation, numbers : str
        What it is the energy of; `numbers` is ``"int"`` or a floating-point format.
    bits : tuple of int
        Widths, as in :class:`~santa_hw.events.Operation`; bits of one access for ``sram``.
    size : int
        Bytes of an ``sram``, else 0.
    energy : float
        pJ for one operation; pJ a bit for a memory's ``transfer``.
    low, high : float or None
        Range that the source gives.
    node_nm, voltage_v : float or None
        None if the source does not state them.
    source, confidence, note : str
    """

    operation: str
    numbers: str
    bits: tuple[int, ...]
    size: int
    energy: float
    low: float | None
    high: float | None
    node_nm: float | None
    voltage_v: float | None
    source: str
    confidence: str
    note: str = ""

    @property
    def label(self) -> str:
        """The entry as text: its widths, or its size."""
        if self.operation == "sram":
            return f"{self.bits[0]} bit of {self.size} B"
        return self.numbers if self.numbers != "int" else "x".join(map(str, self.bits)) + " bit"


class Cost(NamedTuple):
    """pJ of one operation, the entries it rests on, and the rule that scaled them; no rule if an entry fits."""

    pj: float
    entries: tuple[Entry, ...]
    rule: str = ""

    @property
    def confidence(self) -> str:
        """The least of its entries'."""
        return max((entry.confidence for entry in self.entries), key=CONFIDENCES.index)


@dataclass(frozen=True)
class Table:
    """Energies of logic and on-chip memory in one technology; made by :func:`load_table`."""

    name: str
    title: str
    reference: str
    path: Path
    entries: tuple[Entry, ...]

    def cost(self, operation: Operation) -> Cost:
        """The energy of one such operation.

        Raises
        ------
        ValueError
            If the table lacks what it takes: the file, the operation and the width are named.
        """
        if operation.kind.startswith("sram"):
            return self._sram(operation)
        if operation.numbers != "int":
            return self._floating(operation)
        return self._integer(operation.kind, operation.bits, operation)

    def _select(self, kind: str, numbers: str = "int") -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if entry.operation == kind and (entry.numbers == "int") == (numbers == "int")
        ]

    def _missing(self, kind: str, operation: Operation) -> ValueError:
        floating = operation.numbers if operation.numbers != "int" else ""
        wanted = " ".join(part for part in (floating, kind) if part)
        return ValueError(
            f"{self.path}: no entry for {wanted}, which the stage {operation.stage!r} needs as {operation.name}: "
            f'an [[operations]] entry with operation = "{kind}" is allowed'
        )

    def _integer(self, kind: str, bits: tuple[int, ...], operation: Operation) -> Cost:
        entries = self._select(kind)
        if not entries and kind == "compare":
            return _with_rule(self._integer("add", bits, operation), "a comparison is an addition")
        if not entries and kind == "divide":
            quotient, divisor = bits
            one = self._integer("add", (divisor,), operation)
            rule = f"{quotient} additions of {divisor} bits, one a quotient bit"
            return _with_rule(Cost(one.pj * quotient, one.entries, one.rule), rule)
        if not entries:
            raise self._missing(kind, operation)
        law = "the product of the widths" if len(bits) > 1 else "width"
        return _interpolate(entries, bits, lambda entry: math.prod(entry.bits), math.prod(bits), law)

    def _floating(self, operation: Operation) -> Cost:
        entries = self._select(operation.kind, operation.numbers)
        if not entries:
            raise self._missing(operation.kind, operation)
        for entry in entries:
            if entry.numbers == operation.numbers:
                return Cost(entry.energy, (entry,))
        power = 2 if operation.kind in ("multiply", "divide") else 1
        law = "the square of the significand's width" if power == 2 else "the significand's width"
        width = _SIGNIFICANDS[operation.numbers]
        return _interpolate(entries, None, lambda entry: _SIGNIFICANDS[entry.numbers] ** power, width**power, law)

    def _sram(self, operation: Operation) -> Cost:
        """A power law in size between entries, the square root outside of them; linear in the bits of an access."""
        entries = sorted(self._select("sram"), key=lambda entry: entry.size)
        if not entries:
            raise self._missing("sram", operation)
        size, bits = max(1, operation.size), operation.bits[0]
        for entry in entries:
            if entry.size == size:
                rule = "" if entry.bits[0] == bits else f"linear in bits from {entry.label}"
                return Cost(_per_bit(entry) * bits, (entry,), rule)
        below = [entry for entry in entries if entry.size < size]
        above = [entry for entry in entries if entry.size > size]
        if below and above:
            a, b = below[-1], above[0]
            share = math.log(size / a.size) / math.log(b.size / a.size)
            pj = _per_bit(a) ** (1 - share) * _per_bit(b) ** share * bits
            return Cost(pj, (a, b), f"a power of size between {a.label} and {b.label}")
        near = below[-1] if below else above[0]
        pj = _per_bit(near) * math.sqrt(size / near.size) * bits
        return Cost(pj, (near,), f"the square root of size from {near.label}")


@dataclass(frozen=True)
class Memory:
    """Energies and geometry of an off-chip memory; made by :func:`load_memory`.

    Attributes
    ----------
    transfer : Entry
        pJ a bit moved, reading or writing.
    activation : Entry or None
        pJ to open a DRAM row; None if the source counts it in the bits moved.
    burst_bytes, row_bytes, interleave_bytes : int
        See :class:`~santa_hw.events.Layout`.
    """

    name: str
    title: str
    reference: str
    path: Path
    transfer: Entry
    activation: Entry | None
    burst_bytes: int
    row_bytes: int
    interleave_bytes: int

    def layout(self, **changes: Any) -> Layout:
        """A layout with this memory's geometry."""
        geometry = {name: getattr(self, name) for name in ("burst_bytes", "row_bytes", "interleave_bytes")}
        return Layout(**{**geometry, **changes})

    def cost(self, operation: Operation) -> Cost:
        """The energy of one burst or activation."""
        if operation.kind != "activation":
            return Cost(self.transfer.energy * operation.bits[0], (self.transfer,))
        if self.activation is None:
            return Cost(0.0, (self.transfer,), "counted in the bits moved")
        if operation.bits[0] != 8 * self.row_bytes:
            raise ValueError(
                f"layout has row_bytes = {operation.bits[0] // 8}: the memory's {self.row_bytes} is allowed with "
                f"{self.name}, whose activation energy is that of such a row"
            )
        return Cost(self.activation.energy, (self.activation,))


def _per_bit(entry: Entry) -> float:
    return entry.energy / entry.bits[0]


def _with_rule(cost: Cost, rule: str) -> Cost:
    return cost._replace(rule=f"{rule}; {cost.rule}" if cost.rule else rule)


def _interpolate(
    entries: Sequence[Entry], bits: tuple[int, ...] | None, of: Callable[[Entry], int], x: float, law: str
) -> Cost:
    """Linear in `of` between neighbouring entries, in proportion to it outside; exact where an entry has `bits`."""
    for entry in entries:
        if entry.bits == bits:
            return Cost(entry.energy, (entry,))
    ordered = sorted(entries, key=of)
    below = [entry for entry in ordered if of(entry) <= x]
    above = [entry for entry in ordered if of(entry) >= x]
    if below and above and of(below[-1]) < of(above[0]):
        a, b = below[-1], above[0]
        pj = a.energy + (b.energy - a.energy) * (x - of(a)) / (of(b) - of(a))
        return Cost(pj, (a, b), f"linear in {law} between {a.label} and {b.label}")
    near = below[-1] if below else above[0]
    return Cost(near.energy * x / of(near), (near,), f"in proportion to {law} from {near.label}")
