"""Offset and counts (numeric contract 3.5 and 3.6): how often each key is drawn, from one random word or a few.

The samplers walk the keys once with a residual register, as the hardware does. A key of zero weight is never drawn and
the counts of a row sum to exactly S.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import vectorize
from numpy.typing import NDArray

from santa_hw.compiled import compiled, kept


@compiled
def scaled_offset(word, mass, bits):  # type: ignore[no-untyped-def]
    """floor(word * mass / 2**bits), exactly: word is a `bits`-bit integer, 0 <= mass < 2**62, 1 <= bits <= 32."""
    r, z = np.uint64(word), np.uint64(mass)
    shift = np.uint64(bits)
    low = z & ((np.uint64(1) << shift) - np.uint64(1))
    return np.int64(r * (z >> shift) + ((r * low) >> shift))


_offset_ufunc = kept(partial(vectorize, ["int64(uint64, int64, int64)"]))(
    lambda word, mass, bits: scaled_offset(word, mass, bits)
)


def offset(mass: NDArray[np.int64], words: NDArray[Any], bits: int) -> NDArray[np.int64]:
    """The offset U = floor(r * Z / 2**R) of each word r, int64; 0 <= U < Z for Z > 0 (and 0 for Z = 0).

    Parameters
    ----------
    mass : array_like
        int64 Z, below 2**62; broadcasts against `words`.
    words : array_like
        unsigned R-bit words.
    bits : int
        R, 1 to 32.
    """
    mass, words = np.asarray(mass), np.asarray(words)
    if not 1 <= bits <= 32:
        raise ValueError(f"bits = {bits}: 1 to 32 is allowed")
    if mass.size and (mass.min() < 0 or mass.max() >= 1 << 62):
        raise ValueError(f"mass reaches {mass.min()} to {mass.max()}: 0 to 2**62 - 1 is allowed")
    if words.size and int(words.max()) >> bits:
        raise ValueError(f"words reach {words.max()}: at most 2**{bits} - 1 is allowed")
    return _offset_ufunc(words.astype(np.uint64), mass.astype(np.int64), np.int64(bits))


@compiled
def draw_systematic(weights, mass, first, sigma, keys, counts):  # type: ignore[no-untyped-def]
    """Systematic counts from the offset `first`: the drawn keys in order and their counts; returns how many keys."""
    drawn = 0
    residual = np.int64(first)
    for n in range(weights.shape[0]):
        residual -= np.int64(weights[n]) << sigma
        if residual < 0:
            c = 0
            while residual < 0:
                residual += mass
                c += 1
            keys[drawn] = n
            counts[drawn] = c
            drawn += 1
    return drawn


@compiled
def draw_stratified(weights, mass, offsets, sigma, keys, counts):  # type: ignore[no-untyped-def]
    """Stratified counts: stratum j has the threshold j * Z + offsets[j] against S times the running sum."""
    strata = np.int64(1) << sigma
    drawn, j = 0, 0
    residual = np.int64(offsets[0])
    for n in range(weights.shape[0]):
        residual -= np.int64(weights[n]) << sigma
        c = 0
        while residual < 0 and j < strata:
            following = offsets[j + 1] if j + 1 < strata else np.int64(0)
            residual += mass + following - offsets[j]
            j += 1
            c += 1
        if c > 0:
            keys[drawn] = n
            counts[drawn] = c
            drawn += 1
        if j == strata:
            break
    return drawn


@compiled
def draw_iid(weights, thresholds, keys, counts):  # type: ignore[no-untyped-def]
    """I.i.d. counts: thresholds t in [0, Z), in any order, each drawing the key with C_(n-1) <= t < C_n."""
    ordered = np.sort(thresholds)
    drawn, j = 0, 0
    running = np.int64(0)
    for n in range(weights.shape[0]):
        running += np.int64(weights[n])
        c = 0
        while j < ordered.shape[0] and ordered[j] < running:
            j += 1
            c += 1
        if c > 0:
            keys[drawn] = n
            counts[drawn] = c
            drawn += 1
        if j == ordered.shape[0]:
            break
    return drawn


@compiled
def draw(sampler, weights, mass, words, bits, sigma, offsets, keys, counts):  # type: ignore[no-untyped-def]
    """Draw S keys: sampler 0 systematic, 1 stratified, 2 i.i.d.; fills `offsets`, one a word."""
    for j in range(words.shape[0]):
        offsets[j] = scaled_offset(words[j], mass, bits)
    if sampler == 0:
        return draw_systematic(weights, mass, offsets[0], sigma, keys, counts)
    if sampler == 1:
        return draw_stratified(weights, mass, offsets, sigma, keys, counts)
    return draw_iid(weights, offsets, keys, counts)
