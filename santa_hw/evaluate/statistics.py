"""Intervals: by bootstrap for the mean of few, skewed and unequal pieces, and for a share of trials that succeed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A mean and the ends of its interval; the ends are None where fewer than two values were seen."""

    mean: float
    low: float | None
    high: float | None


def bootstrap(
    values: Sequence[float] | np.ndarray, *, level: float = 0.95, resamples: int = 4000, seed: int = 0
) -> Estimate:
    """
    Mean of `values` with its percentile bootstrap interval.

    Parameters
    ----------
    values : (n,) floats
        One score a window and seed, or one a trial and seed; drawn again with replacement, all alike.
    level : float
        Coverage that is aimed at, between 0 and 1.
    resamples, seed : int
        How many bootstrap samples, and the seed of their draw: the same call gives the same interval.

    Returns
    -------
    Estimate
        The ends are None for a single value, which says nothing about its spread.

    Raises
    ------
    ValueError
        No value, a value that is not finite, or a level outside (0, 1).

    Notes
    -----
    B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3. Few windows make the
    interval too narrow (for n values by about sqrt((n - 1) / n)): it is honest from some ten values up.

    Examples
    --------
    >>> bootstrap([1.0, 1.0, 1.0])
    Estimate(mean=1.0, low=1.0, high=1.0)
    """
    sample = np.asarray(values, dtype=np.float64).ravel()
    if sample.size == 0:
        raise ValueError("values is empty; allowed: at least one number")
    if not np.isfinite(sample).all():
        raise ValueError("values holds NaN or infinity; allowed: finite numbers")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; allowed: between 0 and 1")
    mean = float(sample.mean())
    if sample.size == 1:
        return Estimate(mean, None, None)
    picks = np.random.default_rng(seed).integers(0, sample.size, size=(resamples, sample.size))
    low, high = np.quantile(sample[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    # Summation order may put the mean of equal values one ulp outside its own bootstrap samples.
    return Estimate(mean, min(float(low), mean), max(float(high), mean))


def proportion(successes: int, trials: int, *, level: float = 0.95) -> Estimate:
    """
    Share of `trials` that succeeded, with its Wilson interval.

    Unlike a bootstrap's, the interval is not a point where all trials succeed, or none.

    Raises
    ------
    ValueError
        No trial, more successes than trials, or a level outside (0, 1).

    Notes
    -----
    E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927.

    Examples
    --------
    >>> [round(number, 3) for number in proportion(8, 8)]
    [1.0, 0.676, 1.0]
    """
    if trials < 1:
        raise ValueError(f"trials is {trials}; allowed: 1 or more")
    if not 0 <= successes <= trials:
        raise ValueError(f"successes is {successes}; allowed: 0 to the {trials} trials")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; allowed: between 0 and 1")
    share, z = successes / trials, NormalDist().inv_cdf((1 + level) / 2)
    middle = share + z * z / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    low, high = (middle - reach) / scale, (middle + reach) / scale
    # Round-off may put an end just outside what is possible, or the share just outside its interval.
    return Estimate(share, min(share, max(0.0, low)), max(share, min(1.0, high)))
