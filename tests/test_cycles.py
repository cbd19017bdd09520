"""Cycles against pencil and paper, a clocked walk over real counts, and a simulated pipeline."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from santa_hw.cycles import Machine, cycles, sampler_cycles, step_cycles
from santa_hw.datapath import Draw, Exponents, attend
from santa_hw.design import Design
from santa_hw.events import METHODS, SHAPES, Layout, Shape, Tally, analytic, workload

SLOW_MEMORY = Machine(engines=1, lanes=4, clock_ghz=1.0, bandwidth_gb_s=1.0, latency_ns=10.0, outstanding=1)
"""Eight bits a cycle."""


def made(method: str, shape: Shape, keys: int, machine: Machine, **options):
    w = workload(method, shape, keys, **options)
    heads = shape.heads * shape.batch
    return cycles(w.design, w.tally, Layout(), machine, parallel_heads=heads, numbers=w.numbers)


def test_one_head_by_hand():
    """d = 8 on four lanes, 1000 keys, S = 16, one engine, a byte a cycle."""
    found = made("santa", Shape(1, 1, 8), 1000, SLOW_MEMORY, samples=16)
    assert found.stages["query"] == 8
    assert found.stages["score"] == 1000 * 2
    assert found.stages["mass"] == 1000
    assert found.stages["offset"] == 32
    assert found.stages["sampler"] == 1016
    assert found.stages["value"] == 16 * 2 and found.stages["output"] == 2
    assert found.stages["random words"] == 20
    assert found.stages["normalise"] == found.stages["selection"] == 0
    assert found.stages["key rows"] == 8000 and found.stages["append"] == 64
    # Sixteen rows of one burst of 32 bytes: 512 cycles to move; one at a time, 10 each to wait for: 160.
    assert found.stages["value rows"] == 512
    assert found.bound == "memory" and found.roofline == 8000 + 64 + 512
    assert found.total == (8000 + 64) + 1000 + 32 + 1016 + 512 + 2 + 2 * 10
    assert found.seconds == pytest.approx(found.total / 1e9)


def test_baselines_by_hand():
    fast = dataclasses.replace(SLOW_MEMORY, bandwidth_gb_s=1000.0, latency_ns=0.0)
    dense = made("dense", Shape(1, 1, 8), 1000, fast, samples=16)
    # Query, scores, then weights and values in one pass; on two groups of lanes 8 + 4 + 1 bits of quotient, and two.
    assert dense.total == 8 + 2000 + 2000 + 2 * 15 and dense.bound == "engine"
    assert dense.stages["mass"] == 1000 and dense.stages["sampler"] == 0
    top = made("top-k", Shape(1, 1, 8), 1000, fast, samples=16)
    assert top.stages["mass"] == 16 and top.stages["value"] == 32
    assert top.stages["selection"] == 1000 + 16
    assert top.total == pytest.approx(8 + 2000 + max(32, top.stages["value rows"]) + 2 * 15)
    # A unit with a lane a feature takes scores as fast as the selection does, values faster than it lets go of keys.
    wide = made("top-k", Shape(1, 1, 8), 1000, dataclasses.replace(fast, lanes=8, weights_per_cycle=4), samples=16)
    assert wide.total == pytest.approx(8 + 1000 + max(16, wide.stages["value rows"]) + 15)
    half = made("dense-fp16", Shape(1, 1, 8), 1000, fast)
    assert half.total == 8 + 2000 + 2000 + 8 + 2


def test_selection_mass_and_random_words_as_the_documents_state_them():
    """N + min(k, N); min(k, N) / P; 20 a pair of words, 32 a word of the LFSR."""
    machine = dataclasses.replace(SLOW_MEMORY, weights_per_cycle=4)
    kept = made("top-k", Shape(1, 1, 8), 100, machine, samples=128)
    assert kept.stages["selection"] == 200 and kept.stages["mass"] == 100 / 4
    assert made("top-k", Shape(1, 1, 8), 1000, machine, samples=128).stages["mass"] == 128 / 4
    for rng, cycles_of in (("threefry", lambda words: 20 * -(-words // 2)), ("lfsr", lambda words: 32 * words)):
        design = Design(head_dim=8, rng=rng)
        iid = made("iid", Shape(1, 1, 8), 100, machine, design=design, samples=16)
        assert iid.stages["random words"] == iid.busy["random"] == cycles_of(16)
        # A word a feature of the query beside the offset's.
        ternary = made("santa-ternary", Shape(1, 1, 8), 100, machine, design=design, samples=16)
        assert ternary.stages["random words"] == cycles_of(8) + cycles_of(1)
        phases = ("query", "score", "mass", "offset", "sampler", "value", "output")
        assert ternary.busy["engine"] == sum(ternary.stages[phase] for phase in phases)


def test_the_documents_speed_up_of_small_heads():
    dense, santa = (made(name, SHAPES["smollm2-135m"], 8192, Machine(), samples=64) for name in ("dense", "santa"))
    assert round(dense.total / santa.total, 2) == 0.65


def test_waves_follow_each_other_on_an_engine():
    """Four heads on one engine: a first wave, and three times all phases of a head."""
    machine = dataclasses.replace(SLOW_MEMORY, bandwidth_gb_s=1000.0, latency_ns=0.0)
    one = made("santa", Shape(1, 1, 8), 1000, machine, samples=16)
    four = made("santa", Shape(4, 4, 8), 1000, machine, samples=16)
    head = 8 + 2000 + 1000 + 32 + 1016 + 32 + 2
    assert one.bound == four.bound == "engine"
    assert one.total == head and four.total == pytest.approx(4 * head)
    assert four.roofline == 4 * head
    many = made("santa", Shape(4, 4, 8), 1000, dataclasses.replace(machine, engines=4), samples=16)
    assert many.total == pytest.approx(one.total, rel=1e-2)
    layers = made("santa", Shape(4, 4, 8, layers=5), 1000, machine, samples=16)
    assert layers.total == pytest.approx(5 * four.total)


@pytest.mark.parametrize("bandwidth", [2.0, 8.0, 64.0])
def test_the_formula_is_a_simulated_schedule(bandwidth):
    """Engines that each take the next head when they are done, on one memory that serves one head's keys at a time."""
    heads, engines = 64, 4
    machine = Machine(engines=engines, lanes=16, bandwidth_gb_s=bandwidth, latency_ns=0.0)
    design, shape = Design(samples=16, head_dim=32), Shape(heads, heads, 32)
    found = cycles(design, analytic(design, shape, 500), Layout(), machine, parallel_heads=heads)
    reading = (found.stages["key rows"] + found.stages["append"]) / heads
    gather = found.stages["value rows"] / heads
    memory, free = 0.0, [0.0] * engines
    for _ in range(heads):
        engine = min(range(engines), key=lambda e: free[e])
        start = free[engine]
        memory = max(memory, start) + reading + gather
        scored = max(start + 32 + 500 * 2, memory)
        free[engine] = scored + 500 + 32 + (500 + 16) + max(16 * 2, gather) + 2
    # The formula holds a whole wave's keys back for its first phase: it is late by less than that.
    assert max(free) <= found.total * 1.01 <= max(free) + engines * (reading + gather) + 0.02 * found.total


@pytest.mark.parametrize("draw,words", [("stratified", 1), ("iid", 8)])
@pytest.mark.parametrize("keys", [1, 33])
def test_ternary_scores_take_a_pass_a_bit_plane(draw, words, keys):
    """B = 8 has counts of four bits; the query takes a cycle a word."""
    design = Design(scores="ternary", ternary_samples=8, ternary_draw=draw, head_dim=24, samples=4, rng_bits=16)
    found = step_cycles(design, keys=keys, value_terms=4, lanes=8)
    assert found == {
        "query": 24 * words, "score": keys * 3 * 4, "mass": keys, "offset": 16, "sampler": keys + 4, "value": 12,
        "output": 3,
    }  # fmt: skip
    assert all(isinstance(value, int) for value in found.values())


@pytest.mark.parametrize("gather", ["repeated", "shift_add"])
def test_a_step_adds_what_the_tally_adds(gather):
    """The phases of a run's tally are those of `step_cycles` on its own numbers."""
    design = Design(samples=16, head_dim=8, gather=gather)
    rng = np.random.default_rng(5)
    q, k, v = (rng.normal(size=(1, 1, n, 8)) for n in (1, 60, 60))
    e, draw = Exponents(np.full((1, 8), 2), np.full((1, 8), 2)), Draw(5, 0, np.zeros(1, int), np.zeros((1, 1), int))
    result = attend(design, q, k, v, exponents=e, draw=draw, keep=["counts"])
    counts = result.trace["counts"].ravel().tolist()
    terms = sum(counts) if gather == "repeated" else sum(c.bit_count() for c in counts)
    phases = step_cycles(design, keys=60, value_terms=terms, lanes=4)
    found = cycles(design, result.tally, machine=SLOW_MEMORY, parallel_heads=1)
    assert {phase: found.stages[phase] for phase in phases} == phases


@pytest.mark.parametrize("sampler", ["systematic", "stratified", "iid"])
@pytest.mark.parametrize("seed", range(3))
def test_sampler_takes_a_cycle_a_key_and_a_cycle_a_sample(sampler, seed):
    design = Design(samples=16, head_dim=8, sampler=sampler)
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(1, 2, n, 8)) for n in (1, 77, 77))
    e = Exponents(np.full((2, 8), 2), np.full((2, 8), 2))
    draw = Draw(seed, 0, np.zeros(1, int), np.zeros((1, 1), int))
    result = attend(design, q, k, v, exponents=e, draw=draw, keep=["counts"])
    for counts in result.trace["counts"][0, :, 0]:
        clock = 0
        for count in counts:
            clock += 1  # the key is subtracted
            clock += count  # each sample is added back
        assert clock == sampler_cycles(77, 16)
    sort = 4 * 5 // 2 if sampler == "iid" else 0
    assert sampler_cycles(77, 16, sampler) == 77 + 16 + sort
    assert sampler_cycles(0, 16, sampler) == 0
    found = cycles(design, analytic(design, Shape(1, 1, 8), 77), parallel_heads=1)
    assert found.stages["sampler"] == sampler_cycles(77, 16, sampler)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_takes_no_time_and_one_key_takes_some(method):
    machine = Machine()
    w = workload(method, Shape(4, 2, 16), 0)
    empty = cycles(w.design, Tally(), machine=machine, parallel_heads=4, numbers=w.numbers)
    assert empty.total == 0 and empty.bound == "none" and empty.roofline == 0
    none = made(method, Shape(4, 2, 16), 0, machine)
    assert none.total == 0
    one = made(method, Shape(4, 2, 16), 1, machine)
    assert 0 < one.roofline <= one.total


@settings(max_examples=40, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    keys=st.integers(1, 5000),
    group=st.integers(1, 4),
    engines=st.sampled_from([1, 3, 32]),
    lanes=st.sampled_from([1, 16, 128]),
    bandwidth=st.sampled_from([1.0, 256.0]),
)
def test_more_of_anything_is_never_slower(method, keys, group, engines, lanes, bandwidth):
    shape = Shape(2 * group, 2, 32, layers=2)
    design = Design(max_keys=10000)
    machine = Machine(engines=engines, lanes=lanes, bandwidth_gb_s=bandwidth)
    now = made(method, shape, keys, machine, design=design)
    assert now.roofline <= now.total * (1 + 1e-9) and now.roofline == max(now.busy.values())
    better = [
        dict(engines=2 * engines),
        dict(lanes=2 * lanes),
        dict(bandwidth_gb_s=2 * bandwidth),
        dict(weights_per_cycle=2),
        dict(latency_ns=0.0),
    ]
    for change in better:
        assert (
            made(method, shape, keys, dataclasses.replace(machine, **change), design=design).total <= now.total + 1e-6
        )
    assert made(method, shape, 2 * keys, machine, design=design).total >= now.total


def test_bandwidth_bound_speed_up_is_the_traffic_ratio():
    """Where memory bounds both and waves are many, sampling halves the time: keys are half of the cache."""
    machine, shape = Machine(engines=32, bandwidth_gb_s=64.0), Shape(32, 8, 128, batch=16)
    dense, santa = (made(method, shape, 8192, machine, samples=64) for method in ("dense", "santa"))
    assert dense.bound == santa.bound == "memory"
    assert dense.total / santa.total == pytest.approx(2, rel=0.1)


def test_waiting_for_rows_bounds_the_gather():
    few = dataclasses.replace(SLOW_MEMORY, bandwidth_gb_s=1e6, latency_ns=100.0)
    found = made("santa", Shape(1, 1, 8), 1000, few, samples=16)
    assert found.stages["value rows"] == 1600
    many = dataclasses.replace(few, outstanding=16)
    assert made("santa", Shape(1, 1, 8), 1000, many, samples=16).stages["value rows"] == 100


def test_a_small_score_memory_costs_bandwidth():
    design = Design(samples=16, head_dim=32, max_keys=1024)
    tally = analytic(design, Shape(1, 1, 32), 1000)
    whole, none = (
        cycles(design, tally, Layout(score_memory_bytes=size), SLOW_MEMORY, parallel_heads=1) for size in (None, 0)
    )
    assert whole.stages["score memory"] == 0
    # A write and two reads of two bytes a key, in whole bursts.
    assert none.stages["score memory"] == pytest.approx(6000, abs=64)


def test_a_planted_fault_is_seen(monkeypatch):
    monkeypatch.setattr("santa_hw.cycles.sampler_cycles", lambda keys, samples, sampler: keys + samples - 1)
    assert made("santa", Shape(1, 1, 8), 1000, SLOW_MEMORY, samples=16).stages["sampler"] != 1016


BAD = [
    (r"engines = 0: 1 or more", lambda: Machine(engines=0)),
    (r"lanes = -1: 1 or more", lambda: Machine(lanes=-1)),
    (r"clock_ghz = 0: a number above zero", lambda: Machine(clock_ghz=0)),
    (r"bandwidth_gb_s = inf: a number above zero", lambda: Machine(bandwidth_gb_s=float("inf"))),
    (r"latency_ns = -1: zero or more", lambda: Machine(latency_ns=-1)),
    (r"parallel_heads = 0: 1 or more", lambda: cycles(Design(), Tally(), parallel_heads=0)),
]


@pytest.mark.parametrize(("message", "call"), BAD, ids=[m for m, _ in BAD])
def test_bad_input_is_named(message, call):
    with pytest.raises(ValueError, match=message):
        call()
