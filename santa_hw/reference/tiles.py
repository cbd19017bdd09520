"""S²ANTA-prop and S²ANTA-flash, the GPU forms that sample tile by tile (arXiv 2605.01910, section 3)."""

import torch

from santa_hw.reference.dense import (
    Uniforms,
    attention_scores,
    check_count,
    draw,
    masked,
    operands,
    probabilities,
)
from santa_hw.reference.values import cumulative_mass

TILE = 64
"""Keys a tile unless the caller says otherwise; the published kernels use 32, 64 or 256."""


def to_tiles(x: torch.Tensor, tile: int, fill: float = 0.0) -> torch.Tensor:
    """(..., N) -> (..., ceil(N / tile), tile), the last tile padded with ``fill``."""
    padding = -x.shape[-1] % tile
    return torch.nn.functional.pad(x, (0, padding), value=fill).unflatten(-1, (-1, tile))


def tile_counts(weights: torch.Tensor, budgets: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Systematic counts inside each tile: the thresholds (j + offset) / budget, j < budget, on each key.

    Parameters
    ----------
    weights : (..., tiles, n) float64, non-negative; the scale of a tile is free.
    budgets : (..., tiles) int64, 0 where a tile has no mass.
    offsets : (..., tiles) float64 in [0, 1).

    Returns
    -------
    (..., tiles, n) int64; each tile sums to its budget.
    """
    cumulative = cumulative_mass(weights)
    mass = cumulative[..., -1:]
    budget = budgets.unsqueeze(-1).to(weights.dtype)
    share = cumulative / torch.where(mass > 0, mass, 1.0)
    below = torch.ceil(share * budget - offsets.unsqueeze(-1))
    # Whatever the round-off, the last key of positive weight takes every threshold that is left.
    below = torch.where(cumulative == mass, budget, below)
    return below.diff(dim=-1, prepend=torch.zeros_like(mass)).long()


def proportional_budgets(mass: torch.Tensor, samples: int) -> torch.Tensor:
    """Share ``samples`` among tiles in proportion to their mass by largest remainder; ties: lowest tile.

    ``mass`` (..., tiles) float64; int64 of that shape, rows summing to ``samples`` (to 0 where there is no
    mass). Nothing is random here, so a tile of small mass gets 0 every time.
    """
    total = mass.sum(dim=-1, keepdim=True)
    share = samples * (mass / torch.where(total > 0, total, 1.0))
    base = share.floor()
    remainder = torch.where(mass > 0, share - base, -1.0)
    left = torch.where(total > 0, samples - base.sum(dim=-1, keepdim=True), 0.0)
    order = remainder.argsort(dim=-1, descending=True, stable=True)
    return (base + (order.argsort(dim=-1) < left)).long()


def uniform_budgets(live: torch.Tensor, samples: int) -> torch.Tensor:
    """Share ``samples`` evenly among live tiles, the first ones taking one more each if it does not divide.

    ``live`` (..., tiles) bool, at most ``samples`` of a row True; int64, rows summing to ``samples`` (0 if
    none lives).
    """
    number = live.sum(dim=-1, keepdim=True)
    if bool((number > samples).any()):
        raise ValueError(f"samples is {samples}; allowed: at least the number of live tiles, {int(number.max())}")
    base, left = samples // number.clamp(min=1), samples % number.clamp(min=1)
    return torch.where(live, base + (live.cumsum(dim=-1) <= left).long(), 0)


def proportional_counts(p: torch.Tensor, samples: int, uniforms: Uniforms, tile: int = TILE) -> torch.Tensor:
    """S²ANTA-prop: largest-remainder budgets, systematic inside; uniforms (..., tiles), counts (..., N)."""
    check_count("samples", samples)
    check_count("tile", tile)
    weights = to_tiles(p, tile)
    offsets = draw(uniforms, tuple(weights.shape[:-1]), p.device)
    budgets = proportional_budgets(weights.sum(dim=-1), samples)
    return tile_counts(weights, budgets, offsets).flatten(-2)[..., : p.shape[-1]]


def santa_prop(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    samples: int,
    uniforms: Uniforms,
    tile: int = TILE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """S²ANTA-prop as published.

    Biased: the budgets S_t are fixed by the scores, so the mean over all offsets is the average of the tiles'
    own attention outputs with weights S_t / S in place of their masses. A tile whose budget is 0 is never
    read, and averaging over seeds does not help. S²ANTA-sys costs no more and has no bias.

    Returns
    -------
    output : (..., T, d_v) float64.
    counts : (..., T, N) int64, summing to ``samples`` in every row that sees a key.
    """
    q, k, v = operands(q, k, v)
    counts = proportional_counts(probabilities(attention_scores(q, k, scale=scale), mask), samples, uniforms, tile)
    return counts.double() @ v / samples, counts


def flash_tile(keys: int, samples: int, tile: int) -> int:
    """The tile that S²ANTA-flash uses: ``tile``, or larger where there would be more tiles than samples."""
    return max(tile, -(-keys // samples))


def flash_counts(
    weights: torch.Tensor, samples: int, uniforms: Uniforms, tile: int = TILE
) -> tuple[torch.Tensor, torch.Tensor]:
    """S²ANTA-flash: uniform budgets over the tiles that have mass, systematic inside the tile.

    Parameters
    ----------
    weights : (..., N) float64, non-negative, each tile on a scale of its own.
    uniforms : a generator, or numbers of shape (..., ceil(N / flash_tile(N, samples, tile))).

    Returns
    -------
    counts : (..., N) int64, rows summing to ``samples`` exactly (0 without mass).
    budgets : (..., tiles) int64.
    """
    check_count("samples", samples)
    check_count("tile", tile)
    tiles = to_tiles(weights, flash_tile(weights.shape[-1], samples, tile))
    offsets = draw(uniforms, tuple(tiles.shape[:-1]), weights.device)
    budgets = uniform_budgets((tiles > 0).any(dim=-1), samples)
    return tile_counts(tiles, budgets, offsets).flatten(-2)[..., : weights.shape[-1]], budgets


def santa_flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    samples: int,
    uniforms: Uniforms,
    tile: int = TILE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """S²ANTA-flash: tiles know nothing of each other until a merge weights them by their mass.

    Each tile averages S_t of its own value rows, drawn from its own softmax; the merge sums these averages weighted
    by the tiles' masses and divides by the total. Unbiased, since every tile with mass has S_t >= 1; it multiplies
    once a tile and divides once a row.

    Budgets honour ``samples`` exactly (the published kernel takes max(1, S // tiles) for every tile, and so
    may draw fewer or more): tiles with a visible key get S // live each, the first S % live of them one more.
    If there would be more tiles than samples, the tile grows to ceil(N / S) keys.

    Returns
    -------
    output : (..., T, d_v) float64. Unlike the other forms, it is not ``counts @ v / samples``.
    counts : (..., T, N) int64, summing to ``samples`` in every row that sees a key.
    """
    check_count("samples", samples)
    check_count("tile", tile)
    q, k, v = operands(q, k, v)
    scores = masked(attention_scores(q, k, scale=scale), mask)
    keys = scores.shape[-1]
    if keys == 0:
        return scores @ v, torch.zeros(scores.shape, dtype=torch.int64, device=scores.device)
    tile = flash_tile(keys, samples, tile)
    tiles = to_tiles(scores, tile, fill=-torch.inf)
    counts, budgets = flash_counts(probabilities(tiles).flatten(-2)[..., :keys], samples, uniforms, tile)
    rows = to_tiles(v.transpose(-1, -2), tile).movedim(-3, -1)  # (..., tiles, tile, d_v)
    sums = torch.einsum("...qtn,...tnd->...qtd", to_tiles(counts.double(), tile), rows)
    means = sums / budgets.clamp(min=1).unsqueeze(-1)
    merge = probabilities(tiles.logsumexp(dim=-1))
    return (merge.unsqueeze(-2) @ means).squeeze(-2), counts
