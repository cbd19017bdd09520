"""ternary_query: signed counts of the ternary query vectors, from query codes and words (numeric contract 3.3)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.datapath.scores import ternary_counts
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    return (
        (Stream("query", (Field("code", design.q_bits, True),)), Stream("word", (Field("word", design.rng_bits),))),
        (Stream("count", (Field("count", design.beta + 2, True),)),),
    )


def _check(design: Design) -> None:
    design.replace(scores="ternary", ternary_block=None)  # the design's own limits of a ternary query


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    """Queries: random ones, codes at the limits, all zero; words at random, all ones, all zero."""
    limit, top = (1 << (design.q_bits - 1)) - 1, (1 << design.rng_bits) - 1
    for i in range(count):
        codes = generator.integers(-limit, limit, size=design.head_dim, endpoint=True, dtype=np.int32)
        shape = (design.head_dim, design.ternary_samples) if design.ternary_draw == "iid" else (design.head_dim,)
        words = generator.integers(0, top, size=shape, endpoint=True, dtype=np.uint32)
        if i % 4 == 1:
            codes[:] = generator.choice([-limit, -1, 0, 1, limit], size=design.head_dim)
        if i % 4 == 2:
            words[:] = top
        if i % 8 == 3:
            words[:] = 0
        if i % 8 == 7:
            codes[:] = 0
        counts = ternary_counts(design, codes, words)
        yield Vector(
            f"query {i}",
            {"query": [(int(q),) for q in codes], "word": [(int(r),) for r in words.ravel()]},
            {"count": [(int(c),) for c in counts]},
        )


BLOCK = Block("ternary_query", _streams, _vectors, _check)
