"""softmax_values: a baseline, the weighted mean of value rows by multiplication and division (numeric contract 3.8)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from santa_hw.datapath.values import divide_row, gather_add
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, row_lengths
from santa_hw.rtl.lanes import check_lanes, lane_parameters, lanes_of, pack


def block(lanes: int | None = None) -> Block:
    """The block with `lanes` multipliers, which must divide head_dim; 16, or what of it does, by default."""
    return Block(
        "softmax_values",
        partial(_streams, lanes),
        partial(_vectors, lanes),
        partial(_check, lanes),
        parameters=lane_parameters(lanes),
    )


def vector(design: Design, lanes: int, weights: NDArray[np.int64], rows: NDArray[np.int64]) -> Vector:
    """One step: weights (n,) and value codes (n, d); its output codes. No rows is an empty step."""
    bits, last = quotient_bits(design), max(1, len(weights)) - 1
    sums = np.zeros(design.head_dim, dtype=np.int64)
    gather_add(rows, np.arange(len(weights)), weights, len(weights), sums)
    if (mass := int(weights.sum())) > 0:
        divide_row(sums, mass, design.sigma)
    if len(weights) == 0:
        weights, rows = np.zeros(1, dtype=np.int64), np.zeros((1, design.head_dim), dtype=np.int64)
    parts = sums.reshape(-1, lanes)
    return Vector(
        f"{len(weights)} rows",
        {
            "in": [
                (int(w), pack(part, design.v_bits), int(n == last))
                for n, (w, row) in enumerate(zip(weights, rows, strict=True))
                for part in row.reshape(-1, lanes)
            ]
        },
        {"out": [(pack(part, bits), int(b == len(parts) - 1)) for b, part in enumerate(parts)]},
    )


def quotient_bits(design: Design) -> int:
    """Width of an output code: the format of a sampled step's accumulator at S samples."""
    return design.v_bits + design.sigma + 1


def _check(lanes: int | None, design: Design) -> None:
    check_lanes(lanes, "softmax_values", design)
    if design.guard != design.sigma:
        raise ValueError(
            f"guard_bits = {design.guard_bits}: log2(samples) = {design.sigma} is allowed in block softmax_values"
        )
    design.replace(method="dense", guard_bits=design.sigma)


def _streams(lanes: int | None, design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    lanes, last = lanes_of(lanes, design), Field("last", 1)
    return (
        (Stream("in", (Field("weight", design.W), Field("values", lanes * design.v_bits), last)),),
        (Stream("out", (Field("codes", lanes * quotient_bits(design)), last)),),
    )


def _vectors(lanes: int | None, design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    """Steps of all lengths: weights of all magnitudes, all equal, all at the top, all zero; values at the limits."""
    lanes, limit, top = lanes_of(lanes, design), (1 << (design.v_bits - 1)) - 1, (1 << design.W) - 1
    for i, n in enumerate(row_lengths(design, count)):
        weights = generator.integers(0, top, size=n, endpoint=True) >> generator.integers(design.W, size=n)
        rows = generator.integers(-limit, limit, size=(n, design.head_dim), endpoint=True)
        if i % 4 == 2:
            rows[:] = np.where(generator.random(design.head_dim) < 0.5, -limit, limit)
        if i % 4 == 3:
            weights[:] = generator.choice([1, top])
        if i % 16 == 5:
            weights[:] = 0
        yield vector(design, lanes, weights, rows)


BLOCK = block()
