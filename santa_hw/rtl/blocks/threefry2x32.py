"""threefry2x32: the counter-based generator (numeric contract 3.9)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.design import Design
from santa_hw.rng import threefry2x32
from santa_hw.rtl.blocks import Block, Field, Stream, Vector

# Random123's published known-answer vectors come first.
_ONES = 0xFFFFFFFF
_KNOWN = (
    (0, 0, 0, 0),
    (_ONES, _ONES, _ONES, _ONES),
    (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3),
)


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    names = ("key0", "key1", "counter0", "counter1")
    return (
        (Stream("request", tuple(Field(name, 32) for name in names)),),
        (Stream("words", (Field("word0", 32), Field("word1", 32))),),
    )


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    for i in range(count):
        x = _KNOWN[i] if i < len(_KNOWN) else tuple(generator.integers(0, 1 << 32, size=4).tolist())
        yield Vector(f"request {i}", {"request": [x]}, {"words": [tuple(int(w) for w in threefry2x32(*x))]})


BLOCK = Block("threefry2x32", _streams, _vectors)
