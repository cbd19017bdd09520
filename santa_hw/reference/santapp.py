"""SANTA++: teams of similar keys drawn with unequal probabilities, and three baselines that read the best ones.

Source: "SANTA++: Sampling Attention through Representative Keys", 2026. Every query is a decode step of its own: the
blocks whose keys it all sees stand as teams, every other key that it sees (the sinks, and the tail of a block that is
not full yet) is always read.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from santa_hw.reference.dense import (
    Uniforms,
    check_choice,
    check_count,
    check_mask,
    check_operands,
    draw,
    group_size,
    masked,
    probabilities,
    top_k_mask,
)
from santa_hw.reference.teams import Teams, form_teams
from santa_hw.reference.tiles import tile_counts
from santa_hw.team_design import TeamDesign

LEAST = 1e-300
"""What an estimated mass counts at least, beside a sum of 1: a team that is there may always be drawn."""
CERTAIN = 1 - 1e-9
"""From this inclusion probability on a team is always drawn: a running sum may not tell it from 1."""
CHUNK = 1 << 22
"""Scores computed at a time, to bound memory."""


class Reads(NamedTuple):
    """
    Rows of the cache that each decode step reads, int64.

    Keys are those of representatives (or what stands for them) and of what was drawn, each once; `keys` and `values`
    (..., H, T) are a head's, `group_keys` and `group_values` (..., KV, T) the union over a KV head's query heads.
    """

    keys: torch.Tensor
    values: torch.Tensor
    group_keys: torch.Tensor
    group_values: torch.Tensor


# Teams drawn --------------------------------------------------------------------------------------


def inclusion_probabilities(mass: torch.Tensor, samples: int, live: torch.Tensor | None = None) -> torch.Tensor:
    """Probabilities in proportion to ``mass`` that sum to ``samples``, none above 1: min(1, M·a / Σa), capped.

    Teams that would exceed 1 are certain, and what they leave is shared out among the others again, until none
    exceeds 1.

    Parameters
    ----------
    mass : (..., G) float64, non-negative, the scale of a row is free.
    samples : M, at most G.
    live : (..., G) bool, which teams there are; all unless given. A row with no more than M of them is certain of all.

    Examples
    --------
    >>> import torch
    >>> inclusion_probabilities(torch.tensor([6.0, 1.0, 1.0]), 2)
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    check_count("samples", samples)
    if samples > mass.shape[-1]:
        raise ValueError(f"samples is {samples}; allowed: at most the {mass.shape[-1]} teams")
    if not bool((torch.isfinite(mass) & (mass >= 0)).all()):
        raise ValueError("mass holds a negative number, NaN or infinity; allowed: finite, at least 0")
    live = torch.ones_like(mass, dtype=torch.bool) if live is None else live
    total = mass.sum(dim=-1, keepdim=True)
    share = (mass.double() / torch.where(total > 0, total, 1.0)).clamp(min=LEAST).masked_fill(~live, 0.0)
    certain = live & (live.sum(dim=-1, keepdim=True) <= samples)
    while True:
        left = samples - certain.sum(dim=-1, keepdim=True)
        rest = share.masked_fill(certain, 0.0)
        pi = left * rest / rest.sum(dim=-1, keepdim=True).clamp(min=LEAST)
        over = pi >= CERTAIN
        if not bool(over.any()):
            return torch.where(certain, 1.0, pi)
        certain = certain | over


def draw_teams(pi: torch.Tensor, uniforms: Uniforms) -> torch.Tensor:
    """Distinct teams by systematic sampling on their inclusion probabilities, one offset a row.

    ``pi`` (..., G) sums to a whole number M; uniforms (...); bool (..., G), exactly M of a row True, each team with its
    own probability.
    """
    certain = pi >= CERTAIN
    rest = pi.masked_fill(certain, 0.0)
    offsets = draw(uniforms, tuple(pi.shape[:-1]), pi.device)
    return certain | (tile_counts(rest, rest.sum(dim=-1).round().long(), offsets) > 0)


def team_weights(pi: torch.Tensor, drawn: torch.Tensor, design: TeamDesign) -> torch.Tensor:
    """What each team's part of numerator and denominator is multiplied by, 0 where it was not drawn.

    With ``weights = "inverse"`` this is 1/π, and both sums are unbiased; tempered and clipped weights are biased.
    """
    inverse = 1.0 / torch.where(drawn, pi, 1.0)
    if design.weights == "tempered":
        inverse = inverse**design.exponent
    elif design.weights == "clipped":
        inverse = inverse.clamp(max=design.clip)
    return inverse.masked_fill(~drawn, 0.0)


# From here on (..., KV, g, T, G): g query heads of each KV head; a log-mass is minus infinity where there is no team.
Select = Callable[[slice, torch.Tensor], torch.Tensor]


def _sampled(samples: int, offsets: torch.Tensor, design: TeamDesign) -> Select:
    """SANTA++'s weights of the teams; 1 may stand for all heads of a group in the result."""

    def select(rows: slice, log_mass: torch.Tensor) -> torch.Tensor:
        live = log_mass > -torch.inf
        mass = probabilities(log_mass)
        if design.sharing == "shared":
            mass, live = mass.sum(dim=-3, keepdim=True), live[..., :1, :, :]
        pi = inclusion_probabilities(mass, min(samples, mass.shape[-1]), live)
        drawn = draw_teams(pi, offsets[..., rows])
        if design.sharing == "reuse":
            drawn = drawn.any(dim=-3, keepdim=True)
            pi = -torch.expm1(torch.log1p(-pi).sum(dim=-3, keepdim=True))  # 1 - Π(1 - π), small ones too
        return team_weights(pi, drawn, design)

    return select


def _best(samples: int, design: TeamDesign) -> Select:
    """Weight 1 for the teams of the largest masses; ties: the lowest team."""

    def select(rows: slice, log_mass: torch.Tensor) -> torch.Tensor:
        if design.sharing == "shared":
            live = log_mass[..., :1, :, :] > -torch.inf
            log_mass = masked(probabilities(log_mass).sum(dim=-3, keepdim=True), live)
        kept = top_k_mask(log_mass, None, samples)
        return (kept.any(dim=-3, keepdim=True) if design.sharing == "reuse" else kept).double()

    return select


# What stands for a team in the scores -------------------------------------------------------------


class Summary(NamedTuple):
    """Rows that stand for each team.

    ``score(q)``, (..., KV, n, d) queries that carry the scale -> (..., KV, n, G); ``rows`` read for each team, of which
    ``own`` are the team's own keys and need not be read again with it.
    """

    score: Callable[[torch.Tensor], torch.Tensor]
    rows: int
    own: int


def _representatives(keys: torch.Tensor, teams: Teams, block: int) -> Summary:
    index = _in_cache(teams.representative, block)
    chosen = keys.gather(-2, index.unsqueeze(-1).expand(*index.shape, keys.shape[-1]))
    return Summary(lambda q: q @ chosen.transpose(-1, -2), rows=1, own=1)


def _means(keys: torch.Tensor, team: int) -> Summary:
    means = keys.unflatten(-2, (keys.shape[-2] // team, team)).mean(dim=-2)
    return Summary(lambda q: q @ means.transpose(-1, -2), rows=1, own=0)


def _bounds(keys: torch.Tensor, team: int) -> Summary:
    """Quest's upper bound: each feature at whichever end of its range in the page gives more."""
    least, most = (x.transpose(-1, -2) for x in keys.unflatten(-2, (keys.shape[-2] // team, team)).aminmax(dim=-2))
    return Summary(lambda q: q.clamp(min=0) @ most + q.clamp(max=0) @ least, rows=2, own=0)


def _in_cache(index: torch.Tensor, stride: int) -> torch.Tensor:
    """(..., blocks, n) numbers inside a block of `stride` -> (..., blocks * n) numbers that run through all blocks."""
    start = stride * torch.arange(index.shape[-2], device=index.device).unsqueeze(-1)
    return (index + start).flatten(-2)


def _pages(teams: Teams, team: int) -> Teams:
    """Blocks cut into runs of `team` consecutive keys, in the form of teams."""
    member = torch.arange(teams.member.shape[-1], device=teams.member.device) // team
    return Teams(teams.representative, member.expand(teams.member.shape), torch.full_like(teams.size, team))


# Attention ----------------------------------------------------------------------------------------


def santapp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    samples: int,
    uniforms: Uniforms,
    design: TeamDesign | None = None,
    teams: Teams | None = None,
) -> tuple[torch.Tensor, Reads]:
    """SANTA++: a ratio of two sums over M drawn teams, each unbiased with inverse weights; the ratio is not.

    The representatives are scored, a team's mass is estimated as size × exp(score), M distinct teams are drawn with
    probabilities in proportion to it, all their keys and values are read, and their parts of numerator and denominator
    are divided by their inclusion probabilities. A step with no more than M teams reads them all: dense attention.

    Parameters
    ----------
    mask : one for all heads; axis -3, if there, is 1.
    samples : M, teams drawn by each head (by the group, with a shared draw).
    uniforms : a generator, or numbers of shape (..., H, T); (..., KV, T) for a shared draw.
    design : TeamDesign, its defaults unless given.
    teams : of the keys' full blocks, from ``form_teams``; formed here unless given.

    Returns
    -------
    output : (..., T, d_v) float64.
    reads : Reads
    """
    design = TeamDesign() if design is None else design
    check_count("samples", samples)
    # Without an axis of heads there is one head, and one offset a row.
    heads = () if q.ndim < 3 else (*q.shape[:-3], k.shape[-3] if design.sharing == "shared" else q.shape[-3])
    offsets = draw(uniforms, (*heads, q.shape[-2]), q.device)
    kv_heads = 1 if k.ndim < 3 else k.shape[-3]
    offsets = (offsets.unsqueeze(0) if q.ndim < 3 else offsets).unflatten(-2, (kv_heads, -1))

    def summary(keys: torch.Tensor, teams: Teams) -> Summary:
        return _representatives(keys, teams, design.block)

    return _attend(q, k, v, scale, mask, design, teams, summary, _sampled(samples, offsets, design))


def top_teams(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    samples: int,
    design: TeamDesign | None = None,
    teams: Teams | None = None,
    by: str = "representative",
) -> tuple[torch.Tensor, Reads]:
    """Softmax attention over what is always read and the M best teams, without a correction: the baselines.

    Arguments and results as for ``santapp``, nothing is random. ``by`` says what is ranked: "representative", the
    teams of ``santapp`` by the same estimate; "mean", pages of ``design.team`` consecutive keys by the score of their
    mean key; "bounds", such pages by Quest's upper bound of their scores.
    """
    design = TeamDesign() if design is None else design
    check_count("samples", samples)
    check_choice("by", by, ("representative", "mean", "bounds"))

    def summary(keys: torch.Tensor, teams: Teams) -> Summary:
        if by == "representative":
            return _representatives(keys, teams, design.block)
        return {"mean": _means, "bounds": _bounds}[by](keys, design.team)

    paged = by != "representative"
    return _attend(q, k, v, scale, mask, design, teams, summary, _best(samples, design), paged=paged)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    mask: torch.Tensor | None,
    design: TeamDesign,
    teams: Teams | None,
    summary: Callable[[torch.Tensor, Teams], Summary],
    select: Select,
    *,
    paged: bool = False,
) -> tuple[torch.Tensor, Reads]:
    check_operands(q, k, v)
    if q.ndim != k.ndim:
        raise ValueError(f"k has shape {tuple(k.shape)}; allowed: as many axes as q, {tuple(q.shape)}")
    check_mask(mask)
    if mask is not None and mask.ndim > 2 and mask.shape[-3] != 1:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; allowed: one mask for all heads, 1 on axis -3")
    if q.ndim < 3:
        teams = None if teams is None else Teams(teams.representative[None], teams.member[None], teams.size[None])
        output, reads = _attend(q[None], k[None], v[None], scale, mask, design, teams, summary, select, paged=paged)
        return output[0], Reads(*(x[0] for x in reads))
    group = group_size(q, k)
    keys, values = k.double(), v.double()
    queries = q.double() * (q.shape[-1] ** -0.5 if scale is None else scale)
    grouped = keys[..., design.sinks : design.sinks + design.blocks(k.shape[-2]) * design.block, :]
    if teams is None:
        teams = form_teams(grouped, design.block, design.representatives)
    if teams.size.shape != (*grouped.shape[:-2], design.blocks(k.shape[-2]), design.representatives):
        raise ValueError(
            f"teams have sizes of shape {tuple(teams.size.shape)}; allowed: {design.representatives} representatives "
            f"for each of {design.blocks(k.shape[-2])} blocks of k"
        )
    if paged:
        teams = _pages(teams, design.team)
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device) if mask is None else mask
    visible = visible.expand(*visible.shape[:-2], q.shape[-2], k.shape[-2])
    outputs: list[torch.Tensor] = []
    counts: list[Reads] = []
    step = max(1, CHUNK // max(1, q.shape[-3] * k.shape[-2]))
    for start in range(0, q.shape[-2], step):
        rows = slice(start, start + step)
        seen = visible[..., rows, :]
        # Keys that no query of the chunk sees cost nothing.
        last = int(seen.flatten(0, -2).any(dim=0).nonzero().max()) + 1 if bool(seen.any()) else 0
        blocks = design.blocks(last)
        stop = design.sinks + blocks * design.block
        output, reads = _chunk(
            queries[..., rows, :].unflatten(-3, (-1, group)),
            keys[..., :last, :],
            values[..., :last, :],
            seen[..., :last],
            design,
            teams.first(blocks),
            summary(keys[..., design.sinks : stop, :], teams.first(blocks)),
            partial(select, rows),
        )
        outputs.append(output)
        counts.append(reads)
    if not outputs:
        empty = torch.zeros(*q.shape[:-1], dtype=torch.int64, device=q.device)
        union = empty[..., : k.shape[-3], :]
        output = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64, device=q.device)
        return output, Reads(empty, empty, union, union)
    joined = Reads(*(torch.cat(part, dim=-1) for part in zip(*counts, strict=True)))
    return torch.cat(outputs, dim=-2), joined


def _average(scores: torch.Tensor, visible: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention: scores (..., KV, g, T, N) over v (..., KV, N, d_v)."""
    return (probabilities(scores, visible).flatten(-3, -2) @ v).unflatten(-2, scores.shape[-3:-1])


def _chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    design: TeamDesign,
    teams: Teams,
    summary: Summary,
    select: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, Reads]:
    """Some decode steps: q (..., KV, g, T, d), k and v (..., KV, N, ·), visible (..., 1 or none, T, N)."""
    lead, stop = q.shape[:-2], design.sinks + teams.blocks * design.block
    folded = q.flatten(-3, -2)  # the heads of a group are rows of one product
    scores = (folded @ k.transpose(-1, -2)).unflatten(-2, (q.shape[-3], q.shape[-2]))
    visible = visible.unsqueeze(-3)  # of heads in a group
    if visible.ndim < scores.ndim:
        visible = visible.expand(*[1] * (scores.ndim - visible.ndim), *visible.shape)
    counts = visible.sum(dim=-1)  # (..., 1, 1, T)
    if not teams.blocks:
        output = _average(scores, visible, v)
        own = counts.expand(*lead, q.shape[-2])
        union = own[..., 0, :]
        return output.flatten(-4, -3), Reads(own.flatten(-3, -2), own.flatten(-3, -2), union, union)

    full = visible[..., design.sinks : stop].unflatten(-1, (teams.blocks, design.block)).all(dim=-1)
    live = full.repeat_interleave(teams.size.shape[-1], dim=-1)  # (..., 1, 1, T, G)
    size = teams.size.flatten(-2)[..., None, None, :]  # (..., KV, 1, 1, G)
    log_mass = summary.score(folded).unflatten(-2, (q.shape[-3], q.shape[-2])) + size.double().log()
    weights = select(log_mass.masked_fill(~live, -torch.inf)).expand(log_mass.shape)

    # log(weight) joins the scores of a team's keys: not drawn is minus infinity, always read is 0.
    correction = weights.log().masked_fill(~live, 0.0)
    member = _in_cache(teams.member, teams.size.shape[-1])[..., None, None, :]
    scores[..., design.sinks : stop] += correction.gather(-1, member.expand(*scores.shape[:-1], member.shape[-1]))
    output = _average(scores, visible, v)

    def count(drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value rows read: what is always read, what stands for the teams, the drawn teams."""
        here = live.expand(*drawn.shape[:-1], live.shape[-1])
        value_rows = counts - (here * size).sum(dim=-1) + (drawn * size).sum(dim=-1)
        return value_rows + summary.rows * here.sum(dim=-1) - summary.own * drawn.sum(dim=-1), value_rows

    drawn = weights > 0
    own_keys, own_values = count(drawn)
    group_keys, group_values = count(drawn.any(dim=-3, keepdim=True))
    return output.flatten(-4, -3), Reads(
        own_keys.flatten(-3, -2), own_values.flatten(-3, -2), group_keys.squeeze(-2), group_values.squeeze(-2)
    )
