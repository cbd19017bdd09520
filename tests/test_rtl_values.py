"""The value stage's blocks, gather_accumulate and shift_normalise: bit for bit, and cycle for cycle."""

from __future__ import annotations

import os

import numpy as np
import pytest

from santa_hw import assets
from santa_hw.design import Design
from santa_hw.rtl import SIMULATORS, Vector, cosimulate
from santa_hw.rtl.blocks import gather_accumulate, shift_normalise
from santa_hw.rtl.simulation import missing

# Samples, head_dim, lanes, v_bits, gather, pattern: narrow and wide, one beat a row and many, S = 1.
GATHERS = [
    (16, 16, 4, 4, "repeated", "both"),
    (64, 24, 8, 8, "shift_add", "slow"),
    (1, 8, 8, 24, "repeated", "stall"),
    (4096, 6, 1, 24, "shift_add", "idle"),
]
# Bits in, bits out, lanes, pattern: 48-bit accumulators, the widest and the narrowest, widening.
SHIFTS = [(14, 12, 4, "both"), (48, 24, 3, "idle"), (63, 63, 1, "stall"), (2, 2, 2, "slow"), (16, 40, 2, "full")]


@pytest.fixture(params=SIMULATORS)
def simulator(request: pytest.FixtureRequest) -> str:
    """Each simulator; one that is not installed skips, except on CI."""
    if (reason := missing(request.param)) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
    return request.param


@pytest.mark.parametrize("samples,head_dim,lanes,v_bits,gather,pattern", GATHERS)
def test_gather_accumulate(simulator, samples, head_dim, lanes, v_bits, gather, pattern, seed):
    design = Design(samples=samples, head_dim=head_dim, v_bits=v_bits, gather=gather)
    report = cosimulate(
        gather_accumulate.block(lanes), design=design, simulator=simulator, vectors=11, seed=seed, pattern=pattern
    )
    assert report.mismatch is None, report
    assert report.vectors == 11


@pytest.mark.parametrize("gather", ["repeated", "shift_add"])
def test_gather_takes_the_stated_cycles(gather, generator):
    design, lanes = Design(samples=64, head_dim=16, gather=gather), 4
    block = gather_accumulate.block(lanes)
    steps = [[64], [], [1] * 64, [0, 63, 0, 1], [21, 22, 21]]
    rows = [generator.integers(-127, 127, size=(len(c), 16), endpoint=True) for c in steps]
    vectors = [gather_accumulate.vector(design, lanes, c, r) for c, r in zip(steps, rows, strict=True)]

    def cycles(work: list[Vector]) -> int:
        report = cosimulate(block, design=design, simulator="icarus", vectors=work, pattern="full")
        assert report.mismatch is None, report
        return report.cycles

    idle = cycles(vectors[:1]) - gather_accumulate.cycles(design, lanes, steps[0])
    assert cycles(vectors) - idle == sum(gather_accumulate.cycles(design, lanes, c) for c in steps)


@pytest.mark.parametrize("in_bits,out_bits,lanes,pattern", SHIFTS)
def test_shift_normalise(simulator, in_bits, out_bits, lanes, pattern, seed):
    report = cosimulate(
        shift_normalise.block(lanes, (in_bits, out_bits)), simulator=simulator, vectors=9, seed=seed, pattern=pattern
    )
    assert report.mismatch is None, report


def test_shift_normalise_serves_scores_and_outputs(seed):
    for block, design in (
        (shift_normalise.scores(Design(), 1), Design()),
        (shift_normalise.block(16), Design(out_bits=8, out_frac=4)),
    ):
        report = cosimulate(block, design=design, simulator="icarus", vectors=5, seed=seed)
        assert report.mismatch is None, report


def test_a_flipped_expected_bit_is_found():
    design = Design(samples=16, head_dim=16, v_bits=4)
    good = gather_accumulate.vector(design, 4, [9, 7], np.ones((2, 16), dtype=np.int64))
    beats = [(word ^ (1 << 11 if beat == 1 else 0), last) for beat, (word, last) in enumerate(good.outputs["out"])]
    bad = Vector("flipped", good.inputs, {"out": beats})
    report = cosimulate(gather_accumulate.block(4), design=design, simulator="icarus", vectors=[good, bad])
    assert report.mismatch is not None
    assert (report.mismatch.vector, report.mismatch.signal, report.mismatch.bit) == (1, "out_accumulators_o", 11)


@pytest.mark.parametrize(
    "name,was,now",
    [
        ("gather_accumulate", "done_q + CountBits'(1)", "done_q + CountBits'(2)"),
        ("shift_normalise", "AmountBits'(OutBits - 1) : ~shift", "AmountBits'(OutBits - 2) : ~shift"),
        ("shift_normalise", "assign fraction = {code, 1'b0}", "assign fraction = {code, 1'b1}"),
    ],
)
def test_a_flipped_constant_is_found(name, was, now, tmp_path, seed):
    text = (assets.path("rtl_models") / name / f"{name}.sv").read_text()
    assert text.count(was) == 1
    (tmp_path / "broken.sv").write_text(text.replace(was, now))
    block = gather_accumulate.block(4) if name == "gather_accumulate" else shift_normalise.block(4)
    design = Design(samples=16, head_dim=16, v_bits=4, out_bits=6, out_frac=4)
    report = cosimulate(
        block, design=design, simulator="icarus", vectors=9, seed=seed, dut=tmp_path / "broken.sv", top=name
    )
    assert report.mismatch is not None


def test_lanes_must_divide_the_head_dimension():
    with pytest.raises(ValueError, match="Lanes = 5: a divisor of head_dim = 64 is allowed in block gather_accumulate"):
        cosimulate(gather_accumulate.block(5), simulator="icarus")
