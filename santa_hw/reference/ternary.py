"""Bernoulli qKᵀ: the query as a mean of sparse ternary vectors (arXiv 2605.01910, section 5 and App. C)."""

import torch

from santa_hw.reference.dense import (
    Uniforms,
    attention_scores,
    check_choice,
    check_count,
    draw,
    group_size,
    operands,
    probabilities,
    repeat_kv,
)
from santa_hw.reference.values import SAMPLERS

DRAWS = ("iid", "stratified")
NORMS = ("max", "power_of_two")


def query_norm(q: torch.Tensor, norm: str = "max") -> torch.Tensor:
    """What a ternary ±1 stands for: max|q| of each row, or the least power of two that is no smaller.

    (..., d) -> (..., 1) float64; 1 for a row of zeros. With "power_of_two" the scaling is a shift.
    """
    check_choice("norm", norm, NORMS)
    largest = q.double().abs().amax(dim=-1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    if norm == "max":
        return largest
    # Dividing by the mantissa is exact, and unlike torch.ldexp it stays in float64.
    mantissa, _ = torch.frexp(largest)
    return torch.where(mantissa == 0.5, largest, largest / mantissa)


def ternary_vectors(
    q: torch.Tensor,
    ternary_samples: int,
    uniforms: Uniforms,
    *,
    ternary_draw: str = "stratified",
    norm: str = "max",
) -> torch.Tensor:
    """Draw B = ``ternary_samples`` vectors in {-1, 0, +1}; their mean times ``query_norm`` has expectation q.

    Feature i carries sign(q_i) with probability p_i = |q_i| / norm. "iid": B independent draws a feature,
    uniforms (B, *q.shape). "stratified": one uniform r a feature, uniforms of q's shape, and the first
    floor(B p + r) vectors carry the sign: the same law as one draw in each of B strata (all strata but one
    are certain), and the same thing as stochastic rounding of p to multiples of 1/B.

    Returns
    -------
    (B, *q.shape) int8.
    """
    check_choice("ternary_draw", ternary_draw, DRAWS)
    check_count("ternary_samples", ternary_samples)
    p = q.double().abs() / query_norm(q, norm)
    if ternary_draw == "iid":
        set_bits = draw(uniforms, (ternary_samples, *q.shape), q.device) < p
    else:
        count = torch.floor(ternary_samples * p + draw(uniforms, tuple(q.shape), q.device))
        stratum = torch.arange(ternary_samples, device=q.device).reshape(-1, *[1] * q.ndim)
        set_bits = stratum < count
    return set_bits.to(torch.int8) * q.sign().to(torch.int8)


def bernoulli_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    scale: float | None = None,
    ternary_samples: int,
    uniforms: Uniforms,
    ternary_draw: str = "stratified",
    norm: str = "max",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unbiased scores from additions and subtractions of key features alone.

    Parameters
    ----------
    q, k : (..., T, d) and (..., N, d); KV heads are repeated where q has more heads.
    ternary_samples, uniforms, ternary_draw, norm : as for ``ternary_vectors``.

    Returns
    -------
    scores : (..., T, N) float64, expectation ``attention_scores(q, k)``. Their softmax is not unbiased.
    vectors : (B, ..., T, d) int8.
    """
    vectors = ternary_vectors(q, ternary_samples, uniforms, ternary_draw=ternary_draw, norm=norm)
    estimate = vectors.double().sum(dim=0) * query_norm(q, norm) / ternary_samples
    return attention_scores(estimate, repeat_kv(k, group_size(q, k)), scale=scale), vectors


def mean_group_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    scale: float | None = None,
    ternary_samples: int,
    uniforms: Uniforms,
    ternary_draw: str = "stratified",
    norm: str = "max",
) -> tuple[torch.Tensor, torch.Tensor]:
    """One Bernoulli draw for all heads of a GQA group, from the mean of their queries' magnitudes.

    Feature i is read with a probability p_i in proportion to mu_i = mean over the group of |q_i|, and head h
    weights what was read by q_{h,i} / p_i, so that every head's scores are unbiased. Not multiplier-free: it
    divides by mu_i and multiplies every key feature that is read by a real number. All heads of a group read
    the same features.

    Parameters
    ----------
    q, k : (..., H, T, d) and (..., KV, N, d), H a multiple of KV.
    uniforms : a generator, or numbers of shape (..., KV, T, d), with B in front for "iid".

    Returns
    -------
    scores : (..., H, T, N) float64.
    vectors : (B, ..., KV, T, d) int8 in {0, 1}, shared by the group.
    """
    for name, x in (("q", q), ("k", k)):
        if x.ndim < 3:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; allowed: (..., heads, rows, head_dim)")
    group = group_size(q, k)
    grouped = q.double().unflatten(-3, (-1, group))
    magnitude = grouped.abs().mean(dim=-3)
    vectors = ternary_vectors(magnitude, ternary_samples, uniforms, ternary_draw=ternary_draw, norm=norm)
    read = vectors.double().sum(dim=0) * query_norm(magnitude, norm) / ternary_samples
    weight = read / torch.where(magnitude > 0, magnitude, 1.0)
    estimate = (grouped * weight.unsqueeze(-3)).flatten(-4, -3)
    return attention_scores(estimate, repeat_kv(k, group), scale=scale), vectors


def bernoulli_santa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    samples: int,
    uniforms: Uniforms,
    ternary_samples: int,
    ternary_uniforms: Uniforms,
    sampler: str = "systematic",
    ternary_draw: str = "stratified",
    norm: str = "max",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bernoulli qKᵀ, then SANTA on the softmax of the estimated scores.

    Unbiased for the attention of the estimated scores; biased for that of the true ones, as exp is convex:
    noise of variance s² multiplies every weight by about exp(s²/2) on average, less what the normalisation
    takes back.

    Returns
    -------
    output : (..., T, d_v) float64.
    counts : (..., T, N) int64.
    vectors : (B, ..., T, d) int8.
    """
    check_choice("sampler", sampler, SAMPLERS)
    q, k, v = operands(q, k, v)
    scores, vectors = bernoulli_scores(
        q,
        k,
        scale=scale,
        ternary_samples=ternary_samples,
        uniforms=ternary_uniforms,
        ternary_draw=ternary_draw,
        norm=norm,
    )
    counts = SAMPLERS[sampler](probabilities(scores, mask), samples, uniforms)
    return counts.double() @ v / samples, counts, vectors


def features_read(vectors: torch.Tensor, group: int = 1) -> torch.Tensor:
    """Key features that the B ternary vectors read, (B, ..., H, T, d) -> (..., H, T) int64.

    With ``group`` > 1: the union over each group of heads, (..., H / group, T).
    """
    read = (vectors != 0).any(dim=0)
    if group > 1:
        if read.ndim < 3 or read.shape[-3] % group:
            raise ValueError(f"group is {group}; allowed: a divisor of the heads of vectors {tuple(vectors.shape)}")
        read = read.unflatten(-3, (-1, group)).any(dim=-3)
    return read.sum(dim=-1)


def ternary_coverage(p: torch.Tensor, ternary_samples: int, ternary_draw: str) -> torch.Tensor:
    """Probability that a feature of magnitude ``p`` = |q| / norm is read at all, elementwise, float64.

    1 - (1 - p)^B for "iid", min(1, B p) for "stratified". For p uniform on [0, 1] the mean over features is B
    / (B + 1) and 1 - 1 / (2 B): the first is the coverage of the paper's Table 9 (49.9, 80.0, 88.9, 94.1 % at
    B = 1, 4, 8, 16).
    """
    check_choice("ternary_draw", ternary_draw, DRAWS)
    check_count("ternary_samples", ternary_samples)
    p = p.double()
    if ternary_draw == "iid":
        return 1 - (1 - p) ** ternary_samples
    return (ternary_samples * p).clamp(max=1)
