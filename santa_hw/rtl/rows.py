"""Rows of scores for vectors: lengths that cycle, masks, and the shapes that break samplers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from santa_hw.datapath.weights import weights_of
from santa_hw.design import Design
from santa_hw.rtl.blocks import row_lengths

SHAPES = ("random", "masked", "equal", "one key", "all masked", "close", "extreme")


class Row(NamedTuple):
    """Scores, what is visible, the largest visible integer part (0 if none), weights and mass."""

    name: str
    scores: NDArray[np.int64]
    visible: NDArray[np.bool_]
    maximum: int
    weights: NDArray[np.int64]
    mass: int


def rows(design: Design, count: int, generator: np.random.Generator) -> Iterator[Row]:
    """`count` rows through the golden model's weight stage, made as they are taken.

    What the caller draws from `generator` in between is what it would draw after all of them.
    """
    own = copy.deepcopy(generator)
    for _ in _drawn(design, count, generator):
        pass
    for shape, scores, visible in _drawn(design, count, own):
        found = weights_of(design, scores, visible)
        maximum = int((scores[visible] >> design.score_frac).max()) if visible.any() else 0
        yield Row(f"{shape}, {scores.size} keys", scores, visible, maximum, found.weights, found.mass)


def _drawn(
    design: Design, count: int, generator: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.bool_]]]:
    for i, n in enumerate(row_lengths(design, count)):
        shape = SHAPES[(i + i // len(SHAPES)) % len(SHAPES)]
        yield shape, *_scores(design, shape, n, generator)


def _scores(
    design: Design, shape: str, n: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    low, high = design.score_limits
    scores = generator.integers(low, high + 1, size=n)
    visible = np.ones(n, dtype=np.bool_)
    if shape == "masked":
        visible = generator.random(n) < 0.6
    elif shape == "all masked":
        visible[:] = False
    elif shape == "equal":
        scores[:] = generator.integers(low, high + 1)
    elif shape == "one key" and n:
        scores[:] = low
        scores[generator.integers(n)] = high
    elif shape == "close":
        spread = min(high - low, 6 << design.score_frac)
        scores = high - generator.integers(0, spread + 1, size=n)
    elif shape == "extreme":
        scores = generator.choice([low, high, 0, -1], size=n)
    return scores, visible
