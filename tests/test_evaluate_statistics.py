"""Intervals of means and of shares."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from santa_hw.evaluate.statistics import Estimate, bootstrap, proportion

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(FINITE, min_size=2, max_size=30))
def test_interval_holds_the_mean_and_stays_within_the_values(values):
    estimate = bootstrap(values, resamples=200)
    assert estimate.low <= estimate.mean <= estimate.high
    slack = 1e-9 * max(map(abs, values)) + 1e-300
    assert min(values) - slack <= estimate.low
    assert estimate.high <= max(values) + slack
    assert estimate.mean == pytest.approx(math.fsum(values) / len(values), rel=1e-9, abs=slack)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=20), st.integers(1, 8), st.integers(-100, 100))
def test_interval_moves_and_scales_with_the_values(values, factor, shift):
    plain = bootstrap(values, resamples=100)
    moved = bootstrap([factor * value + shift for value in values], resamples=100)
    assert moved == pytest.approx([factor * end + shift for end in plain])


@given(FINITE)
def test_one_value_has_no_interval(value):
    assert bootstrap([value]) == Estimate(value, None, None)


def test_same_seed_same_interval_and_another_seed_another():
    values = np.arange(9.0) ** 2
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)


def test_interval_covers_the_mean_about_as_often_as_it_says(generator):
    hits = 0
    for _ in range(400):
        estimate = bootstrap(generator.normal(size=40), resamples=400)
        hits += estimate.low <= 0 <= estimate.high
    # 95 % wanted; the percentile bootstrap of 40 values gives 94 %; 3.5 standard deviations either way.
    assert 0.90 <= hits / 400 <= 0.98


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_mean_of_nothing_or_of_nan(values):
    with pytest.raises(ValueError, match="values"):
        bootstrap(values)


def test_level_must_lie_between_0_and_1():
    with pytest.raises(ValueError, match="level is 95"):
        bootstrap([1.0, 2.0], level=95)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_share_is_just_as_far_from_its_ends_as_chance_would_take_it(counts):
    successes, trials = counts
    share, low, high = proportion(successes, trials)
    assert 0 <= low <= share <= high <= 1
    assert low < high
    for end in (low, high):
        # The score test, turned round: an end is a rate that 1.96 standard errors, its own, separate from the share.
        if end not in (0, 1):
            assert abs(share - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / trials), rel=1e-5, abs=1e-9)
    other = proportion(trials - successes, trials)
    assert (other.low, other.high) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trials": 0}, "trials is 0; allowed: 1 or more"),
        ({"successes": 9}, "successes is 9; allowed: 0 to the 8 trials"),
        ({"successes": -1}, "successes is -1; allowed: 0 to the 8 trials"),
        ({"level": 95}, "level is 95; allowed: between 0 and 1"),
    ],
)
def test_a_share_of_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        proportion(**{"successes": 0, "trials": 8, **arguments})
