"""SANTA and its two stratified forms: value rows drawn from the softmax (arXiv 2605.01910, section 2)."""

from collections.abc import Callable

import torch

from santa_hw.reference.dense import (
    Uniforms,
    attention_scores,
    check_choice,
    check_count,
    draw,
    operands,
    probabilities,
)


def cumulative_mass(weights: torch.Tensor) -> torch.Tensor:
    """Running sum over the last axis that never falls and never steps at a key of zero weight.

    A sequential sum has both properties; a parallel scan rounds neighbours differently and has neither.
    """
    cumulative = weights.cumsum(dim=-1)
    if weights.device.type == "cpu" or weights.shape[-1] == 0:
        return cumulative
    return torch.where(weights > 0, cumulative, 0.0).cummax(dim=-1).values


def counts_at(weights: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """Count the thresholds that fall on each key of the cumulative distribution.

    Parameters
    ----------
    weights : (..., N) float64, non-negative; the scale of a row is free.
    thresholds : (..., S) float64 in [0, 1], any order. Key n owns [C_{n-1}, C_n) of the normalised running
    sum.

    Returns ------- (..., N) int64. A row sums to S, or to 0 if its weights are all zero; a key of zero weight
    is never counted.
    """
    counts = torch.zeros(weights.shape, dtype=torch.int64, device=weights.device)
    if weights.shape[-1] == 0:
        return counts
    cumulative = cumulative_mass(weights)
    mass = cumulative[..., -1:]
    # (S - 1 + u) / S may round to 1: the largest threshold must stay below the mass to find the last key.
    at = torch.minimum(thresholds * mass, torch.nextafter(mass, torch.zeros_like(mass)))
    index = torch.searchsorted(cumulative, at, right=True).clamp(max=weights.shape[-1] - 1)
    return counts.scatter_add_(-1, index, (mass > 0).long().expand(index.shape))


def iid_counts(p: torch.Tensor, samples: int, uniforms: Uniforms) -> torch.Tensor:
    """SANTA: ``samples`` independent draws a row; p (..., N), uniforms (..., samples), counts (..., N)."""
    check_count("samples", samples)
    return counts_at(p, draw(uniforms, (*p.shape[:-1], samples), p.device))


def stratified_counts(p: torch.Tensor, samples: int, uniforms: Uniforms) -> torch.Tensor:
    """S²ANTA-strat: one draw in each stratum, thresholds (m + u_m) / samples; uniforms (..., samples)."""
    check_count("samples", samples)
    numbers = draw(uniforms, (*p.shape[:-1], samples), p.device)
    return counts_at(p, (torch.arange(samples, device=p.device) + numbers) / samples)


def systematic_counts(p: torch.Tensor, samples: int, uniforms: Uniforms) -> torch.Tensor:
    """S²ANTA-sys: one offset a row, thresholds (m + u) / samples; uniforms (...), one a row.

    A key's count is floor or ceil of ``samples * p``.

    Examples
    --------
    >>> import torch
    >>> systematic_counts(torch.tensor([[0.5, 0.0, 0.3, 0.2]]), 4, torch.tensor([0.5]))
    tensor([[2, 0, 1, 1]])
    """
    check_count("samples", samples)
    offsets = draw(uniforms, tuple(p.shape[:-1]), p.device).unsqueeze(-1)
    return counts_at(p, (torch.arange(samples, device=p.device) + offsets) / samples)


SAMPLERS: dict[str, Callable[[torch.Tensor, int, Uniforms], torch.Tensor]] = {
    "iid": iid_counts,
    "stratified": stratified_counts,
    "systematic": systematic_counts,
}


def santa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    samples: int,
    uniforms: Uniforms,
    sampler: str = "systematic",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of ``samples`` value rows drawn from the softmax: an unbiased estimate of attention.

    Parameters
    ----------
    sampler : "iid" (SANTA), "stratified" (S²ANTA-strat) or "systematic" (S²ANTA-sys).
    uniforms : a generator, or numbers of shape (..., T, samples); (..., T) for "systematic".

    Returns
    -------
    output : (..., T, d_v) float64.
    counts : (..., T, N) int64, summing to ``samples`` in every row that sees a key.
    """
    check_choice("sampler", sampler, SAMPLERS)
    q, k, v = operands(q, k, v)
    counts = SAMPLERS[sampler](probabilities(attention_scores(q, k, scale=scale), mask), samples, uniforms)
    return counts.double() @ v / samples, counts


def unique_rows(counts: torch.Tensor, group: int = 1) -> torch.Tensor:
    """Value rows read by each row of ``counts`` (..., H, T, N), or by each ``group`` of heads together.

    Returns int64, (..., H, T), or the union over each group of axis -3, (..., H / group, T).
    """
    read = counts > 0
    if group > 1:
        if read.ndim < 3 or read.shape[-3] % group:
            raise ValueError(f"group is {group}; allowed: a divisor of axis -3 of counts, shape {tuple(counts.shape)}")
        read = read.unflatten(-3, (-1, group)).any(dim=-3)
    return read.sum(dim=-1)


def stratum_shares(p: torch.Tensor, samples: int) -> torch.Tensor:
    """The distribution of the draw in each of ``samples`` equal-mass strata, shape (..., samples, N)."""
    upper = cumulative_mass(p)
    upper = upper / upper[..., -1:].clamp(min=torch.finfo(p.dtype).tiny)
    lower = torch.cat([torch.zeros_like(upper[..., :1]), upper[..., :-1]], dim=-1)
    start = torch.arange(samples, dtype=p.dtype, device=p.device).unsqueeze(-1) / samples
    stop = torch.arange(1, samples + 1, dtype=p.dtype, device=p.device).unsqueeze(-1) / samples
    overlap = torch.minimum(upper.unsqueeze(-2), stop) - torch.maximum(lower.unsqueeze(-2), start)
    return overlap.clamp(min=0) * samples


def expected_unique_rows(p: torch.Tensor, samples: int, sampler: str) -> torch.Tensor:
    """Closed form of the mean of ``unique_rows``: (..., N) -> (...), float64.

    A key is missed with probability (1 - p)^S by i.i.d. draws, the product over strata of (1 - its share) by
    stratified ones, and max(0, 1 - S p) by systematic ones.
    """
    check_choice("sampler", sampler, SAMPLERS)
    check_count("samples", samples)
    if sampler == "iid":
        return (1 - (1 - p).clamp(min=0) ** samples).sum(dim=-1)
    if sampler == "systematic":
        return (samples * p).clamp(max=1).sum(dim=-1)
    if p.shape[-1] == 0:
        return p.sum(dim=-1)
    return (1 - (1 - stratum_shares(p, samples)).clamp(min=0).prod(dim=-2)).sum(dim=-1)
