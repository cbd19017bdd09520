"""Shared exponents, and codes back to values, against exact fractions."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from exact import INT64
from hypothesis import example, given
from hypothesis import strategies as st

from santa_hw.formats import Format, dequantise, exponent, quantise

# exponent


def check_exponent(exponent_fn: Callable, values: list[float], bits: int, e_min: int, e_max: int) -> None:
    def fits(value: float, e: int) -> bool:
        return round(Fraction(value) * Fraction(2) ** (bits - 1 - e)) <= 2 ** (bits - 1) - 1

    for value, e in zip(values, np.asarray(exponent_fn(np.array(values), bits, e_min, e_max)).tolist(), strict=True):
        if value == 0:
            assert e == e_min
            continue
        assert e_min <= e <= e_max
        assert fits(value, e) or e == e_max, (value, e)
        assert e == e_min or not fits(value, e - 1), (value, e)


BORDERS = [0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1.0, 0.5, 127 / 128, 127.5 / 128]
BORDERS += [
    math.nextafter(127.5 / 128, 0),
    math.nextafter(127.5 / 128, 1),
    math.nextafter(1, 0),
    1 - 2.0**-16,
    3 * 5e-324,
]


@given(
    values=st.lists(st.floats(0, allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
    bits=st.integers(2, 70),
    e_min=st.integers(-1200, 0),
    span=st.integers(0, 2400),
)
def test_exponent(values, bits, e_min, span):
    check_exponent(exponent, values + BORDERS, bits, e_min, e_min + span)


@given(power=st.integers(-1070, 1020), bits=st.integers(2, 53), offset=st.integers(-2, 2))
def test_exponent_at_the_tie(power, bits, offset):
    value = 1.0 - 2.0**-bits  # half a code below the power of two: the tie, where half even goes up
    for _ in range(abs(offset)):
        value = math.nextafter(value, 2.0 if offset > 0 else 0.0)
    check_exponent(exponent, [math.ldexp(value, power)], bits, -1200, 1200)


def test_the_exponent_never_saturates_the_set_that_made_it(generator):
    x = generator.standard_normal((50, 64)) * np.exp2(generator.integers(-20, 20, (50, 1)))
    e = exponent(np.abs(x).max(axis=1), 8, -32, 31)
    fmt = Format(8, 7, symmetric=True)
    assert quantise(np.ldexp(x, -e[:, None]), fmt).saturations == 0
    smaller = [quantise(np.ldexp(row, 1 - int(n)), fmt).saturations for row, n in zip(x, e, strict=True)]
    assert min(smaller) > 0
    assert e.shape == (50,)
    assert exponent(0.75, 8, -32, 31).shape == ()


# dequantise


@given(code=INT64 | st.integers(-(2**200), 2**200), frac=st.integers(-500, 1400))
@example(code=2**53 + 1, frac=0)
@example(code=-(2**63), frac=1)
@example(code=2**53 - 1, frac=1074 + 30)
@example(code=2**53 + 5, frac=1074 + 3)  # rounding twice gives another subnormal
def test_dequantise_is_correctly_rounded(code, frac):
    value = dequantise(np.array([code], dtype=object), frac)
    assert value.dtype == np.float64
    assert value[0] == float(Fraction(code) / Fraction(2) ** frac)
    if -(2**63) <= code < 2**63:
        assert dequantise(np.array([code]), frac)[0] == value[0]


def test_dequantise_inverts_quantise(generator):
    for bits in (8, 16, 53):
        fmt = Format(bits, 5)
        codes = generator.integers(fmt.min_code, fmt.max_code, 100, endpoint=True).reshape(4, 25)
        back = quantise(dequantise(codes, 5), fmt, overflow="error")
        assert np.array_equal(back.codes, codes)
    assert dequantise([[1], [3]], [0, 1, -2]).tolist() == [[1, 0.5, 4], [3, 1.5, 12]]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda m, bits, lo, hi: np.clip(np.frexp(m)[1], lo, hi),  # forgets that the top code may round up
        lambda m, bits, lo, hi: exponent(m, bits, lo, hi) + 1,
        lambda m, bits, lo, hi: np.where(
            m == 0, lo, np.clip(np.frexp(m)[1] + (np.frexp(m)[0] > 1 - 2.0**-bits), lo, hi)
        ),
    ],
    ids=["no rounding", "one too large", "tie goes down"],
)
def test_the_exponent_checker_goes_red(mistake):
    check_exponent(exponent, BORDERS, 8, -2000, 2000)
    with pytest.raises(AssertionError):
        check_exponent(mistake, BORDERS, 8, -2000, 2000)
