"""Requantising, shifts and stochastic rounding against exact fractions; every checker is shown to go red."""

from collections.abc import Callable
from fractions import Fraction

import numba
import numpy as np
import pytest
from exact import EDGES, INT64, WORDS, exact_round, fmts, modes, run_or_error, signed
from hypothesis import example, given, settings
from hypothesis import strategies as st

from santa_hw.formats import ROUNDINGS, Format, quantise, requantise, shift_half_up, shift_round, shift_saturate

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
