"""Tallies of shapes against tallies of runs, closed forms against counts, operations against arithmetic by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_hw.datapath import Draw, Exponents, Result, attend
from santa_hw.design import Design
from santa_hw.events import (
    KINDS,
    METHODS,
    SHAPES,
    STAGES,
    Layout,
    Operation,
    Shape,
    Tally,
    analytic,
    bounded,
    expected_ternary,
    heap_insertions,
    operations,
    shape_named,
    total,
    traffic,
    value_element,
    workload,
)

DATA = ("unique_rows", "group_rows", "value_terms", "feature_reads", "score_terms")
"""What depends on the data, for some methods."""


def run(design: Design, batch: int, heads: int, kv_heads: int, keys: int, seed: int = 0, mask=None) -> Result:
    """One decode step of every head."""
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.normal(size=(batch, h, n, design.head_dim)) for h, n in ((heads, 1), (kv_heads, keys), (kv_heads, keys))
    )
    e = Exponents(np.full((kv_heads, design.head_dim), 2), np.full((kv_heads, design.head_dim), 2))
    draw = Draw(seed, 0, np.arange(batch), np.full((batch, 1), keys))
    return attend(design, q, k, v, exponents=e, draw=draw, mask=mask, keep=["counts", "ternary_counts"])


def means(tally: Tally) -> dict[str, float]:
    """A tally's data-dependent means, as `analytic` takes them."""
    active = max(1, tally.head_steps - tally.empty_steps)
    return {
        "unique_rows": tally.unique_rows / active,
        "group_rows": tally.group_rows / max(1, tally.group_steps),
        "value_terms": tally.value_terms / active,
        "features": tally.feature_reads / max(1, tally.group_keys),
        "additions": tally.score_terms / max(1, tally.visible_keys),
    }


def counts(found: tuple[Operation, ...], stage: str) -> dict[str, int]:
    """Operations of a stage by kind, widths put together."""
    sums: dict[str, int] = {}
    for operation in found:
        if operation.stage == stage:
            sums[operation.kind] = sums.get(operation.kind, 0) + operation.count
    return sums


designs = st.builds(
    Design,
    method=st.sampled_from(["santa", "top-k", "dense"]),
    samples=st.sampled_from([1, 2, 8, 32]),
    head_dim=st.sampled_from([1, 4, 8]),
    max_keys=st.just(64),
    scores=st.sampled_from(["dense", "ternary"]),
    ternary_samples=st.sampled_from([1, 8]),
    ternary_draw=st.sampled_from(["stratified", "iid"]),
    ternary_offset=st.sampled_from(["shared", "independent"]),
    sampler=st.sampled_from(["systematic", "stratified", "iid"]),
    gather=st.sampled_from(["repeated", "shift_add"]),
)


@settings(max_examples=60, deadline=None)
@given(design=designs, batch=st.integers(1, 2), kv=st.integers(1, 2), group=st.integers(1, 3), keys=st.integers(0, 40),
       seed=st.integers(0, 99))  # fmt: skip
def test_analytic_equals_counted(design, batch, kv, group, keys, seed):
    counted = run(design, batch, kv * group, kv, keys, seed).tally
    shape = Shape(kv * group, kv, design.head_dim, batch=batch)
    ignored = dict.fromkeys(("saturated_q", "saturated_k", "saturated_v", "saturated_score", "saturated_output"), 0)
    counted = dataclasses.replace(counted, lost_mass=0.0, **ignored)
    # With the means given, in everything; every operation too, on any layout.
    same = analytic(design, shape, keys, **means(counted))
    assert same == counted
    layout = Layout("feature", burst_bytes=4, row_bytes=64, interleave_bytes=16)
    assert operations(design, same, layout) == operations(design, counted, layout)
    # Without them, in what the shape determines, and above the count elsewhere.
    bound = analytic(design, shape, keys)
    for field in dataclasses.fields(Tally):
        a, b = getattr(bound, field.name), getattr(counted, field.name)
        assert a >= b if field.name in DATA else a == b, field.name
    determined = set(DATA) - {
        {"features": "feature_reads", "additions": "score_terms"}.get(name, name) for name in bounded(design, {})
    }
    for name in determined:
        assert getattr(bound, name) == getattr(counted, name), name


def test_the_comparison_can_fail():
    design, shape = Design(head_dim=8), Shape(2, 1, 8)
    counted = run(design, 1, 2, 1, 9).tally
    assert analytic(design, shape, 9).visible_keys == counted.visible_keys
    assert analytic(design, shape, 10).visible_keys != counted.visible_keys
    assert operations(design, counted) != operations(design, dataclasses.replace(counted, value_terms=1))


# The paper's closed forms, by plain arithmetic: N keys, d features, S samples or k keys, for one head.
TABLE_8 = {
    "dense": lambda n, d, s: {"add": n * d, "multiply": n * d, "reads": n * d},
    "top-k": lambda n, d, s: {"add": s * d, "multiply": s * d, "reads": s * d},
    "santa": lambda n, d, s: {"add": s * d, "multiply": 0, "reads": s * d},
}


@pytest.mark.parametrize("method", list(TABLE_8))
@pytest.mark.parametrize(("n", "s"), [(40, 8), (33, 32), (32, 1)])
@pytest.mark.parametrize("sampler", ["systematic", "stratified", "iid"])
def test_value_stage_has_the_counts_of_table_8(method, n, s, sampler):
    design = Design(method=method, samples=s, head_dim=8, max_keys=64, sampler=sampler)
    result = run(design, 1, 1, 1, n)
    found = operations(design, result.tally)
    value, expected = counts(found, "value"), TABLE_8[method](n, 8, s)
    assert value.get("add", 0) == expected["add"]
    assert value.get("multiply", 0) == expected["multiply"]
    assert value.get("shift", 0) == counts(found, "normalise").get("multiply", 0) == 0
    assert traffic(design, result.tally)["value_rows"] * 8 == expected["reads"]
    if method == "santa":
        assert counts(found, "normalise") == {}
        words = {"systematic": 1, "stratified": s, "iid": s}[sampler]
        assert counts(found, "random words")["shift"] == -(-words // 2) * 20
        assert counts(found, "mass")["add"] == n


@pytest.mark.parametrize(("draw", "n"), [("stratified", 17), ("iid", 5)])
def test_score_stage_has_the_counts_of_table_10(draw, n):
    """Ternary scores: no multiplication; one addition a non-zero entry of the B vectors and key; and only features
    with such an entry are read.
    """
    design = Design(head_dim=8, samples=4, scores="ternary", ternary_samples=4, ternary_draw=draw, max_keys=32)
    result = run(design, 1, 2, 1, n)
    ternary = np.abs(result.trace["ternary_counts"][0, :, 0])
    found = operations(design, result.tally, Layout("feature", burst_bytes=1))
    assert counts(found, "score").get("multiply", 0) == 0
    assert counts(found, "score")["add"] == int(ternary.sum()) * n
    assert counts(found, "key rows")["dram-read"] == int((ternary > 0).any(axis=0).sum()) * n
    dense = design.replace(scores="dense")
    found = operations(dense, run(dense, 1, 2, 1, n).tally)
    assert counts(found, "score")["multiply"] == counts(found, "score")["add"] == 2 * n * 8


def test_one_row_by_hand():
    """One head, d = 4, five keys, S = 2, systematic, everything counted with pencil and paper."""
    design = Design(samples=2, head_dim=4, max_keys=8)
    tally = analytic(design, Shape(1, 1, 4), 5)
    found = {
        (o.stage, o.name): o.count
        for o in operations(design, tally, Layout(burst_bytes=4, row_bytes=16, interleave_bytes=8))
    }
    assert found == {
        ("query", "sram-read 16 bit of 8192 B"): 4,
        ("query", "shift int16"): 8,
        ("query", "compare int16"): 4,
        ("query", "sram-read 6 bit of 8192 B"): 4,
        ("key rows", "dram-read 32 bit"): 5,
        ("key rows", "activation"): 2,
        ("key rows", "sram-write 32 bit of 8192 B"): 5,
        ("key rows", "sram-read 32 bit of 8192 B"): 5,
        ("random words", "add int32"): 37,
        ("random words", "xor int32"): 22,
        ("random words", "shift int32"): 20,
        ("score", "multiply int8x8"): 20,
        ("score", "add int17"): 20,
        ("score", "shift int17"): 5,
        ("score", "compare int16"): 10,
        ("score memory", "sram-write 16 bit of 16 B"): 5,
        ("score memory", "sram-read 16 bit of 16 B"): 10,
        ("maximum", "compare int11"): 5,
        ("exponential", "add int11"): 10,
        ("exponential", "sram-read 16 bit of 64 B"): 10,
        ("exponential", "shift int16"): 10,
        ("mass", "add int19"): 5,
        ("mass", "register int19"): 5,
        ("offset", "add int19"): 32,
        ("offset", "register int19"): 32,
        ("sampler", "add int20"): 7,
        ("sampler", "register int20"): 7,
        ("sampler", "register int5"): 2,
        ("value rows", "dram-read 32 bit"): 2,
        ("value rows", "activation"): 2,
        ("value rows", "sram-write 32 bit of 8192 B"): 2,
        ("value rows", "sram-read 32 bit of 8192 B"): 2,
        ("value", "add int9"): 8,
        ("accumulators", "register int17"): 5,
        ("accumulators", "register int9"): 8,
        ("output", "sram-write 9 bit of 8192 B"): 4,
        ("append", "dram-write 32 bit"): 2,
        ("append", "activation"): 2,
        ("append", "shift int16"): 8,
        ("append", "compare int16"): 16,
    }  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_stages_and_kinds_are_known(method):
    made = workload(method, Shape(4, 2, 8), 100, samples=4)
    for operation in operations(made.design, made.tally, numbers=made.numbers):
        assert operation.stage in STAGES and operation.kind in KINDS and operation.count > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keys", [0, 1])
def test_no_key_and_one_key(method, keys):
    made = workload(method, Shape(4, 2, 8), keys, samples=4)
    found = operations(made.design, made.tally, numbers=made.numbers)
    stages = {operation.stage for operation in found}
    if keys == 0:
        # An empty step still stores its own key and value, and fetches no query.
        assert stages <= {"append"} and made.tally.empty_steps == 4
    else:
        assert made.tally.unique_rows == 4 and made.tally.group_rows == 2
        assert counts(found, "key rows")["dram-read"] > 0
    assert operations(made.design, Tally(), numbers=made.numbers) == ()


def test_counted_empty_steps_do_only_what_their_unseen_keys_leave():
    design = Design(head_dim=8, samples=4)
    mask = np.zeros((2, 1, 6), dtype=bool)
    mask[1] = True
    half = run(design, 2, 4, 2, 6, mask=mask)
    assert half.tally.empty_steps == 4
    one = analytic(design, Shape(4, 2, 8), 6, **means(run(design, 2, 4, 2, 6, mask=mask).tally) | {"group_rows": 3})
    assert counts(operations(design, half.tally), "offset") == counts(operations(design, one), "offset")


@pytest.mark.parametrize("method", METHODS)
def test_doubling_keys_doubles_what_it_should(method):
    """With the rows read held, everything a key costs doubles and nothing else changes."""
    shape = Shape(4, 2, 64)
    design = Design(max_keys=4096)
    found = []
    for keys in (1024, 2048):
        made = workload(method, shape, keys, design=design, samples=16)
        found.append(operations(made.design, made.tally, numbers=made.numbers))
    per_key = ["key rows", "score"]
    fixed = ["query", "random words", "offset", "output", "append"]
    if method not in ("top-k",):
        per_key += ["maximum", "exponential", "mass"]
    if method.startswith("dense"):
        per_key += ["value", "value rows"]
    else:
        fixed += ["value", "value rows"]
    if method not in ("dense-bf16", "dense-fp16", "top-k"):
        per_key += ["score memory"]
    for stage in per_key:
        once, twice = (counts(operations_, stage) for operations_ in found)
        assert twice == {kind: 2 * count for kind, count in once.items()}, stage
        assert once, stage
    for stage in fixed:
        assert counts(found[0], stage) == counts(found[1], stage), stage
    if method in ("santa", "santa-ternary"):
        once, twice = (counts(operations_, "sampler")["add"] for operations_ in found)
        assert twice - 4 * 16 == 2 * (once - 4 * 16)


def test_batch_and_layers_multiply_everything():
    design = Design(head_dim=8, samples=4)
    one = analytic(design, Shape(4, 2, 8), 64)
    assert analytic(design, Shape(4, 2, 8, layers=3, batch=2), 64) == total([one] * 6)


def test_samplers_differ_where_they_should():
    shape, n, s = Shape(1, 1, 8), 100, 16
    made = {
        name: operations(design, analytic(design, shape, n))
        for name in ("systematic", "stratified", "iid")
        for design in [Design(samples=s, head_dim=8, sampler=name)]
    }
    assert counts(made["systematic"], "sampler")["add"] == n + s
    assert counts(made["stratified"], "sampler")["add"] == n + 3 * s
    assert counts(made["iid"], "sampler")["add"] == n
    exchanges = s // 2 * 4 * 5 // 2  # a bitonic network of 16
    assert counts(made["iid"], "sampler")["compare"] == exchanges + n + s
    assert counts(made["systematic"], "offset")["add"] == 32
    assert counts(made["iid"], "offset")["add"] == 32 * s
    low = Design(samples=s, head_dim=8, rng="lfsr")
    assert counts(operations(low, analytic(low, shape, n)), "random words") == {"xor": 32, "register": 32}


def test_bitonic_exchanges_sort():
    """The count that i.i.d. sampling is charged is that of a network which sorts."""
    for sigma in range(6):
        n = 1 << sigma
        values, exchanges = list(np.random.default_rng(sigma).permutation(n)), 0
        for size in (2 << i for i in range(sigma)):
            step = size // 2
            while step:
                for i in range(n):
                    j = i ^ step
                    if j > i:
                        exchanges += 1
                        if (values[i] > values[j]) == ((i & size) == 0):
                            values[i], values[j] = values[j], values[i]
                step //= 2
        assert values == sorted(values)
        assert exchanges == n // 2 * sigma * (sigma + 1) // 2


def test_threefry_operations_are_those_of_the_generator():
    """Count what the generator's own arithmetic does, on numbers that count."""
    from santa_hw import rng
    from santa_hw.events.operation import THREEFRY_ADDS, THREEFRY_ROTATIONS, THREEFRY_XORS

    done = {"add": 0, "xor": 0, "rotate": 0}

    class Counting:
        def __init__(self, value):
            self.value = int(value) & 0xFFFFFFFF

        def __add__(self, other):
            done["add"] += 1
            return Counting(self.value + int(other))

        def __xor__(self, other):
            done["xor"] += 1
            return Counting(self.value ^ int(other))

        def __int__(self):
            return self.value

    class Namespace:
        @staticmethod
        def uint32(x):
            return x if isinstance(x, Counting) else Counting(x)

    def rotate(x, places):
        done["rotate"] += 1
        return Counting(x.value << places | x.value >> (32 - places))

    def plain(function):
        source = function.py_func
        return type(source)(source.__code__, names)

    names = dict(vars(rng)) | {"np": Namespace, "_rotate": rotate}
    names |= {name: plain(getattr(rng, name)) for name in ("_even_rounds", "_odd_rounds")}
    words = plain(rng.threefry2x32)(0, 0, 0, 0)
    assert [w.value for w in words] == [0x6B200159, 0x99BA4EFE]
    assert done == {"add": THREEFRY_ADDS, "xor": THREEFRY_XORS, "rotate": THREEFRY_ROTATIONS}


def test_heap_insertions_are_expected_for_random_order():
    rng, k, n = np.random.default_rng(1), 8, 500
    entered = []
    for _ in range(200):
        best = []
        entered.append(0)
        for score in rng.permutation(n):
            if len(best) < k or score > best[0]:
                best = sorted([*best[-k:], score])[-k:]
                entered[-1] += 1
    assert heap_insertions(n, k) == pytest.approx(np.mean(entered), rel=0.05)
    assert heap_insertions(5, 8) == 5 and heap_insertions(8, 8) == 8


@pytest.mark.parametrize("offset", ["shared", "independent"])
@pytest.mark.parametrize("kind", ["stratified", "iid"])
def test_expected_ternary_is_the_datapath_on_normal_queries(offset, kind):
    design = Design(head_dim=16, scores="ternary", ternary_samples=4, ternary_offset=offset, ternary_draw=kind,
                    k_exponents="per_head")  # fmt: skip
    rng = np.random.default_rng(5)
    rows = 1000
    q, k = rng.normal(size=(1, 3, rows, 16)), np.zeros((1, 1, 1, 16))
    draw = Draw(0, 0, np.zeros(1, int), np.arange(rows)[None])
    e = Exponents(np.zeros((1, 1), int), np.zeros((1, 16), int))
    tally = attend(design, q, k, k, exponents=e, draw=draw, scale=1.0, lengths=np.ones((1, rows), int)).tally
    features, additions = expected_ternary(design, 3)
    assert features == pytest.approx(tally.feature_reads / tally.group_keys, rel=0.02)
    assert additions == pytest.approx(tally.score_terms / tally.visible_keys, rel=0.03)


# Layout ---------------------------------------------------------------------------------------------------------------


def test_key_layout_decides_whether_a_skipped_feature_saves_anything():
    design = Design(head_dim=8, scores="ternary", samples=4, max_keys=4096)
    shape = Shape(1, 1, 8)
    reads = {}
    for layout in ("row", "feature"):
        for features in (8, 2):
            tally = analytic(design, shape, 4096, features=features, additions=4)
            found = operations(design, tally, Layout(layout))
            reads[layout, features] = counts(found, "key rows")["dram-read"]
            writes = counts(found, "append")
            assert writes["dram-write"] == (2 if layout == "row" else 8 + 1)
    assert reads["row", 2] == reads["row", 8] == reads["feature", 8] == 4 * reads["feature", 2] == 1024


def test_rows_read_alone_cost_bursts_and_activations():
    # 24 bytes in bursts of 16 and pieces of 8: two bursts, three openings a row.
    design = Design(head_dim=24, samples=2, max_keys=4096)
    tally = analytic(design, Shape(1, 1, 24), 4000)
    found = counts(operations(design, tally, Layout(burst_bytes=16, row_bytes=64, interleave_bytes=8)), "value rows")
    assert (found["dram-read"], found["activation"]) == (2 * 2, 2 * 3)


def test_reading_all_rows_one_by_one_costs_no_more_than_a_stream():
    design = Design(head_dim=4, samples=64, method="top-k")
    stream, alone = (
        counts(operations(d, analytic(d, Shape(1, 1, 4), 64)), "value rows")
        for d in (design.replace(method="dense"), design)
    )
    assert alone == stream


def test_scores_beyond_the_score_memory_go_to_dram():
    design = Design(samples=4, head_dim=8, max_keys=1024)
    tally = analytic(design, Shape(2, 1, 8), 1000)
    whole = counts(operations(design, tally), "score memory")
    part = counts(operations(design, tally, Layout(score_memory_bytes=500)), "score memory")
    none = counts(operations(design, tally, Layout(score_memory_bytes=0)), "score memory")
    assert whole["sram-write"] == 2000 and "dram-write" not in whole
    kept = part["sram-read"] // 2 + 0
    assert part["dram-write"] == math.ceil(2 * 750 * 16 / 256) and part["dram-read"] == math.ceil(2 * 750 * 32 / 256)
    assert kept >= 2 * 250 and none["dram-write"] == 125


# Bad input ------------------------------------------------------------------------------------------------------------

BAD = [
    (r"method = 'snata' \(did you mean santa\?\): allowed are", lambda: workload("snata", Shape(1, 1, 8), 9)),
    (r"shape = 'lama-3.1-8b' \(did you mean llama-3.1-8b\?\)", lambda: shape_named("lama-3.1-8b")),
    (r"samples = 0: allowed is 1 to 65536", lambda: workload("santa", Shape(1, 1, 8), 9, samples=0)),
    (r"samples = 0: allowed is 1 to 65536", lambda: workload("top-k", Shape(1, 1, 8), 9, top_k=0)),
    (r"samples = 100: a power of two", lambda: workload("santa", Shape(1, 1, 8), 9, samples=100)),
    (r"keys = -1: 0 to max_keys = 4096", lambda: analytic(Design(), Shape(1, 1, 64), -1)),
    (r"keys = 5000: 0 to max_keys = 4096", lambda: analytic(Design(), Shape(1, 1, 64), 5000)),
    (r"head_dim = 8: the design's 64", lambda: analytic(Design(), Shape(1, 1, 8), 9)),
    (r"kv_heads = 2: a divisor of heads = 3", lambda: Shape(3, 2, 8)),
    (r"batch = 0: 1 or more", lambda: Shape(2, 2, 8, batch=0)),
    (r"unique_rows = 65: 0 to 64", lambda: analytic(Design(), Shape(1, 1, 64), 100, unique_rows=65)),
    (r"group_rows = 9: 0 to 8", lambda: analytic(Design(), Shape(4, 1, 64), 100, unique_rows=2, group_rows=9)),
    (r"key_layout = 'column': allowed are row, feature", lambda: Layout("column")),
    (r"burst_bytes = 0: 1 or more", lambda: Layout(burst_bytes=0)),
    (r"score_memory_bytes = -1: 0 or more", lambda: Layout(score_memory_bytes=-1)),
    (r"numbers = 'fp8': allowed are int, bf16", lambda: operations(Design(), Tally(), numbers="fp8")),
    (r"numbers = 'fp16': int is allowed with method = santa", lambda: operations(Design(), Tally(), numbers="fp16")),
    (r"method = 'iid': allowed are santa, top-k, dense", lambda: value_element("iid", 4, "fp32")),
    (r"numbers = 'int': allowed are bf16, fp16, fp32", lambda: value_element("santa", 4, "int")),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call"), BAD, ids=[m for m, _ in BAD])
def test_bad_input_is_named(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_shapes_divide():
    assert SHAPES["llama-3.1-8b"] == Shape(32, 8, 128, 32) == shape_named("llama-3.1-8b")
    assert SHAPES["smollm2-135m"].group == 3
