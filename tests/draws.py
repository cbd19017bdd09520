"""Draws in torch, and what chance allows their means: for the tests of the float64 estimators."""

import math
from statistics import NormalDist

import pytest
import torch

LAST = 1 - 2.0**-53  # the largest double below 1
SAMPLERS = ("iid", "stratified", "systematic")


@pytest.fixture(params=[1690], ids=lambda seed: f"seed={seed}")
def rng(request):
    """A generator on a fixed seed; a test file takes it with ``rng = draws.rng``."""
    return torch.Generator().manual_seed(request.param)


def normal(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def uniform(rng, *shape):
    return torch.rand(*shape, generator=rng, dtype=torch.float64)


def worst_z(replicates, truth):
    """How far the mean of (R, ...) replicates is from the truth, in units of what chance allows.

    The largest |z| over all components, divided by the two-sided normal bound at level 1e-4 shared by the
    components (Bonferroni): above 1, the estimator is called biased. A component without spread must be
    right.
    """
    count = replicates.shape[0]
    error = (replicates.mean(dim=0) - truth).abs()
    deviation = replicates.std(dim=0) / math.sqrt(count)
    bound = NormalDist().inv_cdf(1 - 1e-4 / (2 * truth.numel()))
    return (error / (bound * deviation + 1e-12)).max().item()


def replicates(rng, attention, q, k, v, count, **options):
    """(count, T, d) outputs of independent runs."""
    return attention(q.expand(count, *q.shape), k, v, uniforms=rng, **options)[0]
