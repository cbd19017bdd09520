"""Files that commands write: looked at before the work, and never in place of what the user wrote."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from santa_hw import cli
from santa_hw.console import check_files

COSIM = ["cosim", "offset_scale", "--simulator", "icarus"]
COMMANDS = {
    "cosim --json": (COSIM, "--json", ["--dut", "--design", "--captured"]),
    "cosim --junit": (COSIM, "--junit", ["--dut", "--design", "--captured", "--json"]),
    "synth": (["synth", "offset_scale"], "--json", ["--dut", "--design", "--liberty"]),
    "calibrate": (["calibrate"], "--out", ["--text", "--model"]),
    "capture": (["capture"], "--out", ["--text", "--model", "--design", "--calibration"]),
    "gpu validate": (["gpu", "validate"], "--json", ["--captured"]),
    "gpu bench": (["gpu", "bench"], "--plot", ["--json"]),
    "accuracy": (["accuracy", "--json", "rows.json"], "--plot", ["--text", "--model", "--design"]),
    "energy": (["energy"], "--json", ["--design", "--plot"]),
}
CASES = [(command, option, other) for command, option, others in COMMANDS.values() for other in others]


def refused(command, *options):
    result = CliRunner().invoke(cli.app, [*command, *map(str, options)])
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    return line


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "mine.png").write_text("[design]\n")
    (tmp_path / "link.png").symlink_to("mine.png")
    return tmp_path


@pytest.mark.parametrize("command, option, _", COMMANDS.values(), ids=COMMANDS)
def test_a_place_that_cannot_be_written_is_found_before_the_work(command, option, _):
    assert f"{option} no/x.png: there is no folder no" in refused(command, option, "no/x.png")
    assert f"{option} folder.png: it is a folder" in refused(command, option, "folder.png")


@pytest.mark.parametrize("command, option, other", CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_input_is_not_overwritten(command, option, other):
    for name in ("mine.png", "link.png"):
        told = refused(command, other, "mine.png", option, name)
        assert "it is the file of" in told
        assert option in told
        assert other in told
    assert Path("mine.png").read_text() == "[design]\n"


def test_files_of_their_own_pass(place):
    check_files({"--json": place / "new", "--plot": place / "mine.png", "--junit": None}, {"--text": "a-builtin-text"})
    check_files({"--json": Path("new")}, {"--design": None, "--dut": Path("folder.png/new")})
