"""Hooks that compute: the fixed-point datapath and the float64 estimators inside a model."""

import numpy as np
import pytest
import torch
from architectures import DESIGN, OLD_CACHE_NAME, RUNS, Recorder, calibrated, copy_call, deviation, prefill_logits, tiny

from santa_hw import models
from santa_hw.datapath import Draw, attend
from santa_hw.design import Design, Schedule

pytestmark = OLD_CACHE_NAME


def test_fixed_point_is_the_datapath(seed):
    loaded = tiny("mistral-window")
    calibration = calibrated(loaded, seed)
    hook = models.fixed_point(loaded, DESIGN, calibration, seed=11)
    with models.attention(loaded, recorder := Recorder(hook), sequence=3):
        prefill_logits(loaded, seed)
    by_layer = []
    for call in recorder.calls:
        result = attend(
            DESIGN.replace(head_dim=8),
            *(x.numpy() for x in (call.q, call.k, call.v)),
            exponents=calibration.exponents(DESIGN)[call.layer],
            draw=Draw(11, call.layer, np.array([3, 4]), np.tile(np.arange(12), (2, 1))),
            scale=call.scale,
            mask=call.visible().numpy(),
            lengths=np.full((2, 12), 12),
        )
        by_layer.append(result.tally)
        hook.reset()
        assert np.array_equal(hook(call).numpy(), result.output)
        assert hook.tally == result.tally
    hook.reset()
    assert hook.tally.head_steps == 0
    with models.attention(loaded, hook, sequence=3):
        prefill_logits(loaded, seed)
    assert hook.layer_tallies == tuple(by_layer)
    assert hook.tally.head_steps == 2 * 2 * 4 * 12
    assert 1 <= hook.tally.mean_unique_rows <= 16


def test_fixed_point_decodes_as_it_prefills(seed):
    """Each query of a window draws the very words, and gives the very bits, of its own decode step."""
    loaded = tiny()
    hook = models.fixed_point(loaded, DESIGN, calibrated(loaded, seed), seed=1)
    with models.attention(loaded, recorder := Recorder(), sequence=5):
        prefill_logits(loaded, seed)
    call = recorder.calls[1]
    window = hook(call)
    for t in range(12):
        one = slice(t, t + 1)
        step = copy_call(
            call,
            q=call.q[:, :, one],
            k=call.k[:, :, : t + 1],
            v=call.v[:, :, : t + 1],
            lengths=call.lengths[:, one],
            position=call.position[:, one],
        )
        assert torch.equal(hook(step), window[:, :, one])
    moved = copy_call(call, position=call.position + 1)
    assert not torch.equal(hook(moved), window)


def test_fixed_point_near_dense(seed):
    loaded = tiny()
    wide = Design(method="dense", max_keys=128, q_bits=16, k_bits=16, v_bits=16, score_bits=24, score_frac=10)
    calibration = calibrated(loaded, seed)
    hook = models.fixed_point(loaded, wide, calibration.widened(1))
    assert deviation(loaded, hook, prefill_logits, seed) < 5e-3
    assert hook.tally.total_saturations == 0
    narrow = models.fixed_point(loaded, wide, calibration.widened(-2))
    assert deviation(loaded, narrow, prefill_logits, seed) > 5e-3
    assert narrow.tally.saturations["k"] > 0 < narrow.tally.saturations["v"]


def test_fixed_point_refusals(seed):
    loaded, other = tiny(), tiny(seed=1)
    calibration = calibrated(loaded, seed)
    with pytest.raises(ValueError, match=f"{loaded.identity}.*{other.identity}"):
        models.fixed_point(other, DESIGN, calibration)
    with pytest.raises(ValueError, match="schedule has 3 layers: the model's 2"):
        models.fixed_point(loaded, Schedule((DESIGN,) * 3), calibration)
    with pytest.raises(ValueError, match=r"layer 0 with the model's head_dim = 8: .*ternary_block"):
        models.fixed_point(loaded, Design(scores="ternary", ternary_block=16), calibration)
    hook = models.fixed_point(loaded, DESIGN.replace(max_keys=8), calibration)
    with models.attention(loaded, hook), pytest.raises(ValueError, match="max_keys"):
        prefill_logits(loaded, seed)


def test_schedule_has_a_design_for_each_layer(seed):
    loaded = tiny()
    schedule = Schedule((DESIGN.replace(samples=4), DESIGN.replace(samples=64)))
    hook = models.fixed_point(loaded, schedule, calibrated(loaded, seed))
    with models.attention(loaded, hook):
        prefill_logits(loaded, seed)
    first, second = hook.layer_tallies
    assert first.mean_unique_rows <= 4 < second.mean_unique_rows


@pytest.mark.parametrize("run", RUNS, ids=lambda f: f.__name__)
def test_float_dense_gives_the_librarys_logits(run, seed):
    assert deviation(tiny("mistral-window"), models.float_method("float-dense", 1), run, seed) < 1e-5


@pytest.mark.parametrize("name", ["float-santa", "float-sys", "float-top-k", "float-flash"])
def test_float_methods_count_rows(name, seed):
    loaded = tiny()
    hook = models.float_method(name, 4, seed=3)
    with models.attention(loaded, hook):
        once = prefill_logits(loaded, seed)
        tally = hook.tally
        hook.reset()
        assert torch.equal(prefill_logits(loaded, seed), once)
    assert hook.tally == tally
    assert tally.head_steps == 2 * 2 * 4 * 12
    assert tally.group_steps == 2 * 2 * 2 * 12
    assert tally.visible_keys == 2 * 2 * 4 * 78
    assert 1 <= tally.mean_unique_rows <= 4
    assert tally.mean_unique_rows <= tally.mean_group_rows <= 8
    with pytest.raises(ValueError, match="method 'float-magic': float-dense, "):
        models.float_method("float-magic", 4)


@pytest.mark.parametrize("name", ["float-sys", "float-top-k"])
def test_a_float_method_may_have_a_budget_for_each_layer(name, seed):
    loaded = tiny()

    def run(samples):
        rows = {}
        hook = models.float_method(name, samples, seed=3)

        def spy(call):
            before = hook.tally.unique_rows
            output = hook(call)
            rows[call.layer] = hook.tally.unique_rows - before
            return output

        with models.attention(loaded, spy):
            return prefill_logits(loaded, seed), rows

    logits, rows = run((2, 7))
    steps = 2 * 4 * 12
    assert rows[0] <= 2 * steps < rows[1] <= 7 * steps
    same, _ = run((7, 7))
    assert torch.equal(same, run(7)[0])
    assert not torch.equal(same, logits)
    with pytest.raises(ValueError, match="schedule has 1 layers: it misses layer 1"):
        run((2,))
