"""Vectors as files, for test benches that do not use cocotb."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from santa_hw import cli, rtl
from santa_hw.design import Design
from santa_hw.rtl.blocks import Vector
from santa_hw.rtl.export import UNFINISHED
from santa_hw.rtl.package import FILE, package


@pytest.mark.parametrize("block", rtl.NAMES)
def test_vectors_are_written_for_other_benches(block: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["vectors", block, "--out", str(tmp_path), "--vectors", "10", "--seed", "3"])
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    arrays = np.load(tmp_path / "vectors.npz")
    made = list(rtl.load(block).vectors(Design(), 10, np.random.default_rng(3)))
    for stream in manifest["streams"]:
        beats = [b for v in made for b in (v.inputs | v.outputs).get(stream["name"], [])]
        assert stream["beats"] == len(beats) == sum(stream["beats_by_vector"])
        for i, field in enumerate(stream["fields"]):
            lines = (tmp_path / field["file"]).read_text().split()
            values, packed = [beat[i] for beat in beats], arrays[f"{stream['name']}_{field['name']}"]
            bits = [value % (1 << field["width"]) for value in values]
            assert [int(line, 16) for line in lines] == bits
            if field["width"] > 64:
                assert [sum(word << 64 * k for k, word in enumerate(row)) for row in packed.tolist()] == [
                    value % (1 << 64 * packed.shape[1]) for value in values
                ]
            else:
                assert packed.tolist() == values
    assert Design.from_dict(manifest["design"]) == Design()
    assert (tmp_path / FILE).read_text() == package(Design())


def vectors_in(folder: Path, block: str = "mass") -> Any:
    return CliRunner().invoke(cli.app, ["vectors", block, "--out", str(folder), "--vectors", "2"])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_vectors_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    for block in ("threefry2x32", "mass", "mass"):
        assert vectors_in(tmp_path / "again", block).exit_code == 0
    assert vectors_in(tmp_path / "new" / "one").exit_code == 0
    assert contents(tmp_path / "again").keys() == contents(tmp_path / "new" / "one").keys()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".gitignore").write_text("*")
    assert vectors_in(tmp_path / "hidden").exit_code == 0
    assert (tmp_path / "hidden" / ".gitignore").read_text() == "*"


STRANGE = {
    "another file": ("a.sv", "module a; endmodule"),
    "a file of that name": ("santa_pkg.sv", "package mine; endpackage"),
    "another program's manifest": ("manifest.json", '{"name": "my page"}'),
    "a list": ("manifest.json", '["streams"]'),
    "no JSON": ("manifest.json", "mine"),
    "no text": ("manifest.json", "\udcff"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_vectors_leave_a_folder_of_other_files_alone(case: str, tmp_path: Path) -> None:
    name, text = STRANGE[case]
    (tmp_path / name).write_text(text, "utf-8", "surrogateescape")
    before = contents(tmp_path)
    done = vectors_in(tmp_path)
    assert done.exit_code == 2 and f"{tmp_path} holds other files ({name}): an empty folder" in done.output
    assert contents(tmp_path) == before


def test_vectors_that_are_not_all_made_leave_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert vectors_in(tmp_path).exit_code == 0
    before = contents(tmp_path)
    block = rtl.load("threefry2x32")

    def stopped(*arguments: Any) -> Iterator[Vector]:
        yield next(iter(block.vectors(*arguments)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rtl, "load", lambda name: dataclasses.replace(block, vectors=stopped))
        assert vectors_in(tmp_path, block.name).exit_code != 0
    assert (tmp_path / UNFINISHED).exists()
    assert contents(tmp_path) == before
    assert vectors_in(tmp_path, "threefry2x32").exit_code == 0
    assert not (tmp_path / UNFINISHED).exists()
    assert json.loads((tmp_path / "manifest.json").read_text())["block"] == "threefry2x32"


def test_vectors_leave_what_was_added_to_theirs_alone(tmp_path: Path) -> None:
    assert vectors_in(tmp_path / "out").exit_code == 0
    (tmp_path / "out" / "tb.sv").write_text("module tb; endmodule")
    before = contents(tmp_path / "out")
    assert "holds other files (tb.sv)" in vectors_in(tmp_path / "out").output
    assert contents(tmp_path / "out") == before
    assert "tb.sv: it is a file; a folder is allowed" in vectors_in(tmp_path / "out" / "tb.sv").output
