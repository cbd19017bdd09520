"""A file of rows that grows and resumes, and the columns of a row."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]

IDENTITY = (
    "task", "model_identity", "dtype", "device", "text_sha256", "calibration_sha256", "windows", "window", "context",
    "needles", "trials", "phases", "method", "samples", "schedule", "design", "teams", "seed", "version",
)  # fmt: skip
"""Columns that say which result a row holds: a row with the same ones is not computed again."""

SCORES = ("perplexity", "kl_to_dense", "top1_agreement", "accuracy")
COUNTS = ("unique_rows", "kv_reads", "group_kv_reads", "saturations", "lost_mass")
DETAILS = ("per_window", "per_trial")


class Rows:
    """
    A JSON list of rows in a file that is valid at every moment: each row replaces the whole file, atomically.

    Rows that are there already are kept, whatever setting they come from.

    Parameters
    ----------
    path : path
        Made with the first row if it is not there.

    Raises
    ------
    ValueError
        The file is not a JSON list of objects, or cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        # A link stays a link: what it points to is replaced.
        self.path = Path(path).expanduser().resolve()
        try:
            self.rows = read_rows(self.path) if self.path.exists() else []
            # A place that cannot be written is found out now, not after the first row's work.
            with self._locked():
                self._part.touch()
                self._part.unlink()
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error
        try:
            # Others write NaN and infinity, which JSON lacks: the file could not be written again.
            json.dumps(self.rows, allow_nan=False)
        except ValueError as error:
            raise ValueError(f"{path} holds NaN or infinity: numbers of JSON, or null, are allowed") from error
        self._known = {row_key(row): row for row in self.rows}

    def find(self, row: Mapping[str, Any]) -> Row | None:
        """The row with the same identity, if it is there."""
        return self._known.get(row_key(row))

    def add(self, row: Row) -> None:
        """Append a row, on disk when this returns; rows that another run added meanwhile are kept."""
        with self._locked():
            if self.path.exists():
                for other in read_rows(self.path):
                    if row_key(other) not in self._known:
                        self._known[row_key(other)] = other
                        self.rows.append(other)
            self.rows.append(row)
            self._known[row_key(row)] = row
            self._write()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One run at a time reads, merges and replaces a file of this folder."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self) -> None:
        text = "[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in self.rows) + "\n]\n"
        try:
            with self._part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._part, self.path)
        finally:
            self._part.unlink(missing_ok=True)

    @property
    def _part(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}.part")


def read_rows(path: str | Path) -> list[Row]:
    """
    The rows of a file that `Rows` wrote.

    Raises
    ------
    ValueError
        There is no such file, or it is not a JSON list of objects.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); allowed: a list of rows") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} holds no list of rows; allowed: a file that santa-hw accuracy wrote, or none")
    return rows


def row_key(row: Mapping[str, Any], *, without: Iterable[str] = ()) -> str:
    """The identity of a row as text, some columns left out."""
    return json.dumps({name: row.get(name) for name in IDENTITY if name not in set(without)}, sort_keys=True)
