"""Offset and counts: residual form, closed form and exhaustive counting agree; sums and expectations are exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_hw.datapath import offset
from santa_hw.datapath.counts import draw, draw_iid, draw_stratified, draw_systematic
from santa_hw.datapath.values import set_bits


def dense_counts(n: int, drawn: int, keys: np.ndarray, counts: np.ndarray) -> list[int]:
    assert (np.diff(keys[:drawn]) > 0).all(), "keys come once each, in order"
    full = np.zeros(n, dtype=np.int64)
    full[keys[:drawn]] = counts[:drawn]
    return full.tolist()


def systematic(w: list[int], u: int, sigma: int) -> list[int]:
    keys, counts = np.zeros(1 << sigma, np.int64), np.zeros(1 << sigma, np.int64)
    mass = sum(w)
    return dense_counts(len(w), draw_systematic(np.array(w), mass, u, sigma, keys, counts), keys, counts)


def stratified(w: list[int], u: list[int], sigma: int) -> list[int]:
    keys, counts = np.zeros(1 << sigma, np.int64), np.zeros(1 << sigma, np.int64)
    drawn = draw_stratified(np.array(w), sum(w), np.array(u), sigma, keys, counts)
    return dense_counts(len(w), drawn, keys, counts)


def iid(w: list[int], t: list[int]) -> list[int]:
    keys, counts = np.zeros(len(t), np.int64), np.zeros(len(t), np.int64)
    return dense_counts(len(w), draw_iid(np.array(w), np.array(t), keys, counts), keys, counts)


def closed_form(w: list[int], u: int, samples: int) -> list[int]:
    """c_n = ceil((S*C_n - U) / Z) - ceil((S*C_(n-1) - U) / Z), the number of thresholds below each boundary."""
    mass, running, below, counts = sum(w), 0, 0, []
    for weight in w:
        running += weight
        now = -((u - samples * running) // mass)
        counts.append(now - below)
        below = now
    return counts


def counted(w: list[int], thresholds: list[int], samples: int) -> list[int]:
    """Every threshold held against every key's interval [S*C_(n-1), S*C_n)."""
    running, counts = 0, []
    for weight in w:
        low, running = running * samples, running + weight
        counts.append(sum(low <= t < running * samples for t in thresholds))
    return counts


rows = st.lists(st.sampled_from([0, 0, 1, 2, 3, 7, 100, 65535]), min_size=1, max_size=40).filter(any)


@settings(max_examples=300)
@given(w=rows, sigma=st.integers(0, 8), fraction=st.fractions(0, 1).filter(lambda x: x < 1))
def test_systematic_residual_form_equals_closed_form_and_exhaustive_count(w, sigma, fraction):
    mass, samples = sum(w), 1 << sigma
    for u in {0, int(fraction * mass), mass - 1}:
        got = systematic(w, u, sigma)
        assert got == closed_form(w, u, samples) == counted(w, [u + j * mass for j in range(samples)], samples)
        assert sum(got) == samples
        assert all(c == 0 for c, weight in zip(got, w, strict=True) if weight == 0)


@settings(max_examples=200)
@given(w=rows, sigma=st.integers(0, 6), data=st.data())
def test_stratified_and_iid_equal_exhaustive_count(w, sigma, data):
    mass, samples = sum(w), 1 << sigma
    u = data.draw(st.lists(st.integers(0, mass - 1), min_size=samples, max_size=samples))
    got = stratified(w, u, sigma)
    assert got == counted(w, [x + j * mass for j, x in enumerate(u)], samples)
    assert sum(got) == samples
    independent = iid(w, u)
    assert independent == counted(w, [x * samples for x in u], samples)
    assert sum(independent) == samples


@pytest.mark.parametrize("w", [[3, 0, 5, 1], [1], [7], [1, 1, 1, 1], [0, 9, 0], [2, 3, 60, 0, 0, 1]])
@pytest.mark.parametrize("sigma", [0, 1, 3, 6])
def test_over_all_offsets_counts_sum_to_exactly_s_times_the_weight(w, sigma):
    mass = sum(w)
    totals = np.sum([systematic(w, u, sigma) for u in range(mass)], axis=0)
    assert totals.tolist() == [(1 << sigma) * weight for weight in w]


@pytest.mark.parametrize("bits", [1, 3, 6, 10])
@pytest.mark.parametrize("w", [[3, 0, 5, 1], [1, 1, 1], [40, 2, 2, 900, 1]])
@pytest.mark.parametrize("sigma", [0, 2, 4])
def test_bias_of_a_finite_word_is_within_the_stated_bound(bits, w, sigma):
    """|E c_n - S*w_n/Z| <= 2*S*2^-R, enumerated over every word of R bits."""
    mass, samples = sum(w), 1 << sigma
    totals = np.sum([systematic(w, int(u), sigma) for u in offset(np.int64(mass), np.arange(1 << bits), bits)], axis=0)
    for total, weight in zip(totals.tolist(), w, strict=True):
        bias = abs(Fraction(total, 1 << bits) - Fraction(samples * weight, mass))
        assert bias <= Fraction(2 * samples, 1 << bits)


def test_a_threshold_on_a_boundary_draws_the_next_key():
    """U = S*C_n is not below it: [3, 5], S = 2, Z = 8; at U = 6 = S*C_0 the first key gets nothing."""
    assert systematic([3, 5], 5, 1) == [1, 1]
    assert systematic([3, 5], 6, 1) == [0, 2]
    assert systematic([3, 5], 0, 1) == [1, 1]
    assert systematic([0, 3, 5], 0, 1) == [0, 1, 1]


@pytest.mark.parametrize("bits", [1, 8, 17, 32])
@pytest.mark.parametrize("mass_bits", range(17, 63, 5))
def test_offset_equals_exact_integer_arithmetic(bits, mass_bits):
    rng = np.random.default_rng(bits * 100 + mass_bits)
    top = (1 << mass_bits) - 1
    masses = [top, 1 << (mass_bits - 1), 0, 1, *(int(x) for x in rng.integers(0, top, 50))]
    drawn = [0, (1 << bits) - 1, *(int(x) for x in rng.integers(0, 1 << bits, 20))]
    for mass in masses:
        got = offset(np.int64(mass), np.array(drawn, dtype=np.uint64), bits)
        assert got.tolist() == [(r * mass) >> bits for r in drawn]
        assert all(0 <= u < max(mass, 1) for u in got.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.int64(-1), np.array([0]), 8), "mass reaches -1"),
        ((np.int64(1 << 62), np.array([0]), 8), "mass reaches"),
        ((np.int64(5), np.array([256]), 8), r"words reach 256: at most 2\*\*8 - 1"),
        ((np.int64(5), np.array([0]), 33), "bits = 33: 1 to 32"),
    ],
)
def test_offset_refuses_what_it_cannot_hold(arguments, message):
    with pytest.raises(ValueError, match=message):
        offset(*arguments)


def test_wide_masses_draw_exactly():
    """Weights of 32 bits, a mass of 50: the residual register never overflows."""
    rng = np.random.default_rng(0)
    w = [int(x) for x in rng.integers(1 << 31, 1 << 32, 1 << 10)] * 128
    mass = sum(w)
    assert mass.bit_length() >= 49
    got = systematic(w, mass - 1, 8)
    assert got == closed_form(w, mass - 1, 256)


def test_draw_takes_one_word_or_one_a_stratum():
    w, sigma = np.array([10, 20, 30]), 2
    for sampler, count in ((0, 1), (1, 4), (2, 4)):
        drawn_words = np.array([1 << 31, 5, 1 << 30, 77][:count], dtype=np.uint32)
        offsets, keys, counts = np.zeros(count, np.int64), np.zeros(4, np.int64), np.zeros(4, np.int64)
        drawn = draw(sampler, w, 60, drawn_words, 32, sigma, offsets, keys, counts)
        assert counts[:drawn].sum() == 4
        assert offsets.tolist() == [(int(r) * 60) >> 32 for r in drawn_words]


@given(st.integers(0, 2**62))
def test_set_bits(x):
    assert set_bits(x) == x.bit_count()


def test_planted_faults_turn_the_checkers_red():
    """An off-by-one residual and a sampler that ignores the offset both break the enumeration."""
    w, sigma = [3, 0, 5, 1], 2

    def late(u: int) -> list[int]:
        return counted(w, [u + 1 + j * 9 for j in range(4)], 4)

    assert np.sum([late(u) for u in range(9)], axis=0).tolist() != [4 * x for x in w]
    assert np.sum([systematic(w, 0, sigma) for _ in range(9)], axis=0).tolist() != [4 * x for x in w]
