"""The golden model against exact Python integers (tests/oracle.py), over designs, shapes and edges."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import draw_for, random_codes

from santa_hw.datapath import INTERMEDIATES, Codes, Draw, decode, step, weights_of
from santa_hw.design import Design
from santa_hw.rng import Purpose, words


def compare_with_oracle(design: Design, codes: Codes, draw: Draw, lengths=None, mask=None) -> None:
    """Every intermediate of every head step."""
    result = decode(design, codes, draw=draw, lengths=lengths, mask=mask, keep=INTERMEDIATES)
    batch, heads, rows, _ = codes.q.shape
    kv_heads, keys = codes.k.shape[1:3]
    group = heads // kv_heads
    saturated = 0
    for b in range(batch):
        for h in range(heads):
            for t in range(rows):
                n = int(lengths[b, t]) if lengths is not None else max(0, keys - rows + 1 + t)
                address = dict(
                    seed=draw.seed,
                    sequence=int(draw.sequence[b]),
                    position=int(draw.position[b, t]),
                    bits=design.rng_bits,
                )
                first = h if design.ternary_offset == "independent" else h - h % group
                offsets = words(
                    design.rng,
                    purpose=Purpose.OFFSET,
                    stream=draw.layer * heads + h,
                    count=design.offset_words,
                    **address,
                )
                query = words(
                    design.rng,
                    purpose=Purpose.TERNARY,
                    stream=draw.layer * heads + first,
                    count=design.ternary_words,
                    **address,
                )
                if design.ternary_draw == "iid":
                    query = query.reshape(design.head_dim, -1) if design.scores == "ternary" else query
                want = oracle.head_step(
                    design,
                    codes.q[b, h, t].tolist(),
                    codes.exponents[b, h, t].tolist(),
                    codes.k[b, h // group, :n].tolist(),
                    codes.v[b, h // group, :n].tolist(),
                    codes.v_exponents[h // group].tolist(),
                    [True] * n if mask is None else mask[b, t, :n].tolist(),
                    offsets.tolist(),
                    query.tolist(),
                )
                where = f"design {design}, batch {b}, head {h}, position {t}"
                for name in ("scores", "weights", "counts"):
                    if name in want:
                        got = result.trace[name][b, h, t]
                        assert got[:n].tolist() == want[name], f"{name}: {where}"
                        assert not got[n:].any(), f"{name} beyond the length: {where}"
                for name in ("mass", "accumulators", "output_codes", "offset"):
                    if name in want:
                        assert result.trace[name][b, h, t].tolist() == want[name], f"{name}: {where}"
                assert result.output[b, h, t].tolist() == want["output"], where
                if design.scores == "ternary":
                    assert result.trace["ternary_counts"][b, h, t].tolist() == want["factors"], where
                saturated += want["saturated_score"]
    assert result.tally.saturated_score == saturated


designs = st.builds(
    dict,
    method=st.sampled_from(["santa", "santa", "top-k", "dense"]),
    samples=st.sampled_from([1, 2, 4, 16, 64]),
    head_dim=st.sampled_from([4, 8]),
    q_bits=st.integers(2, 12),
    k_bits=st.integers(2, 12),
    v_bits=st.integers(2, 12),
    score_bits=st.integers(8, 18),
    score_frac=st.integers(0, 7),
    scores=st.sampled_from(["dense", "ternary"]),
    ternary_samples=st.sampled_from([1, 2, 8, 32]),
    ternary_draw=st.sampled_from(["stratified", "iid"]),
    ternary_offset=st.sampled_from(["shared", "independent"]),
    ternary_block=st.sampled_from([None, 2, 4]),
    weight_bits=st.integers(8, 32),
    exp=st.sampled_from(["table", "mitchell"]),
    weight_rounding=st.sampled_from(["floor", "half_up"]),
    sampler=st.sampled_from(["systematic", "stratified", "iid"]),
    rng=st.sampled_from(["threefry", "lfsr"]),
    rng_bits=st.sampled_from([11, 16, 31, 32]),
    gather=st.sampled_from(["repeated", "shift_add"]),
    out=st.sampled_from([(None, None), (8, 4), (16, 12), (12, -1)]),
    guard_bits=st.sampled_from([None, 0, 5]),
    max_keys=st.just(64),
)


@settings(max_examples=300, deadline=None)
@given(
    fields=designs,
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(1, 1, 1, 1, 1), (2, 6, 2, 2, 9), (1, 3, 1, 4, 4), (1, 4, 4, 1, 17)]),
    masked=st.booleans(),
)
def test_every_intermediate_equals_the_oracle(fields, seed, shape, masked):
    fields = dict(fields)
    fields["out_bits"], fields["out_frac"] = fields.pop("out")
    design = Design(**fields)
    rng = np.random.default_rng(seed)
    batch, heads, kv_heads, rows, keys = shape
    codes = random_codes(design, rng, batch, heads, kv_heads, rows, keys)
    lengths = rng.integers(0, keys + 1, (batch, rows)) if masked else None
    mask = rng.random((batch, rows, keys)) < 0.7 if masked else None
    compare_with_oracle(design, codes, draw_for(batch, rows, seed % 1000, layer=2), lengths, mask)


WIDE = [
    dict(q_bits=24, k_bits=24, head_dim=128, v_bits=8, score_bits=32, score_frac=9, max_keys=64, samples=4),
    dict(
        q_bits=24,
        k_bits=24,
        v_bits=20,
        score_bits=32,
        score_frac=9,
        weight_bits=32,
        max_keys=64,
        samples=4,
        guard_bits=0,
    ),
    dict(q_bits=16, k_bits=16, v_bits=16, score_bits=24, score_frac=8, weight_bits=31, max_keys=64),
    dict(q_bits=2, k_bits=2, v_bits=2, score_bits=4, score_frac=0, weight_bits=2, max_keys=64, samples=1),
    dict(q_bits=4, k_bits=4, v_bits=4, score_bits=8, score_frac=2, weight_bits=4, exp="mitchell", max_keys=64),
    dict(q_bits=13, k_bits=12, head_dim=4, score_bits=26, score_frac=9, weight_bits=30, max_keys=64),
]


@pytest.mark.parametrize("fields", WIDE)
@pytest.mark.parametrize("method", ["santa", "top-k", "dense"])
def test_width_extremes(fields, method):
    """Every tile type: float32, float64 and int64 dot products, 32- and 64-bit weights."""
    design = Design(**({"head_dim": 8} | fields), method=method)
    compare_with_oracle(design, random_codes(design, np.random.default_rng(1), keys=33, rows=2), draw_for(1, 2))


def test_tile_types_are_all_covered():
    kinds = {step.score_stage.tile_dtypes(Design(**({"head_dim": 8} | fields))) for fields in WIDE}
    assert kinds == {(np.float32, np.int32), (np.float64, np.int64), (np.int64, np.int64)}


@pytest.mark.parametrize("keys", [0, 1, 31, 32, 33, 127, 128, 129])
@pytest.mark.parametrize("samples", [1, 16])
def test_lengths_around_the_tile(keys, samples):
    design = Design(head_dim=4, samples=samples, max_keys=256)
    compare_with_oracle(design, random_codes(design, np.random.default_rng(keys), keys=keys, rows=1), draw_for(1, 1))


def edge_codes(design: Design, keys: int, fill: str) -> Codes:
    codes = random_codes(design, np.random.default_rng(7), heads=1, rows=1, keys=keys)
    q, k, v = codes.q, codes.k, codes.v
    if fill == "equal scores":
        k[...] = k[:, :, :1]
    elif fill == "one key holds all":
        q[...], k[...], codes.exponents[...] = 127, -127, 4
        k[0, 0, keys // 2] = 127
    elif fill == "extreme codes":
        q[...], k[...], v[...] = -127, 127, -127
    elif fill == "zeros":
        q[...], k[...], v[...] = 0, 0, 0
    return codes


@pytest.mark.parametrize("fill", ["equal scores", "one key holds all", "extreme codes", "zeros"])
@pytest.mark.parametrize("sampler", ["systematic", "stratified", "iid"])
@pytest.mark.parametrize("method", ["santa", "top-k", "dense"])
def test_named_edges(fill, sampler, method):
    design = Design(head_dim=8, samples=32, sampler=sampler, method=method, max_keys=64)
    codes = edge_codes(design, 9, fill)
    compare_with_oracle(design, codes, draw_for(1, 1))
    if method == "santa" and fill == "one key holds all":
        counts = decode(design, codes, draw=draw_for(1, 1), keep=["counts"]).trace["counts"]
        assert counts[0, 0, 0, 4] == 32


@pytest.mark.parametrize("method", ["santa", "top-k", "dense"])
@pytest.mark.parametrize("case", ["no keys", "all masked", "zero length"])
def test_empty_steps_are_zero_and_say_so(method, case):
    design = Design(head_dim=4, method=method, out_bits=8, out_frac=4)
    keys = 0 if case == "no keys" else 5
    codes = random_codes(design, np.random.default_rng(0), rows=2, keys=keys)
    mask = np.zeros((1, 2, keys), dtype=bool) if case == "all masked" else None
    lengths = np.full((1, 2), 0 if case != "all masked" else keys)
    result = decode(design, codes, draw=draw_for(1, 2), lengths=lengths, mask=mask)
    assert result.empty.all() and not result.output.any()
    assert result.tally.empty_steps == 4 and result.tally.unique_rows == 0


@pytest.mark.parametrize("bits", [6, 10, 16, 20, 32])
@pytest.mark.parametrize("rounding", ["floor", "half_up"])
def test_lost_mass_against_exact_arithmetic(bits, rounding):
    design = Design(head_dim=4, weight_bits=bits, weight_rounding=rounding, max_keys=64)
    codes = random_codes(design, np.random.default_rng(12), heads=1, rows=1, keys=50)
    codes.exponents[...] = 6
    result = decode(design, codes, draw=draw_for(1, 1), keep=["scores", "weights"])
    s, w = result.trace["scores"][0, 0, 0].tolist(), result.trace["weights"][0, 0, 0].tolist()
    wide = oracle.weights(design.replace(weight_rounding="floor"), s, [True] * 50, bits=32)
    lost = sum(max(0, b - (a << (32 - bits))) for a, b in zip(w, wide, strict=True)) / sum(wide)
    assert result.tally.mean_lost_mass == pytest.approx(lost, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("fields", [dict(), dict(weight_bits=6), dict(weight_rounding="half_up", score_frac=0)])
def test_weights_of_a_row_equal_the_oracle(fields):
    design = Design(max_keys=64, **fields)
    rng = np.random.default_rng(14)
    s, visible = rng.integers(-600, 600, 50), rng.random(50) < 0.8
    for mask in (None, visible, np.zeros(50, dtype=bool)):
        row = weights_of(design, s, mask)
        assert row.weights.tolist() == oracle.weights(
            design, s.tolist(), [True] * 50 if mask is None else mask.tolist()
        )
        assert row.mass == row.weights.sum() and 0 <= row.lost_mass < 1
    assert weights_of(design, []).mass == 0
    with pytest.raises(ValueError, match="scores reach"):
        weights_of(design, [1 << 15])
    with pytest.raises(ValueError, match="max_keys = 64"):
        weights_of(design, np.zeros(65, dtype=int))


FAULTS = {
    "weights": lambda m: (m.setitem(vars(oracle), "half_up", lambda x: oracle.floor(x)), None),
    "table": lambda m: m.setattr(oracle, "table", lambda f, w, e: [x ^ 1 for x in ORIGINAL_TABLE(f, w, e)]),
    "offset": lambda m: m.setattr(
        oracle,
        "thresholds",
        lambda d, z, r: ([u + 1 for u in ORIGINAL_THRESHOLDS(d, z, r)[0]], ORIGINAL_THRESHOLDS(d, z, r)[1]),
    ),
    "counts": lambda m: m.setattr(
        oracle, "counts", lambda d, w, r: (ORIGINAL_COUNTS(d, w, r)[0][::-1], ORIGINAL_COUNTS(d, w, r)[1])
    ),
}
ORIGINAL_TABLE, ORIGINAL_THRESHOLDS, ORIGINAL_COUNTS = oracle.table, oracle.thresholds, oracle.counts


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_sees_a_planted_fault(fault, monkeypatch):
    design = Design(head_dim=8, samples=16)
    codes = random_codes(design, np.random.default_rng(2), keys=20)
    compare_with_oracle(design, codes, draw_for(1, 3))
    FAULTS[fault](monkeypatch)
    with pytest.raises(AssertionError):
        compare_with_oracle(design, codes, draw_for(1, 3))
