"""Scores, softmax and the two deterministic baselines; checks and random numbers that all share."""

import math
from typing import Any

import torch

Uniforms = torch.Tensor | torch.Generator


def draw(uniforms: Uniforms, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Uniform numbers in [0, 1) of the given shape: the caller's tensor, checked, or drawn from a generator.

    Numbers are drawn on the generator's device and then moved, so one CPU generator serves every device
    alike.
    """
    if isinstance(uniforms, torch.Generator):
        numbers = torch.rand(shape, generator=uniforms, dtype=torch.float64, device=uniforms.device)
        return numbers.to(device)
    if tuple(uniforms.shape) != tuple(shape):
        raise ValueError(f"uniforms has shape {tuple(uniforms.shape)}; allowed here: {tuple(shape)}")
    if not bool(((uniforms >= 0) & (uniforms < 1)).all()):
        raise ValueError("uniforms has values outside [0, 1); allowed: 0 <= u < 1")
    return uniforms.to(device=device, dtype=torch.float64)


def check_count(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; allowed: an integer of at least 1")


def check_choice(name: str, value: str, allowed: Any) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(sorted(allowed))}")


def is_finite(x: torch.Tensor) -> bool:
    """Whether ``x`` holds neither NaN nor infinity: by its extremes, a tenth of the time of looking at each number."""
    return x.numel() == 0 or bool(torch.isfinite(torch.stack(x.aminmax())).all())


def repeat_kv(x: torch.Tensor, group: int) -> torch.Tensor:
    """Repeat each KV head ``group`` times along axis -3: head h of the result is KV head h // group."""
    return x if group == 1 else x.repeat_interleave(group, dim=-3)


def group_size(q: torch.Tensor, k: torch.Tensor) -> int:
    """Query heads per KV head, from axis -3 of both; 1 where ``k`` has no such axis and broadcasts."""
    if q.ndim < 3 or k.ndim < 3:
        return 1
    heads, kv_heads = q.shape[-3], k.shape[-3]
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"q has {heads} heads and k has {kv_heads}; allowed: a multiple of k's heads")
    return heads // kv_heads


def check_operands(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError for bad shapes, NaN and infinity."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; allowed: at least (rows, head_dim)")
        if not is_finite(x):
            raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"k has head dimension {k.shape[-1]}; allowed: q's, {q.shape[-1]}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"v has shape {tuple(v.shape)}; allowed: all axes but the last as k's, {tuple(k.shape)}")


def operands(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``q``, ``k``, ``v`` in float64, KV heads repeated to match; ValueError for bad shapes, NaN, inf."""
    check_operands(q, k, v)
    group = group_size(q, k)
    return q.double(), repeat_kv(k.double(), group), repeat_kv(v.double(), group)


def attention_scores(q: torch.Tensor, k: torch.Tensor, *, scale: float | None = None) -> torch.Tensor:
    """Scores ``scale * q @ k.T`` in float64, shape (..., T, N); ``scale`` defaults to 1/sqrt(head_dim)."""
    q = q.double()
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return (q * factor) @ k.double().transpose(-1, -2)


def check_mask(mask: torch.Tensor | None) -> None:
    """Raise ValueError unless ``mask`` is bool, or None."""
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {mask.dtype}; allowed: torch.bool, True where a key is visible")


def masked(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Scores with minus infinity where ``mask`` is False."""
    check_mask(mask)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf)


def probabilities(scores: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Softmax over visible keys.

    Parameters
    ----------
    scores : (..., T, N) float64, natural-logarithm units.
    mask : bool, broadcasts to (..., T, N), True = visible; None = all visible.

    Returns
    -------
    (..., T, N) float64: each row sums to 1, or is all zeros where no key is visible.
    """
    scores = masked(scores, mask)
    if scores.shape[-1] == 0:
        return scores
    # softmax and not exp: on the CPU, the first exp of a process is now and then wrong by 1e-9 (MKL, two threads).
    p = torch.softmax(scores, dim=-1)
    return p.masked_fill_(scores.amax(dim=-1, keepdim=True) == -math.inf, 0.0)


def dense_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention in float64, shape (..., T, d_v).

    Examples
    --------
    >>> import torch
    >>> q, k, v = torch.zeros(1, 4), torch.ones(2, 4), torch.tensor([[1.0], [3.0]])
    >>> dense_attention(q, k, v)
    tensor([[2.]], dtype=torch.float64)
    """
    q, k, v = operands(q, k, v)
    return probabilities(attention_scores(q, k, scale=scale), mask) @ v


def top_k_mask(scores: torch.Tensor, mask: torch.Tensor | None, samples: int) -> torch.Tensor:
    """True at the ``samples`` largest visible scores of each row (all if fewer); ties: lowest index."""
    check_count("samples", samples)
    scores = masked(scores, mask)
    if scores.shape[-1] == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    size = min(samples, scores.shape[-1])
    last = scores.topk(size, dim=-1).values[..., -1:]
    kept = (scores >= last) & (scores > -math.inf)
    if bool((kept.sum(dim=-1) > size).any()):
        above = scores > last
        room = size - above.sum(dim=-1, keepdim=True)
        kept = above | (kept & ((kept & ~above).cumsum(dim=-1) <= room))
    return kept


def top_k_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    samples: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention over the ``samples`` keys with the largest scores: a deterministic, biased baseline.

    Returns
    -------
    output : (..., T, d_v) float64.
    counts : (..., T, N) int64, 1 where the value row is read.
    """
    q, k, v = operands(q, k, v)
    scores = attention_scores(q, k, scale=scale)
    kept = top_k_mask(scores, mask, samples)
    return probabilities(scores, kept) @ v, kept.long()
