"""Values (numeric contract 3.7 and 3.8): gather and add, move the binary point; the dividing baselines."""

from __future__ import annotations

import numpy as np

from santa_hw.compiled import compiled
from santa_hw.rounding_loops import shift_saturate


@compiled
def set_bits(x):  # type: ignore[no-untyped-def]
    """Number of ones in a non-negative integer: additions of a shift-add gather."""
    ones = 0
    while x > 0:
        x &= x - 1
        ones += 1
    return ones


@compiled
def gather_add(values, keys, factors, drawn, accumulators):  # type: ignore[no-untyped-def]
    """accumulators[i] = sum of factors[j] * values[keys[j], i] over the first `drawn` keys.

    The product is the simulator's shorthand: hardware adds the row `factor` times, or once a set bit.
    """
    accumulators[:] = 0
    for j in range(drawn):
        factor = np.int64(factors[j])
        row = values[keys[j]]
        for i in range(accumulators.shape[0]):
            accumulators[i] += factor * np.int64(row[i])


@compiled
def divide_row(accumulators, mass, guard):  # type: ignore[no-untyped-def]
    """The baselines' normalisation in place: floor((2 * (A << g) + Z) / (2 * Z)), rounding to nearest."""
    for i in range(accumulators.shape[0]):
        accumulators[i] = (2 * (accumulators[i] << guard) + mass) // (2 * mass)


@compiled
def requantise_row(codes, fracs, out_bits, out_frac, out):  # type: ignore[no-untyped-def]
    """To the common output format, half_up, saturating; `fracs` is each lane's binary point. Returns saturations."""
    high = (np.int64(1) << np.int64(out_bits - 1)) - 1
    saturated = 0
    for i in range(codes.shape[0]):
        shift = fracs[i] - out_frac
        y = shift_saturate(codes[i], shift, -high - 1, high)
        if y == high or y == -high - 1:
            saturated += shift_saturate(codes[i], shift, -high - 2, high + 1) != y if out_bits < 63 else 0
        out[i] = y
    return saturated


@compiled
def select_top_k(scores, mask, masked, k, keys):  # type: ignore[no-untyped-def]
    """The k largest visible scores, ties to the lowest index, in ascending key order; returns how many there are."""
    visible = 0
    candidates = np.empty(scores.shape[0], dtype=np.int64)
    for n in range(scores.shape[0]):
        if not masked or mask[n]:
            candidates[visible] = scores[n]
            visible += 1
    taken = min(k, visible)
    if taken == 0:
        return 0
    threshold = np.partition(candidates[:visible], visible - taken)[visible - taken]
    above = 0
    for n in range(visible):
        above += candidates[n] > threshold
    ties = taken - above
    found = 0
    for n in range(scores.shape[0]):
        if masked and not mask[n]:
            continue
        if scores[n] > threshold:
            keys[found] = n
            found += 1
        elif scores[n] == threshold and ties > 0:
            keys[found] = n
            found += 1
            ties -= 1
    return found
