"""Rows of ``santa-hw accuracy``, checked before they are shown or priced."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from santa_hw.design import FIELDS, Design, field_type
from santa_hw.events import Tally
from santa_hw.sweep import COUNTS, FLOAT_METHODS, SCORES, TEAM_METHODS, Row
from santa_hw.team_design import TEAM_FIELDS

FIXED = ("santa", "top-k", "dense")
"""Methods of the fixed-point datapath: the ones that have a cost."""

_TALLY_FIELDS = {field.name for field in dataclasses.fields(Tally)}
_KNOWN = (*FIXED, "schedule", *FLOAT_METHODS, *TEAM_METHODS)
_DESIGN_COLUMNS = ("method", "samples", "head_dim", "q_bits", "k_bits", "v_bits", "scores", "sampler")
_UNBUDGETED = ("dense", "float-dense", "schedule")
_NEEDED = ("seed", "task", "model")
_SIZES = ("samples", "windows", "window", "context", "needles", "trials")
_NAMES = (
    "task", "model", "model_identity", "dtype", "device", "phases", "text", "text_sha256", "calibration_sha256",
    "version",
)  # fmt: skip
_PIECES = {"per_window": ("nll", "kl", "agreement"), "per_trial": ("score",)}
_DESIGN_TYPES = {name: field_type(name) for name in FIELDS}


def check_rows(rows: Iterable[Row], file: str | Path | None = None) -> None:
    """Refuse rows that cannot be priced: foreign, damaged or of another version.

    Rows of methods that have no cost (schedules, floating point) are looked at no further.

    Parameters
    ----------
    rows : iterable of dict
    file : path, optional
        Where they come from, for the message.

    Raises
    ------
    ValueError
        Names the file, the number of the row (the first is 1), the column, its value and what is allowed.
    """
    for number, row in enumerate(rows, 1):
        with at_row(number, file):
            _check_row(row)


def check_shown(rows: Sequence[Row], file: str | Path | None = None) -> None:
    """Refuse rows that cannot be shown: foreign or damaged. Rows of other versions pass.

    Parameters
    ----------
    rows : sequence of dict
    file : path, optional
        Where they come from, for the message.

    Raises
    ------
    ValueError
        There is no row, or names the file, the number of the row (the first is 1), the column, its value and what is
        allowed.
    """
    where = "rows" if file is None else str(file)
    if not rows:
        raise ValueError(f"{where}: there is no row; a file with rows of santa-hw accuracy is allowed")
    for number, row in enumerate(rows, 1):
        with at_row(number, file):
            _check_shown(row)


def _check_shown(row: Mapping[str, Any]) -> None:
    if "total_pj" in row:
        raise ValueError("it holds a cost, as santa-hw energy writes it: rows of santa-hw accuracy are allowed")
    _check_method(row)
    for name in _NEEDED:
        if row.get(name) is None:
            raise ValueError(f"column {name} is missing: every row of santa-hw accuracy has it")
    _check(row, "seed", _is_count, "an integer from zero")
    for name in _SIZES:
        _check(row, name, _is_size, "1 or more, or null,")
    for name in _NAMES:
        _check(row, name, _is_text, "a text, or null,")
    for name in (*SCORES, *COUNTS, "seconds"):
        _check(row, name, _is_number, "a finite number, or null,")
    _check(row, "schedule", lambda value: isinstance(value, list) and all(map(_is_size, value)), "budgets, or null,")
    _check_fields(row, "design", _DESIGN_TYPES)
    _check_fields(row, "teams", TEAM_FIELDS)
    by_layer = row.get("schedule") or "layers" in (row.get("design") or {})
    if row.get("samples") is None and not by_layer and row["method"] not in _UNBUDGETED:
        raise ValueError(f"samples = None: 1 or more is allowed with method {row['method']}")
    for column, names in _PIECES.items():
        for name in names:
            _check_pieces(row, column, name, _is_number, "a finite number")
    if not any(row.get(name) for name in _PIECES) and all(row.get(name) is None for name in SCORES):
        raise ValueError(f"a row of method {row['method']!r} holds none of {', '.join(SCORES)}")


def _check_fields(row: Mapping[str, Any], column: str, types: Mapping[str, type]) -> None:
    """Text in fields of text and numbers in the others; fields of other versions pass."""
    _check(row, column, lambda value: isinstance(value, Mapping), "a table of fields, or null,")
    for name, value in (row.get(column) or {}).items():
        fits, allowed = (_is_text, "a text") if types.get(name) is str else (_is_number, "a finite number")
        if name in types and value is not None and not fits(value):
            raise ValueError(f"{column}: {name} = {short(value)}: {allowed} is allowed")


@contextmanager
def at_row(number: int, file: str | Path | None) -> Iterator[None]:
    """Errors about a row name it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{'' if file is None else f'{file}, '}row {number}: {error}") from error


def _check_method(row: Mapping[str, Any]) -> None:
    if row.get("method") not in _KNOWN:
        raise ValueError(f"method = {short(row.get('method'))}: allowed are {', '.join(_KNOWN)}")


def _check_row(row: Mapping[str, Any]) -> None:
    _check_method(row)
    design = row.get("design")
    if row["method"] not in FIXED or (isinstance(design, Mapping) and "layers" in design):
        return
    _check_design(row, design)
    for name in ("window", "windows", "heads", "kv_heads", "layers"):
        _check(row, name, _is_size, "1 or more, or null,")
    _check(row, "model", _is_text, "a name, or null,")
    _check(row, "unique_rows", _is_amount, "a number from zero, or null,")
    _check(row, "tally", lambda value: isinstance(value, Mapping), "a table of counts, or null,")
    if row.get("tally"):
        check_tally(row["tally"])
    _check(row, "kl_to_dense", _is_amount, "a number from zero, or null,")
    _check(row, "accuracy", _is_share, "a number from 0 to 1, or null,")
    if row.get("kl_to_dense") is not None:
        _check_pieces(row, "per_window", "kl", _is_amount, "a number from zero")
    elif row.get("accuracy") is not None:
        _check_pieces(row, "per_trial", "score", _is_share, "a number from 0 to 1")
    else:
        raise ValueError(f"a row of method {row['method']!r} holds neither kl_to_dense nor accuracy")


def _check_design(row: Mapping[str, Any], design: Any) -> None:
    if not isinstance(design, Mapping):
        raise ValueError(f"design = {short(design)}: a table of design fields is allowed with method {row['method']}")
    for name in _DESIGN_COLUMNS:
        if name not in design:
            raise ValueError(f"design = {short(design)}: a table with the field {name} is allowed")
    try:
        made = Design.from_dict(design)
    except (ValueError, TypeError) as error:
        raise ValueError(f"design: {error}") from error
    if made.method != row["method"]:
        raise ValueError(f"design: method = {made.method!r}: the row's {row['method']!r} is allowed")
    if made.method != "dense" and row.get("samples") != made.samples:
        raise ValueError(f"samples = {short(row.get('samples'))}: the design's {made.samples} is allowed")


def check_tally(tally: Mapping[str, Any]) -> None:
    unknown = sorted(set(tally) - _TALLY_FIELDS)
    if unknown:
        raise ValueError(f"tally holds {unknown[0]!r}: allowed are {', '.join(sorted(_TALLY_FIELDS))}")
    for name, value in tally.items():
        if name == "lost_mass":
            fits, allowed = _is_amount(value), "a number from zero"
        elif name in ("head_steps", "group_steps"):
            fits, allowed = _is_size(value), "1 or more"
        else:
            fits, allowed = _is_count(value), "an integer from zero"
        if not fits:
            raise ValueError(f"tally: {name} = {short(value)}: {allowed} is allowed")
    for name in ("head_steps", "group_steps"):
        if name not in tally:
            raise ValueError(f"tally = {short(tally)}: a table with {name} is allowed")
    live = tally["head_steps"] - tally.get("empty_steps", 0)
    if live < 0:
        most = tally["head_steps"]
        raise ValueError(f"tally: empty_steps = {tally['empty_steps']}: at most head_steps = {most} is allowed")
    if tally.get("visible_keys", 0) < live:
        raise ValueError(
            f"tally: visible_keys = {tally.get('visible_keys', 0)}: a key at least for each of {live} head steps that "
            "are not empty is allowed"
        )


def _check_pieces(row: Mapping[str, Any], column: str, name: str, fits: Callable[[Any], bool], allowed: str) -> None:
    pieces = row.get(column)
    if pieces is None:
        return
    if not isinstance(pieces, list) or not all(isinstance(piece, Mapping) for piece in pieces):
        raise ValueError(f"{column} = {short(pieces)}: a list of tables with {name}, or null, is allowed")
    for piece in pieces:
        if not fits(piece.get(name)):
            raise ValueError(f"{column}: {name} = {short(piece.get(name))}: {allowed} is allowed")


def _check(row: Mapping[str, Any], name: str, fits: Callable[[Any], bool], allowed: str) -> None:
    """A column that may be null."""
    value = row.get(name)
    if value is not None and not fits(value):
        raise ValueError(f"{name} = {short(value)}: {allowed} is allowed")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_share(value: Any) -> bool:
    return _is_amount(value) and value <= 1


def short(value: Any) -> str:
    """A value as text that fits into a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
