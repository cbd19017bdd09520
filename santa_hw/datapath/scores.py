"""Scores (numeric contract 3.2 and 3.3): integer dot products, shifted and saturated to the score format.

A dot product of codes is exact in a float GEMM while every partial sum stays below the significand, which is why the
dense stage runs at BLAS speed and is still bit-accurate; beyond that it falls back to 64-bit integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from santa_hw.compiled import compiled
from santa_hw.design import Design
from santa_hw.rounding_loops import shift_saturate

# One bit less than the significand: the rounding addend is added before the floor.
_FLOAT32_BITS, _FLOAT64_BITS = 23, 52


def tile_dtypes(design: Design) -> tuple[type, type]:
    """Dtypes of a tile's dot products and of its scores and weights, the narrowest that are exact."""
    magnitude = design.derived()["score_accumulator"] - 1
    if magnitude <= _FLOAT32_BITS and design.W <= 30 and design.block_guard == 0 and design.score_bits <= 24:
        return np.float32, np.int32
    if magnitude <= _FLOAT64_BITS and design.block_guard == 0:
        return np.float64, np.int64
    return np.int64, np.int64


def shifts(design: Design, exponents: NDArray[Any]) -> NDArray[np.int32]:
    """Right shift from a dot product to the score format for exponent sums e; negative means left.

    Shape and order as `exponents`. With ternary scores log2(B) stands in place of q_bits - 1; with block exponents the
    block guard bits are kept back.
    """
    total = design.query_frac + design.k_bits - 1 - design.score_frac - design.block_guard
    return (total - exponents).astype(np.int32)


def score_tile(
    design: Design,
    factors: NDArray[Any],
    keys: NDArray[Any],
    shift: NDArray[np.int32],
    lengths: NDArray[np.int64],
    saturated: NDArray[np.int64],
) -> NDArray[Any]:
    """Dot products of a tile, before the shift; with block exponents the sum of the shifted blocks, with guard bits.

    Parameters
    ----------
    factors : numpy.ndarray
        (rows, d): query codes or signed ternary counts.
    keys : numpy.ndarray
        (n, d) key codes.
    shift : numpy.ndarray
        int32 (rows, blocks), see :func:`shifts`.
    lengths : numpy.ndarray
        int64 (rows,): the keys that a row sees.
    saturated : numpy.ndarray
        int64 (rows,): the block sums that were clipped are added here, for the keys that a row sees.

    Returns
    -------
    numpy.ndarray
        (rows, n), of the dtype that :func:`tile_dtypes` names.
    """
    product_dtype, _ = tile_dtypes(design)
    if product_dtype is not np.int64:
        return factors.astype(product_dtype) @ keys.astype(product_dtype).T
    factors, keys = factors.astype(np.int64), keys.astype(np.int64)
    if design.blocks == 1:
        return _dot(factors, keys)
    width = design.head_dim // design.blocks
    limit = 1 << (design.score_bits + design.block_guard - 1)
    total = np.zeros((factors.shape[0], keys.shape[0]), dtype=np.int64)
    for block in range(design.blocks):
        part = slice(block * width, (block + 1) * width)
        sums = _dot(factors[:, part], keys[:, part])
        _add_shifted(total, sums, shift[:, block].copy(), -limit, limit - 1, lengths, saturated)
    return total


def _dot(factors: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exact int64 matrix product; through float64 BLAS when that is exact."""
    top = factors.shape[1] * int(abs(factors).max(initial=0)) * int(abs(keys).max(initial=0))
    if top < 1 << _FLOAT64_BITS:
        return (factors.astype(np.float64) @ keys.T.astype(np.float64)).astype(np.int64)
    return factors @ keys.T


@compiled(nogil=True)
def _add_shifted(total, sums, shift, low, high, lengths, saturated):  # type: ignore[no-untyped-def]
    for row in range(total.shape[0]):
        for n in range(lengths[row]):
            x = shift_saturate(sums[row, n], shift[row], low, high)
            if x in (low, high):
                saturated[row] += shift_saturate(sums[row, n], shift[row], low - 1, high + 1) != x
            total[row, n] += x


def row_scores(products, out, shift, low, high):  # type: ignore[no-untyped-def]
    """Shift, round half_up and saturate a row of dot products into integer scores; returns how many saturated."""
    raise NotImplementedError("compiled code only: numba picks the float or the integer version by dtype")


@overload(row_scores, inline="always")
def _row_scores(products, out, shift, low, high):  # type: ignore[no-untyped-def]
    if isinstance(products.dtype, types.Float):
        return lambda products, out, shift, low, high: _row_scores_float(products, out, shift, low, high)
    return lambda products, out, shift, low, high: _row_scores_integer(products, out, shift, low, high)


@compiled
def _row_scores_float(products, out, shift, low, high):  # type: ignore[no-untyped-def]
    """Multiplying by a power of two and adding one half are exact in the row's own float type (see `tile_dtypes`), so
    floor is the contract's shift.
    """
    unit = products.dtype.type(2.0 ** -float(shift))
    half = products.dtype.type(0.5 if shift > 0 else 0.0)
    lowest, highest = products.dtype.type(low), products.dtype.type(high)
    saturated = 0
    for n in range(products.shape[0]):
        x = np.floor(products[n] * unit + half)
        y = min(max(x, lowest), highest)
        saturated += x != y
        out[n] = np.int64(y)
    return saturated


@compiled
def _row_scores_integer(products, out, shift, low, high):  # type: ignore[no-untyped-def]
    saturated = 0
    for n in range(products.shape[0]):
        x = products[n]
        y = shift_saturate(x, shift, low, high)
        if y in (low, high):
            saturated += shift_saturate(x, shift, low - 1, high + 1) != y
        out[n] = y
    return saturated


def ternary_counts(design: Design, q_codes: NDArray[np.int32], words: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Signed counts of the ternary query vectors: sign(q_i) stands in count_i of the B vectors.

    Parameters
    ----------
    q_codes : numpy.ndarray
        int32 (..., d).
    words : numpy.ndarray
        uint32 R-bit words that broadcast to (..., d), stratified, or (..., d, B), i.i.d.

    Returns
    -------
    numpy.ndarray
        int32 (..., d), in [-B, B]. The stratified draw is stochastic rounding of |q| to beta bits; it is the dense
        product, bit for bit, when beta >= q_bits - 1.
    """
    f, bits = design.q_bits - 1, design.rng_bits
    magnitude = np.abs(q_codes.astype(np.int64))
    if design.ternary_draw == "stratified":
        # ((|q| << (beta + R)) + (r << f)) >> (f + R) without the wide intermediate: its low R - f bits never carry.
        counts = ((magnitude << design.beta) + (words.astype(np.int64) >> (bits - f))) >> f
    else:
        chosen = (words.astype(np.int64) << f) < (magnitude << bits)[..., None]
        counts = chosen.sum(axis=-1)
    return (np.sign(q_codes) * counts).astype(np.int32)


def ternary_vectors(design: Design, q_codes: NDArray[np.int32], words: NDArray[np.uint32]) -> NDArray[np.int8]:
    """The B ternary vectors t^(b) themselves, int8 (B, ..., d) in {-1, 0, +1}; their sum is `ternary_counts`."""
    budget = np.arange(design.ternary_samples).reshape((-1,) + (1,) * q_codes.ndim)
    if design.ternary_draw == "stratified":
        chosen = budget < np.abs(ternary_counts(design, q_codes, words))
    else:
        magnitude = np.abs(q_codes.astype(np.int64)) << design.rng_bits
        chosen = np.moveaxis((words.astype(np.int64) << (design.q_bits - 1)) < magnitude[..., None], -1, 0)
    return np.where(chosen, np.sign(q_codes), 0).astype(np.int8)
