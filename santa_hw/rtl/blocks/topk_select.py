"""topk_select: a baseline, the k largest scores of a row (numeric contract 3.8)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.datapath.values import select_top_k
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, at_most
from santa_hw.rtl.package import key_bits, keys_bits
from santa_hw.rtl.rows import Row, rows

MAX_KEPT = 4096


def vector(design: Design, row: Row) -> Vector:
    """One row: its scores, and the `samples` best keys by their rank; (0, 0, 1, 1) if no key is visible."""
    kept = np.empty(design.samples, dtype=np.int64)
    found = kept[: select_top_k(row.scores, row.visible, True, design.samples, kept)]
    # The golden model's keys ascend, so that a stable sort leaves equal scores in the order of their keys.
    ranked = found[np.argsort(-row.scores[found], kind="stable")]
    beats = [(int(n), int(row.scores[n]), 0, int(i == len(ranked) - 1)) for i, n in enumerate(ranked)]
    return Vector(
        row.name,
        {
            "row": [(row.scores.size,)],
            "score": [(int(s), int(seen)) for s, seen in zip(row.scores, row.visible, strict=True)],
        },
        {"kept": beats or [(0, 0, 1, 1)]},
    )


def cycles(design: Design, row: Row) -> int:
    """Cycles of a row without idle or stalled ones: one, one a key, and one a key that leaves, at least one."""
    return 1 + row.scores.size + max(1, min(design.samples, int(row.visible.sum())))


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    score = Field("score", design.score_bits, signed=True)
    kept = (Field("key", key_bits(design)), score, Field("empty", 1), Field("last", 1))
    return (
        (Stream("row", (Field("keys", keys_bits(design)),)), Stream("score", (score, Field("visible", 1)))),
        (Stream("kept", kept),),
    )


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    return (vector(design, row) for row in rows(design, count, generator))


def _check(design: Design) -> None:
    at_most("samples", design.samples, MAX_KEPT, "topk_select")


BLOCK = Block("topk_select", _streams, _vectors, _check)
