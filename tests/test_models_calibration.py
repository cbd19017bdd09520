"""Calibration: what it keeps, the exponents it gives, its file, and the text it may not share."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import DESIGN, VOCABULARY, Recorder, calibrated, prompt, tiny

from santa_hw import models
from santa_hw.design import Design, Schedule
from santa_hw.formats import exponent
from santa_hw.models.calibration import SPAN


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_calibration_keeps_the_largest_magnitudes(architecture, seed):
    loaded = tiny(architecture)
    windows = [prompt(seed + i, 1, length)[0] for i, length in enumerate((12, 30, 9))]
    calibration = models.calibrate(loaded, windows)
    k_max, v_max = np.zeros((2, loaded.layers, loaded.kv_heads, loaded.head_dim))
    with models.attention(loaded, recorder := Recorder()):
        for window in windows:
            loaded.model(window[None])
    for call in recorder.calls:
        for kept, seen in ((k_max, call.k), (v_max, call.v)):
            kept[call.layer] = np.maximum(kept[call.layer], seen.detach().abs().amax((0, 2)).numpy())
    np.testing.assert_allclose(calibration.k_max, k_max, rtol=1e-6)
    np.testing.assert_allclose(calibration.v_max, v_max, rtol=1e-6)
    assert calibration.k_max.dtype == np.float64
    assert (calibration.tokens, calibration.windows) == (51, 3)


def test_calibration_exponents(seed):
    loaded = tiny()
    calibration = calibrated(loaded, seed)
    mixed = Design(k_exponents="per_channel", v_exponents="per_head", k_bits=6, v_bits=4, e_min=-3, e_max=3)
    schedule = Schedule((mixed, mixed.replace(k_bits=8)))
    for layer, found in enumerate(calibration.exponents(schedule)):
        bits = schedule.layer(layer).k_bits
        assert np.array_equal(found.k, exponent(calibration.k_max[layer], bits, -3, 3))
        assert np.array_equal(found.v, exponent(calibration.v_max[layer].max(-1, keepdims=True), 4, -3, 3))
        assert found.v.shape == (2, 1)
    wider = calibration.widened(1).exponents(DESIGN)[0]
    assert np.array_equal(wider.k, calibration.exponents(DESIGN)[0].k + 1)


def test_calibration_round_trip(seed, tmp_path):
    loaded, other = tiny(), tiny(seed=1)
    calibration = calibrated(loaded, seed)
    path = tmp_path / "deep" / "tiny.npz"
    calibration.save(path)
    assert [file.name for file in path.parent.iterdir()] == ["tiny.npz"]
    again = models.Calibration.load(path, loaded.identity)
    for name, value in calibration.__dict__.items():
        assert np.array_equal(getattr(again, name), value), name
    with pytest.raises(ValueError, match=f"{loaded.identity}.*{other.identity}"):
        models.Calibration.load(path, other.identity)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"tiny\.npz' is not what santa-hw calibrate writes"):
        models.Calibration.load(path)
    with pytest.raises(ValueError, match="no such file"):
        models.Calibration.load(tmp_path / "none.npz")


def test_calibration_names_its_text(seed):
    loaded = tiny()
    windows = np.random.default_rng(seed).integers(3, VOCABULARY, (2, 40))
    one = models.calibrate(loaded, windows)
    assert one.text_sha256 == models.calibrate(loaded, windows.copy()).text_sha256
    assert one.text_sha256 != models.calibrate(loaded, windows.reshape(4, 20)).text_sha256
    windows[1, 7] ^= 1
    assert one.text_sha256 != models.calibrate(loaded, windows).text_sha256


def test_a_calibration_is_named_by_all_that_decides_a_result(seed, tmp_path):
    calibration = calibrated(tiny(), seed)
    calibration.save(tmp_path / "c.npz")
    assert models.Calibration.load(tmp_path / "c.npz").sha256 == calibration.sha256
    moved = calibration.v_max.copy()
    moved[-1, -1, -1] = np.nextafter(moved[-1, -1, -1], 9)
    swapped = replace(calibration, k_max=calibration.v_max, v_max=calibration.k_max)
    others = [calibration.widened(1), calibration.widened(-1), replace(calibration, v_max=moved), swapped,
              replace(calibration, text_sha256="0" * 64)]  # fmt: skip
    assert len({other.sha256 for other in (calibration, *others)}) == 6


@pytest.mark.parametrize("window", [40, 75, 20])
def test_calibration_finds_overlap(window, seed):
    rng = np.random.default_rng(seed)
    text = rng.integers(3, VOCABULARY, 600)
    calibration = models.calibrate(tiny(), text[: 5 * window].reshape(5, window))
    calibration.require_disjoint(text[5 * window :][None])
    calibration.require_disjoint(rng.integers(3, VOCABULARY, (3, 5)))
    for start in (0, 3, 17):
        shared = text[start : start + min(2 * SPAN - 1, 2 * window - 1)]
        mixed = np.concatenate([rng.integers(3, VOCABULARY, 13), shared])
        with pytest.raises(ValueError, match=r"window 1 shares \d+ tokens from token \d+ on"):
            calibration.require_disjoint([text[-50:], mixed])


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ([], "token_windows is empty"),
        ([[1, 2, 3]], "window 0 has 3 tokens: 8 or more"),
        ([np.zeros(9)], "window 0 is float64"),
        (np.zeros((1, 2, 9), dtype=int), r"window 0 is int64 \(2, 9\)"),
        ([[1] * 8 + [VOCABULARY]], "ids outside 0 to 63"),
        ([[-1] * 8], "ids outside 0 to 63"),
    ],
)
def test_calibration_refuses_windows(windows, message):
    with pytest.raises(ValueError, match=message):
        models.calibrate(tiny(), windows)


def test_calibration_refuses_infinity(seed):
    loaded = tiny()
    with torch.no_grad():
        loaded.model.model.layers[1].self_attn.v_proj.weight.fill_(3e38)
    with pytest.raises(ValueError, match="layer 1 of tiny-llama gives K or V that are not finite"):
        calibrated(loaded, seed)
