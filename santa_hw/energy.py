"""Energy: operations times a table of energies per operation, a line a stage. The door to the folder ``energy/``.

A table is a TOML file (format: ``docs/reference/energy-tables.md``): of logic and on-chip memory, or of one off-chip
memory. Every number has a source and a confidence; a width that no entry has is scaled from those that are there, and
the bill says so.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from santa_hw import assets
from santa_hw.events import NUMBERS, STAGES, Layout, Operation

CONFIDENCES = ("primary", "secondary", "estimate")
"""Best first. Primary: read in the source itself. Secondary: as others quote the source. Estimate: ours, or ascribed to
a source that nobody has checked it against."""

TABLE_OPERATIONS = ("add", "multiply", "divide", "shift", "compare", "xor", "register", "sram")
"""What a logic table may have entries for. Without entries of their own, a comparison is an addition, and a division
one addition of the divisor's width for each bit of the quotient."""

MEMORY_KINDS = ("dram-read", "dram-write", "activation")
"""Operations that a memory's table pays; all others are the logic table's."""

_PREFIXES = {"fJ": 1e-3, "pJ": 1.0, "nJ": 1e3}
_UNIT = re.compile(r"(?P<prefix>fJ|pJ|nJ)(?:/(?:(?P<bits>[1-9]\d*)?(?P<bit>bit)|(?P<byte>byte)))?")
_SIGNIFICANDS = {"bf16": 8, "fp16": 11, "fp32": 24}
_NOT_STATED = "not stated"


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


# The bill -------------------------------------------------------------------------------------------------------------


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


# Files ----------------------------------------------------------------------------------------------------------------


def names(kind: str) -> list[str]:
    """Names of the built-in tables of a kind, ``"logic"`` or ``"memory"``."""
    found = []
    for path in sorted(assets.path("energy").glob("*.toml")):
        if tomllib.loads(path.read_text(encoding="utf-8"))["kind"] == kind:
            found.append(path.stem)
    return found


def load_table(name: str | Path) -> Table:
    """A logic table by name, or from a file of one's own.

    Raises
    ------
    ValueError
        An unknown name, or a file with anything amiss: file, line, key and what is allowed are named.
    """
    document = _Document.open(name, "logic")
    document.check_keys(document.content, "", ("name", "kind", "title", *_REQUIRED_HEAD), ("operations",))
    entries = document.content.get("operations")
    if not isinstance(entries, list) or not entries:
        raise document.error("", "operations", "a list of [[operations]] entries, one at least, is allowed")
    made = []
    seen: dict[tuple[Any, ...], int] = {}
    for index, fields in enumerate(entries):
        entry = _entry(document, f"operations[{index}]", fields)
        key = (entry.operation, entry.numbers, entry.bits, entry.size)
        if key in seen:
            allowed = f"operations[{seen[key]}] is the same {entry.operation}: one of them is allowed"
            raise document.error(f"operations[{index}]", "operation", allowed)
        seen[key] = index
        made.append(entry)
    return Table(*document.head(), tuple(made))


def load_memory(name: str | Path) -> Memory:
    """A memory's table by name, or from a file of one's own; errors as in :func:`load_table`."""
    document = _Document.open(name, "memory")
    content = document.content
    required = ("name", "kind", "title", *_REQUIRED_HEAD, "geometry", "transfer")
    document.check_keys(content, "", required, ("activation",))
    geometry = document.table("geometry")
    sizes = ("burst_bytes", "row_bytes", "interleave_bytes")
    document.check_keys(geometry, "geometry", (*sizes, "source", "confidence"), ("note",))
    for key in sizes:
        document.whole("geometry", key, geometry[key])
    document.words("geometry", geometry)
    transfer = _memory_entry(document, "transfer", per_bit=True)
    activation = _memory_entry(document, "activation", per_bit=False) if "activation" in content else None
    return Memory(*document.head(), transfer, activation, *(geometry[key] for key in sizes))


_REQUIRED_HEAD = ("reference", "node_nm", "voltage_v")
_NUMBER_KEYS = ("energy", "unit", "source", "confidence")
_OPTIONAL_KEYS = ("low", "high", "node_nm", "voltage_v", "note")


def _entry(document: _Document, where: str, fields: Any) -> Entry:
    if not isinstance(fields, dict):
        raise document.error(where, "", "a table of keys is allowed")
    operation = fields.get("operation")
    if operation not in TABLE_OPERATIONS:
        raise document.error(where, "operation", f"allowed are {', '.join(TABLE_OPERATIONS)}", operation)
    numbers = fields.get("numbers", "int")
    if numbers not in NUMBERS:
        raise document.error(where, "numbers", f"allowed are {', '.join(NUMBERS)}", numbers)
    if numbers != "int" and operation not in ("add", "multiply", "divide"):
        raise document.error(where, "numbers", f"int is allowed with operation = {operation}", numbers)
    size = ("size",) if operation == "sram" else ()
    width = ("bits",) if numbers == "int" else ()
    document.check_keys(fields, where, ("operation", *width, *size, *_NUMBER_KEYS), ("numbers", *_OPTIONAL_KEYS))
    for key in size:
        document.whole(where, key, fields[key])
    bits = _widths(document, where, operation, fields["bits"]) if width else (NUMBERS[numbers],)
    return _number(document, where, fields, operation, numbers, bits, fields.get("size", 0), per_bit=False)


def _memory_entry(document: _Document, where: str, *, per_bit: bool) -> Entry:
    fields = document.table(where)
    document.check_keys(fields, where, _NUMBER_KEYS, _OPTIONAL_KEYS)
    return _number(document, where, fields, where, "int", (), 0, per_bit=per_bit)


def _widths(document: _Document, where: str, operation: str, value: Any) -> tuple[int, ...]:
    pairs = operation in ("multiply", "divide")
    widths = value if isinstance(value, list) else [value] * (2 if pairs else 1)
    if len(widths) != (2 if pairs else 1):
        what = "two widths, as in [8, 8]," if pairs else "one width"
        raise document.error(where, "bits", f"{what} is allowed with operation = {operation}", value)
    for width in widths:
        document.whole(where, "bits", width)
    return tuple(widths)


def _number(
    document: _Document,
    where: str,
    fields: Mapping[str, Any],
    operation: str,
    numbers: str,
    bits: tuple[int, ...],
    size: int,
    *,
    per_bit: bool,
) -> Entry:
    factor = document.unit(where, fields["unit"], per_bit=per_bit)
    energies = {key: document.positive(where, key, fields[key]) for key in ("energy", "low", "high") if key in fields}
    low, high = energies.get("low", energies["energy"]), energies.get("high", energies["energy"])
    if not low <= energies["energy"] <= high:
        raise document.error(
            where, "energy", f"a number from low = {low} to high = {high} is allowed", energies["energy"]
        )
    document.words(where, fields)
    node, voltage = (
        document.stated(where if key in fields else "", key, fields.get(key, document.content[key]))
        for key in ("node_nm", "voltage_v")
    )
    return Entry(
        operation=operation,
        numbers=numbers,
        bits=bits,
        size=size,
        energy=energies["energy"] * factor,
        low=energies["low"] * factor if "low" in energies else None,
        high=energies["high"] * factor if "high" in energies else None,
        node_nm=node,
        voltage_v=voltage,
        source=fields["source"],
        confidence=fields["confidence"],
        note=fields.get("note", ""),
    )


class _Document:
    """A parsed file that knows on which line a key stands."""

    def __init__(self, path: Path, text: str, content: dict[str, Any]) -> None:
        self.path, self.content = path, content
        self._lines = _key_lines(text)

    @classmethod
    def open(cls, name: str | Path, kind: str) -> _Document:
        path = Path(name)
        if path.suffix != ".toml":
            built_in = names(kind)
            if str(name) not in built_in:
                near = difflib.get_close_matches(str(name), built_in, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                option = {"logic": "table", "memory": "memory"}[kind]
                raise ValueError(f"{option} = {str(name)!r}{hint}: allowed are {', '.join(built_in)}, or a .toml file")
            path = assets.path("energy") / f"{name}.toml"
        try:
            text = path.read_text(encoding="utf-8-sig")
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: not TOML: {error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 text: {error.reason}") from error
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from error
        document = cls(path, text, content)
        if content.get("kind") != kind:
            raise document.error("", "kind", f"{kind!r} is allowed here", content.get("kind"))
        return document

    def head(self) -> tuple[str, str, str, Path]:
        """Name, title, reference and path, checked."""
        for key in ("name", "title", "reference"):
            self.text("", key, self.content[key])
        for key in ("node_nm", "voltage_v"):
            self.stated("", key, self.content[key])
        return self.content["name"], self.content["title"], self.content["reference"], self.path

    def error(self, where: str, key: str, allowed: str, value: Any = None) -> ValueError:
        """An error that names file, line, key, value and what is allowed."""
        places = ((where, key), (key, ""), (f"{key}[0]", ""), (where, ""))
        line = next((self._lines[place] for place in places if place in self._lines), None)
        place = f"{self.path}, line {line}" if line else str(self.path)
        shown = "" if value is None else f" = {value!r}"
        return ValueError(f"{place}: {'.'.join(part for part in (where, key) if part)}{shown}: {allowed}")

    def table(self, where: str) -> dict[str, Any]:
        fields = self.content[where]
        if not isinstance(fields, dict):
            raise self.error("", where, f"a table [{where}] is allowed", fields)
        return fields

    def check_keys(
        self, fields: Mapping[str, Any], where: str, required: Iterable[str], optional: Iterable[str]
    ) -> None:
        required, optional = tuple(required), tuple(optional)
        for key in fields:
            if key not in required + optional:
                near = difflib.get_close_matches(key, required + optional, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise self.error(where, key, f"unknown key{hint}: allowed are {', '.join(required + optional)}")
        for key in required:
            if key not in fields:
                raise self.error(where, key, "the key is missing")

    def whole(self, where: str, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(where, key, "a whole number above zero is allowed", value)
        return value

    def positive(self, where: str, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.error(where, key, "a number above zero is allowed", value)
        return float(value)

    def stated(self, where: str, key: str, value: Any) -> float | None:
        return None if value == _NOT_STATED else self.positive(where, key, value)

    def text(self, where: str, key: str, value: Any) -> None:
        if not isinstance(value, str) or not value.strip():
            raise self.error(where, key, "text is allowed", value)

    def words(self, where: str, fields: Mapping[str, Any]) -> None:
        """Source, confidence and note."""
        self.text(where, "source", fields["source"])
        if fields["confidence"] not in CONFIDENCES:
            raise self.error(where, "confidence", f"allowed are {', '.join(CONFIDENCES)}", fields["confidence"])
        if "note" in fields:
            self.text(where, "note", fields["note"])

    def unit(self, where: str, value: Any, *, per_bit: bool) -> float:
        """Factor from a number in this unit to pJ, or to pJ a bit."""
        match = _UNIT.fullmatch(value) if isinstance(value, str) else None
        if match is None or (match["bit"] is not None or match["byte"] is not None) != per_bit:
            example = "pJ/bit, fJ/bit, pJ/64bit or pJ/byte" if per_bit else "fJ, pJ or nJ"
            raise self.error(where, "unit", f"{example} is allowed", value)
        share = 8 if match["byte"] else int(match["bits"] or 1)
        return _PREFIXES[match["prefix"]] / share


def _key_lines(text: str) -> dict[tuple[str, str], int]:
    """Line of each key, by the section it stands in; a section itself has the key ''."""
    lines: dict[tuple[str, str], int] = {}
    counts: dict[str, int] = {}
    where = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[\[?)\s*([\w-]+)\s*\]", line):
            where = header[2]
            if header[1] == "[[":
                counts[where] = counts.get(where, -1) + 1
                where = f"{where}[{counts[where]}]"
            lines[where, ""] = number
        elif key := re.match(r"\s*([\w-]+)\s*=", line):
            lines.setdefault((where, key[1]), number)
    return lines
