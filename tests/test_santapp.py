"""SANTA++: both sums and the estimator, against plain loops and exact enumeration; planted faults."""

import dataclasses
import math

import pytest
import torch
from draws import LAST, normal, uniform
from team_oracle import SHARING, SMALL, causal, check_against_oracle, intervals

from santa_hw import models, reference
from santa_hw.reference import TeamDesign, form_teams, inclusion_probabilities, santapp, top_teams
from santa_hw.reference import santapp as _function

MODULE = __import__(_function.__module__, fromlist=["CHUNK"])


# The estimator ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("weights", ["inverse", "tempered", "clipped"])
def test_santapp_against_loops(rng, sharing, weights):
    design = SMALL.replace(sharing=sharing, weights=weights, exponent=0.7, clip=1.5)
    for samples in (1, 3, 9):
        check_against_oracle(rng, design, samples)


@pytest.mark.parametrize("sharing", SHARING)
def test_top_teams_against_loops(rng, sharing):
    for samples in (1, 3, 9):
        check_against_oracle(rng, SMALL.replace(sharing=sharing), samples, best="representative")


@pytest.mark.parametrize("design", [TeamDesign(block=4, team=4, sinks=0), TeamDesign(block=1, team=1, sinks=3)])
def test_other_shapes_against_loops(rng, design):
    check_against_oracle(rng, design, 2)


def test_a_sliding_window_reads_what_is_left_of_a_block(rng):
    mask = causal(30, 41) & ~torch.ones(41, 41, dtype=torch.bool).tril(-15)[11:]
    mask[4] = False
    check_against_oracle(rng, SMALL.replace(sharing="reuse"), 2, mask=mask)


def sums(rng, design, samples, heads=2):
    """Numerators (E, H, 3), denominators (E, H), their exact values and the measure (E,) of each case of the offsets.

    A sink whose value is 1 in a column of its own, where all others are 0, shows the denominator.
    """
    keys = design.sinks + 2 * design.block + 3
    q, k, v = 2 * normal(rng, heads, 1, 4), normal(rng, 1, keys, 4), normal(rng, 1, keys, 4)
    v[:, :, 0] = 0.0
    v[:, 0, 0] = 1.0
    options = {"samples": samples, "design": design}
    scores = reference.attention_scores(q, k)[:, 0]
    teams = form_teams(k[:, design.sinks : keys - 3], design.block, design.representatives)
    start = design.sinks + design.block * torch.arange(2)[:, None]
    stand = (teams.representative[0] + start).flatten()
    mass = (teams.size.flatten() * scores[:, stand].exp()).div(
        (scores[:, stand].exp() * teams.size.flatten()).sum(-1, True)
    )
    if design.sharing == "shared":
        mass = mass.sum(0, keepdim=True)
    cases = [intervals(inclusion_probabilities(row, samples)) for row in mass]
    middle = torch.cartesian_prod(*(m for m, _ in cases)).reshape(-1, len(cases))
    measure = torch.cartesian_prod(*(w for _, w in cases)).reshape(-1, len(cases)).prod(dim=-1)
    output, _ = santapp(
        q.expand(len(middle), *q.shape), k.expand(len(middle), *k.shape), v.expand(len(middle), *v.shape),
        **options, uniforms=middle.unsqueeze(-1),
    )  # fmt: skip
    output = output[:, :, 0]
    denominators = scores[:, 0].exp() / output[..., 0]
    weights = scores.exp()
    return output[..., 1:] * denominators[..., None], denominators, weights @ v[0, :, 1:], weights.sum(-1), measure


def sum_error(rng, design, samples=3):
    """How far the exact means of both sums are from the truth, relative."""
    numerators, denominators, numerator, denominator, measure = sums(rng, design, samples)
    up = torch.einsum("e,ehd->hd", measure, numerators)
    down = torch.einsum("e,eh->h", measure, denominators)
    return max(
        ((up - numerator).norm() / numerator.norm()).item(), ((down - denominator).norm() / denominator.norm()).item()
    )


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("samples", [1, 3, 7])
def test_both_sums_are_unbiased(rng, sharing, samples):
    assert sum_error(rng, SMALL.replace(sharing=sharing), samples) < 1e-8


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("weights", ["tempered", "clipped"])
def test_other_weights_are_biased_and_say_so(rng, sharing, weights):
    design = SMALL.replace(sharing=sharing, weights=weights, clip=1.2)
    assert design.biased and not SMALL.biased
    assert sum_error(rng, design) > 1e-3


def test_the_ratio_is_biased_and_less_so_with_more_teams(seed):
    """Over many small cases: the ratio's exact bias and its noise, both falling with M."""
    biases, noises = [], []
    for samples in (2, 4, 6):
        rng, bias, noise = torch.Generator().manual_seed(seed), 0.0, 0.0
        for _ in range(12):
            numerators, denominators, numerator, denominator, measure = sums(rng, SMALL, samples, heads=1)
            ratio, truth = numerators / denominators[..., None], numerator / denominator[:, None]
            mean = torch.einsum("e,ehd->hd", measure, ratio)
            bias += (mean - truth).norm().item() / 12
            noise += (measure @ (ratio - mean).square().sum(dim=(1, 2))).sqrt().item() / 12
        biases.append(bias)
        noises.append(noise)
    print("M = 2, 4, 6 of 8 teams: bias", biases, "noise", noises)
    assert biases[0] > biases[1] > biases[2] > 1e-4
    assert all(bias < noise for bias, noise in zip(biases, noises, strict=True))


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("weights", ["inverse", "tempered", "clipped"])
@pytest.mark.parametrize("method", list(reference.TEAM_METHODS))
def test_all_teams_drawn_are_dense(rng, sharing, weights, method):
    q, k, v = 3 * normal(rng, 2, 6, 40, 8), normal(rng, 2, 3, 40, 8), normal(rng, 2, 3, 40, 5)
    k[:, :, 7] *= 300.0  # other masses underflow beside this one
    design = SMALL.replace(sharing=sharing, weights=weights)
    teams = design.teams(40)
    assert teams == 16
    mask = causal(40, 40)
    output, reads = reference.TEAM_METHODS[method](
        q, k, v, scale=None, mask=mask, samples=teams, generator=rng, design=design, teams=None
    )
    torch.testing.assert_close(output, reference.dense_attention(q, k, v, mask=mask), rtol=1e-12, atol=1e-12)
    seen = mask.sum(dim=-1)
    assert torch.equal(reads.values, seen.expand(2, 6, 40))
    assert torch.equal(reads.group_values, seen.expand(2, 3, 40))
    full = (seen - design.sinks).clamp(min=0) // design.block * design.representatives
    extra = {"santapp": 0, "top-teams": 0, "top-means": 1, "top-bounds": 2}[method]
    assert torch.equal(reads.keys, (seen + extra * full).expand(2, 6, 40))
    assert torch.equal(reads.group_keys, (seen + extra * full).expand(2, 3, 40))


@pytest.mark.parametrize("by", ["mean", "bounds"])
def test_pages_against_loops(rng, by):
    q, k, v = 2 * normal(rng, 1, 1, 4), normal(rng, 1, 18, 4), normal(rng, 1, 18, 3)
    output, reads = top_teams(q, k, v, scale=1.0, samples=3, design=SMALL, by=by)
    pages = [range(2 + 2 * i, 4 + 2 * i) for i in range(8)]
    vector, keys = q[0, 0].numpy(), k[0].numpy()

    def score(page):
        rows = keys[list(page)]
        if by == "mean":
            return vector @ rows.mean(axis=0)
        return sum(max(x * rows[:, i].min(), x * rows[:, i].max()) for i, x in enumerate(vector))

    read = [0, 1, *(n for page in sorted(pages, key=score)[-3:] for n in page)]
    expected = reference.dense_attention(q, k[:, read], v[:, read], scale=1.0)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    assert reads.values.item() == 8 and reads.keys.item() == 8 + 8 * (1 if by == "mean" else 2)
    if by == "bounds":
        assert all(score(page) >= (keys[list(page)] @ vector).max() - 1e-12 for page in pages)


@pytest.mark.parametrize("method", list(reference.TEAM_METHODS))
@pytest.mark.parametrize("sharing", SHARING)
def test_no_query_sees_a_later_key(rng, method, sharing):
    q, k, v, mask = normal(rng, 6, 40, 8), normal(rng, 3, 40, 8), normal(rng, 3, 40, 5), causal(40, 40)
    design = SMALL.replace(sharing=sharing)

    def run(k, v):
        generator = torch.Generator().manual_seed(7)
        options = {"scale": None, "mask": mask, "samples": 2, "generator": generator, "design": design, "teams": None}
        return reference.TEAM_METHODS[method](q, k, v, **options)

    for at in (1, 9, 10, 25, 39):
        other_k, other_v = k.clone(), v.clone()
        other_k[:, at:], other_v[:, at:] = 50.0, 1e6
        (left, left_reads), (right, right_reads) = run(k, v), run(other_k, other_v)
        torch.testing.assert_close(left[:, :at], right[:, :at], rtol=1e-12, atol=1e-12)
        assert not torch.allclose(left[:, at:], right[:, at:])
        assert all(torch.equal(a[:, :at], b[:, :at]) for a, b in zip(left_reads, right_reads, strict=True))


def test_sinks_and_tail_are_always_read(rng):
    # Values that mark the sinks and the tail; the teams hold nearly all of the mass, and one of them is drawn.
    q, k, v = torch.ones(1, 1, 4).double(), normal(rng, 1, 21, 4), torch.zeros(1, 21, 5).double()
    k[:, 2:18] += 2.0
    always = [0, 1, 18, 19, 20]
    v[0, always] = torch.eye(5).double()
    for offset in torch.linspace(0, LAST, 7, dtype=torch.float64):
        output, _ = santapp(q, k, v, samples=1, uniforms=offset.reshape(1, 1), design=SMALL)
        assert (output > 0).all()
        shares = output[0, 0] / output.sum()
        weights = reference.attention_scores(q, k)[0, 0, always].exp()
        torch.testing.assert_close(shares, weights / weights.sum())


def test_chunks_change_nothing(rng, monkeypatch):
    q, k, v = normal(rng, 2, 6, 40, 8), normal(rng, 2, 3, 40, 8), normal(rng, 2, 3, 40, 5)
    options = {"mask": causal(40, 40), "samples": 3, "uniforms": uniform(rng, 2, 6, 40), "design": SMALL}
    whole = santapp(q, k, v, **options)
    monkeypatch.setattr(MODULE, "CHUNK", 7 * 6 * 40)
    parts = santapp(q, k, v, **options)
    torch.testing.assert_close(whole[0], parts[0], rtol=1e-13, atol=1e-13)
    assert all(torch.equal(a, b) for a, b in zip(whole[1], parts[1], strict=True))


def test_shapes_without_heads_without_keys_and_without_queries(rng):
    q, k, v, u = normal(rng, 5, 8), normal(rng, 30, 8), normal(rng, 30, 3), uniform(rng, 5)
    teams = form_teams(k[2:26], 8, 4)
    plain, reads = santapp(q, k, v, samples=3, uniforms=u, design=SMALL, teams=teams)
    headed, _ = santapp(q[None], k[None], v[None], samples=3, uniforms=u[None], design=SMALL)
    assert torch.equal(plain, headed[0]) and reads.keys.shape == reads.group_keys.shape[-1:] == (5,)
    zeros, reads = santapp(q[None], k[None, :0], v[None, :0], samples=3, uniforms=u[None], design=SMALL)
    assert torch.equal(zeros, torch.zeros(1, 5, 3).double()) and reads.keys.eq(0).all()
    hidden, _ = santapp(q, k, v, mask=torch.zeros(5, 30, dtype=torch.bool), samples=3, uniforms=u, design=SMALL)
    assert torch.equal(hidden, torch.zeros(5, 3).double())
    none, reads = santapp(q[None, :0], k[None], v[None], samples=3, uniforms=rng, design=SMALL)
    assert none.shape == (1, 0, 3) and reads.group_values.shape == (1, 0)


# Planted faults ---------------------------------------------------------------------------------------


def faults():
    """Name -> (object, attribute, a subtly wrong replacement)."""
    draw, weigh, form = MODULE.draw_teams, MODULE.team_weights, MODULE.form_teams

    def same_offset(pi, uniforms):
        return draw(pi, uniforms[..., :1, :].expand(uniforms.shape))

    def last_kept(k, block, representatives):
        teams = form(k, block, representatives)
        return dataclasses.replace(teams, member=teams.member.roll(1, dims=-1))

    return {
        "weights left out": ("team_weights", lambda pi, drawn, design: drawn.double()),
        "weights of the wrong team": ("team_weights", lambda pi, drawn, design: weigh(pi.roll(1, -1), drawn, design)),
        "one cap too few": ("inclusion_probabilities", lambda a, m, live: (m * a / a.sum(-1, True)).clamp(max=1.0)),
        "heads of a group are not independent": ("draw_teams", same_offset),
        "keys in the wrong team": ("form_teams", last_kept),
    }


@pytest.mark.parametrize("name", faults())
def test_a_planted_fault_is_found(seed, name, monkeypatch):
    design = SMALL.replace(sharing="reuse")

    def found():
        rng = torch.Generator().manual_seed(seed)
        try:
            check_against_oracle(rng, design, 3)
        except AssertionError:
            return True
        return sum_error(rng, design) > 1e-8

    assert not found()
    monkeypatch.setattr(MODULE, *faults()[name])
    assert found()


def test_bad_arguments_are_named(rng):
    k = torch.zeros(1, 30, 4)
    with pytest.raises(ValueError, match="representatives is 9; allowed: at most the 8 keys of a block"):
        form_teams(k[:, :16], 8, 9)
    with pytest.raises(ValueError, match="k has 30 keys; allowed: whole blocks of 8"):
        form_teams(k, 8, 4)
    with pytest.raises(ValueError, match="k holds NaN"):
        form_teams(torch.full((8, 2), math.nan), 8, 4)
    with pytest.raises(ValueError, match="samples is 5; allowed: at most the 4 teams"):
        inclusion_probabilities(torch.ones(4), 5)
    with pytest.raises(ValueError, match="mass holds a negative number"):
        inclusion_probabilities(torch.tensor([1.0, -1.0]), 1)
    options = {"samples": 2, "uniforms": rng, "design": SMALL}
    with pytest.raises(ValueError, match="samples is 0"):
        santapp(k, k, k, **options | {"samples": 0})
    with pytest.raises(ValueError, match=r"mask has shape \(2, 30, 30\); allowed: one mask for all heads"):
        santapp(k.expand(2, 30, 4), k, k, mask=torch.ones(2, 30, 30, dtype=torch.bool), **options)
    with pytest.raises(ValueError, match=r"mask has dtype torch.float32"):
        santapp(k, k, k, mask=torch.ones(30, 30), **options)
    with pytest.raises(ValueError, match="by is 'size'; allowed: bounds, mean, representative"):
        top_teams(k, k, k, samples=2, by="size")
    with pytest.raises(ValueError, match=r"uniforms has shape \(2,\); allowed here: \(1, 30\)"):
        santapp(k, k, k, **options | {"uniforms": torch.zeros(2)})
    with pytest.raises(ValueError, match="q holds NaN"):
        santapp(torch.full_like(k, math.nan), k, k, **options)
    with pytest.raises(ValueError, match="4 representatives for each of 3 blocks"):
        santapp(k, k, k, **options, teams=form_teams(k[:, :16], 8, 4))
    with pytest.raises(ValueError, match="method 'santa': santapp, top-teams"):
        models.team_method("santa", 4)
