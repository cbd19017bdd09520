"""score_sampler: one head from scores to drawn keys (numeric contract 3.4 to 3.6)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.datapath.counts import scaled_offset
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, at_most
from santa_hw.rtl.blocks.systematic_sampler import drawn_beats
from santa_hw.rtl.package import key_bits, keys_bits
from santa_hw.rtl.rows import Row, rows

MAX_KEYS = 1 << 20
"""Deepest score memory that is built."""

NEEDS = ("exp2_weight", "mass", "offset_scale", "systematic_sampler")


def check(block: str, design: Design) -> None:
    """ValueError unless a block with a score sampler builds the design."""
    if design.method != "santa" or design.sampler != "systematic":
        raise ValueError(
            f"method = {design.method}, sampler = {design.sampler}: santa and systematic are allowed in block {block}"
        )
    at_most("max_keys", design.max_keys, MAX_KEYS, block)


def cycles(design: Design, keys: int, drawn: int) -> int:
    """Cycles of a row with mass without idle or stalled ones: 3 N + R + S + 9, and one for each of its `drawn` keys."""
    return 3 * keys + design.rng_bits + design.samples + 9 + drawn


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    mass = design.derived()["mass"]
    inputs = (
        Stream("row", (Field("keys", keys_bits(design)), Field("word", design.rng_bits))),
        Stream("score", (Field("score", design.score_bits, signed=True), Field("visible", 1))),
    )
    drawn = (Field("key", key_bits(design)), Field("count", design.derived()["count"]), Field("last", 1))
    outputs = (
        Stream("drawn", drawn),
        Stream("weight", (Field("weight", design.W),), monitor=True),
        Stream("mass", (Field("mass", mass),), monitor=True),
        Stream("offset", (Field("offset", mass),), monitor=True),
    )
    return inputs, outputs


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    """Rows of all lengths and shapes; words all ones, zero and at random."""
    ones = (1 << design.rng_bits) - 1
    for i, row in enumerate(rows(design, count, generator)):
        word = (ones, 0)[i % 4] if i % 4 < 2 else int(generator.integers(0, ones + 1))
        yield _vector(design, row, word)


def _vector(design: Design, row: Row, word: int) -> Vector:
    offset = int(scaled_offset(word, row.mass, design.rng_bits))
    inputs: dict[str, list[tuple[int, ...]]] = {
        "row": [(row.scores.size, word)],
        "score": [(int(s), int(seen)) for s, seen in zip(row.scores, row.visible, strict=True)],
    }
    outputs: dict[str, list[tuple[int, ...]]] = {
        "drawn": [*drawn_beats(design, row.weights, row.mass, offset)],
        "weight": [(int(w),) for w in row.weights],
        "mass": [(row.mass,)],
        "offset": [(offset,)],
    }
    return Vector(f"{row.name}, word {word:#x}", inputs, outputs)


def _check(design: Design) -> None:
    check("score_sampler", design)


BLOCK = Block("score_sampler", _streams, _vectors, _check, NEEDS)
