"""What must not change the golden model's result, what must, and what it approaches."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from operands import draw_for, floats, random_codes

from santa_hw.datapath import INTERMEDIATES, Draw, Exponents, attend, decode, parallel, step
from santa_hw.design import Design, Schedule


def test_a_row_that_is_not_drawn_is_not_read():
    """Changing value rows of count zero changes nothing."""
    design = Design(head_dim=8, samples=8)
    codes = random_codes(design, np.random.default_rng(3), heads=1, rows=1, keys=64)
    before = decode(design, codes, draw=draw_for(1, 1), keep=["counts"])
    unread = before.trace["counts"][0, 0, 0] == 0
    assert unread.any()
    codes.v[0, 0, unread] = 127
    assert (decode(design, codes, draw=draw_for(1, 1)).output == before.output).all()
    codes.v[0, 0, ~unread] *= -1
    assert (decode(design, codes, draw=draw_for(1, 1)).output != before.output).any()


DESIGN_POINTS = [Design(head_dim=8), Design(head_dim=8, scores="ternary", ternary_block=4, sampler="iid")]


@pytest.mark.parametrize("design", DESIGN_POINTS, ids=str)
def test_result_does_not_depend_on_tiles_threads_or_batch_order(design, monkeypatch):
    q, k, v = floats(0, 3, 6, 2, 40, 40, 8)
    e = Exponents(np.full((2, 8), 2), np.full((2, 8), 2))
    names = [name for name in INTERMEDIATES if not name.endswith("_codes") or name == "output_codes"]

    def run(order=(0, 1, 2)):
        order = list(order)
        d = Draw(5, 1, np.array(order), np.tile(np.arange(40), (3, 1)))
        return attend(design, q[order], k[order], v[order], exponents=e, draw=d, keep=names).trace

    base = run()
    monkeypatch.setattr(parallel, "_SMALL", 0)  # threads even for this little
    for tile_bytes, tile_rows, threads in ((1, 1, 1), (4096, 7, 2), (1 << 30, 4096, 2)):
        monkeypatch.setattr(step, "_TILE_BYTES", tile_bytes)
        monkeypatch.setattr(step, "_TILE_ROWS", tile_rows)
        before = numba.get_num_threads()
        numba.set_num_threads(min(threads, before))
        try:
            other = run()
        finally:
            numba.set_num_threads(before)
        for name in names:
            assert (other[name] == base[name]).all(), name
    shuffled = run((2, 0, 1))
    for name in names:
        assert (shuffled[name] == base[name][[2, 0, 1]]).all(), name


@pytest.mark.parametrize("design", DESIGN_POINTS, ids=str)
def test_window_equals_decode_steps_and_future_tokens_change_nothing(design):
    q, k, v = floats(1, 1, 4, 2, 20, 20, 8)
    e = Exponents(np.full((2, 8), 2), np.full((2, 8), 2))
    window = attend(design, q, k, v, exponents=e, draw=draw_for(1, 20))
    for t in (0, 1, 7, 19):
        one = attend(
            design,
            q[:, :, t : t + 1],
            k[:, :, : t + 1],
            v[:, :, : t + 1],
            exponents=e,
            draw=draw_for(1, 1, first=t),
        )
        assert (one.output[:, :, 0] == window.output[:, :, t]).all()
    k2, v2 = k.copy(), v.copy()
    k2[:, :, 12:], v2[:, :, 12:] = 3.0, -2.0
    changed = attend(design, q, k2, v2, exponents=e, draw=draw_for(1, 20))
    assert (changed.output[:, :, :12] == window.output[:, :, :12]).all()
    assert (changed.output[:, :, 12:] != window.output[:, :, 12:]).any()


def test_sliding_window_and_sinks_are_masks():
    """Masking keys gives what removing them gives: neither mask nor position of a key enters its weight."""
    design = Design(head_dim=8, samples=16)
    q, k, v = floats(2, 1, 2, 1, 1, 30, 8)
    e = Exponents(np.full((1, 8), 2), np.full((1, 8), 2))
    visible = np.zeros((1, 1, 30), dtype=bool)
    visible[..., [0, 1, *range(20, 30)]] = True
    masked = attend(design, q, k, v, exponents=e, draw=draw_for(1, 1), mask=visible)
    removed = attend(design, q, k[:, :, visible[0, 0]], v[:, :, visible[0, 0]], exponents=e, draw=draw_for(1, 1))
    assert (masked.output == removed.output).all()
    assert masked.tally.visible_keys == removed.tally.visible_keys == 24


def test_fixed_point_approaches_float_attention():
    """Against float64 softmax: wide dense codes within their quantisation, sampled ones within their error."""
    q, k, v = floats(4, 1, 4, 2, 16, 64, 16)
    fine = dict(
        head_dim=16,
        q_bits=16,
        k_bits=16,
        v_bits=16,
        score_bits=24,
        score_frac=12,
        weight_bits=28,
        max_keys=64,
    )
    e = Exponents(np.full((2, 16), 3), np.full((2, 16), 3))
    lengths = np.arange(49, 65)[None]
    s = np.einsum("bhtd,bhnd->bhtn", q, np.repeat(k, 2, axis=1)) / 4
    s[..., np.arange(64)[None] >= lengths[0][:, None]] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    want = p @ np.repeat(v, 2, axis=1)
    dense = attend(Design(method="dense", **fine), q, k, v, exponents=e, draw=draw_for(1, 16), lengths=lengths)
    assert np.abs(dense.output - want).max() < 2e-3
    means = [
        attend(Design(samples=16, **fine), q, k, v, exponents=e, draw=draw_for(1, 16, seed), lengths=lengths).output
        for seed in range(400)
    ]
    error = np.abs(np.mean(means, axis=0) - want) / (np.std(means, axis=0) / 20 + 2e-3)
    assert error.max() < 5.5, "of 1024 means of 400 draws, none strays 5.5 standard errors"
    nearly = attend(Design(samples=4096, **fine), q, k, v, exponents=e, draw=draw_for(1, 16), lengths=lengths)
    assert np.abs(nearly.output - want).max() < 2e-2


@pytest.mark.parametrize("sampler", ["systematic", "stratified", "iid"])
def test_tally_equals_what_the_trace_shows(sampler):
    design = Design(head_dim=8, samples=16, sampler=sampler, gather="shift_add", out_bits=6, out_frac=5)
    q, k, v = floats(11, 2, 6, 2, 12, 12, 8)
    e = Exponents(np.full((2, 8), 1), np.full((2, 8), 1))
    result = attend(design, q, 3 * k, 3 * v, exponents=e, draw=draw_for(2, 12), keep=INTERMEDIATES)
    counts, tally = result.trace["counts"], result.tally
    assert tally.head_steps == 2 * 6 * 12 and tally.group_steps == 2 * 2 * 12
    assert tally.visible_keys == 2 * 6 * 78 and tally.group_keys == 2 * 2 * 78
    assert tally.unique_rows == (counts > 0).sum()
    assert tally.group_rows == (counts.reshape(2, 2, 3, 12, 12) > 0).any(axis=2).sum()
    assert tally.value_terms == sum(int(c).bit_count() for c in counts.ravel())
    assert (counts.sum(axis=-1) == 16).all()
    assert tally.saturated_k == (np.abs(np.rint(3 * k * 64)) > 127).sum() > 0
    assert tally.saturated_v == (np.abs(np.rint(3 * v * 64)) > 127).sum() > 0
    assert tally.saturated_output > 0
    assert tally.lost_mass >= 0


def test_a_schedule_is_taken_by_layer():
    schedule = Schedule((Design(head_dim=8, samples=4), Design(head_dim=8, samples=64)))
    q, k, v = floats(15, 1, 2, 1, 3, 9, 8)
    e = Exponents(np.full((1, 8), 2), np.full((1, 8), 2))
    for layer, design in enumerate(schedule.designs):
        draw = draw_for(1, 3, layer=layer)
        scheduled = attend(schedule, q, k, v, exponents=e, draw=draw, keep=["counts"])
        assert (scheduled.trace["counts"].sum(axis=-1) == design.samples).all()
        assert (scheduled.output == attend(design, q, k, v, exponents=e, draw=draw).output).all()
    with pytest.raises(ValueError, match="layer = 2: the schedule has layers 0 to 1"):
        attend(schedule, q, k, v, exponents=e, draw=draw_for(1, 3, layer=2))
