"""Fixed-point formats against exact fractions and against apytypes; every checker is shown to go red."""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

import apytypes
import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from santa_hw import formats
from santa_hw.formats import (
    OVERFLOWS,
    ROUNDINGS,
    Format,
    dequantise,
    exponent,
    quantise,
    requantise,
    shift_half_up,
    shift_round,
    shift_saturate,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
WORDS = st.integers(0, 2**32 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
EDGES = sorted(
    {sign * (2**n + d) for n in (0, 1, 2, 31, 32, 33, 52, 53, 61, 62) for d in (-1, 0, 1) for sign in (1, -1)}
)
EDGES += [-(2**63), -(2**63) + 1, 2**63 - 1]


# The oracle: the definitions of the contract, on exact fractions.


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


# quantise


TIES = [-6.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 6.5]


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
    x = generator.standard_normal(3 * formats._BLOCK + 7) * 40
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


# requantise and shifts


@settings(max_examples=400)
@given(data=st.data())
def test_requantise_equals_fractions(data):
    fmt = data.draw(fmts())
    rounding, overflow = data.draw(modes(fmt))
    frac = data.draw(st.integers(-100, 160))
    wide = st.integers(-(2**150), 2**150)
    near = st.integers(-40, 40).map(lambda n: n << max(frac - fmt.frac - 2, 0))
    codes = data.draw(
        st.lists(near | INT64 | st.sampled_from(EDGES), min_size=1, max_size=8) | st.lists(wide, min_size=1)
    )
    words = data.draw(st.lists(WORDS, min_size=len(codes), max_size=len(codes))) if rounding == "stochastic" else None
    array = np.array(codes, dtype=object if max(map(abs, codes)) >= 2**63 else np.int64)
    run_or_error(
        lambda: requantise(array, frac, fmt, rounding=rounding, overflow=overflow, words=words),
        [Fraction(c) / Fraction(2) ** frac for c in codes], fmt, rounding, overflow, words, "codes",
    )  # fmt: skip


def check_shift(shift_fn: Callable[[list[int], int, str, int], list[int]]) -> None:
    """Every mode, every shift beyond both ends of the word, at values and words where mistakes show."""
    values = [*EDGES, -6, -5, -3, 0, 3, 5, 6]
    for shift in [*range(70), 94, 95, 96, 97, 200, 10**6]:
        for rounding in ROUNDINGS:
            for word in (0, 1, 2**31, 2**32 - 1) if rounding == "stochastic" else (0,):
                expected = [exact_round(Fraction(x, 2 ** min(shift, 300)), rounding, word) for x in values]
                assert shift_fn(values, shift, rounding, word) == expected, (shift, rounding, word)


def shift_all(values: list[int], shift: int, rounding: str, word: int) -> list[int]:
    return shift_round(np.array(values), shift, rounding, word if rounding == "stochastic" else None).tolist()


def shift_one(x: int, shift: int, rounding: str, word: int) -> int:
    return shift_all([x], shift, rounding, word)[0]


def test_shift_round_at_the_edges():
    check_shift(shift_all)


@given(x=INT64, shift=st.integers(-70, 200), rounding=st.sampled_from(ROUNDINGS), word=WORDS)
def test_shift_round(x, shift, rounding, word):
    expected = exact_round(Fraction(x) / Fraction(2) ** shift, rounding, word)
    if -(2**63) <= expected < 2**63:
        assert shift_one(x, shift, rounding, word) == expected
    else:
        with pytest.raises(ValueError, match=f"x << {-shift} must fit 64 bits, got x = {x}"):
            shift_one(x, shift, rounding, word)


@numba.njit
def _scalars(x, shift, lo, hi):
    return shift_half_up(x, max(shift, 0)), shift_saturate(x, shift, lo, hi)


def check_scalars(half_up: Callable, saturate: Callable, x: int, shift: int, lo: int, hi: int) -> None:
    exact = exact_round(Fraction(x) / Fraction(2) ** shift, "half_up")
    assert saturate(x, shift, lo, hi) == min(max(exact, lo), hi)
    assert half_up(x, max(shift, 0)) == exact_round(Fraction(x, 2 ** max(shift, 0)), "half_up")


@settings(max_examples=300)
@given(
    x=INT64 | st.sampled_from(EDGES),
    shift=st.integers(-70, 70) | st.sampled_from([-1000, -64, -63, 62, 63, 64, 65, 1000]),
    limits=st.tuples(INT64 | st.sampled_from(EDGES), INT64 | st.sampled_from(EDGES)),
)
@example(x=1, shift=-63, limits=(-(2**63), 2**63 - 1))
@example(x=-1, shift=-63, limits=(-(2**63), 2**63 - 1))
@example(x=-1, shift=-64, limits=(-(2**15), 2**15 - 1))
@example(x=2**62, shift=63, limits=(-5, 5))
@example(x=-(2**63), shift=64, limits=(-5, 5))
@example(x=-3, shift=-1, limits=(-5, 5))
def test_scalars(x, shift, limits):
    lo, hi = sorted(limits)
    check_scalars(shift_half_up, shift_saturate, x, shift, lo, hi)
    in_loop = _scalars(np.int64(x), shift, lo, hi)  # called from compiled code, as the datapath does
    assert in_loop == (shift_half_up(x, max(shift, 0)), shift_saturate(x, shift, lo, hi))


@pytest.mark.parametrize("base", [0, 2**61, -(2**61)])
def test_scalars_around_their_limits(base):
    for shift in range(-4, 5):
        centre = base >> -shift if shift < 0 else base // 2  # x / 2**shift lies near the limits
        limits = exact_round(Fraction(centre) / Fraction(2) ** shift, "floor")
        for x in range(centre - 12, centre + 13):
            for lo, hi in ((limits - 11, limits + 9), (limits - 8, limits + 7), (limits + 2, limits + 2)):
                check_scalars(shift_half_up, shift_saturate, x, shift, lo, hi)


# apytypes, an implementation that shares no line with ours

MODES = {
    "floor": apytypes.QuantizationMode.TRN,
    "half_up": apytypes.QuantizationMode.RND,
    "half_even": apytypes.QuantizationMode.RND_CONV,
    "toward_zero": apytypes.QuantizationMode.TRN_ZERO,
}
WRAPS = {"saturate": apytypes.OverflowMode.SAT, "wrap": apytypes.OverflowMode.WRAP}
WIDTHS = [(12, 4, 8, 0), (16, 15, 8, 7), (40, 20, 20, 5), (63, 30, 16, 5), (63, 40, 63, 38), (64, 32, 64, 31)]
WIDTHS += [
    (64, 8, 66, 16),
    (90, 45, 40, 10),
    (130, 70, 70, 33),
    (200, 64, 128, 63),
    (12, 0, 8, 3),
    (100, 3, 140, 60),
]


def signed(pattern: int, bits: int) -> int:
    return pattern - (1 << bits) if pattern >> (bits - 1) else pattern


def apytypes_codes(codes: list[int], bits: int, frac: int, fmt: Format, rounding: str, overflow: str) -> list[int]:
    # One bit more than the codes need: apytypes 0.5.1 wraps when it adds half to the largest 64-bit code.
    fixed = apytypes.APyFixedArray(codes, int_bits=bits + 1 - frac, frac_bits=frac)
    cast = fixed.cast(
        int_bits=fmt.bits - fmt.frac,
        frac_bits=fmt.frac,
        quantization=MODES[rounding],
        overflow=WRAPS[overflow],
    )
    return [signed(int(pattern), fmt.bits) for pattern in cast.to_bits()]


def random_codes(generator: np.random.Generator, bits: int, drop: int, count: int) -> list[int]:
    """Codes of every magnitude, and exact ties for a drop of so many bits."""
    codes = []
    for size in generator.integers(1, bits, count).tolist():
        codes.append(signed(int.from_bytes(generator.bytes(32), "little") & ((1 << size + 1) - 1), size + 1))
    ties = [(2 * n + 1) << (drop - 1) for n in range(-9, 9)] if drop > 0 else list(range(-9, 9))
    lo, hi = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return [*codes, lo, hi, lo + 1, hi - 1, *(tie for tie in ties if lo <= tie <= hi)]


@pytest.mark.parametrize("overflow", WRAPS)
@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("widths", WIDTHS, ids=lambda w: "{}.{}-to-{}.{}".format(*w))
def test_requantise_equals_apytypes(widths, rounding, overflow, generator):
    bits, frac, out_bits, out_frac = widths
    fmt = Format(out_bits, out_frac)
    codes = random_codes(generator, bits, frac - out_frac, 200)
    array = np.array(codes, dtype=np.int64 if bits <= 63 else object)
    ours = requantise(array, frac, fmt, rounding=rounding, overflow=overflow).codes.tolist()
    assert ours == apytypes_codes(codes, bits, frac, fmt, rounding, overflow)


@pytest.mark.parametrize("overflow", WRAPS)
@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("fmt", [Format(8, 6), Format(16, 5), Format(50, 40), Format(62, 50), Format(80, 60)], ids=str)
def test_quantise_equals_apytypes(fmt, rounding, overflow, generator):
    # Multiples of 2**-100 below 2**40: exact both as float64 and as 141-bit fixed point.
    x = np.round(generator.standard_normal(300) * 2.0**24) * 2.0 ** generator.integers(-60, 10, 300)
    x = np.concatenate([x, np.array(TIES) * 2.0**-fmt.frac, [0.0, 0.49999999999999994 * 2.0**-fmt.frac]])
    codes = [int(Fraction(v) * 2**120) for v in x.tolist()]
    ours = quantise(x, fmt, rounding=rounding, overflow=overflow).codes.tolist()
    assert ours == apytypes_codes(codes, 180, 120, fmt, rounding, overflow)


# stochastic rounding


@pytest.mark.parametrize("shift", [1, 3, 8])
@pytest.mark.parametrize("negative", [False, True])
def test_the_mean_over_all_words_is_the_value(shift, negative):
    # Hermite's identity: over all words of `shift` bits the codes of x / 2**shift sum to exactly x.
    words = np.arange(2**shift, dtype=np.uint32) << np.uint32(32 - shift)
    x = np.arange(3 * 2**shift) * (-1 if negative else 1)
    fmt = Format(16, 0)
    by_integer = shift_round(x[:, None] + 0 * words.astype(np.int64), shift, "stochastic", words)
    by_float = quantise((x / 2.0**shift)[:, None] + 0.0 * words, fmt, rounding="stochastic", words=words).codes
    by_wide = requantise(
        x[:, None] + 0 * words.astype(np.int64), shift, Format(80, 0), rounding="stochastic", words=words
    )
    for codes in (by_integer, by_float, by_wide.codes):
        assert codes.sum(axis=1).tolist() == x.tolist()
        assert (codes.max(axis=1) - codes.min(axis=1)).tolist() == [int(v % 2**shift != 0) for v in x.tolist()]


@given(x=INT64, shift=st.integers(1, 32))
def test_the_number_of_words_that_round_up_is_the_fraction(x, shift):
    # Rounding up is monotone in the word, so the first word that does tells the mean over all 2**32 of them.
    floor, rest = x >> shift, x % 2**shift
    first = 2**32 - rest * 2 ** (32 - shift)  # so exactly rest / 2**shift of the words round up
    assert shift_one(x, shift, "stochastic", first - 1) == floor
    if rest:
        assert shift_one(x, shift, "stochastic", first) == floor + 1


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


# The checkers can fail: each goes red on an implementation with one mistake.


def mutant_shift(mistake: str) -> Callable[[list[int], int, str, int], list[int]]:
    def shift_fn(values: list[int], shift: int, rounding: str, word: int) -> list[int]:
        if mistake == "machine shift" and shift > 63:
            shift %= 64
        elif mistake == f"{rounding} as half_up":
            rounding = "half_up"
        elif mistake == f"{rounding} as floor":
            rounding = "floor"
        elif mistake == f"{rounding} as toward_zero":
            rounding = "toward_zero"
        elif mistake == "half_up away from zero" and rounding == "half_up":
            return [
                -shift_one(-x, shift, rounding, word) if -(2**63) < x < 0 else shift_one(x, shift, rounding, word)
                for x in values
            ]
        elif mistake == "overflowing half" and rounding == "half_up" and 0 < shift < 64:
            return [signed((x + (1 << (shift - 1))) % 2**64, 64) >> shift for x in values]
        elif mistake == "word one too large":
            word = min(word + 1, 2**32 - 1)
        return shift_all(values, shift, rounding, word)

    return shift_fn


@pytest.mark.parametrize(
    "mistake",
    [
        "machine shift",
        "half_even as half_up",
        "toward_zero as floor",
        "floor as toward_zero",
        "half_up away from zero",
        "overflowing half",
        "word one too large",
    ],
)
def test_the_shift_checker_goes_red(mistake):
    with pytest.raises(AssertionError):
        check_shift(mutant_shift(mistake))


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


def test_the_apytypes_comparison_goes_red(generator):
    fmt = Format(40, 10)
    codes = random_codes(generator, 90, 35, 200)
    ours = requantise(np.array(codes, dtype=object), 45, fmt, rounding="half_up").codes.tolist()
    assert ours == apytypes_codes(codes, 90, 45, fmt, "half_up", "saturate")
    assert ours != apytypes_codes(codes, 90, 45, fmt, "half_even", "saturate")
    assert ours != apytypes_codes(codes, 90, 45, fmt, "half_up", "wrap")


def test_the_scalar_checker_goes_red():
    def machine_left(x, shift, lo, hi):
        if shift >= 0:
            return shift_saturate(x, shift, lo, hi)
        return min(max(signed(x << (-shift % 64) & (2**64 - 1), 64), lo), hi)

    for x, shift in ((3, -62), (3, -64), (-2, -63)):
        check_scalars(shift_half_up, shift_saturate, x, shift, -100, 100)
        with pytest.raises(AssertionError):
            check_scalars(shift_half_up, machine_left, x, shift, -100, 100)
    with pytest.raises(AssertionError):
        check_scalars(lambda x, shift: x >> shift, shift_saturate, 3, 1, -100, 100)


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
