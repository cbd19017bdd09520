"""Captures and calibrations with bytes torn, changed or cut out: they load, or are refused in one line."""

import numpy as np
import pytest
import tiny

from santa_hw import models
from santa_hw.capture import Capture
from santa_hw.design import Design
from santa_hw.models import Calibration


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The content of a capture and of a calibration."""
    folder = tmp_path_factory.mktemp("whole")
    loaded, generator = tiny.loaded(), np.random.default_rng(0)
    calibration = models.calibrate(loaded, generator.integers(3, 259, (2, 50)))
    tokens = generator.integers(3, 259, 40)
    calibration.save(folder / "calibration.npz")
    models.capture(loaded, Design(), calibration, tokens, layers=[0], positions=[39]).save(folder / "capture.npz")
    return {Capture: (folder / "capture.npz").read_bytes(), Calibration: (folder / "calibration.npz").read_bytes()}


@pytest.mark.parametrize("kind", [Capture, Calibration])
def test_damage_is_refused(kind, files, generator, tmp_path):
    whole, file, told = files[kind], tmp_path / "damaged.npz", []
    for _ in range(300):
        start, length = generator.integers(len(whole)), generator.integers(1, 100)
        end = min(start + length, len(whole))
        damaged = [
            whole[:start],
            whole[:start] + whole[end:],
            whole[:start] + generator.bytes(end - start) + whole[end:],
        ]
        for content in damaged:
            file.write_bytes(content)
            try:
                kind.load(file)
            except ValueError as error:
                told.append(str(error))
    assert len(told) > 600
    assert all(str(file) in message and "\n" not in message for message in told)


@pytest.mark.parametrize("place, value", [("method", 255), ("flags", 1), ("version", 255)])
@pytest.mark.parametrize("kind", [Capture, Calibration])
def test_what_zip_does_not_know_is_refused(kind, files, place, value, tmp_path):
    """Fields of the first entry of the archive's directory."""
    content = bytearray(files[kind])
    entry = content.index(b"PK\x01\x02")
    content[entry + {"version": 6, "flags": 8, "method": 10}[place]] = value
    (tmp_path / "damaged.npz").write_bytes(content)
    with pytest.raises(ValueError, match="is not what santa-hw"):
        kind.load(tmp_path / "damaged.npz")
