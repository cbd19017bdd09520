"""ternary_dot: dot products of a ternary query and keys, before the shift (numeric contract 3.3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from santa_hw.datapath.scores import score_tile
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, row_lengths
from santa_hw.rtl.lanes import check_lanes, lane_parameters, lanes_of, pack


def block(lanes: int | None = None) -> Block:
    """The block with `lanes` lanes, a power of two that divides head_dim; 16, or what of it does, by default."""
    return Block(
        "ternary_dot",
        partial(_streams, lanes),
        partial(_vectors, lanes),
        partial(_check, lanes),
        parameters=lane_parameters(lanes) | {"Planes": (0, (0, 1))},
    )


def ternary(design: Design) -> Design:
    """The design with ternary scores and one exponent a query, which is what the block builds."""
    return design.replace(scores="ternary", ternary_block=None)


def vector(design: Design, lanes: int, counts: NDArray[np.int32], keys: NDArray[np.int32]) -> Vector:
    """One step: signed counts (d,) and key codes (n, d), n at least 1; the sums of all keys."""
    design = ternary(design)
    no_shift, seen = np.zeros((1, 1), dtype=np.int32), np.array([len(keys)])
    sums = score_tile(design, counts[None], keys, no_shift, seen, np.zeros(1, dtype=np.int64))[0]
    last = len(keys) - 1
    return Vector(
        f"{len(keys)} keys",
        {
            "query": [(int(c),) for c in counts],
            "key": [
                (pack(part, design.k_bits), int(n == last))
                for n, key in enumerate(keys)
                for part in key.reshape(-1, lanes)
            ],
        },
        {"sum": [(int(a), int(n == last)) for n, a in enumerate(sums)]},
    )


def cycles(design: Design, lanes: int, planes: bool, keys: int) -> int:
    """Cycles of a step without idle or stalled ones: d for the query, d / lanes * passes a key, one more."""
    passes = design.beta + 1 if planes else design.ternary_samples
    return design.head_dim + keys * (design.head_dim // lanes) * passes + 1


def _check(lanes: int | None, design: Design) -> None:
    check_lanes(lanes, "ternary_dot", design)
    if lanes is not None and lanes & (lanes - 1):
        raise ValueError(f"Lanes = {lanes}: a power of two is allowed in block ternary_dot")
    if design.scores == "ternary" and design.ternary_block is not None:
        raise ValueError(
            f"ternary_block = {design.ternary_block}: None (one exponent a query) is allowed in block ternary_dot"
        )
    ternary(design)


def _streams(lanes: int | None, design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    lanes, last = lanes_of(lanes, design), Field("last", 1)
    return (
        (
            Stream("query", (Field("count", design.beta + 2, True),)),
            Stream("key", (Field("codes", lanes * design.k_bits), last)),
        ),
        (Stream("sum", (Field("sum", ternary(design).derived()["score_accumulator"], True), last)),),
    )


def _vectors(lanes: int | None, design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    """Steps of all lengths but 0: random counts and keys, the largest sums of both signs, an all-zero query."""
    lanes, budget = lanes_of(lanes, design), design.ternary_samples
    limit = (1 << (design.k_bits - 1)) - 1
    for i, n in enumerate(row_lengths(design, count)):
        counts = generator.integers(-budget, budget, size=design.head_dim, endpoint=True, dtype=np.int32)
        keys = generator.integers(-limit, limit, size=(max(1, n), design.head_dim), endpoint=True, dtype=np.int32)
        if i % 4 == 1:
            counts[:] = np.where(generator.random(design.head_dim) < 0.5, -budget, budget)
            keys[0], keys[-1] = np.sign(counts) * limit, -np.sign(counts) * limit
        if i % 8 == 6:
            counts[:] = 0
        yield vector(design, lanes, counts, keys)


BLOCK = block()
