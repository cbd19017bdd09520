"""The multiplying baselines: bit for bit, and with the multipliers that the datapath's own blocks lack."""

from __future__ import annotations

import dataclasses
import os
import subprocess

import numpy as np
import pytest

from santa_hw import assets, synth
from santa_hw.datapath import Draw, Exponents, attend
from santa_hw.design import Design
from santa_hw.rtl import SIMULATORS, cosimulate
from santa_hw.rtl.blocks import LENGTHS, mac_dot, softmax_attention, softmax_values, topk_select
from santa_hw.rtl.package import FILE, package
from santa_hw.rtl.rows import SHAPES, rows
from santa_hw.rtl.simulation import _environment, missing, sources


def need(simulator: str) -> None:
    """Skip without the simulator; on CI nothing may be skipped."""
    if (reason := missing(simulator)) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)


@pytest.fixture(params=SIMULATORS)
def simulator(request: pytest.FixtureRequest) -> str:
    """Each simulator; one that is not installed skips, except on CI."""
    need(request.param)
    return request.param


# head_dim, lanes, q_bits, k_bits, max_keys, pattern
DOTS = [
    (32, 4, 8, 8, 33, "both"),
    (16, 16, 2, 8, 1000, "idle"),
    (12, 1, 24, 24, 32, "slow"),
    (24, 8, 4, 4, 257, "stall"),
]


@pytest.mark.parametrize("head_dim,lanes,q_bits,k_bits,max_keys,pattern", DOTS)
def test_mac_dot(simulator, head_dim, lanes, q_bits, k_bits, max_keys, pattern, seed):
    design = Design(head_dim=head_dim, q_bits=q_bits, k_bits=k_bits, max_keys=max_keys)
    report = cosimulate(mac_dot.block(lanes), design=design, simulator=simulator, vectors=8, seed=seed, pattern=pattern)
    assert report.mismatch is None, report


# samples, head_dim, lanes, v_bits, weight_bits, max_keys, pattern
VALUES = [
    (64, 32, 4, 8, 16, 257, "both"),
    (1, 8, 8, 4, 4, 33, "idle"),
    (16, 6, 1, 24, 20, 1000, "stall"),
    (4096, 12, 4, 2, 2, 32, "slow"),
]


@pytest.mark.parametrize("samples,head_dim,lanes,v_bits,weight_bits,max_keys,pattern", VALUES)
def test_softmax_values(simulator, samples, head_dim, lanes, v_bits, weight_bits, max_keys, pattern, seed):
    design = Design(samples=samples, head_dim=head_dim, v_bits=v_bits, weight_bits=weight_bits, max_keys=max_keys)
    report = cosimulate(
        softmax_values.block(lanes), design=design, simulator=simulator, vectors=9, seed=seed, pattern=pattern
    )
    assert report.mismatch is None, report


# k, score_bits, score_frac, max_keys, vectors, pattern, simulators: ties in plenty and all lengths about k; k of 1; no
# power of two; more than there are keys
SELECTIONS = [
    (32, 4, 2, 1000, 63, "both", SIMULATORS),
    (1, 16, 5, 257, 21, "stall", ("icarus",)),
    (5, 32, 3, 33, 42, "slow", SIMULATORS),
    (64, 8, 0, 33, 42, "idle", ("icarus",)),
]


@pytest.mark.parametrize("k,score_bits,score_frac,max_keys,vectors,pattern,simulators", SELECTIONS)
def test_topk_select(k, score_bits, score_frac, max_keys, vectors, pattern, simulators, seed):
    design = Design(method="top-k", samples=k, score_bits=score_bits, score_frac=score_frac, max_keys=max_keys)
    for name in simulators:
        need(name)
        report = cosimulate("topk_select", design=design, simulator=name, vectors=vectors, seed=seed, pattern=pattern)
        assert report.mismatch is None, report


def test_selections_hold_every_length_and_shape(generator):
    design = Design(samples=32, score_bits=4, score_frac=2)
    made = [(row, topk_select.vector(design, row)) for row in rows(design, 63, generator)]
    assert {row.scores.size for row, _ in made} == set(LENGTHS)
    assert {row.name.partition(",")[0] for row, _ in made} == set(SHAPES)
    for row, vector in made:
        # Sorted by pencil and paper: the larger score first, of equal ones the lower index.
        seen = sorted(np.flatnonzero(row.visible), key=lambda n: (-row.scores[n], n))[:32]
        expected = [(n, row.scores[n], 0, int(n == seen[-1])) for n in seen] or [(0, 0, 1, 1)]
        assert vector.outputs["kept"] == expected


# samples, head_dim, lanes, v_bits, weight_bits, score_bits, score_frac, max_keys, pattern, simulators
ATTENTIONS = [
    (64, 16, 4, 8, 16, 16, 5, 257, "both", SIMULATORS),
    (1, 8, 8, 4, 4, 4, 2, 1000, "idle", ("icarus",)),
    (16, 6, 1, 24, 20, 24, 8, 33, "stall", SIMULATORS),
    (4096, 12, 4, 2, 2, 8, 0, 32, "slow", ("icarus",)),
]


@pytest.mark.parametrize(
    "samples,head_dim,lanes,v_bits,weight_bits,score_bits,score_frac,max_keys,pattern,simulators", ATTENTIONS
)
def test_softmax_attention(
    samples, head_dim, lanes, v_bits, weight_bits, score_bits, score_frac, max_keys, pattern, simulators, seed
):
    design = Design(
        samples=samples, head_dim=head_dim, v_bits=v_bits, weight_bits=weight_bits, score_bits=score_bits,
        score_frac=score_frac, max_keys=max_keys,
    )  # fmt: skip
    for name in simulators:
        need(name)
        report = cosimulate(
            softmax_attention.block(lanes), design=design, simulator=name, vectors=14, seed=seed, pattern=pattern
        )
        assert report.mismatch is None, report


def test_softmax_attention_is_the_golden_models_dense_step(generator):
    """A step of attend(): its scores and value codes through the block give its output codes."""
    need("icarus")
    design = Design(method="dense", head_dim=8, samples=16)
    q, k, v = (generator.normal(size=(1, 1, n, 8)) for n in (1, 50, 50))
    exponents = Exponents(np.full((1, 8), 2), np.full((1, 8), 2))
    mask = np.ones((1, 1, 50), dtype=np.bool_)
    mask[..., 7:19] = False
    draw, keep = Draw(0, 0, np.zeros(1, int), np.zeros((1, 1), int)), ["v_codes", "scores", "weights", "output_codes"]
    found = attend(design, q, k, v, exponents=exponents, draw=draw, mask=mask, keep=keep)
    *_, row = rows(design, 9, generator)
    scores, weights = found.trace["scores"].reshape(-1), found.trace["weights"].reshape(-1)
    row = row._replace(scores=scores.astype(np.int64), visible=mask.reshape(-1), weights=weights.astype(np.int64))
    made = softmax_attention.vector(design, 8, row, found.trace["v_codes"].reshape(50, 8).astype(np.int64))
    width = softmax_values.quotient_bits(design)
    packed = made.outputs["out"][0][0]
    lanes = [(packed >> (i * width)) & ((1 << width) - 1) for i in range(8)]
    assert [x - (x >> (width - 1) << width) for x in lanes] == found.trace["output_codes"].reshape(-1).tolist()
    report = cosimulate(softmax_attention.block(8), design=design, simulator="icarus", vectors=[made])
    assert report.mismatch is None, report


def test_softmax_values_takes_its_guard_bits_from_the_samples():
    with pytest.raises(ValueError, match=r"guard_bits = 2: log2\(samples\) = 6 is allowed"):
        cosimulate("softmax_values", design=Design(guard_bits=2), simulator="icarus")


@pytest.mark.parametrize(
    "block,was,now",
    [
        (mac_dot.block(4), "beat_last ? '0 : sum_d", "beat_last ? SumBits'(1) : sum_d"),
        (softmax_values.block(4), "(RemainderBits'(acc) << (Guard + 1))", "(RemainderBits'(acc) << Guard)"),
        (softmax_values.block(4), "if (beat_last) mass_q <= '0;", "if (beat_last) mass_q <= MassBits'(1);"),
        (topk_select.BLOCK, ">= $signed(score_score_i)", "> $signed(score_score_i)"),
        (topk_select.BLOCK, "score_valid_i && score_visible_i", "score_valid_i"),
        (topk_select.BLOCK, "kept_empty_o  = !filled_q[0]", "kept_empty_o  = 1'b0"),
        (softmax_attention.block(4), "if (score_visible_i) final_q", "final_q"),
        (softmax_attention.block(4), "pop ? queue_q >> QueuedBits", "pop ? queue_q"),
        (softmax_attention.block(4), "maximum_q <= maximum;", "maximum_q <= maximum + IntegerBits'(9);"),
        (softmax_attention.block(4), "fed_q     <= 1'b0", "fed_q     <= 1'b1"),
    ],
)
def test_a_flipped_constant_is_found(block, was, now, tmp_path, seed):
    text = (assets.path("rtl_models") / block.name / f"{block.name}.sv").read_text()
    assert text.count(was) == 1
    (tmp_path / "broken.sv").write_text(text.replace(was, now))
    report = cosimulate(
        block, design=Design(head_dim=16, max_keys=32, score_bits=6), simulator="icarus", vectors=42, seed=seed,
        dut=tmp_path / "broken.sv", top=block.name,
    )  # fmt: skip
    assert report.mismatch is not None


# With designs that other tests have built.
@pytest.mark.parametrize(
    "block,stream,design",
    [
        (topk_select.BLOCK, "kept", Design(method="top-k", samples=5, score_bits=32, score_frac=3, max_keys=33)),
        (softmax_attention.block(4), "out", Design(samples=64, head_dim=16, weight_bits=16, max_keys=257)),
    ],
    ids=["topk_select", "softmax_attention"],
)
def test_a_flipped_expected_bit_is_found(simulator, block, stream, design, seed):
    *good, last = block.vectors(design, 6, np.random.default_rng(seed))
    (first, *others), rest = last.outputs[stream][0], last.outputs[stream][1:]
    bad = dataclasses.replace(last, outputs={**last.outputs, stream: [(first ^ 8, *others), *rest]})
    found = cosimulate(block, design=design, simulator=simulator, vectors=[*good, bad]).mismatch
    assert found is not None and (found.vector, found.bit) == (5, 3)


@pytest.mark.parametrize("design", [Design(), Design(samples=5, method="top-k", score_frac=0, max_keys=33)])
@pytest.mark.parametrize("block", [topk_select.BLOCK, softmax_attention.BLOCK], ids=lambda block: block.name)
def test_lint_is_clean(block, design, tmp_path):
    need("verilator")
    (tmp_path / FILE).write_text(package(design), encoding="utf-8")
    with _environment(tmp_path):
        done = subprocess.run(
            ["verilator", "--lint-only", "-Wall", "--top-module", block.name, tmp_path / FILE, *sources(block)],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr


def test_bad_input():
    with pytest.raises(ValueError, match="samples = 8192: at most 4096 is allowed in block topk_select"):
        cosimulate("topk_select", design=Design(samples=8192), simulator="icarus")
    with pytest.raises(ValueError, match="Lanes = 5: a divisor of head_dim = 64 is allowed"):
        cosimulate(softmax_attention.block(5), simulator="icarus")
    with pytest.raises(ValueError, match=r"guard_bits = 2: log2\(samples\) = 6 is allowed"):
        cosimulate("softmax_attention", design=Design(guard_bits=2), simulator="icarus")
    with pytest.raises(ValueError, match="score_frac = 11: at most 10"):
        cosimulate("softmax_attention", design=Design(score_frac=11), simulator="icarus")


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("block", ["mac_dot", "softmax_values", "softmax_attention"])
def test_baselines_have_multipliers(block, lanes):
    if (reason := synth.missing()) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
    assert synth.netlist(block, parameters={"Lanes": lanes}).multipliers == {"$mul": lanes}


@pytest.mark.parametrize("k", [1, 5, 64])
def test_a_selection_has_a_comparator_an_entry(k):
    if (reason := synth.missing()) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
    design = Design(method="top-k", samples=k)
    found = synth.netlist("topk_select", design=design)
    assert found.multipliers == {} and found.cells["$ge"] == k
    # An entry is a score, a key and whether it is filled; then the state and two counters over the keys.
    assert found.register_bits == k * (design.score_bits + 12 + 1) + 2 + 13 + 12
