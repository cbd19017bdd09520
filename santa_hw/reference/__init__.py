"""The estimators in float64 torch, written for reading: oracles, and the methods that are not fixed point.

Whole-attention functions take ``(q, k, v, *, scale, mask, ...)`` with ``q`` of shape (..., T, d), ``k`` and
``v`` of shape (..., N, d) and ``mask`` a bool tensor that broadcasts to (..., T, N), True where a key is
visible. Where ``q`` has a multiple of the heads of ``k`` and ``v`` (axis -3), KV heads are repeated.
Everything is computed and returned in float64; a row that sees no key gives zeros. Randomness is explicit:
``uniforms`` is a tensor of numbers in [0, 1), or a ``torch.Generator`` to draw them from. Source: arXiv
2605.01910; for the teams of keys, "SANTA++: Sampling Attention through Representative Keys", 2026.
"""

from collections.abc import Callable
from functools import partial

import torch

from santa_hw.reference.dense import (
    Uniforms,
    attention_scores,
    dense_attention,
    probabilities,
    repeat_kv,
    top_k_attention,
    top_k_mask,
)
from santa_hw.reference.santapp import (
    Reads,
    draw_teams,
    inclusion_probabilities,
    santapp,
    team_weights,
    top_teams,
)
from santa_hw.reference.teams import Teams, form_teams
from santa_hw.reference.ternary import (
    bernoulli_santa,
    bernoulli_scores,
    features_read,
    mean_group_scores,
    query_norm,
    ternary_coverage,
    ternary_vectors,
)
from santa_hw.reference.tiles import (
    flash_counts,
    proportional_budgets,
    proportional_counts,
    santa_flash,
    santa_prop,
    tile_counts,
    uniform_budgets,
)
from santa_hw.reference.values import (
    expected_unique_rows,
    iid_counts,
    santa,
    stratified_counts,
    systematic_counts,
    unique_rows,
)
from santa_hw.reference.variance import (
    iid_variance_trace,
    replicate_variance_trace,
    stratified_variance_trace,
)
from santa_hw.team_design import TeamDesign

__all__ = [
    "METHODS",
    "TEAM_METHODS",
    "Reads",
    "TeamDesign",
    "Teams",
    "Uniforms",
    "attention_scores",
    "bernoulli_santa",
    "bernoulli_scores",
    "dense_attention",
    "draw_teams",
    "expected_unique_rows",
    "features_read",
    "flash_counts",
    "form_teams",
    "iid_counts",
    "iid_variance_trace",
    "inclusion_probabilities",
    "mean_group_scores",
    "probabilities",
    "proportional_budgets",
    "proportional_counts",
    "query_norm",
    "repeat_kv",
    "replicate_variance_trace",
    "santa",
    "santa_flash",
    "santa_prop",
    "santapp",
    "stratified_counts",
    "stratified_variance_trace",
    "systematic_counts",
    "team_weights",
    "ternary_coverage",
    "ternary_vectors",
    "tile_counts",
    "top_k_attention",
    "top_k_mask",
    "top_teams",
    "uniform_budgets",
    "unique_rows",
]

Result = tuple[torch.Tensor, torch.Tensor | None]
Method = Callable[..., Result]
TeamMethod = Callable[..., tuple[torch.Tensor, Reads]]


def _dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None,
    mask: torch.Tensor | None,
    samples: int,
    generator: torch.Generator,
) -> Result:
    return dense_attention(q, k, v, scale=scale, mask=mask), None


def _top_k(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None,
    mask: torch.Tensor | None,
    samples: int,
    generator: torch.Generator,
) -> Result:
    return top_k_attention(q, k, v, scale=scale, mask=mask, samples=samples)


def _random(attention: Method) -> Method:
    """A sampled attention function that takes its uniforms from ``generator``."""

    def method(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None,
        mask: torch.Tensor | None,
        samples: int,
        generator: torch.Generator,
    ) -> Result:
        return attention(q, k, v, scale=scale, mask=mask, samples=samples, uniforms=generator)

    return method


METHODS: dict[str, Method] = {
    "float-dense": _dense,
    "float-top-k": _top_k,
    "float-santa": _random(partial(santa, sampler="iid")),
    "float-strat": _random(partial(santa, sampler="stratified")),
    "float-sys": _random(partial(santa, sampler="systematic")),
    "float-prop": _random(santa_prop),
    "float-flash": _random(santa_flash),
}
"""Name -> ``method(q, k, v, *, scale, mask, samples, generator) -> (output, counts or None)``.

``counts`` (int64, (..., T, N)) says how often each value row was read; None means that every visible row is.
"""


def _santapp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None,
    mask: torch.Tensor | None,
    samples: int,
    generator: torch.Generator,
    design: TeamDesign,
    teams: Teams | None,
) -> tuple[torch.Tensor, Reads]:
    return santapp(q, k, v, scale=scale, mask=mask, samples=samples, uniforms=generator, design=design, teams=teams)


def _top(by: str) -> TeamMethod:
    """``top_teams`` by one ranking, with the arguments of ``santapp``."""

    def method(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None,
        mask: torch.Tensor | None,
        samples: int,
        generator: torch.Generator,
        design: TeamDesign,
        teams: Teams | None,
    ) -> tuple[torch.Tensor, Reads]:
        return top_teams(q, k, v, scale=scale, mask=mask, samples=samples, design=design, teams=teams, by=by)

    return method


TEAM_METHODS: dict[str, TeamMethod] = {
    "santapp": _santapp,
    "top-teams": _top("representative"),
    "top-means": _top("mean"),
    "top-bounds": _top("bounds"),
}
"""Name -> ``method(q, k, v, *, scale, mask, samples, generator, design, teams) -> (output, reads)``.

``samples`` is M; ``teams`` of the keys' full blocks, or None to form them.
"""
