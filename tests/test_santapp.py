"""SANTA++: teams, inclusion probabilities, the draw and both sums, against plain loops and exact enumeration."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from santa_hw import models, reference, sweep
from santa_hw.design import Design
from santa_hw.events import Tally, TeamTally, total
from santa_hw.reference import TeamDesign, draw_teams, form_teams, inclusion_probabilities, santapp, top_teams
from santa_hw.reference import santapp as _function
from santa_hw.sweep import check_keys, grid

MODULE = __import__(_function.__module__, fromlist=["CHUNK"])
LAST = 1 - 2.0**-53
SHARING = ("own", "shared", "reuse")
SMALL = TeamDesign(block=8, team=2, sinks=2)


@pytest.fixture
def rng(seed):
    return torch.Generator().manual_seed(seed)


def normal(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def uniform(rng, *shape):
    return torch.rand(*shape, generator=rng, dtype=torch.float64)


def causal(queries, keys):
    return torch.ones(keys, keys, dtype=torch.bool).tril()[keys - queries :]


# The oracle: one decode step of one group of heads, in loops ---------------------------------------


def oracle_teams(keys, representatives):
    """(representatives, team of each key) of one block, an array (block, d)."""
    mean = keys.mean(axis=0)
    chosen = [min(range(len(keys)), key=lambda n: (((keys[n] - mean) ** 2).sum(), n))]

    def reach(n):
        return min(((keys[n] - keys[c]) ** 2).sum() for c in chosen)

    while len(chosen) < representatives:
        chosen.append(max((n for n in range(len(keys)) if n not in chosen), key=lambda n: (reach(n), -n)))
    member = [
        chosen.index(n)
        if n in chosen
        else min(range(representatives), key=lambda j: (((keys[n] - keys[chosen[j]]) ** 2).sum(), j))
        for n in range(len(keys))
    ]
    return chosen, member


def oracle_pi(mass, samples):
    """The c heaviest are certain, c as small as it may be; the others share the rest in proportion."""
    order = sorted(range(len(mass)), key=lambda g: -mass[g])
    for certain in range(min(samples, len(mass)) + 1):
        rest = sum(mass[g] for g in order[certain:])
        if certain == len(mass) or (samples - certain) * mass[order[certain]] < rest * (1 - 1e-9):
            break
    return [1.0 if g in order[:certain] else rest and (samples - certain) * mass[g] / rest for g in range(len(mass))]


def oracle_draw(pi, u):
    """Teams whose stretch of the running sum holds one of u, u + 1, ...; certain teams stand apart."""
    drawn, at = {g for g, p in enumerate(pi) if p == 1.0}, 0.0
    for g, p in enumerate(pi):
        if g not in drawn:
            if math.ceil(at - u) < math.ceil(at + p - u):
                drawn.add(g)
            at += p
    return drawn


def oracle_step(q, k, v, visible, scale, design, samples, offsets, best=None):
    """q (g, d), k and v (N, d): outputs (g, d_v), the keys and values read by each head, and by the group."""
    heads, count = len(q), len(k)
    scores = scale * q @ k.T
    teams, stand, free = [], [], set(np.flatnonzero(visible))
    for start in range(design.sinks, count - design.block + 1, design.block):
        block = range(start, start + design.block)
        if all(visible[n] for n in block):
            chosen, member = oracle_teams(k[start : start + design.block], design.representatives)
            stand += [start + c for c in chosen]
            teams += [[n for n in block if member[n - start] == j] for j in range(len(chosen))]
            free -= set(block)
    mass = np.array([[len(t) * math.exp(scores[h, r] - scores[h].max()) for t, r in zip(teams, stand, strict=True)]
                     for h in range(heads)])  # fmt: skip
    if teams:
        mass /= mass.sum(axis=1, keepdims=True)
    if design.sharing == "shared":
        mass = np.repeat(mass.sum(axis=0, keepdims=True), heads, axis=0)
    if best:
        drawn = [set(sorted(range(len(teams)), key=lambda g, h=h: (-mass[h, g], g))[:samples]) for h in range(heads)]
        pi = np.ones_like(mass)
    else:
        pi = np.array([oracle_pi(list(mass[h]), min(samples, len(teams))) for h in range(heads)])
        drawn = [oracle_draw(pi[h], offsets[0 if design.sharing == "shared" else h]) for h in range(heads)]
    if design.sharing == "reuse" and teams:
        drawn = [set.union(*drawn)] * heads
        pi = np.repeat(1 - (1 - pi).prod(axis=0, keepdims=True), heads, axis=0)
    outputs, keys, values = [], [], []
    for h in range(heads):
        weight = dict.fromkeys(free, 1.0)
        for g in drawn[h]:
            factor = {"inverse": 1 / pi[h, g], "tempered": pi[h, g] ** -design.exponent,
                      "clipped": min(1 / pi[h, g], design.clip)}[design.weights]  # fmt: skip
            weight |= dict.fromkeys(teams[g], factor)
        weight = {n: w * math.exp(scores[h, n] - scores[h].max()) for n, w in weight.items()}
        whole = sum(weight.values())
        outputs.append(sum(w * v[n] for n, w in weight.items()) / whole if weight else np.zeros(v.shape[1]))
        values.append(set(weight))
        keys.append(set(weight) | set(stand))
    return np.array(outputs), keys, values


def oracle(q, k, v, mask, scale, design, samples, offsets, best=None):
    """q (H, T, d), k, v (KV, N, d), mask (T, N), offsets (H or KV, T): output, and the four counts of `Reads`."""
    heads, steps, _ = q.shape
    group, output, counts = heads // len(k), np.zeros((heads, steps, v.shape[-1])), [{}, {}, {}, {}]
    for kv, t in itertools.product(range(len(k)), range(steps)):
        own = range(kv * group, (kv + 1) * group)
        u = [offsets[kv][t]] if design.sharing == "shared" else [offsets[h][t] for h in own]
        result, keys, values = oracle_step(q[list(own), t], k[kv], v[kv], mask[t], scale, design, samples, u, best=best)
        for i, h in enumerate(own):
            output[h, t] = result[i]
            counts[0][h, t], counts[1][h, t] = len(keys[i]), len(values[i])
        counts[2][kv, t], counts[3][kv, t] = len(set.union(*keys)), len(set.union(*values))
    return output, counts


def check_against_oracle(rng, design, samples, *, best=None, mask=None, faulty=None):
    """Raise AssertionError unless `santapp` (or `top_teams`) and the loops agree on a small window."""
    steps, keys = 30, 41
    q, k, v = 3 * normal(rng, 6, steps, 4), normal(rng, 2, keys, 4), normal(rng, 2, keys, 3)
    mask = causal(steps, keys) if mask is None else mask
    offsets = uniform(rng, 2 if design.sharing == "shared" else 6, steps)
    options = {"scale": 0.4, "mask": mask, "samples": samples, "design": design}
    if best:
        output, reads = top_teams(q, k, v, **options)
    else:
        output, reads = santapp(q, k, v, **options, uniforms=offsets)
    expected, counts = oracle(*(x.numpy() for x in (q, k, v, mask)), 0.4, design, samples, offsets.numpy(), best)
    torch.testing.assert_close(output, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
    for name, found, wanted in zip(reads._fields, reads, counts, strict=True):
        assert {at: int(found[at]) for at in wanted} == wanted, name


# Teams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [1, 2, 100], ids=lambda s: f"spread={s}")
@pytest.mark.parametrize("block, representatives", [(8, 1), (8, 3), (16, 4), (8, 8), (1, 1)])
def test_teams_against_loops(generator, block, representatives, spread):
    # Small whole numbers make ties and equal keys; block being a power of two, means and distances are exact.
    keys = generator.integers(-spread, spread + 1, size=(2, 5 * block, 3)).astype(float)
    teams = form_teams(torch.from_numpy(keys), block, representatives)
    for head, b in itertools.product(range(2), range(5)):
        chosen, member = oracle_teams(keys[head, b * block : (b + 1) * block], representatives)
        assert teams.representative[head, b].tolist() == chosen
        assert teams.member[head, b].tolist() == member
        assert teams.size[head, b].tolist() == [member.count(j) for j in range(representatives)]
        assert min(teams.size[head, b]) >= 1


def test_equal_keys_make_teams_of_distinct_representatives():
    teams = form_teams(torch.ones(2, 16, 4), 8, 8)
    assert teams.representative.sort(dim=-1).values.tolist() == [[list(range(8))] * 2] * 2
    assert teams.size.eq(1).all()
    assert form_teams(torch.ones(8, 4), 8, 3).size.tolist() == [[6, 1, 1]]


def test_blocks_that_fill_later_join_the_teams_that_are_there(rng):
    keys = normal(rng, 2, 3, 40, 4)
    whole, first = form_teams(keys, 8, 4), form_teams(keys[..., :24, :], 8, 4)
    joined = first.followed_by(form_teams(keys[..., 24:, :], 8, 4))
    for field in dataclasses.fields(whole):
        assert torch.equal(getattr(whole, field.name), getattr(joined, field.name))
        assert torch.equal(getattr(whole.first(3), field.name), getattr(first, field.name))
    assert form_teams(keys[..., :0, :], 8, 4).blocks == 0
    assert whole.blocks == 5


# Inclusion probabilities and the draw ----------------------------------------------------------------

masses = st.lists(st.one_of(st.integers(0, 5), st.integers(1, 10**6), st.floats(1e-12, 1.0)), min_size=1, max_size=12)


@given(masses.filter(any), st.integers(1, 12))
def test_inclusion_probabilities_are_capped_and_sum_to_m(mass, samples):
    samples = min(samples, len(mass))
    pi = inclusion_probabilities(torch.tensor(mass, dtype=torch.float64), samples)
    assert pi.sum().item() == pytest.approx(samples, abs=1e-8)
    assert (pi >= 0).all() and (pi <= 1).all()
    positive = sum(m > 0 for m in mass)
    if samples <= positive:
        assert pi.tolist() == pytest.approx(oracle_pi(mass, samples), rel=1e-7, abs=1e-12)
    free = [(p, m) for p, m in zip(pi.tolist(), mass, strict=True) if p < 1 and m > 1e-9 * max(mass)]
    assert len({round(math.log(p / m), 6) for p, m in free}) <= 1


def test_capping_goes_on_until_none_exceeds_one():
    # M = 3: 90 is capped, which leaves 2 for 8 + 1 + 1 and caps 8, which leaves 1 for the two.
    pi = inclusion_probabilities(torch.tensor([1.0, 90.0, 8.0, 1.0]), 3)
    assert pi.tolist() == [0.5, 1.0, 1.0, 0.5]
    assert (3 * torch.tensor([1.0, 90.0, 8.0, 1.0]) / 100)[2] < 1  # a single pass would not have capped it


def test_as_many_teams_as_samples_are_certain():
    live = torch.tensor([[True, True, False, False], [True, True, True, False]])
    pi = inclusion_probabilities(torch.tensor([0.9, 0.0, 0.1, 0.0]).expand(2, 4), 2, live)
    assert pi[0].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert pi[1].tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0], abs=1e-8)


@given(masses.filter(any), st.integers(1, 12), st.floats(0, LAST))
def test_every_draw_has_exactly_m_distinct_teams(mass, samples, u):
    samples = min(samples, len(mass))
    pi = inclusion_probabilities(torch.tensor(mass, dtype=torch.float64), samples)
    for offset in (u, 0.0, LAST):
        drawn = draw_teams(pi, torch.tensor(offset, dtype=torch.float64))
        assert drawn.sum() == samples
        assert set(drawn.nonzero().flatten().tolist()) >= {g for g, p in enumerate(pi) if p == 1}


def intervals(pi):
    """(midpoints, lengths) of the stretches of the offset on which the draw is one and the same."""
    free = pi[pi < 1].cumsum(0)
    ends = torch.cat([torch.tensor([0.0, 1.0], dtype=torch.float64), free - free.floor()]).unique()
    kept = ends.diff() > 1e-12
    return ((ends[1:] + ends[:-1]) / 2)[kept], ends.diff()[kept]


@given(masses.filter(any), st.integers(1, 12))
def test_each_team_is_drawn_with_its_own_probability(mass, samples):
    pi = inclusion_probabilities(torch.tensor(mass, dtype=torch.float64), min(samples, len(mass)))
    middle, length = intervals(pi)
    drawn = draw_teams(pi.expand(len(middle), -1), middle).double()
    torch.testing.assert_close(length @ drawn, pi, rtol=0, atol=1e-8)


def test_the_published_example():
    """π = 0.7 for one team of mass 40 and 0.105 for sixty of mass 1, M = 7: 114.3 or 66.7, 100 on average."""
    pi = torch.tensor([0.7] + [0.105] * 60, dtype=torch.float64)
    mass = torch.tensor([40.0] + [1.0] * 60, dtype=torch.float64)
    middle, length = intervals(pi)
    drawn = draw_teams(pi.expand(len(middle), -1), middle)
    assert drawn.sum(dim=-1).eq(7).all()
    estimate = reference.team_weights(pi, drawn, TeamDesign()) @ mass
    heavy = drawn[:, 0]
    assert estimate[heavy].unique().tolist() == pytest.approx([40 / 0.7 + 6 / 0.105] * len(estimate[heavy].unique()))
    assert estimate[heavy].mean().item() == pytest.approx(114.3, abs=0.05)
    assert estimate[~heavy].mean().item() == pytest.approx(66.7, abs=0.05)
    assert (length @ estimate).item() == pytest.approx(100, rel=1e-12)


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


# Bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        ({"block": 0}, "block = 0: an integer of at least 1"),
        ({"block": 128.0}, "block = 128.0: an integer"),
        ({"team": 3}, "team = 3: a divisor of block = 128"),
        ({"team": 256}, "team = 256: a divisor of block = 128"),
        ({"sinks": -1}, "sinks = -1: an integer of at least 0"),
        ({"sharing": "both"}, "sharing = 'both': own, shared, reuse is allowed"),
        ({"weights": "none"}, "weights = 'none': inverse, tempered, clipped is allowed"),
        ({"exponent": 1.5}, "exponent = 1.5: 0 to 1"),
        ({"exponent": math.nan}, "exponent = nan: 0 to 1"),
        ({"clip": 0.5}, "clip = 0.5: a finite number of at least 1"),
        ({"clip": math.inf}, "clip = inf: a finite number"),
    ],
)
def test_a_bad_design_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        TeamDesign(**change)


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


# In a model and in a sweep -----------------------------------------------------------------------------


def decoded(hook, tokens, prompt):
    """Logits of a tiny model that reads a prompt at once and then one token after another."""
    loaded = tiny.loaded()
    with torch.inference_mode(), models.attention(loaded, hook, phases="both"):
        first = loaded.model(input_ids=tokens[:, :prompt], use_cache=True)
        logits, cache = [first.logits], first.past_key_values
        for at in range(prompt, tokens.shape[1]):
            step = loaded.model(input_ids=tokens[:, at : at + 1], past_key_values=cache, use_cache=True)
            logits.append(step.logits)
    return torch.cat(logits, dim=1)


def test_decode_steps_form_each_block_once_and_equal_the_window(rng, monkeypatch):
    tokens = torch.randint(3, 250, (1, 45), generator=rng)
    formed = []

    def counted(k, block, representatives):
        formed.append(k.shape[-2])
        return form_teams(k, block, representatives)

    monkeypatch.setattr("santa_hw.models.methods.form_teams", counted)
    hook = models.team_method("top-teams", 3, SMALL)
    window = decoded(hook, tokens, 45)
    once = hook.tally
    hook = models.team_method("top-teams", 3, SMALL)
    formed.clear()
    steps = decoded(hook, tokens, 20)
    torch.testing.assert_close(steps, window, rtol=1e-4, atol=1e-4)
    assert hook.tally == once
    # Two layers: two blocks of the prompt at once, then three as they fill.
    assert sum(formed) == 2 * 5 * 8 and formed.count(16) == 2 and formed.count(8) == 2 * 3
    assert once.kv_reads < once.group_kv_reads < 1
    assert 0 < once.mean_unique_rows < 23


def test_a_team_method_draws_again_after_a_reset(rng):
    tokens = torch.randint(3, 250, (1, 45), generator=rng)
    hook = models.team_method("santapp", 3, SMALL, seed=4)
    first, second = decoded(hook, tokens, 45), decoded(hook, tokens, 45)
    hook.reset()
    assert torch.equal(decoded(hook, tokens, 45), first) and not torch.equal(first, second)
    other = decoded(models.team_method("santapp", 3, SMALL, seed=5), tokens, 45)
    assert not torch.equal(other, first)


def test_kv_reads_of_tallies():
    # SANTA reads every key: 50 % and its values. Tallies of teams add their own key rows.
    tally = Tally(head_steps=4, visible_keys=100, group_keys=50, unique_rows=10, group_rows=10)
    assert (tally.kv_reads, tally.group_kv_reads) == (0.55, 0.6)
    teams = TeamTally(visible_keys=100, group_keys=50, unique_rows=10, group_rows=8, key_rows=20, group_key_rows=12)
    assert ((teams + teams).kv_reads, teams.group_kv_reads) == (0.15, 0.2)
    assert isinstance(teams + teams, TeamTally) and total([tally, tally]).unique_rows == 20


def test_names_are_the_references():
    assert tuple(reference.TEAM_METHODS) == sweep.TEAM_METHODS
    assert not set(sweep.TEAM_METHODS) & {*sweep.METHODS, *sweep.FLOAT_METHODS}


def axis(name, *values):
    return [{name: value} for value in values]


def test_a_grid_of_team_designs():
    axes = [axis("sharing", "own", "reuse"), axis("weights", "inverse", "tempered"), axis("exponent", 0.25, 0.75)]
    points = grid(Design(), [], methods=["santapp", "top-teams"], samples=[8, 16], seeds=range(3), team_axes=axes)
    # Inverse weights have no exponent; a baseline has no weights, and draws nothing.
    assert len(points) == len(set(points)) == 2 * (1 + 2) * 2 * 3 + 2 * 2
    assert {p.seed for p in points if p.method == "top-teams"} == {0}
    assert str(points[0]) == "santapp 8 blocks of 128, teams of 8"
    with pytest.raises(ValueError, match="weights has no effect with method top-means"):
        grid(Design(), [], methods=["top-means"], samples=[8], team_axes=[axis("weights", "clipped")])
    with pytest.raises(ValueError, match="block has no effect with method float-sys"):
        grid(Design(), [], methods=["float-sys"], samples=[8], team_axes=[axis("block", 64)])
    with pytest.raises(ValueError, match="samples = 0: 1 or more is allowed with santapp"):
        grid(Design(), [], methods=["santapp"], samples=[0])


def test_more_teams_than_there_are_is_refused():
    points = grid(Design(), [], methods=["santapp"], samples=[112])
    check_keys(points, 1024)
    with pytest.raises(ValueError, match=r"samples = 113: at most 112, the teams of the task's 1024 keys .* santapp"):
        check_keys(grid(Design(), [], methods=["santapp"], samples=[113]), 1024)
    with pytest.raises(ValueError, match="samples = 1: at most 0, the teams of the task's 100 keys"):
        check_keys(grid(Design(), [], methods=["top-bounds"], samples=[1]), 100)


def test_rows_say_what_was_read(tmp_path):
    loaded = tiny.loaded()
    task, setting = sweep.open_task(loaded, "perplexity", text=tiny_text(tmp_path), windows=1, window=64)
    axes = [axis("block", 8), axis("team", 2)]
    points = grid(Design(), [], methods=[*sweep.TEAM_METHODS, "float-sys", "float-dense"], samples=[4], team_axes=axes)
    points += grid(Design(), [], methods=["santapp"], samples=[28], team_axes=axes)
    rows = sweep.run(loaded, task, setting, points, sweep.Rows(tmp_path / "rows.json"))
    by_method = {row["method"]: row for row in rows[:-1]}
    assert by_method["santapp"]["teams"] == TeamDesign(block=8, team=2).to_dict()
    assert by_method["float-dense"]["kv_reads"] == by_method["float-dense"]["group_kv_reads"] == 1.0
    for name in sweep.TEAM_METHODS:
        assert 0.2 < by_method[name]["kv_reads"] < by_method[name]["group_kv_reads"] < 1
        assert by_method[name]["tally"] is None and by_method[name]["design"] is None
    assert 0.5 < by_method["float-sys"]["kv_reads"] < by_method["float-sys"]["group_kv_reads"] < 1
    assert rows[-1]["kl_to_dense"] < 1e-6 and rows[-1]["kv_reads"] == 1.0
    again = []
    sweep.run(
        loaded, task, setting, points, sweep.Rows(tmp_path / "rows.json"), on_row=lambda _, new: again.append(new)
    )
    assert not any(again)


def tiny_text(folder):
    path = folder / "text.txt"
    path.write_text(tiny.prose(1))
    return str(path)
