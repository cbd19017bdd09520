"""The policy over layers: what it draws, how it learns, and the schedule that it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_SAMPLES = 1 << 16
"""Largest budget of one layer."""

RATE = 0.06
"""Default learning rate: of 0.02 to 0.4, the one that left the least regret on random sums c / S**1.27."""

MEMORY = 0.95
"""Decay a step of the running mean and spread of rewards: they look back some twenty episodes."""

LARGEST_ADVANTAGE = 3.0
LARGEST_WEIGHT = 2.0
"""Clips of one episode's advantage, in spreads, and of its importance weight."""


@dataclass(frozen=True)
class Settings:
    """
    What is shared out, and how it is learned.

    Parameters
    ----------
    layers, total : int
        Layers of the model, and the sum of their budgets; each layer gets 1 or more.
    powers : bool
        Budgets are powers of two (the fixed-point datapath); their sum is then at most `total`.
    seed : int
        Of every draw.
    rate : float
        Learning rate: how far the log-odds of a layer move for an advantage of one spread and twice its expected draws.

    Raises
    ------
    ValueError
        Names the argument, its value and what is allowed.
    """

    layers: int
    total: int
    powers: bool = False
    seed: int = 0
    rate: float = RATE

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers = {self.layers}: 1 or more is allowed")
        most = MOST_SAMPLES * self.layers
        if not self.layers <= self.total <= most:
            raise ValueError(
                f"total = {self.total}: {self.layers} (one sample in each of {self.layers} layers) to {most} is allowed"
            )
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed = {self.seed}: 0 to {(1 << 32) - 1} is allowed")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate = {self.rate}: above 0, at most 1 is allowed")


class Draw(NamedTuple):
    """One episode's schedule before it is evaluated: `shares` sum to the total, `samples` is what a model is given."""

    version: int
    shares: tuple[int, ...]
    samples: tuple[int, ...]
    seed: int


class Policy:
    """
    A softmax over layers, as it stands after the episodes it was given, in their order.

    An episode hands out the total: one sample to each layer, the rest by a multinomial draw. A policy is a pure
    function of its settings and of the calls of :meth:`learn`.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._mean = self._mean_mass = 0.0
        self._square = self._square_mass = 0.0
        # After each number of episodes: an old draw's probability is needed when its result comes late.
        self._logs = [np.full(settings.layers, -np.log(settings.layers))]

    @property
    def version(self) -> int:
        """Episodes that it has learned from."""
        return len(self._logs) - 1

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Of each layer, to get the next sample: float64 (layers,)."""
        return np.exp(self._logs[-1])

    def draw(self, episode: int) -> Draw:
        """The schedule of an episode: a function of the seed, the episode's number and the policy as it stands."""
        settings = self.settings
        generator = np.random.default_rng((settings.seed, episode))
        rest = generator.multinomial(settings.total - settings.layers, _normalised(self.probabilities))
        shares = tuple(int(share) for share in 1 + rest)
        return Draw(self.version, shares, self._samples(shares), int(generator.integers(1 << 32)))

    def learn(self, shares: Sequence[int], version: int, reward: float) -> None:
        """
        One step of REINFORCE.

        Parameters
        ----------
        shares : (layers,) ints
            What was drawn.
        version : int
            The policy's version when it was drawn. An older one is weighted by the ratio of the draw's
            probabilities, now to then, at most `LARGEST_WEIGHT`.
        reward : float
            Larger is better. Its advantage over the running mean is counted in running spreads.
        """
        drawn = np.asarray(shares, dtype=np.float64) - 1
        now, then = self._logs[-1], self._logs[version]
        weight = min(float(np.exp(np.minimum(drawn @ (now - then), 10.0))), LARGEST_WEIGHT)
        # d/d(log-odds) of the multinomial's log-probability, in units of the mean number of draws a layer.
        expected = drawn.sum() * np.exp(now)
        gradient = (drawn - expected) / max(drawn.sum() / len(drawn), 1.0)
        logs = now + self.settings.rate * weight * self._advantage(reward) * gradient
        self._logs.append(logs - np.logaddexp.reduce(logs))

    def learned(self) -> tuple[int, ...]:
        """
        The schedule that the policy stands for: its mean probabilities over the second half of all versions.

        The mean smooths out the steps of single episodes (Polyak and Juditsky, 1992). Without an episode it is
        the uniform schedule.
        """
        settings = self.settings
        mean = np.mean(np.exp(self._logs[self.version // 2 :]), axis=0)
        ideal = (settings.total - settings.layers) * _normalised(mean)
        shares = np.floor(ideal).astype(np.int64)
        # The largest remainders get what is left; among equals, the earlier layers.
        left = settings.total - settings.layers - int(shares.sum())
        shares[np.argsort(shares - ideal, kind="stable")[:left]] += 1
        return self._samples([int(share) for share in 1 + shares])

    def _samples(self, shares: Sequence[int]) -> tuple[int, ...]:
        return powers_of_two(shares) if self.settings.powers else tuple(shares)

    def _advantage(self, reward: float) -> float:
        """Against the mean of earlier rewards (0 for the first), which the draw has no part in; then count it in."""
        distance = reward - self._mean if self._mean_mass else 0.0
        if self._mean_mass:
            self._square_mass = MEMORY * self._square_mass + 1 - MEMORY
            self._square += (1 - MEMORY) / self._square_mass * (distance**2 - self._square)
        # A mean that moves by a part of the distance stays where it is, to the last bit, while rewards are equal.
        self._mean_mass = MEMORY * self._mean_mass + 1 - MEMORY
        self._mean += (1 - MEMORY) / self._mean_mass * (reward - self._mean)
        if not self._square:
            return 0.0
        return float(np.clip(distance / np.sqrt(self._square), -LARGEST_ADVANTAGE, LARGEST_ADVANTAGE))


def powers_of_two(shares: Sequence[int]) -> tuple[int, ...]:
    """
    The shares as powers of two whose sum is no larger.

    Each share is rounded down; then budgets are doubled, one at a time, as long as one fits into what is left: each
    time the one that is shortest of its share.

    Examples
    --------
    >>> powers_of_two([7, 3, 2])
    (4, 4, 2)
    """
    samples = [1 << (min(share, MOST_SAMPLES).bit_length() - 1) for share in shares]
    left = sum(shares) - sum(samples)
    while True:
        fitting = [layer for layer, size in enumerate(samples) if size <= left and size < MOST_SAMPLES]
        if not fitting:
            return tuple(samples)
        layer = max(fitting, key=lambda layer: shares[layer] / samples[layer])
        left -= samples[layer]
        samples[layer] *= 2


def uniform(settings: Settings) -> tuple[int, ...]:
    """The schedule that favours no layer: what a fresh policy stands for."""
    return Policy(settings).learned()


def _normalised(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum 1 to the last bit that numpy's multinomial asks for."""
    return probabilities / probabilities.sum()
