"""The ternary score stage's blocks, ternary_query and ternary_dot: bit for bit, and cycle for cycle."""

from __future__ import annotations

import os

import numpy as np
import pytest

from santa_hw import assets
from santa_hw.design import Design
from santa_hw.rtl import SIMULATORS, Vector, cosimulate
from santa_hw.rtl.blocks import load, ternary_dot
from santa_hw.rtl.simulation import missing


@pytest.fixture(params=SIMULATORS)
def simulator(request: pytest.FixtureRequest) -> str:
    """Each simulator; one that is not installed skips, except on CI."""
    if (reason := missing(request.param)) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
    return request.param


# q_bits, rng_bits, budget, draw, pattern: R = f, B = 1, B beyond the codes' own resolution.
QUERIES = [
    (8, 32, 8, "stratified", "both"),
    (4, 3, 16, "stratified", "slow"),
    (24, 32, 1, "stratified", "stall"),
    (8, 32, 8, "iid", "both"),
    (5, 4, 1, "iid", "idle"),
]
# head_dim, lanes, k_bits, budget, planes, max_keys, pattern
DOTS = [
    (32, 4, 8, 8, 0, 33, "both"),
    (32, 8, 4, 8, 1, 257, "idle"),
    (12, 1, 24, 16, 1, 32, "slow"),
    (16, 16, 8, 1, 0, 1000, "stall"),
]


def ternary(**changes: object) -> Design:
    return Design(scores="ternary", **changes)


@pytest.mark.parametrize("q_bits,rng_bits,budget,draw,pattern", QUERIES)
def test_ternary_query(simulator, q_bits, rng_bits, budget, draw, pattern, seed):
    design = ternary(q_bits=q_bits, rng_bits=rng_bits, ternary_samples=budget, ternary_draw=draw, head_dim=40)
    report = cosimulate("ternary_query", design=design, simulator=simulator, vectors=16, seed=seed, pattern=pattern)
    assert report.mismatch is None, report
    assert report.values == 16 * 40


@pytest.mark.parametrize("head_dim,lanes,k_bits,budget,planes,max_keys,pattern", DOTS)
def test_ternary_dot(simulator, head_dim, lanes, k_bits, budget, planes, max_keys, pattern, seed):
    design = ternary(head_dim=head_dim, k_bits=k_bits, ternary_samples=budget, max_keys=max_keys)
    report = cosimulate(
        ternary_dot.block(lanes), design=design, simulator=simulator, vectors=8, seed=seed, pattern=pattern,
        parameters={"Planes": planes},
    )  # fmt: skip
    assert report.mismatch is None, report


@pytest.mark.parametrize("planes", [0, 1])
def test_ternary_dot_takes_the_stated_cycles(planes, generator):
    design, lanes = ternary(head_dim=16, ternary_samples=8), 4
    lengths = [1, 5, 33]
    steps = [
        ternary_dot.vector(
            design, lanes, generator.integers(-8, 9, size=16, dtype=np.int32),
            generator.integers(-127, 128, size=(n, 16), dtype=np.int32),
        )
        for n in lengths
    ]  # fmt: skip

    def cycles(work: list[Vector]) -> int:
        report = cosimulate(
            ternary_dot.block(lanes), design=design, simulator="icarus", vectors=work, pattern="full",
            parameters={"Planes": planes},
        )  # fmt: skip
        assert report.mismatch is None, report
        return report.cycles

    one, all_of_them = cycles(steps[:1]), cycles(steps)
    # The next query is loaded while the last sum leaves.
    stated = [ternary_dot.cycles(design, lanes, bool(planes), n) - 1 for n in lengths]
    assert all_of_them - one == sum(stated[1:])


def test_a_flipped_expected_bit_is_found(seed):
    design = ternary(head_dim=16)
    keys = np.full((2, 16), 3, dtype=np.int32)
    good = ternary_dot.vector(design, 4, np.full(16, -2, dtype=np.int32), keys)
    bad = Vector("flipped", good.inputs, {"sum": [(good.outputs["sum"][0][0] ^ 4, 0), good.outputs["sum"][1]]})
    report = cosimulate(ternary_dot.block(4), design=design, simulator="icarus", vectors=[bad], seed=seed)
    assert report.mismatch is not None
    assert (report.mismatch.signal, report.mismatch.bit) == ("sum_sum_o", 2)


@pytest.mark.parametrize(
    "name,was,now",
    [
        ("ternary_query", "(magnitude) << Beta", "(magnitude) << 1"),
        ("ternary_query", "sign ? -{1'b0, count}", "sign ? ~{1'b0, count}"),
        ("ternary_dot", "pass_q < magnitude", "pass_q <= magnitude"),
        ("ternary_dot", "-code : code", "~code : code"),
    ],
)  # fmt: skip
def test_a_flipped_constant_is_found(name, was, now, tmp_path, seed):
    text = (assets.path("rtl_models") / name / f"{name}.sv").read_text()
    assert text.count(was) == 1
    (tmp_path / "broken.sv").write_text(text.replace(was, now))
    report = cosimulate(
        load(name), design=ternary(head_dim=16, max_keys=32), simulator="icarus", vectors=4, seed=seed,
        dut=tmp_path / "broken.sv", top=name,
    )  # fmt: skip
    assert report.mismatch is not None


def test_the_two_blocks_and_the_golden_model_share_the_designs_limits():
    with pytest.raises(ValueError, match="rng_bits = 4: at least q_bits - 1 = 7 is allowed"):
        cosimulate("ternary_query", design=Design(rng_bits=4), simulator="icarus")
    with pytest.raises(ValueError, match="ternary_block = 8: None"):
        cosimulate("ternary_dot", design=ternary(ternary_block=8), simulator="icarus")
    with pytest.raises(ValueError, match="Lanes = 3: a power of two is allowed"):
        cosimulate(ternary_dot.block(3), design=ternary(head_dim=9), simulator="icarus")
