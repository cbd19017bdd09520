"""Trace of the covariance of the output, the measure of an estimator's noise (arXiv 2605.01910, App. M)."""

import torch

from santa_hw.reference.dense import check_count
from santa_hw.reference.values import stratum_shares


def iid_variance_trace(p: torch.Tensor, v: torch.Tensor, samples: int) -> torch.Tensor:
    """SANTA in closed form: (sum_n p_n |v_n|² - |sum_n p_n v_n|²) / S.

    ``p`` (..., T, N), ``v`` (..., N, d) -> (..., T) float64.
    """
    check_count("samples", samples)
    p, v = p.double(), v.double()
    second = (p @ v.square().sum(dim=-1, keepdim=True)).squeeze(-1)
    return (second - (p @ v).square().sum(dim=-1)) / samples


def stratified_variance_trace(p: torch.Tensor, v: torch.Tensor, samples: int) -> torch.Tensor:
    """S²ANTA-strat in closed form: the mean over strata of the trace within a stratum, divided by S.

    Shapes as for ``iid_variance_trace``. It falls short of the i.i.d. trace by the spread of the strata's
    means, so it is never larger. Takes memory for T * S * N numbers.
    """
    check_count("samples", samples)
    p, v = p.double(), v.double()
    if p.shape[-1] == 0:
        return p.sum(dim=-1)
    shares = stratum_shares(p, samples)
    # One value row per stratum: fold the strata into the row axis, (..., T * S, N).
    within = iid_variance_trace(shares.flatten(-3, -2), v, 1).unflatten(-1, shares.shape[-3:-1])
    return within.sum(dim=-1) / samples**2


def replicate_variance_trace(outputs: torch.Tensor) -> torch.Tensor:
    """The trace estimated from independent replicates, outputs (R, ..., d) with R >= 2 -> (...), float64.

    For S²ANTA-sys, whose counts all hang on one offset, there is no closed form as short as those above.
    """
    if outputs.shape[0] < 2:
        raise ValueError(f"outputs has {outputs.shape[0]} replicates; allowed: at least 2")
    return outputs.double().var(dim=0).sum(dim=-1)
