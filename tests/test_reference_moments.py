"""The float64 estimators: which are unbiased, and their variance in closed form."""

from itertools import pairwise

import draws
import pytest
import torch
from draws import SAMPLERS, normal, replicates, uniform, worst_z

from santa_hw import reference

rng = draws.rng


# unbiasedness


@pytest.fixture
def problem(rng):
    q, k, v = 2.5 * normal(rng, 3, 16), normal(rng, 97, 16), normal(rng, 97, 8)
    mask = torch.ones(3, 97, dtype=torch.bool)
    mask[1, 40:] = False
    mask[2, :70] = False
    return q, k, v, mask


@pytest.mark.parametrize("samples", [1, 5, 16])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_santa_is_unbiased(rng, problem, sampler, samples):
    q, k, v, mask = problem
    outputs = replicates(rng, reference.santa, q, k, v, 4000, mask=mask, samples=samples, sampler=sampler)
    assert worst_z(outputs, reference.dense_attention(q, k, v, mask=mask)) < 1


@pytest.mark.parametrize(("samples", "tile"), [(24, 16), (16, 16), (3, 8), (1, 8), (64, 200)])
def test_flash_is_unbiased_and_honours_samples(rng, problem, samples, tile):
    # 97 keys: seven tiles of 16, so 16 and 24 are no multiples; 3 and 1 are fewer than 13 tiles of 8.
    q, k, v, mask = problem
    options = {"mask": mask, "samples": samples, "tile": tile}
    outputs = replicates(rng, reference.santa_flash, q, k, v, 4000, **options)
    assert worst_z(outputs, reference.dense_attention(q, k, v, mask=mask)) < 1
    _, counts = reference.santa_flash(q, k, v, uniforms=rng, **options)
    assert torch.equal(counts.sum(dim=-1), torch.full((3,), samples))


def test_unbiasedness_check_can_fail(rng, problem):
    """Planted faults: uniforms that favour small values, and an output 3 % too large, and top-k."""
    q, k, v, mask = problem
    truth = reference.dense_attention(q, k, v, mask=mask)
    for sampler, shape in (("iid", (4000, 3, 16)), ("stratified", (4000, 3, 16)), ("systematic", (4000, 3))):
        biased, _ = reference.santa(
            q.expand(4000, 3, 16),
            k,
            v,
            mask=mask,
            samples=16,
            uniforms=uniform(rng, *shape) ** 2,
            sampler=sampler,
        )
        assert worst_z(biased, truth) > 1
    honest = replicates(rng, reference.santa, q, k, v, 4000, mask=mask, samples=16)
    assert worst_z(honest * 1.03, truth) > 1
    top, _ = reference.top_k_attention(q, k, v, mask=mask, samples=16)
    assert worst_z(top.expand(10, *top.shape), truth) > 1


def test_prop_bias_plateaus_where_sys_keeps_falling(rng):
    q, k, v = 2 * normal(rng, 8, 32), normal(rng, 512, 32), normal(rng, 512, 32)
    truth = reference.dense_attention(q, k, v)

    def errors(attention, **options):
        outputs = replicates(rng, attention, q, k, v, 2048, samples=16, **options)
        return [((outputs[:count].mean(dim=0) - truth).norm() / truth.norm()).item() for count in (32, 128, 512, 2048)]

    prop, sys = errors(reference.santa_prop, tile=8), errors(reference.santa)
    print("relative error of the mean of 32, 128, 512, 2048 runs: prop", prop, "sys", sys)
    # sys: a factor 2 for every factor 4 in runs. prop: the bias stays.
    assert [a / b for a, b in pairwise(sys)] == pytest.approx([2, 2, 2], rel=0.25)
    assert prop[-1] > 0.8 * prop[-2] > 5 * sys[-1]
    # The plateau is where the budgets put it: tile means weighted by S_t / S instead of the tiles' masses.
    p = reference.probabilities(reference.attention_scores(q, k)).unflatten(-1, (-1, 8))
    mass = p.sum(dim=-1, keepdim=True)
    shares = reference.proportional_budgets(mass.squeeze(-1), 16).unsqueeze(-1) / 16
    limit = (p / mass * shares).flatten(-2) @ v
    outputs = replicates(rng, reference.santa_prop, q, k, v, 2048, samples=16, tile=8)
    assert worst_z(outputs, limit) < 1
    assert worst_z(outputs, truth) > 1
    assert prop[-1] == pytest.approx(((limit - truth).norm() / truth.norm()).item(), rel=0.05)


# variance


@pytest.mark.parametrize("samples", [1, 4, 32])
@pytest.mark.parametrize("sampler", ["iid", "stratified"])
def test_variance_trace_closed_form(rng, sampler, samples):
    q, k, v = 2 * normal(rng, 4, 16), normal(rng, 97, 16), normal(rng, 97, 8)
    p = reference.probabilities(reference.attention_scores(q, k))
    closed = {"iid": reference.iid_variance_trace, "stratified": reference.stratified_variance_trace}
    outputs = replicates(rng, reference.santa, q, k, v, 6000, samples=samples, sampler=sampler)
    measured = reference.replicate_variance_trace(outputs)
    torch.testing.assert_close(measured, closed[sampler](p, v, samples), rtol=0.08, atol=0)
    # A formula for the wrong budget would not pass.
    assert not torch.allclose(measured, closed[sampler](p, v, samples + 1), rtol=0.08) or samples == 32


def test_stratified_trace_is_the_sum_over_strata(rng):
    # Two strata, three keys, by hand: stratum 0 = key 0 or 1, stratum 1 = key 1 or 2.
    p, v = torch.tensor([[0.4, 0.35, 0.25]], dtype=torch.float64), torch.tensor([[1.0], [0.0], [2.0]])
    first = 0.8 * 0.2 * (1 - 0) ** 2
    second = 0.5 * 0.5 * (0 - 2) ** 2
    torch.testing.assert_close(
        reference.stratified_variance_trace(p, v, 2),
        torch.tensor([(first + second) / 4], dtype=torch.float64),
    )


def systematic_trace(p, v, samples):
    """Exact trace for S²ANTA-sys: the output is piecewise constant in the offset, so sum over the pieces."""
    edges = (samples * p.cumsum(dim=-1)).remainder(1.0)
    cuts = torch.cat([torch.zeros(1), edges.sort().values, torch.ones(1)]).double()
    counts = reference.systematic_counts(p.expand(len(cuts) - 1, -1), samples, (cuts[1:] + cuts[:-1]) / 2)
    second = (counts.double() @ v / samples).square().sum(dim=-1)
    return (cuts.diff() * second).sum() - (p @ v).square().sum()


def test_systematic_trace_from_replicates(rng):
    q, k, v = 2 * normal(rng, 1, 16), normal(rng, 97, 16), normal(rng, 97, 8)
    p = reference.probabilities(reference.attention_scores(q, k))
    measured = reference.replicate_variance_trace(replicates(rng, reference.santa, q, k, v, 6000, samples=16))
    assert measured.item() == pytest.approx(systematic_trace(p[0], v, 16).item(), rel=0.08)


@pytest.mark.parametrize("samples", [8, 32, 128])
def test_variance_order_of_the_samplers(rng, samples):
    """On average over heads: sys <= strat <= iid; strat <= iid in every single one."""
    q, k, v = 2 * normal(rng, 48, 64), normal(rng, 512, 64), normal(rng, 512, 64)
    p = reference.probabilities(reference.attention_scores(q, k))
    iid = reference.iid_variance_trace(p, v, samples)
    strat = reference.stratified_variance_trace(p, v, samples)
    sys = torch.stack([systematic_trace(row, v, samples) for row in p])
    print(f"S={samples}: mean trace iid {iid.mean():.4f}, strat {strat.mean():.4f}, sys {sys.mean():.4f}")
    assert (strat <= iid + 1e-12).all()
    assert sys.mean() <= strat.mean() <= iid.mean()
