"""Cycles of blocks that nobody stalls: exactly what each block's page states."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest

from santa_hw import assets
from santa_hw.design import Design
from santa_hw.rtl import Block, Vector, cosimulate
from santa_hw.rtl.blocks import load, mac_dot, shift_normalise, softmax_attention, softmax_values, topk_select
from santa_hw.rtl.rows import rows
from santa_hw.rtl.simulation import missing

DIM, LANES = 16, 4
BEATS = DIM // LANES
KEYS = (1, 2, 33)


@pytest.fixture(autouse=True)
def _icarus() -> None:
    if (reason := missing("icarus")) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)


def hold(block: str | Block, design: Design, steps: Sequence[Vector], stated: Sequence[int], once: int = 0, **options):
    """Steps, one after the other, take the sum of their stated cycles and `once` more."""
    report = cosimulate(block, design=design, simulator="icarus", vectors=steps, pattern="full", **options)
    assert report.mismatch is None, report
    assert report.cycles == sum(stated) + once


@pytest.mark.parametrize("steps_per_cycle", [1, 8])
def test_lfsr32(steps_per_cycle, generator):
    made = list(load("lfsr32").vectors(Design(), 6, generator))
    stated = [1 + v.inputs["seed"][0][1] * (32 // steps_per_cycle + 1) for v in made]
    hold("lfsr32", Design(), made, stated, parameters={"StepsPerCycle": steps_per_cycle})


def test_mass(generator):
    made = list(load("mass").vectors(Design(), 9, generator))[1:]
    hold("mass", Design(), made, [2 * v.inputs["row"][0][0] + 3 for v in made])


def test_shift_normalise(generator):
    block = shift_normalise.block(LANES)
    made = [v for v in block.vectors(Design(), 6, generator) if v.inputs["in"]]
    hold(block, Design(), made, [len(v.inputs["in"]) for v in made], once=1)


@pytest.mark.parametrize("draw,words", [("stratified", 1), ("iid", 8)])
def test_ternary_query(draw, words, generator):
    design = Design(scores="ternary", ternary_samples=8, ternary_draw=draw, head_dim=DIM)
    made = list(load("ternary_query").vectors(design, 3, generator))
    hold("ternary_query", design, made, [DIM * words] * 3, once=1)


def test_mac_dot(generator):
    design = Design(head_dim=DIM)
    made = [
        mac_dot.vector(
            design, LANES, generator.integers(-127, 128, size=DIM, dtype=np.int32),
            generator.integers(-127, 128, size=(n, DIM), dtype=np.int32),
        )
        for n in KEYS
    ]  # fmt: skip
    hold(mac_dot.block(LANES), design, made, [DIM + n * BEATS for n in KEYS], once=1)


@pytest.mark.parametrize("lanes", [LANES, DIM])
def test_softmax_values(lanes, generator):
    design, beats = Design(samples=16, head_dim=DIM), DIM // lanes
    made = [
        softmax_values.vector(
            design, lanes, generator.integers(1, 1 << 16, size=n), generator.integers(-127, 128, size=(n, DIM))
        )
        for n in KEYS
    ]
    stated = [beats * (n + softmax_values.quotient_bits(design) + 2) for n in KEYS]
    hold(softmax_values.block(lanes), design, made, stated)


@pytest.mark.parametrize("kept", [5, 32])
def test_topk_select(kept, generator):
    design = Design(method="top-k", samples=kept, max_keys=300)
    some = list(rows(design, 24, generator))
    made = [topk_select.vector(design, row) for row in some]
    hold("topk_select", design, made, [topk_select.cycles(design, row) for row in some])


@pytest.mark.parametrize("lanes", [LANES, DIM])
def test_softmax_attention(lanes, generator):
    design = Design(samples=16, head_dim=DIM, max_keys=300)
    seen = [row for row in rows(design, 60, generator) if row.scores.size and row.visible.all()][:6]
    made = [
        softmax_attention.vector(design, lanes, row, generator.integers(-127, 128, size=(row.scores.size, DIM)))
        for row in seen
    ]
    stated = [softmax_attention.cycles(design, lanes, row.scores.size) for row in seen]
    hold(softmax_attention.block(lanes), design, made, stated)


def test_a_planted_bubble_is_found(generator, tmp_path):
    """A block that is right and slower than its page."""
    text = (assets.path("rtl_models") / "shift_normalise" / "shift_normalise.sv").read_text(encoding="utf-8")
    ready = "assign in_ready_o = !out_valid_o || out_ready_i;"
    assert text.count(ready) == text.count("else if (in_ready_o)") == text.count("out_valid_o <= in_valid_i;") == 1
    # It waits until the register is empty, in place of until it will be.
    text = text.replace("else if (in_ready_o)", "else if (!out_valid_o || out_ready_i)")
    text = text.replace("out_valid_o <= in_valid_i;", "out_valid_o <= in_valid_i && in_ready_o;")
    dut = tmp_path / "slow.sv"
    dut.write_text(text.replace(ready, "assign in_ready_o = !out_valid_o;"), encoding="utf-8")
    block = shift_normalise.block(LANES)
    made = list(block.vectors(Design(), 4, generator))
    with pytest.raises(AssertionError, match="cycles"):
        hold(block, Design(), made[3:], [len(v.inputs["in"]) for v in made[3:]], once=1, dut=dut)
