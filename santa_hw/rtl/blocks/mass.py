"""mass: the largest integer part of a row and the sum of its weights (numeric contract 3.4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector
from santa_hw.rtl.package import keys_bits
from santa_hw.rtl.rows import rows


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    integer = Field("integer", design.score_bits - design.score_frac, signed=True)
    inputs = (
        Stream("row", (Field("keys", keys_bits(design)),)),
        Stream("score", (integer, Field("visible", 1))),
        Stream("weight", (Field("weight", design.W),)),
    )
    outputs = (
        Stream("maximum", (integer, Field("empty", 1))),
        Stream("mass", (Field("mass", design.derived()["mass"]),)),
    )
    return inputs, outputs


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    for row in rows(design, count, generator):
        integers = (row.scores >> design.score_frac).tolist()
        yield Vector(
            row.name,
            {
                "row": [(row.scores.size,)],
                "score": [(i, int(seen)) for i, seen in zip(integers, row.visible, strict=True)],
                "weight": [(int(w),) for w in row.weights],
            },
            {"maximum": [(row.maximum, int(not row.visible.any()))], "mass": [(row.mass,)]},
        )


BLOCK = Block("mass", _streams, _vectors)
