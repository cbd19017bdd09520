"""Random operands of the datapath, as codes and as floats, and the words they are drawn with."""

from __future__ import annotations

import numpy as np

from santa_hw.datapath import Codes, Draw
from santa_hw.design import Design


def draw_for(batch: int, rows: int, seed: int = 0, layer: int = 0, first: int = 0) -> Draw:
    return Draw(seed, layer, np.arange(batch), np.tile(np.arange(first, first + rows), (batch, 1)))


def random_codes(design: Design, rng: np.random.Generator, batch=1, heads=2, kv_heads=1, rows=3, keys=7) -> Codes:
    def code(bits: int, shape: tuple[int, ...]) -> np.ndarray:
        limit = (1 << (bits - 1)) - 1
        return rng.integers(-limit, limit + 1, shape)

    d = design.head_dim
    top = design.q_bits - 1 + design.k_bits - 1 - design.score_frac
    return Codes(
        q=code(design.q_bits, (batch, heads, rows, d)).astype(np.int32),
        exponents=rng.integers(-3, min(8, top + 3) + 1, (batch, heads, rows, design.blocks)).astype(np.int32),
        k=code(design.k_bits, (batch, kv_heads, keys, d)).astype(np.int32),
        v=code(design.v_bits, (batch, kv_heads, keys, d)).astype(np.int32),
        v_exponents=rng.integers(-2, 5, (kv_heads, d)),
        saturations={"q": 0, "k": 0, "v": 0},
    )


def floats(seed: int, batch: int, heads: int, kv_heads: int, rows: int, keys: int, dim: int):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(batch, h, n, dim)) for h, n in ((heads, rows), (kv_heads, keys), (kv_heads, keys))]
