"""Ternary scores in float64: unbiasedness, variance, and figures of the paper."""

import math

import draws
import pytest
import torch
from draws import normal, uniform, worst_z

from santa_hw import reference

rng = draws.rng


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
