"""Output where it has no easy home: another encoding, a reader that has gone, no stdout at all, a narrow terminal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from santa_hw import console

ROOT = Path(__file__).parents[1]
COMMAND = f"{sys.executable} -m santa_hw"


def shell(line, **variables):
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=environment)


def test_a_terminal_of_another_encoding_costs_no_result(tmp_path):
    """Rows are written after the table that ASCII cannot show."""
    file = tmp_path / "cost.json"
    done = shell(f"{COMMAND} energy --keys 1024 --json {file}", PYTHONIOENCODING="ascii")
    assert (done.returncode, "error" in done.stderr) == (0, False)
    assert "?" in done.stdout
    assert json.loads(file.read_text())


def test_a_reader_that_has_gone_is_told_in_one_line():
    done = shell(f"{COMMAND} design --json | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == console.FAILURE
    assert done.stderr == "stopped: what read the output has closed it\n"


def test_progress_needs_no_stdout(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with console.progress("Steps", 2) as (_, advance):
        advance()


@pytest.mark.parametrize("width", [20, 200])
def test_a_narrow_terminal_cuts_nothing_off(width, monkeypatch, capsys):
    table = Table("a column", "another column", "a third one")
    table.add_row("0123456789", "abcdefghij", "9876543210")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(Console, "is_terminal", True)
    console.print_table(table)
    shown = capsys.readouterr().out
    for cell in ("0123456789", "abcdefghij", "9876543210", "another"):
        assert cell in shown
    assert "…" not in shown
