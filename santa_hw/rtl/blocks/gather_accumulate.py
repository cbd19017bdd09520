"""gather_accumulate: accumulators from counts and value rows (numeric contract 3.7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from santa_hw.datapath.values import gather_add, set_bits
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, row_lengths
from santa_hw.rtl.lanes import check_lanes, lane_parameters, lanes_of, pack


def block(lanes: int | None = None) -> Block:
    """The block with `lanes` adders, which must divide head_dim; 16, or what of it does, by default."""
    return Block(
        "gather_accumulate",
        partial(_streams, lanes),
        partial(_vectors, lanes),
        partial(check_lanes, lanes, "gather_accumulate"),
        parameters=lane_parameters(lanes),
    )


def vector(design: Design, lanes: int, counts: Sequence[int] | NDArray[np.int64], rows: NDArray[np.int64]) -> Vector:
    """One step: the beats of its rows (n, d) with their counts, and its accumulators; no rows is an empty step."""
    beats = design.head_dim // lanes
    sums = np.zeros(design.head_dim, dtype=np.int64)
    gather_add(rows, np.arange(len(counts)), np.asarray(counts, dtype=np.int64), len(counts), sums)
    if len(counts) == 0:
        counts, rows = [0], np.zeros((1, design.head_dim), dtype=np.int64)
    bits = design.derived()["accumulator"]
    return Vector(
        f"{len(counts)} rows",
        {
            "in": [
                (int(c), pack(part, design.v_bits), int(n == len(counts) - 1))
                for n, (c, row) in enumerate(zip(counts, rows, strict=True))
                for part in row.reshape(beats, lanes)
            ]
        },
        {"out": [(pack(part, bits), int(b == beats - 1)) for b, part in enumerate(sums.reshape(beats, lanes))]},
    )


def cycles(design: Design, lanes: int, counts: Sequence[int] | NDArray[np.int64]) -> int:
    """Cycles of a step without idle or stalled ones: (its terms + 1) * head_dim / lanes; no row counts as one of 0."""
    shift_add = design.gather == "shift_add"
    terms = sum(max(1, int(set_bits(int(c))) if shift_add else int(c)) for c in counts) or 1
    return design.head_dim // lanes * (terms + 1)


def _streams(lanes: int | None, design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    widths, lanes = design.derived(), lanes_of(lanes, design)
    last = Field("last", 1)
    return (
        (Stream("in", (Field("count", widths["count"]), Field("values", lanes * design.v_bits), last)),),
        (Stream("out", (Field("accumulators", lanes * widths["accumulator"]), last)),),
    )


def _vectors(lanes: int | None, design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    """Steps of all lengths: S spread over the rows, one row holding all S, rows at the limits, rows of count 0."""
    lanes, limit = lanes_of(lanes, design), (1 << (design.v_bits - 1)) - 1
    for i, n in enumerate(row_lengths(design, count)):
        counts = generator.multinomial(design.samples, generator.dirichlet(np.full(n, 0.2))) if n else np.zeros(0, int)
        if n and i % 5 == 3:
            counts = np.where(np.arange(n) == generator.integers(n), design.samples, 0)
        rows = generator.integers(-limit, limit, size=(n, design.head_dim), endpoint=True)
        if i % 4 == 2:  # the largest sums of both signs
            rows[:] = np.where(generator.random(design.head_dim) < 0.5, -limit, limit)
        yield vector(design, lanes, counts, rows)


BLOCK = block()
