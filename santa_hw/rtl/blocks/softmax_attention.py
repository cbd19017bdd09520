"""softmax_attention: a baseline, one head's dense attention after the scores (numeric contract 3.8)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, exp2_weight, softmax_values
from santa_hw.rtl.lanes import lane_parameters, lanes_of, pack
from santa_hw.rtl.package import key_bits, keys_bits
from santa_hw.rtl.rows import Row, rows


def block(lanes: int | None = None) -> Block:
    """The block with `lanes` multipliers, which must divide head_dim; 16, or what of it does, by default."""
    return Block(
        "softmax_attention",
        partial(_streams, lanes),
        partial(_vectors, lanes),
        partial(_check, lanes),
        needs=("mass", "exp2_weight", "softmax_values"),
        parameters=lane_parameters(lanes),
    )


def vector(design: Design, lanes: int, row: Row, values: NDArray[np.int64]) -> Vector:
    """One step: a row of n scores and value codes (n, d); the rows of visible keys are requested."""
    seen = np.flatnonzero(row.visible)
    mean = softmax_values.vector(design, lanes, row.weights[seen], values[seen])
    return Vector(
        row.name,
        {
            "row": [(row.scores.size,)],
            "score": [(int(s), int(v)) for s, v in zip(row.scores, row.visible, strict=True)],
            "value": [(pack(part, design.v_bits),) for n in seen for part in values[n].reshape(-1, lanes)],
        },
        {"request": [(int(n),) for n in seen], "out": mean.outputs["out"]},
    )


def cycles(design: Design, lanes: int, keys: int) -> int:
    """Cycles of a step of `keys` visible keys, 1 or more, without idle or stalled ones.

    One for the row, one a score and one for the maximum; three until the first weight meets its row; a row's beats a
    key; then softmax_values divides.
    """
    beats = design.head_dim // lanes
    return 1 + keys + 1 + 3 + beats * keys + beats * (softmax_values.quotient_bits(design) + 2)


def _check(lanes: int | None, design: Design) -> None:
    softmax_values.block(lanes).check(design)
    exp2_weight.BLOCK.check(design)


def _streams(lanes: int | None, design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    beat = lanes_of(lanes, design)
    score = (Field("score", design.score_bits, signed=True), Field("visible", 1))
    out = (Field("codes", beat * softmax_values.quotient_bits(design)), Field("last", 1))
    return (
        (
            Stream("row", (Field("keys", keys_bits(design)),)),
            Stream("score", score),
            Stream("value", (Field("codes", beat * design.v_bits),)),
        ),
        (Stream("request", (Field("key", key_bits(design)),)), Stream("out", out)),
    )


def _vectors(lanes: int | None, design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    """Rows of all lengths and shapes; values at random, and at their limits."""
    lanes, limit = lanes_of(lanes, design), (1 << (design.v_bits - 1)) - 1
    for i, row in enumerate(rows(design, count, generator)):
        values = generator.integers(-limit, limit, size=(row.scores.size, design.head_dim), endpoint=True)
        if i % 4 == 2:
            values[:] = np.where(generator.random(design.head_dim) < 0.5, -limit, limit)
        yield vector(design, lanes, row, values)


BLOCK = block()
