"""Weights and mass (numeric contract 3.4): a base-2 exponential by table and shift, against the row's own maximum."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from santa_hw.compiled import compiled
from santa_hw.design import Design, exp2_table

REFERENCE_BITS = 32
"""Weight width against which lost mass is measured."""


@compiled
def row_maximum(scores, mask, masked):  # type: ignore[no-untyped-def]
    """(visible keys, largest visible score) of a row; the score is 0 if no key is visible."""
    n_keys = scores.shape[0]
    if not masked:
        if n_keys == 0:
            return 0, 0
        top = scores[0]
        for n in range(n_keys):
            top = max(top, scores[n])
        return n_keys, np.int64(top)
    visible, best = 0, np.int64(0)
    for n in range(n_keys):
        if mask[n]:
            if visible == 0 or scores[n] > best:
                best = np.int64(scores[n])
            visible += 1
    return visible, best


@compiled
def row_weights(scores, top, table, frac, bits, half_up, mask, masked, weights):  # type: ignore[no-untyped-def]
    """Weights of a row (`weights` may be `scores` itself) and their sum Z.

    `table` has the dtype of `scores`; its entries are below 2**bits, so a shift of `bits` or more gives zero.
    """
    kind = scores.dtype.type
    most = kind(31) if scores.itemsize == 4 else kind(63)
    integer_top, low = kind(top >> frac), kind((1 << frac) - 1)
    mass = np.int64(0)
    if half_up:
        for n in range(scores.shape[0]):
            shift = integer_top - (scores[n] >> frac)
            entry = np.int64(table[scores[n] & low])
            if shift > bits:
                entry = np.int64(0)
            elif shift > 0:
                entry = (entry + (np.int64(1) << (shift - 1))) >> shift
            weights[n] = entry
    else:
        for n in range(scores.shape[0]):
            shift = min(kind(integer_top - (scores[n] >> frac)), most)
            weights[n] = table[scores[n] & low] >> shift
    if masked:
        for n in range(scores.shape[0]):
            if not mask[n]:
                weights[n] = 0
    for n in range(scores.shape[0]):
        mass += np.int64(weights[n])
    return mass


@compiled
def row_lost_mass(scores, weights, top, reference, frac, bits, mask, masked):  # type: ignore[no-untyped-def]
    """Share of the 32-bit mass that the weights of a row fall short of, summed over the keys that lose.

    `scores` must still be scores: call it before weights overwrite them, with `weights` apart.
    """
    integer_top, low = np.int64(top >> frac), np.int64((1 << frac) - 1)
    up = np.int64(REFERENCE_BITS - bits)
    lost, total = np.int64(0), np.int64(0)
    for n in range(scores.shape[0]):
        s = np.int64(scores[n])
        wide = reference[s & low] >> min(integer_top - (s >> frac), np.int64(63))
        if masked and not mask[n]:
            wide = np.int64(0)
        total += wide
        lost += max(np.int64(0), wide - (np.int64(weights[n]) << up))
    return lost / total if total > 0 else 0.0


class Weights(NamedTuple):
    """Weights int64 (N,), their sum Z, and the share of the mass lost to the weight width."""

    weights: NDArray[np.int64]
    mass: int
    lost_mass: float


def weights_of(design: Design, scores: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> Weights:
    """The weight stage alone, for one row.

    Parameters
    ----------
    design : Design
    scores : array_like
        Integers (N,), score codes.
    mask : numpy.ndarray, optional
        bool (N,), True where visible.

    Raises
    ------
    ValueError
        If a score is outside the design's score format, or there are more than ``max_keys``.
    """
    row = np.asarray(scores, dtype=np.int64)
    low, high = design.score_limits
    if row.ndim != 1 or row.size > design.max_keys:
        raise ValueError(f"scores has shape {row.shape}: (N,) with N up to max_keys = {design.max_keys} is allowed")
    if row.size and (row.min() < low or row.max() > high):
        raise ValueError(f"scores reach {row.min()} to {row.max()}: {low} to {high} is allowed")
    masked = mask is not None
    visible_mask = np.asarray(mask, dtype=np.bool_) if masked else np.zeros(0, dtype=np.bool_)
    visible, top = row_maximum(row, visible_mask, masked)
    weights = np.zeros(row.shape, dtype=np.int64)
    if visible == 0:
        return Weights(weights, 0, 0.0)
    half_up = design.weight_rounding == "half_up"
    mass = row_weights(row, top, design.table, design.score_frac, design.W, half_up, visible_mask, masked, weights)
    reference = exp2_table(design.score_frac, REFERENCE_BITS, design.exp)
    lost = row_lost_mass(row, weights, top, reference, design.score_frac, design.W, visible_mask, masked)
    return Weights(weights, int(mass), float(lost))
