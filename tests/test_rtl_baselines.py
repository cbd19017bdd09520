"""The multiplying baselines: bit for bit, and with the multipliers that the datapath's own blocks lack."""

from __future__ import annotations

import os

import pytest

from santa_hw import assets, synth
from santa_hw.design import Design
from santa_hw.rtl import SIMULATORS, cosimulate
from santa_hw.rtl.blocks import mac_dot, softmax_values
from santa_hw.rtl.simulation import missing


@pytest.fixture(params=SIMULATORS)
def simulator(request: pytest.FixtureRequest) -> str:
    """Each simulator; one that is not installed skips, except on CI."""
    if (reason := missing(request.param)) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
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


def test_softmax_values_takes_its_guard_bits_from_the_samples():
    with pytest.raises(ValueError, match=r"guard_bits = 2: log2\(samples\) = 6 is allowed"):
        cosimulate("softmax_values", design=Design(guard_bits=2), simulator="icarus")


@pytest.mark.parametrize(
    "block,was,now",
    [
        (mac_dot.block(4), "beat_last ? '0 : sum_d", "beat_last ? SumBits'(1) : sum_d"),
        (softmax_values.block(4), "(RemainderBits'(acc) << (Guard + 1))", "(RemainderBits'(acc) << Guard)"),
        (softmax_values.block(4), "if (beat_last) mass_q <= '0;", "if (beat_last) mass_q <= MassBits'(1);"),
    ],
)
def test_a_flipped_constant_is_found(block, was, now, tmp_path, seed):
    text = (assets.path("rtl_models") / block.name / f"{block.name}.sv").read_text()
    assert text.count(was) == 1
    (tmp_path / "broken.sv").write_text(text.replace(was, now))
    report = cosimulate(
        block, design=Design(head_dim=16, max_keys=32), simulator="icarus", vectors=4, seed=seed,
        dut=tmp_path / "broken.sv", top=block.name,
    )  # fmt: skip
    assert report.mismatch is not None


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("block", ["mac_dot", "softmax_values"])
def test_baselines_have_multipliers(block, lanes):
    if (reason := synth.missing()) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
    assert synth.netlist(block, parameters={"Lanes": lanes}).multipliers == {"$mul": lanes}
