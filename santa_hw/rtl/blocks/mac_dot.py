"""mac_dot: a baseline, dot products of codes by multiplication, before the shift (numeric contract 3.2)."""

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
    """The block with `lanes` multipliers, a power of two that divides head_dim; 16, or what of it does, by default."""
    return Block(
        "mac_dot",
        partial(_streams, lanes),
        partial(_vectors, lanes),
        partial(_check, lanes),
        parameters=lane_parameters(lanes),
    )


def vector(design: Design, lanes: int, query: NDArray[np.int32], keys: NDArray[np.int32]) -> Vector:
    """One step: query codes (d,) and key codes (n, d), n at least 1; the sums of all keys."""
    no_shift, seen = np.zeros((1, 1), dtype=np.int32), np.array([len(keys)])
    dense = design.replace(scores="dense")
    sums = score_tile(dense, query[None], keys, no_shift, seen, np.zeros(1, dtype=np.int64))[0]
    last = len(keys) - 1
    return Vector(
        f"{len(keys)} keys",
        {
            "query": [(int(q),) for q in query],
            "key": [
                (pack(part, design.k_bits), int(n == last))
                for n, key in enumerate(keys)
                for part in key.reshape(-1, lanes)
            ],
        },
        {"sum": [(int(a), int(n == last)) for n, a in enumerate(sums)]},
    )


def _check(lanes: int | None, design: Design) -> None:
    check_lanes(lanes, "mac_dot", design)
    if lanes is not None and lanes & (lanes - 1):
        raise ValueError(f"Lanes = {lanes}: a power of two is allowed in block mac_dot")


def _streams(lanes: int | None, design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    lanes, last = lanes_of(lanes, design), Field("last", 1)
    total = design.replace(scores="dense").derived()["score_accumulator"]
    return (
        (
            Stream("query", (Field("code", design.q_bits, True),)),
            Stream("key", (Field("codes", lanes * design.k_bits), last)),
        ),
        (Stream("sum", (Field("sum", total, True), last)),),
    )


def _vectors(lanes: int | None, design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    """Steps of all lengths but 0: random codes, and the largest sums of both signs."""
    lanes = lanes_of(lanes, design)
    q_limit, k_limit = (1 << (design.q_bits - 1)) - 1, (1 << (design.k_bits - 1)) - 1
    for i, n in enumerate(row_lengths(design, count)):
        query = generator.integers(-q_limit, q_limit, size=design.head_dim, endpoint=True, dtype=np.int32)
        keys = generator.integers(-k_limit, k_limit, size=(max(1, n), design.head_dim), endpoint=True, dtype=np.int32)
        if i % 4 == 1:
            query[:] = np.where(generator.random(design.head_dim) < 0.5, -q_limit, q_limit)
            keys[0], keys[-1] = np.sign(query) * k_limit, -np.sign(query) * k_limit
        yield vector(design, lanes, query, keys)


BLOCK = block()
