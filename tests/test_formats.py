"""Quantising, and formats themselves, against exact fractions; the checker is shown to go red."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from exact import FLOATS, TIES, WORDS, check_codes, fmts, modes, run_or_error
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_hw import formats, rounding_loops
from santa_hw.formats import OVERFLOWS, Format, dequantise, exponent, quantise, requantise, shift_round

# quantise


@pytest.mark.parametrize(
    ("rounding", "codes"),
    [
        ("floor", [-7, -3, -2, -1, 0, 1, 2, 6]),
        ("half_up", [-6, -2, -1, 0, 1, 2, 3, 7]),
        ("half_even", [-6, -2, -2, 0, 0, 2, 2, 6]),
        ("toward_zero", [-6, -2, -1, 0, 0, 1, 2, 6]),
    ],
)
@pytest.mark.parametrize("bits", [4, 50, 51, 63, 64, 100])
def test_ties(rounding, codes, bits):
    assert quantise(TIES, Format(bits, 0), rounding=rounding).codes.tolist() == codes
    halves = np.array([int(2 * x) for x in TIES])
    assert requantise(halves, 1, Format(bits, 0), rounding=rounding).codes.tolist() == codes
    assert shift_round(halves, 1, rounding).tolist() == codes


@settings(max_examples=400)
@given(data=st.data())
def test_quantise_equals_fractions(data):
    fmt = data.draw(fmts(fracs=st.integers(-40, 90) | st.sampled_from([-1100, -1023, -1022, 1023, 1024, 1100])))
    rounding, overflow = data.draw(modes(fmt))
    # Near its ties, near the ends of its range, and anywhere.
    unit = Fraction(2) ** -min(max(fmt.frac, -800), 800)
    near = st.integers(-40, 40).map(lambda n: float(n * unit / 4))
    edge = st.integers(-3, 3).map(lambda n: float((2 * fmt.max_code + n) * unit / 2))
    x = data.draw(st.lists(near | edge | FLOATS, min_size=1, max_size=8))
    words = data.draw(st.lists(WORDS, min_size=len(x), max_size=len(x))) if rounding == "stochastic" else None
    values = [Fraction(v) for v in x]
    run_or_error(
        lambda: quantise(x, fmt, rounding=rounding, overflow=overflow, words=words),
        values, fmt, rounding, overflow, words, "x",
    )  # fmt: skip


@given(
    x=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    frac=st.integers(-30, 60),
    rounding=st.sampled_from(["floor", "half_up", "half_even", "toward_zero"]),
)
def test_float32_is_upcast(x, frac, rounding):
    fmt = Format(8, frac, symmetric=True)
    result = quantise(np.array(x, dtype=np.float32), fmt, rounding=rounding)
    check_codes(result, [Fraction(v) for v in x], fmt, rounding, "saturate", None)


@pytest.mark.parametrize("value", [0.49999999999999994, -0.5000000000000001, 4503599627370497.5, -5e-324, 5e-324])
@pytest.mark.parametrize("rounding", ["floor", "half_up", "half_even", "toward_zero"])
@pytest.mark.parametrize("bits", [16, 60, 80])
def test_where_adding_a_half_in_floating_point_goes_wrong(value, rounding, bits):
    fmt = Format(bits, 0)
    check_codes(quantise([value], fmt, rounding=rounding), [Fraction(value)], fmt, rounding, "saturate", None)


@pytest.mark.parametrize("frac", [0, 10])
@pytest.mark.parametrize("fmt", [Format(8, 0), Format(52, 0), Format(63, 0), Format(63, 0, signed=False)], ids=str)
def test_values_at_the_end_of_the_machine_word(fmt, frac):
    fmt = dataclasses.replace(fmt, frac=frac)
    ends = [
        2.0**63,
        math.nextafter(2.0**63, 0),
        math.nextafter(2.0**63, math.inf),
        2.0**62,
        2.0**64,
        2.0**1000,
    ]
    x = [sign * end * 2.0**-frac for end in ends for sign in (1, -1)]
    for rounding in ("floor", "half_up", "half_even", "toward_zero"):
        for overflow in ("saturate", "wrap"):
            result = quantise(x, fmt, rounding=rounding, overflow=overflow)
            check_codes(result, [Fraction(v) for v in x], fmt, rounding, overflow, None)


@pytest.mark.parametrize("frac", [-1100, -1022, -1000])
def test_a_vanishing_product_keeps_its_sign(frac):
    x = [-5e-324, 5e-324, -1.0, 0.0, -0.0]
    assert quantise(x, Format(8, frac), rounding="floor").codes.tolist() == [-1, 0, -1, 0, 0]
    assert quantise(x, Format(8, frac), rounding="half_even").codes.tolist() == [0] * 5
    assert quantise(x, Format(8, frac), rounding="stochastic", words=0).codes.tolist() == [-1, 0, -1, 0, 0]
    assert quantise(x, Format(8, frac), rounding="stochastic", words=1).codes.tolist() == [0] * 5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", ">f8", np.int8, np.uint64, object])
def test_input_types_and_layouts(dtype):
    values = np.arange(24).reshape(2, 3, 4)
    array = values.astype(dtype)
    fmt = Format(5, -1, symmetric=True)
    expected = np.array([round(Fraction(int(v), 2)) for v in values.flat]).reshape(2, 3, 4)
    for view in (array[0, 0, :1].reshape(()), array[:0]):
        assert quantise(view, fmt).codes.shape == view.shape
    assert quantise(array, fmt).codes.dtype == np.int64
    assert np.array_equal(quantise(array, fmt).codes, np.minimum(expected, 15))
    assert np.array_equal(quantise(array.transpose(2, 0, 1), fmt).codes, np.minimum(expected, 15).transpose(2, 0, 1))
    assert np.array_equal(quantise(array[:, ::-1, ::2], fmt).codes, np.minimum(expected, 15)[:, ::-1, ::2])


def test_input_is_never_written(generator):
    x = generator.standard_normal(100)
    before = x.copy()
    for rounding in ("half_even", "floor"):
        quantise(x, Format(4, 8), rounding=rounding)
    codes = generator.integers(-99, 99, 100)
    kept = codes.copy()
    requantise(codes, 4, Format(3, 0))
    assert np.array_equal(x, before)
    assert np.array_equal(codes, kept)


def test_threads_give_the_codes_of_one_thread(generator, monkeypatch):
    x = generator.standard_normal(3 * rounding_loops._BLOCK + 7) * 40
    for array in (x, x.astype(np.float32)):
        serial = quantise(array, Format(6, 2, symmetric=True))
        monkeypatch.setattr(formats, "_PARALLEL", 1)
        parallel = quantise(array, Format(6, 2, symmetric=True))
        monkeypatch.undo()
        expected = np.rint(array.astype(np.float64) * 4)
        assert np.array_equal(serial.codes, np.clip(expected, -31, 31))
        assert np.array_equal(parallel.codes, serial.codes)
        assert serial.saturations == parallel.saturations == np.count_nonzero(np.abs(expected) > 31) > 100
    x[-1] = np.nan
    monkeypatch.setattr(formats, "_PARALLEL", 1)
    with pytest.raises(ValueError, match="x must be finite, got nan"):
        quantise(x, Format(6, 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bits", [8, 60, 70])
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_nan_and_infinity_are_refused(bad, bits, overflow):
    with pytest.raises(ValueError, match=f"x must be finite, got {bad}"):
        quantise([0.0, bad, 1.0], Format(bits, 0), overflow=overflow)


# Formats and refusals


@pytest.mark.parametrize(
    ("fmt", "limits"),
    [
        (Format(8, 0), (-128, 127)),
        (Format(8, 3, symmetric=True), (-127, 127)),
        (Format(8, -3, signed=False), (0, 255)),
        (Format(1, 0), (-1, 0)),
        (Format(1, 0, signed=False), (0, 1)),
        (Format(63, 0, signed=False), (0, 2**63 - 1)),
        (Format(100, 0), (-(2**99), 2**99 - 1)),
    ],
    ids=str,
)
def test_limits(fmt, limits):
    assert (fmt.min_code, fmt.max_code) == limits
    beyond = np.array([limits[0] - 1, limits[0], limits[1], limits[1] + 1], dtype=object)
    clamped = requantise(beyond, fmt.frac, fmt)
    assert clamped.codes.tolist() == [limits[0], limits[0], limits[1], limits[1]]
    assert clamped.saturations == 2
    if not fmt.symmetric:
        wrapped = requantise(beyond, fmt.frac, fmt, overflow="wrap")
        assert wrapped.codes.tolist() == [limits[1], limits[0], limits[1], limits[0]]
        assert wrapped.saturations == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Format(0, 0), "bits must be an integer of at least 1, got 0"),
        (lambda: Format(1, 0, symmetric=True), "bits must be an integer of at least 2, got 1"),
        (lambda: Format(8.0, 0), "bits must be an integer of at least 1, got 8.0"),
        (lambda: Format(8, 0.5), "frac must be an integer, got 0.5"),
        (lambda: Format(8, 0, signed=False, symmetric=True), "symmetric must be False when signed is False"),
        (lambda: quantise([1.0], Format(8, 0), rounding="up"), "rounding must be one of floor, .*, got 'up'"),
        (
            lambda: quantise([1.0], Format(8, 0), overflow="clip"),
            "overflow must be one of saturate, .*, got 'clip'",
        ),
        (
            lambda: quantise([1.0], Format(8, 0, symmetric=True), overflow="wrap"),
            "overflow must be saturate or error",
        ),
        (lambda: quantise([1.0], Format(8, 0), rounding="stochastic"), "words must be given .*, got None"),
        (lambda: quantise([1.0], Format(8, 0), words=[1]), "words must be given .* got words with rounding"),
        (
            lambda: quantise([1.0], Format(8, 0), rounding="stochastic", words=[2**32]),
            r"words .*, got 4294967296",
        ),
        (lambda: quantise([1.0], Format(8, 0), rounding="stochastic", words=[-1]), r"words .*, got -1"),
        (
            lambda: quantise([1.0], Format(8, 0), rounding="stochastic", words=[0.5]),
            "words .*, got dtype float64",
        ),
        (
            lambda: quantise([1.0], Format(8, 0), rounding="stochastic", words=[1, 2]),
            r"words must broadcast .*\(2,\)",
        ),
        (lambda: quantise([1j], Format(8, 0)), "x must be real values .*, got dtype complex128"),
        (
            lambda: quantise([1.0, 31.75, -33.0, 99.0], Format(7, 1), overflow="error"),
            r"x must round to codes in \[-64, 63\] at 1 fraction bits \(7 bits\), got 31.75",
        ),
        (lambda: quantise([1e300], Format(70, 1), overflow="error"), r"x must round .*, got 1e\+300"),
        (lambda: quantise([1e300], Format(60, 1), overflow="error"), r"x must round .*, got 1e\+300"),
        (lambda: requantise([3, 9], 0, Format(4, 0), overflow="error"), r"codes must .* \[-8, 7\] .*, got 9"),
        (lambda: requantise([3, 9], 0, Format(70, 90), overflow="error"), r"codes must .*, got 3"),
        (lambda: requantise([3.0], 0, Format(4, 0)), "codes must be integers, got dtype float64"),
        (
            lambda: requantise(np.array([3.0], dtype=object), 0, Format(4, 0)),
            "codes must be integers, got an object",
        ),
        (
            lambda: shift_round(np.array([2**64], dtype=object), 1, "floor"),
            "x must fit 64-bit integers, got 184467",
        ),
        (lambda: exponent([1.0], 1, 0, 1), "bits must be at least 2, got 1"),
        (lambda: exponent([1.0], 8, 2, 1), "e_min must be at most e_max = 1, got 2"),
        (lambda: exponent([1.0, -1.0], 8, 0, 1), "maximum must be finite and not negative, got -1.0"),
        (lambda: exponent([math.nan], 8, 0, 1), "maximum must be finite and not negative, got nan"),
        (lambda: exponent([math.inf], 8, 0, 1), "maximum must be finite and not negative, got inf"),
        (lambda: dequantise([1], -1024), "frac must keep .* within float64, got -1024"),
        (lambda: dequantise([2**60 + 1], -1024), "frac must keep .* within float64, got -1024"),
        (lambda: dequantise([0.5], 1), "codes must be integers"),
    ],
)
def test_refusals_name_the_argument_the_value_and_what_is_allowed(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# The checker can fail: it goes red on codes with one mistake.


@pytest.mark.parametrize(
    ("rounding", "instead"),
    [("half_even", "half_up"), ("half_up", "half_even"), ("toward_zero", "floor"), ("floor", "toward_zero")],
)
def test_the_code_checker_goes_red_on_another_rounding(rounding, instead):
    wrong = quantise(TIES, Format(8, 0), rounding=instead)
    with pytest.raises(AssertionError):
        check_codes(wrong, [Fraction(t) for t in TIES], Format(8, 0), rounding, "saturate", None)


def test_the_code_checker_goes_red_on_wrong_saturation():
    values = [Fraction(-200), Fraction(5), Fraction(200)]
    right = quantise([-200.0, 5.0, 200.0], Format(8, 0))
    symmetric = quantise([-200.0, 5.0, 200.0], Format(8, 0, symmetric=True))
    miscounted = formats.Quantised(right.codes, 1)
    narrow = formats.Quantised(right.codes.astype(np.int32), 2)
    check_codes(right, values, Format(8, 0), "half_even", "saturate", None)
    for wrong in (symmetric, miscounted, narrow):
        with pytest.raises(AssertionError):
            check_codes(wrong, values, Format(8, 0), "half_even", "saturate", None)
