"""Rounding and saturation in loops that numba compiles: over arrays, and scalars for the loops of other modules."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numba
import numpy as np

from santa_hw.compiled import compiled

Rounding = Literal["floor", "half_up", "half_even", "toward_zero", "stochastic"]
Overflow = Literal["saturate", "wrap", "error"]

ROUNDINGS: tuple[str, ...] = get_args(Rounding)
OVERFLOWS: tuple[str, ...] = get_args(Overflow)

# The compiled loops take the position of a mode in these tuples.
_FLOOR, _HALF_UP, _HALF_EVEN, _TOWARD_ZERO, _STOCHASTIC = range(5)
SATURATE, WRAP, ERROR = range(3)

_MAGIC = 1.5 * 2.0**52  # adding it rounds a float64 of magnitude below 2**51 to an integer, ties to even
MAGIC_BITS = 51
_BLOCK = 1 << 14  # elements one thread takes at a time
_TWO_63 = 2.0**63


# ------------------------------------------------------------------------------------------------------------
# Scalars


@compiled(nogil=True)
def shift_half_up(x: int, shift: int) -> np.int64:
    """Shift right by `shift` >= 0 and round half up: ``floor(x / 2**shift + 1/2)``, exact for every int64.

    Adds the highest bit that is shifted out, not half before the shift, so it cannot overflow. From 64 on the
    result is 0: no int64 reaches half of ``2**64``.
    """
    if shift <= 0:
        return np.int64(x)
    if shift > 63:
        return np.int64(0)
    return (np.int64(x) >> np.int64(shift)) + ((np.int64(x) >> np.int64(shift - 1)) & np.int64(1))


@compiled(nogil=True)
def shift_saturate(x: int, shift: int, limit_lo: int, limit_hi: int) -> np.int64:
    """Shift right by `shift` (half up) or left by ``-shift``, then clamp to ``[limit_lo, limit_hi]``.

    Exact: a left shift that leaves the 64-bit word saturates to the limit of its sign, it never wraps.
    """
    code = np.int64(x)
    lo = np.int64(limit_lo)
    hi = np.int64(limit_hi)
    if shift >= 0:
        code = shift_half_up(code, shift)
    else:
        left = np.int64(-shift)
        if left > 63:
            if code > 0:
                return hi
            if code < 0:
                return lo
        else:
            if code > (hi >> left):  # code * 2**left > hi
                return hi
            if code < (lo >> left):  # code * 2**left < lo
                return lo
            code = code << left
    return np.int64(min(max(code, lo), hi))


@compiled(nogil=True)
def _shift_right(x, shift, mode, word):  # type: ignore[no-untyped-def]
    """``x / 2**shift`` for shift > 0, rounded by `mode`; `word` is the stochastic word (0 otherwise)."""
    value = np.int64(x)
    if mode == _STOCHASTIC and shift > 32:  # the bits below the word's last cannot reach it: drop them first
        return ((value >> np.int64(min(shift - 32, 63))) + np.int64(word)) >> np.int64(32)
    if shift > 63:  # |x / 2**shift| <= 1/2, with equality only for -2**63 at 64, and that tie goes to 0
        return value >> np.int64(63) if mode == _FLOOR else np.int64(0)
    floor = value >> np.int64(shift)
    rest = np.uint64(value) & ((np.uint64(1) << np.uint64(shift)) - np.uint64(1))
    half = np.uint64(1) << np.uint64(shift - 1)
    if mode == _FLOOR:
        up: Any = False
    elif mode == _HALF_UP:
        up = rest >= half
    elif mode == _HALF_EVEN:
        up = rest > half or (rest == half and (floor & 1) == 1)
    elif mode == _TOWARD_ZERO:
        up = value < 0 and rest != 0
    else:
        up = (rest << np.uint64(32 - shift)) + np.uint64(word) >= np.uint64(1) << np.uint64(32)
    return floor + np.int64(up)


@compiled(nogil=True)
def smallest_exponent(top, bits, e_min, e_max):  # type: ignore[no-untyped-def]
    """:func:`santa_hw.formats.exponent` of one finite magnitude, for compiled loops."""
    if top == 0.0:
        return e_min
    mantissa, power = math.frexp(top)
    # top = mantissa * 2**power, mantissa in [1/2, 1). At e = power the code mantissa * 2**(bits-1) fits unless it
    # rounds to 2**(bits-1): from half below that on, the tie being even. At power - 1 none fits. From bits = 54 on
    # no mantissa lies that close to 1, and the subtraction gives 1 as it should.
    if mantissa >= 1.0 - 2.0 ** -min(bits, 60):
        power += 1
    return min(max(power, e_min), e_max)


# ------------------------------------------------------------------------------------------------------------
# Loops over arrays (1-D, contiguous)


@compiled(nogil=True)
def half_even_block(x, scale, lo, hi, codes):  # type: ignore[no-untyped-def]
    """The hot path: half even, saturating, limits below 2**50. Returns (saturations, non-finite values)."""
    saturations = 0
    broken = 0
    for i in range(x.size):
        value = np.float64(x[i])
        if not abs(value) < np.inf:
            broken += 1
        # An infinite product is clamped like any other. An underflowing one rounds to 0, as it should.
        product = value * scale
        # Clamped one code outside the limits first, so that the magic constant is exact.
        clamped = min(max(product, lo - 1.0), hi + 1.0)
        rounded = (clamped + _MAGIC) - _MAGIC
        if rounded < lo or rounded > hi:
            saturations += 1
        codes[i] = np.int64(min(max(rounded, lo), hi))
    return saturations, broken


@compiled(nogil=True, parallel=True)
def half_even_blocks(x, scale, lo, hi, codes):  # type: ignore[no-untyped-def]
    saturations = 0
    broken = 0
    for block in numba.prange((x.size + _BLOCK - 1) // _BLOCK):
        start = block * _BLOCK
        stop = min(start + _BLOCK, x.size)
        more, bad = half_even_block(x[start:stop], scale, lo, hi, codes[start:stop])
        saturations += more
        broken += bad
    return saturations, broken


@compiled(nogil=True)
def _wrap(code, bits, signed):  # type: ignore[no-untyped-def]
    """Low `bits` (1 to 63) of a 64-bit word, sign extended if `signed`."""
    spare = np.int64(64 - bits)
    top = np.uint64(code) << np.uint64(spare)
    if signed:
        return np.int64(top) >> spare
    return np.int64(top >> np.uint64(spare))


@compiled(nogil=True)
def quantise_loop(x, scale, mode, overflow, bits, signed, lo, hi, words, codes):  # type: ignore[no-untyped-def]
    """Every mode at every width up to 63 bits.

    Returns (saturations, -1), or as second the index of the value where it stopped: one that is not finite,
    raises, or wraps from beyond 64 bits.
    """
    saturations = 0
    for i in range(x.size):
        value = np.float64(x[i])
        if not abs(value) < np.inf:
            return saturations, i
        y = value * scale
        if y == 0.0 and value != 0.0:  # the product vanished: only its sign matters to the rounding
            y = 5e-324 if value > 0.0 else -5e-324
        floor = np.floor(y)
        if mode == _FLOOR:
            rounded = floor
        elif mode == _HALF_UP:
            # y - floor is exact where the comparison is close (Sterbenz); y + 0.5 would not be.
            rounded = floor + np.float64(y - floor >= 0.5)
        elif mode == _HALF_EVEN:
            rounded = np.rint(y)
        elif mode == _TOWARD_ZERO:
            rounded = np.trunc(y)
        else:
            word = np.float64(words[i]) * 2.0**-32
            if -0.5 < y < 0.0:  # y - floor would be inexact
                up = y >= -word
            else:
                up = y - floor >= 1.0 - word
            rounded = floor + np.float64(up)
        if rounded >= _TWO_63 or rounded < -_TWO_63:
            if overflow != SATURATE:
                return saturations, i
            codes[i] = hi if rounded > 0.0 else lo
            saturations += 1
            continue
        code = np.int64(rounded)
        if code < lo or code > hi:
            if overflow == ERROR:
                return saturations, i
            if overflow == WRAP:
                code = _wrap(code, bits, signed)
            else:
                code = min(max(code, lo), hi)
                saturations += 1
        codes[i] = code
    return saturations, -1


@compiled(nogil=True)
def shift_loop(x, shift, mode, overflow, bits, signed, lo, hi, words, codes):  # type: ignore[no-untyped-def]
    """Integer counterpart of `quantise_loop`: shift right (or left if negative), then the overflow rule."""
    saturations = 0
    left = -shift
    for i in range(x.size):
        value = x[i]
        fits = True
        if shift > 0:
            code = _shift_right(value, shift, mode, words[i] if mode == _STOCHASTIC else np.uint32(0))
        elif left > 63:
            code = np.int64(0)  # also what is left of the word modulo 2**64
            fits = value == 0
        else:
            code = value << left
            fits = (code >> left) == value
        if not fits or code < lo or code > hi:
            if overflow == ERROR:
                return saturations, i
            if overflow == WRAP:
                code = _wrap(code, bits, signed)
            elif fits:
                code = min(max(code, lo), hi)
                saturations += 1
            else:
                code = hi if value > 0 else lo
                saturations += 1
        codes[i] = code
    return saturations, -1
