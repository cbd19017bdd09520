"""The float64 estimators: baselines against outside oracles, counts against exact rationals."""

from fractions import Fraction

import draws
import pytest
import torch
from draws import LAST, SAMPLERS, normal, uniform, worst_z
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_hw import reference

COUNTS = {
    "iid": reference.iid_counts,
    "stratified": reference.stratified_counts,
    "systematic": reference.systematic_counts,
    "prop": lambda p, samples, uniforms: reference.proportional_counts(p, samples, uniforms, tile=8),
    "flash": lambda p, samples, uniforms: reference.flash_counts(p, samples, uniforms, tile=8)[0],
}

rng = draws.rng


def sharp_rows(rng, rows, keys, spread=2.0):
    """Softmax rows of normal scores: a few keys carry most of the mass, as in a trained head."""
    return torch.softmax(spread * normal(rng, rows, keys), dim=-1)


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
