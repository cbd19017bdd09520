"""Vectors as files, for test benches that do not use cocotb."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream
from santa_hw.rtl.package import FILE, package

ARRAYS, MANIFEST = "vectors.npz", "manifest.json"


def write_vectors(
    block: Block, design: Design, count: int, seed: int, folder: Path, parameters: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Write a block's stimulus and expected values, and return the manifest.

    In `folder`: ``santa_pkg.sv``; ``<stream>_<field>.hex`` for ``$readmemh``, one beat a line; ``vectors.npz`` with the
    same beats as int64 or uint64 arrays (a signal wider than 64 bits as a row of 64-bit words, the low one first) and
    ``<stream>_vector``, the vector that each beat belongs to; ``manifest.json``. They take the place of those of an
    earlier call.

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
    vectors = list(block.vectors(design, count, np.random.default_rng(seed)))
    inputs, outputs = block.streams(design)
    folder.mkdir(parents=True, exist_ok=True)
    for path in old:
        path.unlink()
    (folder / FILE).write_text(package(design), encoding="utf-8")
    arrays: dict[str, np.ndarray] = {}
    streams = [_stream(s, "input", [v.inputs.get(s.name, []) for v in vectors], folder, arrays) for s in inputs]
    streams += [_stream(s, "output", [v.outputs.get(s.name, []) for v in vectors], folder, arrays) for s in outputs]
    np.savez_compressed(folder / ARRAYS, **arrays)  # type: ignore[arg-type]
    manifest = {
        "block": block.name,
        "design": design.to_dict(),
        "parameters": values,
        "seed": seed,
        "package": FILE,
        "streams": streams,
        "vectors": [vector.name for vector in vectors],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
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


def _array(values: Sequence[int], field: Field) -> np.ndarray:
    """One value a beat, or one row of 64-bit words a beat."""
    if field.width > 64:
        words = [[value >> low & 0xFFFFFFFFFFFFFFFF for low in range(0, field.width, 64)] for value in values]
        return np.array(words, dtype=np.uint64).reshape(len(values), -(-field.width // 64))
    return np.array(values, dtype=np.int64 if field.signed or field.width < 64 else np.uint64)


def _stream(
    stream: Stream,
    direction: str,
    by_vector: Sequence[Sequence[tuple[int, ...]]],
    folder: Path,
    arrays: dict[str, np.ndarray],
) -> dict[str, Any]:
    beats = [beat for vector in by_vector for beat in vector]
    fields = []
    for i, field in enumerate(stream.fields):
        values = [int(beat[i]) for beat in beats]
        name = f"{stream.name}_{field.name}"
        digits = (field.width + 3) // 4
        mask = (1 << field.width) - 1
        text = "".join(f"{value & mask:0{digits}x}\n" for value in values)
        (folder / f"{name}.hex").write_text(text, encoding="ascii")
        arrays[name] = _array(values, field)
        fields.append({"name": field.name, "width": field.width, "signed": field.signed, "file": f"{name}.hex"})
    arrays[f"{stream.name}_vector"] = np.repeat(np.arange(len(by_vector)), [len(vector) for vector in by_vector])
    lengths = [len(vector) for vector in by_vector]
    return {
        "name": stream.name, "direction": "monitor" if stream.monitor else direction, "beats": len(beats),
        "beats_by_vector": lengths, "fields": fields,
    }  # fmt: skip
