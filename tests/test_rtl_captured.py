"""Decode steps of SmolLM2, captured, through santa_decode: no bit differs, and a planted fault is told by its step."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from test_capture import RECORDED
from test_rtl_decode import need
from typer.testing import CliRunner

from santa_hw import rtl
from santa_hw.capture import Capture
from santa_hw.cli import app
from santa_hw.design import Design
from santa_hw.rtl import simulation
from santa_hw.rtl.blocks import santa_decode

STEPS = 16


@pytest.mark.parametrize("simulator", rtl.SIMULATORS)
def test_captured_steps_equal_the_golden_model(simulator: str, tmp_path: Path) -> None:
    need(simulator)
    line = ["cosim", "santa_decode", "--captured", str(RECORDED), "--vectors", str(STEPS), "--simulator", simulator]
    done = CliRunner().invoke(app, [*line, "--pattern", "full", "--json", str(tmp_path / "found.json")])
    assert done.exit_code == 0, done.output
    assert done.output.strip().endswith(f"{STEPS} vectors, 0 mismatches")
    (report,) = json.loads((tmp_path / "found.json").read_text())
    assert report["parameters"]["Group"] == 3 and report["design"] == str(Capture.load(RECORDED).design)


def test_a_flipped_bit_is_found_in_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts count vectors through, and stop at the first difference."""
    need("verilator")
    monkeypatch.setattr(simulation, "PART", 4)
    capture = Capture.load(RECORDED)
    block = santa_decode.captured(capture)
    made = list(block.vectors(capture.design, 10, np.random.default_rng(0)))
    (masses,) = made[6].outputs["mass"][0]
    made[6] = dataclasses.replace(made[6], outputs=dict(made[6].outputs) | {"mass": [(masses ^ 1 << 3,)]})
    parts: list[int] = []
    report = rtl.cosimulate(block, design=capture.design, vectors=made, pattern="full", advance=parts.append)
    assert report.mismatch is not None
    assert (report.mismatch.vector, report.mismatch.signal, report.mismatch.bit) == (6, "mass_masses_o", 3)
    assert parts == [4]


def test_captured_vectors_are_written(tmp_path: Path) -> None:
    line = ["vectors", "santa_decode", "--captured", str(RECORDED), "--vectors", "4", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    capture = Capture.load(RECORDED)
    assert manifest["vectors"] == [step.name for step in capture.spread(4)]
    assert manifest["parameters"]["Group"] == 3
    with np.load(tmp_path / "vectors.npz") as arrays:
        steps = list(capture.spread(4))
        assert arrays["step_keys"].tolist() == [step.codes.k.shape[2] for step in steps]


def test_what_a_capture_fixes_cannot_be_changed() -> None:
    capture = Capture.load(RECORDED)
    block = santa_decode.captured(capture)
    with pytest.raises(ValueError, match=r"santa_decode\.Group = 4: allowed are 3"):
        rtl.cosimulate(block, design=capture.design, vectors=1, parameters={"Group": 4})
    with pytest.raises(ValueError, match="that of the capture"):
        rtl.cosimulate(block, design=Design(samples=8), vectors=1)
