"""systematic_sampler: counts of the drawn keys from weights, mass and offset (numeric contract 3.6)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.datapath.counts import draw_systematic, scaled_offset
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector
from santa_hw.rtl.package import key_bits, keys_bits
from santa_hw.rtl.rows import Row, rows


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    mass = design.derived()["mass"]
    row = (Field("keys", keys_bits(design)), Field("mass", mass), Field("offset", mass))
    drawn = (Field("key", key_bits(design)), Field("count", design.derived()["count"]), Field("last", 1))
    return (Stream("row", row), Stream("weight", (Field("weight", design.W),))), (Stream("drawn", drawn),)


def drawn_beats(design: Design, weights: np.ndarray, mass: int, first: int) -> list[tuple[int, int, int]]:
    """(key, count, last) of every drawn key; (0, 0, 1) if there is no mass."""
    keys, counts = np.zeros((2, design.samples), dtype=np.int64)
    drawn = draw_systematic(weights, mass, first, design.sigma, keys, counts) if mass else 0
    beats = [(int(keys[i]), int(counts[i]), int(i == drawn - 1)) for i in range(drawn)]
    return beats or [(0, 0, 1)]


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    ones = (1 << design.rng_bits) - 1
    for i, row in enumerate(rows(design, count, generator)):
        word = (ones, 0)[i % 4] if i % 4 < 2 else int(generator.integers(0, ones + 1))
        yield _vector(design, row, word)


def _vector(design: Design, row: Row, word: int) -> Vector:
    first = int(scaled_offset(word, row.mass, design.rng_bits))
    inputs: dict[str, list[tuple[int, ...]]] = {
        "row": [(row.scores.size, row.mass, first)],
        "weight": [(int(w),) for w in row.weights],
    }
    beats = drawn_beats(design, row.weights, row.mass, first)
    return Vector(f"{row.name}, word {word:#x}", inputs, {"drawn": beats})


def _check(design: Design) -> None:
    if design.method != "santa" or design.sampler != "systematic":
        raise ValueError(
            f"method = {design.method}, sampler = {design.sampler}: santa and systematic are allowed in block "
            "systematic_sampler"
        )


BLOCK = Block("systematic_sampler", _streams, _vectors, _check)
