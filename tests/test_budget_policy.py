"""Layer budgets: schedules that keep to a total, and what REINFORCE learns."""

import itertools

import numpy as np
import pytest
import toy_budget
from hypothesis import given
from hypothesis import strategies as st

from santa_hw.budget.policy import LARGEST_WEIGHT, MOST_SAMPLES, Policy, Settings, powers_of_two, uniform

# Schedules --------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    layers = draw(st.integers(1, 40))
    total = draw(st.integers(layers, layers * draw(st.sampled_from([1, 2, 16, 300]))))
    return Settings(
        layers, total, draw(st.booleans()), draw(st.integers(0, 1 << 31)), draw(st.sampled_from([0.06, 1.0]))
    )


def check(settings, samples):
    assert len(samples) == settings.layers
    assert min(samples) >= 1
    if not settings.powers:
        assert sum(samples) == settings.total
        return
    assert all(size & (size - 1) == 0 for size in samples)
    left = settings.total - sum(samples)
    # Never more than the total, and nothing left that could double a layer.
    assert 0 <= left < min(samples)


@given(problems(), st.lists(st.floats(-1e6, 1e6), max_size=8))
def test_every_schedule_keeps_to_the_total(settings, rewards):
    policy = Policy(settings)
    for episode, reward in enumerate(rewards):
        draw = policy.draw(episode)
        assert sum(draw.shares) == settings.total
        check(settings, draw.samples)
        check(settings, policy.learned())
        policy.learn(draw.shares, draw.version, reward)
        assert policy.probabilities.sum() == pytest.approx(1)
    check(settings, policy.learned())
    check(settings, uniform(settings))
    assert max(uniform(settings)) <= 2 * min(uniform(settings))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30))
def test_powers_of_two_are_near_their_shares(shares):
    samples = powers_of_two(shares)
    for share_, size in zip(shares, samples, strict=True):
        assert share_ < 2 * size or size >= max(shares) / 2
    assert powers_of_two(samples) == samples
    assert powers_of_two([3 * MOST_SAMPLES]) == (MOST_SAMPLES,)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"layers": 0}, "layers = 0: 1 or more"),
        ({"total": 3}, r"total = 3: 4 \(one sample in each of 4 layers\) to 262144"),
        ({"total": 1 << 19}, "total = 524288: .* to 262144"),
        ({"seed": -1}, "seed = -1: 0 to"),
        ({"rate": 0.0}, "rate = 0.0: above 0"),
        ({"rate": float("nan")}, "rate = nan"),
    ],
)
def test_settings_that_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Settings(**({"layers": 4, "total": 60} | changes))


# REINFORCE --------------------------------------------------------------------------------------


def test_the_step_is_the_gradient_of_the_log_probability(seed):
    generator = np.random.default_rng(seed)
    settings = Settings(5, 45, rate=0.5)
    policy = Policy(settings)
    shares = policy.draw(0).shares
    # The first reward has no mean to stand against: it moves nothing.
    policy.learn(shares, 0, generator.normal())
    np.testing.assert_allclose(policy.probabilities, 0.2)
    for reward in generator.normal(size=3):
        before = policy.probabilities
        shares = policy.draw(policy.version).shares
        policy.learn(shares, policy.version, reward)
        step = np.log(policy.probabilities / before)

        def log_probability(odds, shares=shares):
            return (np.array(shares) - 1) @ (odds - np.logaddexp.reduce(odds))

        odds = np.log(before)
        gradient = [
            (log_probability(odds + 1e-6 * unit) - log_probability(odds - 1e-6 * unit)) / 2e-6 for unit in np.eye(5)
        ]
        # Log-odds count up to a constant, the step up to the advantage.
        step, gradient = step - step.mean(), np.array(gradient) - np.mean(gradient)
        assert abs(np.corrcoef(step, gradient)[0, 1]) == pytest.approx(1, abs=1e-6)


def test_advantages_are_those_of_plain_running_sums(seed):
    generator = np.random.default_rng(seed)
    policy, seen, squares = Policy(Settings(3, 9)), [], []
    for reward in generator.normal(size=30):
        expected = 0.0
        if seen:
            weights = 0.95 ** np.arange(len(seen))[::-1]
            distance = reward - np.average(seen, weights=weights)
            squares.append(distance**2)
            spread = np.sqrt(np.average(squares, weights=0.95 ** np.arange(len(squares))[::-1]))
            expected = np.clip(distance / spread, -3, 3)
        seen.append(reward)
        assert policy._advantage(reward) == pytest.approx(expected)


@pytest.mark.parametrize("reward", [-1.5, 0.1, 1 / 3])
def test_equal_rewards_teach_nothing(reward):
    policy = Policy(Settings(4, 40))
    for episode in range(10):
        policy.learn(policy.draw(episode).shares, policy.version, reward)
    np.testing.assert_allclose(policy.probabilities, 0.25)


def taught(policy, version, reward=1.0):
    """How far a fixed draw of some version moves the policy."""
    before = policy.probabilities
    policy.learn((7, 1, 1), version, reward)
    return np.log(policy.probabilities / before)[0]


def test_a_late_result_is_weighted_by_how_likely_its_draw_is_now():
    def policy(drift):
        settings = Settings(3, 9, rate=0.05)
        fresh = Policy(settings)
        fresh.learn((3, 3, 3), 0, 0.0)
        for _ in range(4):
            # Away from the draw (7, 1, 1), or towards it; alternating rewards keep mean and spread alike.
            fresh.learn((1, 4, 4) if drift < 0 else (7, 1, 1), fresh.version, 1.0)
        return fresh

    for drift in (-1, 1):
        now, late = policy(drift), policy(drift)
        ratio = np.exp(6 * np.log(3 * now.probabilities[0]))
        assert (ratio < 1) == (drift < 0)
        moved = taught(now, now.version)
        np.testing.assert_allclose(taught(late, 0), moved * min(ratio, LARGEST_WEIGHT), rtol=0.05)


def test_weights_make_a_stale_gradient_unbiased():
    """Enumerated: over all draws of an old policy, weighted steps have the mean of the new policy's own."""
    settings = Settings(3, 6, rate=1e-4)
    policy = Policy(settings)
    policy.learn((2, 2, 2), 0, 0.0)
    policy.learn((3, 2, 1), 0, 1.0)
    old, new = np.full(3, 1 / 3), policy.probabilities

    def probability(shares, p):
        drawn = [size - 1 for size in shares]
        return 6 / np.prod([[1, 1, 2, 6][n] for n in drawn]) * np.prod(p ** np.array(drawn))

    draws = [shares for shares in itertools.product(range(1, 5), repeat=3) if sum(shares) == 6]
    assert sum(probability(shares, old) for shares in draws) == pytest.approx(1)

    def mean_step(version, p):
        total = np.zeros(3)
        for shares in draws:
            fresh = Policy(settings)
            fresh.learn((2, 2, 2), 0, 0.0)
            fresh.learn((3, 2, 1), 0, 1.0)
            fresh._advantage = lambda reward: reward
            fresh.learn(shares, version, toy_budget.reward(shares, 0) if len(shares) == 4 else -(shares[0] ** -1.0))
            total += probability(shares, p) * (np.log(fresh.probabilities) - np.log(new))
        return total - total.mean()

    np.testing.assert_allclose(mean_step(0, old), mean_step(2, new), rtol=1e-3)


@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize("number", range(4))
def test_a_known_optimum_is_learned(powers, number, seed):
    settings = Settings(4, 60, powers, seed + number)
    policy, noise = Policy(settings), np.random.default_rng(settings.seed)
    for episode in range(600):
        draw = policy.draw(episode)
        policy.learn(draw.shares, draw.version, toy_budget.reward(draw.samples, 0) * noise.uniform(0.95, 1.05))
    found, even = (-toy_budget.reward(samples, 0) for samples in (policy.learned(), uniform(settings)))
    best = -toy_budget.reward([4 * size for size in toy_budget.BEST], 0)
    assert best == min(
        -toy_budget.reward(schedule, 0)
        for schedule in itertools.product([1, 2, 4, 8, 16, 32], repeat=4)
        if sum(schedule) <= 60
    )
    assert best == pytest.approx(sum(np.sqrt(toy_budget.COSTS)) ** 2 / 60)
    assert found < 1.08 * best < 0.8 * even


def test_the_mean_over_versions_is_what_is_learned():
    policy = Policy(Settings(2, 1002))
    policy._logs = [np.log([a, 1 - a]) for a in (0.1, 0.9, 0.5, 0.8)]
    # Versions 0 to 3: the second half is 1, 2 and 3.
    assert policy.learned() == (734, 268)
