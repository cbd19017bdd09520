"""Fixed-point formats on exact fractions, as the numeric contract defines them: the oracle of the tests of formats."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import strategies as st

from santa_hw import formats
from santa_hw.formats import OVERFLOWS, ROUNDINGS, Format

INT64 = st.integers(-(2**63), 2**63 - 1)
WORDS = st.integers(0, 2**32 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
EDGES = sorted(
    {sign * (2**n + d) for n in (0, 1, 2, 31, 32, 33, 52, 53, 61, 62) for d in (-1, 0, 1) for sign in (1, -1)}
)
EDGES += [-(2**63), -(2**63) + 1, 2**63 - 1]


def exact_round(value: Fraction, rounding: str, word: int = 0) -> int:
    if rounding == "floor":
        return math.floor(value)
    if rounding == "half_up":
        return math.floor(value + Fraction(1, 2))
    if rounding == "half_even":
        return round(value)  # a Fraction rounds half to even
    if rounding == "toward_zero":
        return math.trunc(value)
    return math.floor(value + Fraction(word, 2**32))


def exact_limits(fmt: Format) -> tuple[int, int]:
    if not fmt.signed:
        return 0, 2**fmt.bits - 1
    return -(2 ** (fmt.bits - 1)) + (1 if fmt.symmetric else 0), 2 ** (fmt.bits - 1) - 1


def exact_code(value: Fraction, fmt: Format, rounding: str, overflow: str, word: int = 0) -> tuple[int, bool]:
    """The code of a value, and whether it was out of range; ValueError under ``error``."""
    code = exact_round(value * Fraction(2) ** fmt.frac, rounding, word)
    lo, hi = exact_limits(fmt)
    if lo <= code <= hi:
        return code, False
    if overflow == "error":
        raise ValueError
    if overflow == "saturate":
        return (hi if code > hi else lo), True
    code %= 2**fmt.bits
    return (code - 2**fmt.bits if code > hi else code), False


def check_codes(result: formats.Quantised, values: list[Fraction], fmt: Format, rounding, overflow, words) -> None:
    expected = [
        exact_code(v, fmt, rounding, overflow, w) for v, w in zip(values, words or [0] * len(values), strict=True)
    ]
    assert result.codes.tolist() == [code for code, _ in expected]
    assert result.saturations == sum(changed for _, changed in expected)
    assert result.codes.dtype == (np.int64 if fmt.bits <= 63 else object)


@st.composite
def fmts(draw: st.DrawFn, fracs: st.SearchStrategy[int] = st.integers(-40, 90)) -> Format:  # noqa: B008
    bits = draw(st.integers(1, 70) | st.sampled_from([49, 50, 51, 52, 53, 62, 63, 64, 65, 140]))
    signed = draw(st.booleans())
    symmetric = signed and bits > 1 and draw(st.booleans())
    return Format(bits, draw(fracs), signed, symmetric)


@st.composite
def modes(draw: st.DrawFn, fmt: Format) -> tuple[str, str]:
    overflow = draw(st.sampled_from(["saturate", "error"] if fmt.symmetric else OVERFLOWS))
    return draw(st.sampled_from(ROUNDINGS)), overflow


def run_or_error(run: Callable[[], formats.Quantised], values, fmt, rounding, overflow, words, name: str) -> None:
    try:
        for value, word in zip(values, words or [0] * len(values), strict=True):
            exact_code(value, fmt, rounding, overflow, word)
    except ValueError:
        with pytest.raises(ValueError, match=f"^{name} must"):
            run()
    else:
        check_codes(run(), values, fmt, rounding, overflow, words)


TIES = [-6.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 6.5]


def signed(pattern: int, bits: int) -> int:
    return pattern - (1 << bits) if pattern >> (bits - 1) else pattern
