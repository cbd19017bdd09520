"""Vectors as files, for test benches that do not use cocotb."""

from __future__ import annotations

import contextlib
import json
import shutil
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream
from santa_hw.rtl.package import FILE, package

ARRAYS, MANIFEST = "vectors.npz", "manifest.json"
UNFINISHED = ".unfinished"
"""Folder, in that of the vectors, of those that are not all there yet."""


def write_vectors(
    block: Block,
    design: Design,
    count: int,
    seed: int,
    folder: Path,
    parameters: Mapping[str, int] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Write a block's stimulus and expected values, and return the manifest.

    In `folder`: ``santa_pkg.sv``; ``<stream>_<field>.hex`` for ``$readmemh``, one beat a line; ``vectors.npz`` with the
    same beats as int64 or uint64 arrays (a signal wider than 64 bits as a row of 64-bit words, the low one first) and
    ``<stream>_vector``, the vector that each beat belongs to; ``manifest.json``. They take the place of those of an
    earlier call once all are there. `advance` is called once a vector.

    Raises
    ------
    ValueError
        If the block does not build the design or lacks a parameter, count is below 1, or the folder holds other files
        or cannot be written.
    """
    if count < 1:
        raise ValueError(f"vectors = {count}: 1 or more is allowed")
    block = block.given(parameters or {})
    block.check(design)
    old = _earlier(folder)
    values = block.resolve(parameters or {})
    inputs, outputs = block.streams(design)
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / UNFINISHED
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    names = []
    with contextlib.ExitStack() as files:
        streams = [_Beats(stream, "input", work, files) for stream in inputs]
        streams += [_Beats(stream, "output", work, files) for stream in outputs]
        for vector in block.vectors(design, count, np.random.default_rng(seed)):
            names.append(vector.name)
            for stream in streams:
                stream.add((vector.inputs if stream.direction == "input" else vector.outputs).get(stream.name, ()))
            advance()
    arrays = {name: array for stream in streams for name, array in stream.arrays()}
    np.savez_compressed(work / ARRAYS, **arrays)  # type: ignore[arg-type]
    manifest = {
        "block": block.name,
        "design": design.to_dict(),
        "parameters": values,
        "seed": seed,
        "package": FILE,
        "streams": [stream.manifest() for stream in streams],
        "vectors": names,
    }
    (work / FILE).write_text(package(design), encoding="utf-8")
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for path in old:
        path.unlink()
    for path in sorted(work.iterdir()):
        path.rename(folder / path.name)
    work.rmdir()
    return manifest


def _earlier(folder: Path) -> list[Path]:
    """What an earlier call wrote into a folder; one that holds anything else is refused, before the work."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: it is a file; a folder is allowed")
    there = sorted(folder.glob("[!.]*"))
    try:
        streams = json.loads((folder / MANIFEST).read_text("utf-8"))["streams"]
        own = {FILE, ARRAYS, MANIFEST, *(field["file"] for stream in streams for field in stream["fields"])}
    except (OSError, ValueError, KeyError, TypeError):
        own = set()
    other = [path.name for path in there if path.name not in own or path.is_dir()]
    if other:
        raise ValueError(
            f"{folder} holds other files ({other[0]}): an empty folder, a new one, or one that holds what "
            "santa-hw vectors wrote and nothing else is allowed"
        )
    return there


class _Column:
    """A field's values, a line each in a hex file and packed in memory."""

    def __init__(self, field: Field, path: Path, files: contextlib.ExitStack) -> None:
        self.field, self.path = field, path
        self._file = files.enter_context(path.open("w", encoding="ascii"))
        self._signed = field.width <= 64 and (field.signed or field.width < 64)
        self._words = array("q" if self._signed else "Q")

    def add(self, values: Sequence[int]) -> None:
        digits, mask = (self.field.width + 3) // 4, (1 << self.field.width) - 1
        self._file.write("".join(f"{value & mask:0{digits}x}\n" for value in values))
        if self.field.width > 64:
            self._words.extend(v >> low & 0xFFFFFFFFFFFFFFFF for v in values for low in range(0, self.field.width, 64))
        else:
            self._words.extend(values)

    def array(self) -> np.ndarray:
        """One value a beat, or one row of 64-bit words a beat."""
        words = np.frombuffer(self._words, dtype=np.int64 if self._signed else np.uint64)
        return words.reshape(-1, -(-self.field.width // 64)) if self.field.width > 64 else words


class _Beats:
    """A stream's beats, written as they come."""

    def __init__(self, stream: Stream, direction: str, folder: Path, files: contextlib.ExitStack) -> None:
        self.name, self.direction = stream.name, direction
        self._monitor = stream.monitor
        self._columns = [_Column(field, folder / f"{stream.name}_{field.name}.hex", files) for field in stream.fields]
        self._lengths: list[int] = []

    def add(self, beats: Sequence[tuple[int, ...]]) -> None:
        """Those of the next vector."""
        for i, column in enumerate(self._columns):
            column.add([int(beat[i]) for beat in beats])
        self._lengths.append(len(beats))

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        for column in self._columns:
            yield column.path.stem, column.array()
        yield f"{self.name}_vector", np.repeat(np.arange(len(self._lengths)), self._lengths)

    def manifest(self) -> dict[str, Any]:
        fields = [
            {"name": c.field.name, "width": c.field.width, "signed": c.field.signed, "file": c.path.name}
            for c in self._columns
        ]
        return {
            "name": self.name, "direction": "monitor" if self._monitor else self.direction,
            "beats": sum(self._lengths), "beats_by_vector": self._lengths, "fields": fields,
        }  # fmt: skip
