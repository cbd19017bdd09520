"""The float64 estimators: against outside oracles, closed forms, and what the paper claims."""

import math
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_hw import reference

LAST = 1 - 2.0**-53  # the largest double below 1
SAMPLERS = ("iid", "stratified", "systematic")
COUNTS = {
    "iid": reference.iid_counts,
    "stratified": reference.stratified_counts,
    "systematic": reference.systematic_counts,
    "prop": lambda p, samples, uniforms: reference.proportional_counts(p, samples, uniforms, tile=8),
    "flash": lambda p, samples, uniforms: reference.flash_counts(p, samples, uniforms, tile=8)[0],
}


@pytest.fixture(params=[1690], ids=lambda seed: f"seed={seed}")
def rng(request):
    return torch.Generator().manual_seed(request.param)


def normal(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def uniform(rng, *shape):
    return torch.rand(*shape, generator=rng, dtype=torch.float64)


def sharp_rows(rng, rows, keys, spread=2.0):
    """Softmax rows of normal scores: a few keys carry most of the mass, as in a trained head."""
    return torch.softmax(spread * normal(rng, rows, keys), dim=-1)


def worst_z(replicates, truth):
    """How far the mean of (R, ...) replicates is from the truth, in units of what chance allows.

    The largest |z| over all components, divided by the two-sided normal bound at level 1e-4 shared by the
    components (Bonferroni): above 1, the estimator is called biased. A component without spread must be
    right.
    """
    count = replicates.shape[0]
    error = (replicates.mean(dim=0) - truth).abs()
    deviation = replicates.std(dim=0) / math.sqrt(count)
    bound = NormalDist().inv_cdf(1 - 1e-4 / (2 * truth.numel()))
    return (error / (bound * deviation + 1e-12)).max().item()


# baselines


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_dense_is_scaled_dot_product_attention(rng, kv_heads, causal):
    q, k, v = normal(rng, 2, 6, 54, 16), normal(rng, 2, kv_heads, 54, 16), normal(rng, 2, kv_heads, 54, 24)
    mask = torch.ones(54, 54, dtype=torch.bool).tril() if causal else None
    ours = reference.dense_attention(q, k, v, scale=0.3, mask=mask)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_default_scale_and_upcast(rng):
    q, k, v = normal(rng, 5, 16).float(), normal(rng, 9, 16).float(), normal(rng, 9, 16).float()
    ours = reference.dense_attention(q, k, v)
    assert ours.dtype == torch.float64
    theirs = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_repeat_kv_gives_query_head_its_own_kv_head(rng):
    x = normal(rng, 2, 3, 5, 4)
    repeated = reference.repeat_kv(x, 4)
    assert repeated.shape == (2, 12, 5, 4)
    for head in range(12):
        assert torch.equal(repeated[:, head], x[:, head // 4])


@pytest.mark.parametrize("samples", [1, 7, 97, 200])
def test_top_k_against_a_sort(rng, samples):
    scores = normal(rng, 11, 97).mul(4).round()  # rounding makes ties
    mask = uniform(rng, 11, 97) < 0.7
    kept = reference.top_k_mask(scores, mask, samples)
    for row in range(11):
        visible = [n for n in range(97) if mask[row, n]]
        expected = sorted(visible, key=lambda n, row=row: (-scores[row, n].item(), n))[:samples]
        assert kept[row].nonzero().flatten().tolist() == sorted(expected)


def test_top_k_of_everything_is_dense(rng):
    q, k, v = normal(rng, 5, 16), normal(rng, 30, 16), normal(rng, 30, 16)
    output, counts = reference.top_k_attention(q, k, v, samples=30)
    torch.testing.assert_close(output, reference.dense_attention(q, k, v))
    assert counts.eq(1).all()


# counts


def uniforms_for(name, keys, samples, tile=8):
    """The shape of uniforms, beyond the row axes, that a counts function takes."""
    if name in ("iid", "stratified"):
        return (samples,)
    if name == "systematic":
        return ()
    return (-(-keys // (max(tile, -(-keys // samples)) if name == "flash" else tile)),)


@pytest.mark.parametrize("offset", [0.0, 2.0**-53, 0.5, LAST, None], ids=lambda u: f"u={u}")
@pytest.mark.parametrize("samples", [1, 3, 64])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_sum_to_samples_and_skip_zero_weights(rng, name, samples, offset):
    for keys in (1, 2, 54, 97):
        p = sharp_rows(rng, 20, keys, spread=6.0)
        p = torch.where(uniform(rng, 20, keys) < 0.4, 0.0, p)
        p[:, -3:] *= (torch.arange(20) % 2)[:, None]  # half of the rows end in zeros
        live = p.sum(dim=-1) > 0
        shape = (20, *uniforms_for(name, keys, samples))
        uniforms = uniform(rng, *shape) if offset is None else torch.full(shape, offset, dtype=torch.float64)
        counts = COUNTS[name](p, samples, uniforms)
        assert counts.dtype == torch.int64
        assert counts.shape == p.shape
        assert counts.min() >= 0
        assert torch.equal(counts.sum(dim=-1), samples * live.long())
        assert counts[p == 0].sum() == 0


@pytest.mark.parametrize("name", ["stratified", "systematic"])
def test_last_threshold_lands_on_the_last_key_at_128k(name):
    # A running sum of 131,072 rounded terms is not 1, and the last threshold is as near to 1 as doubles come.
    p = torch.full((1, 131_072), 1 / 3, dtype=torch.float64)
    p[0, -100:] = 0.0
    shape = (1, *uniforms_for(name, 131_072, 64))
    counts = COUNTS[name](p, 64, torch.full(shape, LAST, dtype=torch.float64))
    assert counts.sum() == 64
    assert counts[0, 131_072 - 101] == 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any),
    numbers=st.lists(st.integers(0, 2**20 - 1), min_size=8, max_size=8),
)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_counts_against_exact_rationals(sampler, weights, numbers):
    samples, mass = 8, sum(weights)
    exact = [Fraction(number, 2**20) + Fraction(1, 2**21) for number in numbers]
    if sampler == "iid":
        thresholds = exact
    else:
        shared = sampler == "systematic"
        thresholds = [(m + exact[0 if shared else m]) / samples for m in range(samples)]
    expected = [
        sum(sum(weights[:n]) <= t * mass < sum(weights[: n + 1]) for t in thresholds) for n in range(len(weights))
    ]
    given_uniforms = torch.tensor([float(u) for u in exact], dtype=torch.float64)
    if sampler == "systematic":
        given_uniforms = given_uniforms[0]
    p = torch.tensor(weights, dtype=torch.float64) / mass
    assert COUNTS[sampler](p, samples, given_uniforms).tolist() == expected


def test_systematic_counts_are_floor_or_ceil_and_exact_on_average():
    # Dyadic masses and every offset of a grid: the counts sum to exactly offsets * S * p.
    p = torch.tensor([5, 0, 17, 1, 40, 1], dtype=torch.float64) / 64
    offsets = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    counts = reference.systematic_counts(p.expand(64, -1), 4, offsets)
    assert torch.equal(counts.sum(dim=0).double(), 64 * 4 * p)
    assert (counts >= torch.floor(4 * p)).all()
    assert (counts <= torch.ceil(4 * p)).all()


def test_proportional_budgets_are_largest_remainder():
    mass = torch.tensor([[0.30, 0.25, 0.25, 0.20], [0.97, 0.01, 0.01, 0.01], [0.0, 0.5, 0.0, 0.5], [0, 0, 0, 0]])
    expected = [
        [2, 1, 1, 1],
        [5, 0, 0, 0],
        [0, 3, 0, 2],
        [0, 0, 0, 0],
    ]  # the third: a tie goes to the lowest tile
    assert reference.proportional_budgets(mass.double(), 5).tolist() == expected


def test_uniform_budgets_honour_samples():
    live = torch.tensor([[True, True, True, True], [True, False, True, True], [False] * 4])
    assert reference.uniform_budgets(live, 7).tolist() == [[2, 2, 2, 1], [3, 0, 2, 2], [0, 0, 0, 0]]
    with pytest.raises(ValueError, match="samples is 3"):
        reference.uniform_budgets(live, 3)


def test_masked_keys_are_never_drawn(rng):
    q, k, v = normal(rng, 40, 16), normal(rng, 40, 16), normal(rng, 40, 16)
    mask = torch.ones(40, 40, dtype=torch.bool).tril()
    for name, method in reference.METHODS.items():
        _, counts = method(q, k, v, scale=None, mask=mask, samples=16, generator=rng)
        if name != "float-dense":
            assert counts[~mask].sum() == 0


# unbiasedness


def replicates(rng, attention, q, k, v, count, **options):
    """(count, T, d) outputs of independent runs."""
    return attention(q.expand(count, *q.shape), k, v, uniforms=rng, **options)[0]


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


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_expected_unique_rows(rng, sampler):
    p = sharp_rows(rng, 1, 97)
    counts = COUNTS[sampler](p.expand(4000, 97), 16, rng)
    unique = reference.unique_rows(counts).double()
    expected = reference.expected_unique_rows(p, 16, sampler)
    assert worst_z(unique[:, None], expected) < 1
    assert worst_z(unique[:, None] + 0.3, expected) > 1


def test_unique_rows_of_a_group():
    counts = torch.tensor([[[2, 0, 1, 0]], [[0, 0, 3, 0]], [[0, 1, 0, 2]], [[1, 1, 1, 0]]])
    assert reference.unique_rows(counts).tolist() == [[2], [1], [2], [3]]
    assert reference.unique_rows(counts, group=2).tolist() == [[2], [4]]


# ternary scores


@pytest.mark.parametrize("norm", ["max", "power_of_two"])
@pytest.mark.parametrize("ternary_draw", ["iid", "stratified"])
@pytest.mark.parametrize("ternary_samples", [1, 3, 8])
def test_bernoulli_scores_are_unbiased(rng, ternary_draw, norm, ternary_samples):
    q, k = normal(rng, 2, 16), normal(rng, 20, 16)
    options = {"ternary_samples": ternary_samples, "uniforms": rng, "ternary_draw": ternary_draw, "norm": norm}
    scores, vectors = reference.bernoulli_scores(q.expand(6000, 2, 16), k, **options)
    assert vectors.unique().tolist() == [-1, 0, 1]
    truth = reference.attention_scores(q, k)
    assert worst_z(scores, truth) < 1
    wrong, _ = reference.bernoulli_scores(q.expand(6000, 2, 16) * 1.1, k, **options)
    assert worst_z(wrong, truth) > 1


@pytest.mark.parametrize("ternary_draw", ["iid", "stratified"])
def test_bernoulli_score_variance(rng, ternary_draw):
    q, k = normal(rng, 1, 32), normal(rng, 20, 32)
    size = 4
    scores, _ = reference.bernoulli_scores(
        q.expand(8000, 1, 32), k, scale=1.0, ternary_samples=size, uniforms=rng, ternary_draw=ternary_draw
    )
    norm = reference.query_norm(q)
    p = q.abs() / norm
    rest = (size * p).remainder(1.0)
    per_feature = p * (1 - p) / size if ternary_draw == "iid" else rest * (1 - rest) / size**2
    expected = (norm**2 * per_feature) @ k.T.square()
    torch.testing.assert_close(scores.var(dim=0), expected, rtol=0.1, atol=0)


def test_stratified_ternary_is_stochastic_rounding(rng):
    q, r = normal(rng, 50, 16), uniform(rng, 50, 16)
    p = q.abs() / reference.query_norm(q)
    for size in (1, 3, 8, 16):
        vectors = reference.ternary_vectors(q, size, r)
        assert torch.equal(vectors.sum(dim=0), (torch.floor(size * p + r) * q.sign()).long())
        # One draw per stratum b has the same law: every stratum but one is certain.
        strata = ((torch.arange(size)[:, None, None] + uniform(rng, size, 50, 16)) / size < p).sum(dim=0)
        assert (strata - vectors.sum(dim=0).abs()).abs().max() <= 1


def test_enough_ternary_vectors_are_dense(rng):
    # Codes of f bits below a power-of-two norm, 2**f vectors: every feature is exact and nothing is random.
    q = torch.randint(-127, 128, (5, 32), generator=rng).double()
    q[:, 0] = 127
    k = normal(rng, 20, 32)
    scores, _ = reference.bernoulli_scores(q, k, ternary_samples=128, uniforms=rng, norm="power_of_two")
    torch.testing.assert_close(scores, reference.attention_scores(q, k), rtol=1e-12, atol=1e-12)


def test_query_norm():
    q = torch.tensor([[0.0, -3.0], [0.5, 0.25], [1e300, 1.0], [1e-310, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert reference.query_norm(q).flatten().tolist() == [3.0, 0.5, 1e300, 1e-310, 1.0]
    powers = reference.query_norm(q, "power_of_two").flatten().tolist()
    assert powers == [4.0, 0.5, 2.0 ** math.ceil(math.log2(1e300)), 2.0**-1029, 1.0]


@pytest.mark.parametrize("ternary_draw", ["iid", "stratified"])
def test_mean_group_scores_are_unbiased_and_read_one_set_of_features(rng, ternary_draw):
    q, k = normal(rng, 6, 1, 16), normal(rng, 2, 20, 16)
    q[:3, 0, 5] = 0.0  # a feature that no head of the first group uses
    scores, vectors = reference.mean_group_scores(
        q.expand(6000, 6, 1, 16), k, ternary_samples=4, uniforms=rng, ternary_draw=ternary_draw
    )
    assert vectors.shape == (4, 6000, 2, 1, 16)
    assert vectors.unique().tolist() == [0, 1]
    assert vectors[:, :, 0, 0, 5].sum() == 0
    assert worst_z(scores, reference.attention_scores(q, reference.repeat_kv(k, 3))) < 1


def test_mean_group_of_equal_heads_is_the_plain_draw(rng):
    q, k = normal(rng, 1, 1, 16), normal(rng, 1, 20, 16)
    r = uniform(rng, 1, 1, 16)
    grouped, _ = reference.mean_group_scores(q.expand(4, 1, 16), k, ternary_samples=8, uniforms=r)
    plain, _ = reference.bernoulli_scores(q, k, ternary_samples=8, uniforms=r)
    torch.testing.assert_close(grouped, plain.expand(4, 1, 20))


def test_bernoulli_santa_targets_the_attention_of_the_estimated_scores(rng):
    q, k, v = 2 * normal(rng, 2, 16), normal(rng, 50, 16), normal(rng, 50, 8)
    ternary = uniform(rng, 2, 16)
    options = {"samples": 16, "ternary_samples": 8, "uniforms": rng}
    outputs, counts, vectors = reference.bernoulli_santa(
        q.expand(4000, 2, 16), k, v, ternary_uniforms=ternary.expand(4000, 2, 16), **options
    )
    scores, same = reference.bernoulli_scores(q, k, ternary_samples=8, uniforms=ternary)
    assert torch.equal(vectors[:, 0], same)
    assert counts.sum(dim=-1).eq(16).all()
    assert worst_z(outputs, reference.probabilities(scores) @ v) < 1
    assert worst_z(outputs, reference.dense_attention(q, k, v)) > 1


def test_features_read(rng):
    q = normal(rng, 4, 3, 16)
    vectors = reference.ternary_vectors(q, 8, rng)
    read = reference.features_read(vectors)
    assert torch.equal(read, (vectors.abs().sum(dim=0) > 0).sum(dim=-1))
    union = reference.features_read(vectors, group=2)
    assert union.shape == (2, 3)
    assert (union >= read.unflatten(0, (2, 2)).amax(dim=1)).all()


# figures of the paper


def relative_error(estimate, truth):
    """Mean over queries of |estimate - truth|_2 / |truth|_2 along the last axis."""
    return ((estimate - truth).norm(dim=-1) / truth.norm(dim=-1)).mean().item()


@pytest.mark.parametrize(("ternary_draw", "published"), [("iid", 0.60), ("stratified", 0.30)])
def test_figure_6_error(rng, ternary_draw, published):
    """About 60 % (i.i.d.) and 30 % (stratified) at d = 128, N = 1024, B = 4, norm = max|q|, N(0, 1) data.

    The relative l2 error of a query's attention output (and of its weights) is 0.61 and 0.30; that of its
    scores, 0.56 and 0.29, is a little lower.
    """
    q, k, v = normal(rng, 512, 128), normal(rng, 1024, 128), normal(rng, 1024, 128)
    scores, _ = reference.bernoulli_scores(q, k, ternary_samples=4, uniforms=rng, ternary_draw=ternary_draw)
    truth = reference.attention_scores(q, k)
    weights, true_weights = reference.probabilities(scores), reference.probabilities(truth)
    errors = {
        "scores": relative_error(scores, truth),
        "weights": relative_error(weights, true_weights),
        "output": relative_error(weights @ v, true_weights @ v),
    }
    print(ternary_draw, errors)
    assert errors["scores"] == pytest.approx(published, abs=0.05)
    assert errors["weights"] == pytest.approx(published, abs=0.03)
    assert errors["output"] == pytest.approx(published, abs=0.03)
    # For scores the ratio follows from the variance per feature, k being isotropic.
    norm = reference.query_norm(q)
    p = q.abs() / norm
    rest = (4 * p).remainder(1.0)
    per_feature = p * (1 - p) / 4 if ternary_draw == "iid" else rest * (1 - rest) / 16
    closed = ((norm**2 * per_feature).sum(dim=-1) / q.square().sum(dim=-1)).sqrt().mean().item()
    assert errors["scores"] == pytest.approx(closed, rel=0.03)


TABLE_9 = {1: 49.9, 4: 80.0, 8: 88.9, 16: 94.1}


@pytest.mark.parametrize(("ternary_samples", "published"), TABLE_9.items())
def test_table_9_coverage(rng, ternary_samples, published):
    """The share of features that B i.i.d. vectors read when |q| / norm is uniform on [0, 1]: B / (B + 1)."""
    grid = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    closed = reference.ternary_coverage(grid, ternary_samples, "iid").mean().item()
    assert closed == pytest.approx(ternary_samples / (ternary_samples + 1), abs=1e-6)
    assert 100 * closed == pytest.approx(published, abs=0.15)
    # A query uniform on (-1, 1), whose power-of-two norm is 1.
    q = 2 * uniform(rng, 2000, 128) - 1
    vectors = reference.ternary_vectors(q, ternary_samples, rng, ternary_draw="iid", norm="power_of_two")
    drawn = reference.features_read(vectors).double().mean().item() / 128
    assert 100 * drawn == pytest.approx(published, abs=0.3)
    # It is neither the stratified draw (B = 1 apart) nor a normal query under norm = max|q|.
    stratified = reference.ternary_coverage(grid, ternary_samples, "stratified").mean().item()
    assert stratified == pytest.approx(1 - 1 / (2 * ternary_samples), abs=1e-6)
    gaussian = normal(rng, 2000, 128)
    p = gaussian.abs() / reference.query_norm(gaussian)
    assert 100 * reference.ternary_coverage(p, ternary_samples, "iid").mean().item() < published - 5


@pytest.mark.parametrize("ternary_draw", ["iid", "stratified"])
def test_ternary_coverage_is_what_is_read(rng, ternary_draw):
    q = normal(rng, 1, 64)
    vectors = reference.ternary_vectors(q.expand(4000, 64), 4, rng, ternary_draw=ternary_draw)
    read = reference.features_read(vectors).double()[:, None]
    expected = reference.ternary_coverage(q.abs() / reference.query_norm(q), 4, ternary_draw).sum(dim=-1)
    assert worst_z(read, expected) < 1


# edges and errors


def run_all(rng, q, k, v, samples=16, mask=None):
    """Name -> (output, counts) of every method."""
    return {
        name: method(q, k, v, scale=None, mask=mask, samples=samples, generator=rng)
        for name, method in reference.METHODS.items()
    }


def test_methods_are_the_seven_names():
    names = [
        "float-dense",
        "float-top-k",
        "float-santa",
        "float-strat",
        "float-sys",
        "float-prop",
        "float-flash",
    ]
    assert list(reference.METHODS) == names


def test_no_keys_gives_zeros(rng):
    for name, (output, counts) in run_all(
        rng, normal(rng, 2, 3, 8), torch.zeros(2, 0, 8), torch.zeros(2, 0, 5)
    ).items():
        assert torch.equal(output, torch.zeros(2, 3, 5, dtype=torch.float64)), name
        assert counts is None or counts.shape == (2, 3, 0)
    assert reference.expected_unique_rows(torch.zeros(3, 0), 4, "stratified").tolist() == [0, 0, 0]
    assert reference.stratified_variance_trace(torch.zeros(3, 0), torch.zeros(0, 5), 4).tolist() == [0, 0, 0]


@pytest.mark.parametrize("samples", [1, 16])
def test_one_key_is_copied(rng, samples):
    v = normal(rng, 1, 5)
    for name, (output, counts) in run_all(rng, normal(rng, 3, 8), normal(rng, 1, 8), v, samples).items():
        torch.testing.assert_close(output, v.expand(3, 5), msg=name)
        assert counts is None or counts.unique().tolist() == [1 if name == "float-top-k" else samples]


def test_masked_rows_give_zeros(rng):
    mask = uniform(rng, 6, 97) < 0.5
    mask[2] = False
    mask[4, 10:] = False
    for name, (output, counts) in run_all(
        rng, normal(rng, 6, 8), normal(rng, 97, 8), normal(rng, 97, 5), mask=mask
    ).items():
        assert torch.equal(output[2], torch.zeros(5, dtype=torch.float64)), name
        assert torch.isfinite(output).all()
        assert output[[0, 1, 3, 4, 5]].abs().sum(dim=-1).gt(0).all()
        if counts is not None and name != "float-top-k":
            assert counts.sum(dim=-1).tolist() == [16, 16, 0, 16, 16, 16]


def test_equal_scores_spread_evenly(rng):
    # 64 equal keys, S = 16: strat and sys draw one key from each run of four.
    v = torch.arange(64, dtype=torch.float64)[:, None].expand(64, 2)
    results = run_all(rng, torch.zeros(3, 8), normal(rng, 64, 8), v)
    torch.testing.assert_close(results["float-dense"][0], torch.full((3, 2), 31.5, dtype=torch.float64))
    assert results["float-top-k"][1].nonzero()[:, 1].reshape(3, 16).tolist() == [list(range(16))] * 3
    for name in ("float-strat", "float-sys"):
        assert results[name][1].unflatten(-1, (16, 4)).sum(dim=-1).eq(1).all()


def test_one_key_with_all_mass(rng):
    k = torch.zeros(97, 8)
    k[61] = 1000.0
    v = normal(rng, 97, 5)
    for name, (output, counts) in run_all(rng, torch.ones(3, 8), k, v).items():
        torch.testing.assert_close(output, v[61].expand(3, 5), msg=name)
        if name in ("float-santa", "float-strat", "float-sys", "float-prop"):
            assert counts[:, 61].eq(16).all()


def test_generator_makes_runs_repeatable_and_leaves_the_global_one_alone(rng):
    q, k, v = normal(rng, 6, 4, 8), normal(rng, 2, 97, 8), normal(rng, 2, 97, 8)
    state = torch.get_rng_state()
    first = run_all(torch.Generator().manual_seed(3), q, k, v)
    second = run_all(torch.Generator().manual_seed(3), q, k, v)
    other = run_all(torch.Generator().manual_seed(4), q, k, v)
    assert torch.equal(torch.get_rng_state(), state)
    for name in reference.METHODS:
        assert torch.equal(first[name][0], second[name][0])
        assert torch.equal(first[name][0], other[name][0]) == (name in ("float-dense", "float-top-k"))


def test_inputs_are_left_alone(rng):
    operands = [normal(rng, 3, 8), normal(rng, 97, 8), normal(rng, 97, 8)]
    copies = [x.clone() for x in operands]
    run_all(rng, *operands)
    assert all(torch.equal(x, copy) for x, copy in zip(operands, copies, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_one_bad_number_is_found_wherever_it_is(rng, name, bad):
    operands = {"q": normal(rng, 2, 3, 8), "k": normal(rng, 2, 9, 8), "v": normal(rng, 2, 9, 8)}
    for place in (0, int(torch.randint(operands[name].numel(), (), generator=rng)), -1):
        spoilt = operands[name].clone()
        spoilt.view(-1)[place] = bad
        with pytest.raises(ValueError, match=f"{name} holds NaN or infinity"):
            reference.dense_attention(**{**operands, name: spoilt})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"samples": 2.0}, "samples is 2.0"),
        ({"sampler": "sorted"}, "sampler is 'sorted'; allowed: iid, stratified, systematic"),
        ({"uniforms": torch.zeros(2)}, r"uniforms has shape \(2,\); allowed here: \(3,\)"),
        ({"uniforms": torch.ones(3)}, r"uniforms has values outside \[0, 1\)"),
        ({"uniforms": torch.full((3,), math.nan)}, r"uniforms has values outside \[0, 1\)"),
        ({"mask": torch.zeros(3, 9)}, "mask has dtype torch.float32"),
        ({"k": torch.full((9, 8), math.nan)}, "k holds NaN or infinity"),
        ({"k": torch.zeros(9, 7)}, "k has head dimension 7; allowed: q's, 8"),
        ({"v": torch.zeros(8, 8)}, r"v has shape \(8, 8\)"),
        (
            {"q": torch.zeros(3, 3, 8), "k": torch.zeros(2, 9, 8), "v": torch.zeros(2, 9, 8)},
            "q has 3 heads and k has 2",
        ),
        ({"q": torch.zeros(8)}, r"q has shape \(8,\)"),
    ],
)
def test_errors_name_the_argument(rng, change, message):
    arguments = {
        "q": torch.zeros(3, 8),
        "k": torch.zeros(9, 8),
        "v": torch.zeros(9, 8),
        "samples": 4,
        "uniforms": rng,
    }
    with pytest.raises(ValueError, match=message):
        reference.santa(**{**arguments, **change})


def test_ternary_and_tile_errors_name_the_argument(rng):
    q, k, v = torch.ones(3, 8), torch.ones(9, 8), torch.ones(9, 8)
    with pytest.raises(ValueError, match="ternary_draw is 'sorted'"):
        reference.ternary_vectors(q, 4, rng, ternary_draw="sorted")
    with pytest.raises(ValueError, match="norm is 'l2'; allowed: max, power_of_two"):
        reference.bernoulli_scores(q, k, ternary_samples=4, uniforms=rng, norm="l2")
    with pytest.raises(ValueError, match="ternary_samples is 0"):
        reference.bernoulli_scores(q, k, ternary_samples=0, uniforms=rng)
    with pytest.raises(ValueError, match="q has shape"):
        reference.mean_group_scores(q, k, ternary_samples=4, uniforms=rng)
    with pytest.raises(ValueError, match="tile is 0"):
        reference.santa_prop(q, k, v, samples=4, uniforms=rng, tile=0)
    with pytest.raises(ValueError, match="group is 2"):
        reference.unique_rows(torch.ones(3, 2, 4), group=2)
    with pytest.raises(ValueError, match="outputs has 1 replicates"):
        reference.replicate_variance_trace(torch.ones(1, 4))
