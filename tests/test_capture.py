"""Captured decode steps: the model's own codes and random words; files are whole; bad input is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from typer.testing import CliRunner

from santa_hw import models
from santa_hw.capture import Capture
from santa_hw.cli import app
from santa_hw.datapath import Draw, attend, decode
from santa_hw.design import Design

DESIGNS = {
    "dense": Design(samples=16, head_dim=8),
    "ternary": Design(samples=4, scores="ternary", ternary_offset="independent", k_exponents="per_head", q_bits=6),
    "wide": Design(q_bits=12, k_bits=10, v_bits=9, v_exponents="per_head", out_bits=8, out_frac=5),
}
RECORDED = Path(__file__).parent / "data" / "captured.npz"
"""SmolLM2-135M-Instruct: santa-hw capture --window 96 --layers 0,14,29 --positions 8 --out tests/data/captured.npz"""


def captured(design: Design, seed: int) -> tuple[Capture, models.LoadedModel, models.Calibration, np.ndarray]:
    loaded = tiny.loaded(seed % 1000)
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, 259, 40)
    calibration = models.calibrate(loaded, generator.integers(3, 259, (2, 50)))
    found = models.capture(
        loaded, design, calibration, tokens, layers=[0, 1], positions=[0, 17, 39], seed=seed, sequence=5
    )
    return found, loaded, calibration, tokens


@pytest.mark.parametrize("name", DESIGNS)
def test_steps_are_those_of_the_whole_model(name: str, seed: int, tmp_path: Path) -> None:
    """Run one by one, steps give what all heads and positions of a layer give in one call, random words and all."""
    found, loaded, calibration, tokens = captured(DESIGNS[name], seed)
    found.save(tmp_path / "steps.npz")
    found = Capture.load(tmp_path / "steps.npz")
    calls: list[models.Call] = []

    def observe(call: models.Call):
        calls.append(call)
        return models.dense(call)

    import torch

    with torch.inference_mode(), models.attention(loaded, observe):
        loaded.model(torch.from_numpy(tokens)[None])
    assert (len(found), found.group, found.kv_heads) == (2 * 2 * 3, 2, 2)
    index = 0
    for call in calls:
        whole = attend(
            found.design, *(x.numpy() for x in (call.q, call.k, call.v)),
            exponents=calibration.exponents(found.design)[call.layer],
            draw=Draw(seed, call.layer, np.array([5]), np.arange(40)[None]), keep=("mass", "output_codes", "offset"),
        ).trace  # fmt: skip
        for kv in range(2):
            for position in (0, 17, 39):
                step = found.step(index)
                assert step.name == f"layer {call.layer}, KV head {kv}, position {position}"
                trace = decode(found.design, step.codes, draw=step.draw, keep=tuple(whole)).trace
                for kept, values in whole.items():
                    expected = values[0, 2 * kv : 2 * kv + 2, position]
                    assert np.array_equal(trace[kept][0, :, 0], expected), (step.name, kept)
                index += 1


def test_spread_takes_both_ends() -> None:
    found = Capture.load(RECORDED)
    names = [step.name for step in found.spread(16)]
    assert len(set(names)) == 16
    assert names[0] == found.step(0).name and names[-1] == found.step(len(found) - 1).name
    for count in (0, len(found) + 1):
        with pytest.raises(ValueError, match=rf"steps = {count}: 1 to the {len(found)} that were captured"):
            found.spread(count)


def test_the_recorded_file_is_small_and_real() -> None:
    found = Capture.load(RECORDED)
    assert RECORDED.stat().st_size < 200_000
    assert (found.group, found.kv_heads, found.design.head_dim) == (3, 3, 64)
    assert found.layers.tolist() == [0, 14, 29] and found.positions[[0, -1]].tolist() == [0, 95]


def test_bad_input_is_told(seed: int, tmp_path: Path) -> None:
    loaded = tiny.loaded()
    generator = np.random.default_rng(seed)
    tokens, others = generator.integers(3, 259, 40), generator.integers(3, 259, (2, 50))
    calibration = models.calibrate(loaded, others)

    def capture(text=tokens, design=Design(), layers=(0,), positions=(1,)):  # noqa: B008
        models.capture(loaded, design, calibration, text, layers=layers, positions=positions)

    with pytest.raises(ValueError, match=r"layers = 0, 2: 0 to 1, ascending"):
        capture(layers=(0, 2))
    with pytest.raises(ValueError, match=r"positions = none: 0 to 39"):
        capture(positions=())
    with pytest.raises(ValueError, match=r"positions = 3, 3: 0 to 39"):
        capture(positions=(3, 3))
    with pytest.raises(ValueError, match=r"text has 40 tokens: at most max_keys = 32"):
        capture(design=Design(max_keys=32))
    with pytest.raises(ValueError, match=r"shares .* tokens .* with the calibration text"):
        capture(text=others[0])
    with pytest.raises(ValueError, match="no such file; run santa-hw capture"):
        Capture.load(tmp_path / "none.npz")
    (tmp_path / "other.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="is not what santa-hw capture writes"):
        Capture.load(tmp_path / "other.npz")


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("text", 1), ("calibration", 2)):
        (tmp_path / f"{name}.txt").write_text(tiny.prose(number, 300))
    monkeypatch.setattr(models, "CALIBRATION_TEXT", str(tmp_path / "calibration.txt"))
    model = tiny.folder(tmp_path / "model")
    base = ["capture", "--model", str(model), "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out.npz")]
    run = CliRunner().invoke(app, [*base, "--window", "24", "--positions", "5"])
    assert run.exit_code == 0, run.output
    assert "20 steps of groups of 2 heads, up to 24 keys" in run.output
    assert Capture.load(tmp_path / "out.npz").positions.tolist() == [0, 6, 12, 17, 23]
    run = CliRunner().invoke(app, [*base, "--window", "4", "--positions", "5"])
    assert run.exit_code == 2 and "--positions 5: at most the window's 4 tokens" in run.output
