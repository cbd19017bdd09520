"""lfsr32: the cheap generator (numeric contract 3.9)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.design import Design
from santa_hw.rng import lfsr_jump
from santa_hw.rtl.blocks import Block, Field, Stream, Vector

COUNT_BITS = 18


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    return (
        (Stream("seed", (Field("state", 32), Field("count", COUNT_BITS))),),
        (Stream("word", (Field("word", design.rng_bits), Field("state", 32))),),
    )


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    for i in range(count):
        # A zero seed, the top bit alone, no words at all, then whatever comes.
        seed = (0, 1 << 31, 5)[i] if i < 3 else int(generator.integers(0, 1 << 32))
        length = (3, 2, 0)[i] if i < 3 else int(generator.integers(1, 6))
        states = [lfsr_jump(seed or 1, 32 * (j + 1)) for j in range(length)]
        words = [(state >> (32 - design.rng_bits), state) for state in states]
        yield Vector(f"seed {i}", {"seed": [(seed, length)]}, {"word": words})


BLOCK = Block("lfsr32", _streams, _vectors, parameters={"StepsPerCycle": (1, (1, 2, 4, 8, 16, 32))})
