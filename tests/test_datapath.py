"""The golden model against exact Python integers (tests/oracle.py), over designs, shapes and edges."""

from __future__ import annotations

import numba
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_hw.datapath import (
    INTERMEDIATES,
    Codes,
    Draw,
    Exponents,
    attend,
    decode,
    encode,
    parallel,
    step,
    ternary_counts,
    ternary_vectors,
    weights_of,
)
from santa_hw.design import Design, Schedule
from santa_hw.rng import Purpose, words


def draw_for(batch: int, rows: int, seed: int = 0, layer: int = 0, first: int = 0) -> Draw:
    return Draw(seed, layer, np.arange(batch), np.tile(np.arange(first, first + rows), (batch, 1)))


def random_codes(design: Design, rng: np.random.Generator, batch=1, heads=2, kv_heads=1, rows=3, keys=7) -> Codes:
    def code(bits: int, shape: tuple[int, ...]) -> np.ndarray:
        limit = (1 << (bits - 1)) - 1
        return rng.integers(-limit, limit + 1, shape)

    d = design.head_dim
    top = design.q_bits - 1 + design.k_bits - 1 - design.score_frac
    return Codes(
        q=code(design.q_bits, (batch, heads, rows, d)).astype(np.int32),
        exponents=rng.integers(-3, min(8, top + 3) + 1, (batch, heads, rows, design.blocks)).astype(np.int32),
        k=code(design.k_bits, (batch, kv_heads, keys, d)).astype(np.int32),
        v=code(design.v_bits, (batch, kv_heads, keys, d)).astype(np.int32),
        v_exponents=rng.integers(-2, 5, (kv_heads, d)),
        saturations={"q": 0, "k": 0, "v": 0},
    )


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


def floats(seed: int, batch: int, heads: int, kv_heads: int, rows: int, keys: int, dim: int):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(batch, h, n, dim)) for h, n in ((heads, rows), (kv_heads, keys), (kv_heads, keys))]


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


def test_query_exponent_and_codes():
    design = Design(head_dim=2, q_bits=8, k_exponents="per_head", v_exponents="per_head")
    q = np.array([[[[0.0, 0.0], [1.0, -0.5], [127 / 128, 0.25], [3e-12, 0]]]])
    codes = encode(design, q, q, q, Exponents(np.array([[1]]), np.array([[2]])), scale=1 / np.log2(np.e))
    # e = the query's exponent + the keys' 1; zeros take e_min; 1.0 needs e = 1 (128 does not fit), 127/128 fits e = 0.
    assert codes.exponents[0, 0, :, 0].tolist() == [-31, 2, 1, -31]
    assert codes.q[0, 0, :3].tolist() == [[0, 0], [64, -32], [127, 32]]
    assert codes.k[0, 0].tolist() == [[0, 0], [64, -32], [64, 16], [0, 0]]  # 63.5 rounds half to even


def test_k_channel_exponents_fold_into_the_query():
    """Per channel, q*2^e_i against k/2^e_i: exponents that differ by channel leave the exact score unchanged."""
    q, k, v = floats(5, 1, 1, 1, 1, 16, 8)
    spread = np.ldexp(1.0, np.arange(8) - 4)
    e = Exponents((np.arange(8) - 4 + 2)[None], np.full((1, 8), 2))
    design = Design(head_dim=8, q_bits=12, k_bits=12, score_bits=20, score_frac=8)
    plain = attend(
        design,
        q,
        k,
        v,
        exponents=Exponents(np.full((1, 8), 2), np.full((1, 8), 2)),
        draw=draw_for(1, 1),
        keep=["scores"],
    )
    folded = attend(design, q / spread, k * spread, v, exponents=e, draw=draw_for(1, 1), keep=["scores", "k_codes"])
    assert (folded.trace["scores"] == plain.trace["scores"]).all()


def test_static_exponents_never_rewrite_a_stored_code_and_count_saturations():
    design = Design(head_dim=4)
    q, k, v = floats(6, 1, 1, 1, 1, 10, 4)
    e = Exponents(np.full((1, 4), 2), np.full((1, 4), 2))
    first = encode(design, q, k, v, e)
    assert first.saturations["k"] == 0
    longer = np.concatenate([k, np.full((1, 1, 1, 4), 100.0)], axis=2)
    second = encode(design, q, longer, np.concatenate([v, v[:, :, :1]], axis=2), e)
    assert (second.k[:, :, :10] == first.k).all()
    assert second.saturations["k"] - first.saturations["k"] == 4
    assert second.k[0, 0, 10].tolist() == [127] * 4
    third = encode(design, q, np.concatenate([longer, k[:, :, :1]], axis=2), np.zeros((1, 1, 12, 4)), e)
    assert third.saturations["k"] == 0, "the clipped row was counted when it was the newest"


@pytest.mark.parametrize("beta_extra", [0, 2])
@pytest.mark.parametrize("block", [None, 4])
def test_ternary_budget_of_f_bits_equals_dense(beta_extra, block):
    """beta >= q_bits - 1: every count is exact, so all that follows equals dense scores bit for bit."""
    fields = dict(head_dim=8, q_bits=6, score_frac=5)
    codes = random_codes(Design(**fields), np.random.default_rng(8), rows=4, keys=40)
    dense = decode(Design(**fields), codes, draw=draw_for(1, 4), keep=["scores", "counts"])
    ternary_design = Design(**fields, scores="ternary", ternary_samples=1 << (5 + beta_extra))
    ternary = decode(ternary_design, codes, draw=draw_for(1, 4), keep=["scores", "counts"])
    assert (ternary.trace["scores"] == dense.trace["scores"]).all()
    assert (ternary.output == dense.output).all()
    assert ternary.tally.feature_reads == dense.tally.feature_reads or (codes.q == 0).any()


@pytest.mark.parametrize("samples", [1, 4, 16])
def test_stratified_ternary_draw_is_stochastic_rounding(samples):
    """Over all words of R bits, the counts of |q| average to B*|q|/2^f exactly, and take only the two neighbours."""
    design = Design(head_dim=1, q_bits=6, scores="ternary", ternary_samples=samples, rng_bits=8)
    everything = np.arange(256, dtype=np.uint32)[:, None]
    for code in range(-31, 32):
        counts = ternary_counts(design, np.full((256, 1), code, dtype=np.int32), everything)
        assert int(counts.sum()) * 32 == 256 * samples * code
        low = abs(code) * samples // 32
        assert set(np.abs(counts).ravel().tolist()) <= {low, low + 1}


@pytest.mark.parametrize("kind", ["stratified", "iid"])
def test_ternary_vectors_sum_to_the_counts(kind):
    design = Design(head_dim=16, scores="ternary", ternary_samples=8, ternary_draw=kind)
    rng = np.random.default_rng(9)
    q = rng.integers(-127, 128, (2, 3, 16)).astype(np.int32)
    shape = (2, 3, 16, 8) if kind == "iid" else (2, 3, 16)
    drawn = rng.integers(0, 2**32, shape, dtype=np.uint32)
    vectors = ternary_vectors(design, q, drawn)
    assert vectors.shape == (8, 2, 3, 16) and set(np.unique(vectors)) <= {-1, 0, 1}
    assert (vectors.sum(axis=0) == ternary_counts(design, q, drawn)).all()


def test_shared_ternary_draw_reads_fewer_features():
    q, k, v = floats(10, 1, 6, 2, 8, 32, 32)
    e = Exponents(np.full((2, 32), 2), np.full((2, 32), 2))
    reads = {}
    for offset in ("shared", "independent"):
        design = Design(head_dim=32, scores="ternary", ternary_samples=4, ternary_offset=offset)
        result = attend(design, q, k, v, exponents=e, draw=draw_for(1, 8), keep=["ternary_counts"])
        union = (result.trace["ternary_counts"].reshape(1, 2, 3, 8, 32) != 0).any(axis=2).sum(axis=-1)
        lengths = np.arange(25, 33)
        assert result.tally.feature_reads == (union * lengths).sum()
        reads[offset] = result.tally.features_read
    assert reads["shared"] < reads["independent"] < 1


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


BAD = [
    ("q holds NaN", lambda a: a["q"].__setitem__((0, 0, 0, 0), np.nan)),
    ("k holds NaN", lambda a: a["k"].__setitem__((0, 0, 3, 1), np.inf)),
    ("v holds NaN", lambda a: a["v"].__setitem__((0, 0, 3, 1), -np.inf)),
    (r"q has shape", lambda a: a.update(q=a["q"][..., :3])),
    (r"equal shapes", lambda a: a.update(v=a["v"][:, :, :3])),
    (r"multiple of the 2 KV heads", lambda a: a.update(q=a["q"][:, :3])),
    (r"dtype int64", lambda a: a.update(k=a["k"].astype(int))),
    (
        r"exponents.k: int64 \(2, 1\)",
        lambda a: a.update(exponents=Exponents(np.zeros((2, 1), int), np.zeros((2, 4), int))),
    ),
    (
        r"exponents.v reach 0 to 99",
        lambda a: a.update(exponents=Exponents(np.zeros((2, 4), int), np.eye(2, 4, dtype=int) * 99)),
    ),
    (r"lengths reach", lambda a: a.update(lengths=np.array([[1, 9]]))),
    (r"lengths has shape", lambda a: a.update(lengths=np.array([1]))),
    (r"mask is int64", lambda a: a.update(mask=np.ones((1, 2, 5), dtype=int))),
    (r"draw.position has shape", lambda a: a.update(draw=draw_for(1, 3))),
    (r"scale = -1", lambda a: a.update(scale=-1.0)),
    (r"keep holds 'score'", lambda a: a.update(keep=["score"])),
    (r"at most max_keys = 4", lambda a: a.update(design=Design(head_dim=4, max_keys=4))),
]


@pytest.mark.parametrize(("message", "spoil"), BAD, ids=[m for m, _ in BAD])
def test_bad_input_names_the_argument(message, spoil):
    q, k, v = floats(13, 1, 4, 2, 2, 5, 4)
    arguments = dict(
        design=Design(head_dim=4), q=q, k=k, v=v, draw=draw_for(1, 2),
        exponents=Exponents(np.zeros((2, 4), int), np.zeros((2, 4), int)),
    )  # fmt: skip
    attend(**arguments)
    spoil(arguments)
    with pytest.raises(ValueError, match=message):
        attend(**arguments)


def test_code_out_of_range_is_refused():
    design = Design(head_dim=4)
    codes = random_codes(design, np.random.default_rng(0))
    codes.k[0, 0, 0, 0] = -128
    with pytest.raises(ValueError, match=r"codes\.k reach -128 to \d+: -127 to 127 is allowed"):
        decode(design, codes, draw=draw_for(1, 3))


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
