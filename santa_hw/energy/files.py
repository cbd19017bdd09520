"""Tables from their TOML files: every key checked, and named with its line where it is wrong."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from santa_hw import assets
from santa_hw.energy.table import CONFIDENCES, TABLE_OPERATIONS, Entry, Memory, Table
from santa_hw.events import NUMBERS

_PREFIXES = {"fJ": 1e-3, "pJ": 1.0, "nJ": 1e3}
_UNIT = re.compile(r"(?P<prefix>fJ|pJ|nJ)(?:/(?:(?P<bits>[1-9]\d*)?(?P<bit>bit)|(?P<byte>byte)))?")
_NOT_STATED = "not stated"


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
