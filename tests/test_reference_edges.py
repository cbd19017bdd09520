"""The float64 estimators at their edges, and the errors that name an argument."""

import math

import draws
import pytest
import torch
from draws import normal, uniform

from santa_hw import reference

rng = draws.rng


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
