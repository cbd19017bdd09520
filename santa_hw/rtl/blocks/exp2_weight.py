"""exp2_weight: the weight of a key from its score and the row's maximum (numeric contract 3.4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, at_most
from santa_hw.rtl.package import MAX_TABLE_FRAC
from santa_hw.rtl.rows import rows


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    score = (
        Field("score", design.score_bits, signed=True),
        Field("maximum", design.score_bits - design.score_frac, signed=True),
        Field("visible", 1),
    )
    return (Stream("score", score),), (Stream("weight", (Field("weight", design.W),)),)


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    for row in rows(design, count, generator):
        beats = [(int(s), row.maximum, int(seen)) for s, seen in zip(row.scores, row.visible, strict=True)]
        yield Vector(row.name, {"score": beats}, {"weight": [(int(w),) for w in row.weights]})


def _check(design: Design) -> None:
    if design.exp == "table":
        at_most("score_frac", design.score_frac, MAX_TABLE_FRAC, "exp2_weight")


BLOCK = Block("exp2_weight", _streams, _vectors, _check)
