"""Files as other programs leave them: with a byte order mark, too deep, too large, with numbers that JSON lacks."""

import json
import os
import tracemalloc

import pytest

from santa_hw import models, synth
from santa_hw.budget.folder import Folder
from santa_hw.design import Design, Schedule, load_budgets
from santa_hw.energy import load_memory, load_table
from santa_hw.sweep import Rows, read_rows

MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""What some editors put before UTF-8."""


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    file = tmp_path / "file.toml"
    file.write_text(MARK + Design(samples=16).to_toml(), "utf-8")
    assert Design.from_toml(file).samples == 16
    file.write_text(MARK + "[schedule]\nsamples = [4, 16]\n", "utf-8")
    assert load_budgets(str(file)) == (4, 16)
    for load, name in ((load_table, "horowitz-45nm"), (load_memory, "hbm2")):
        own = load(name)
        file.write_text(MARK + own.path.read_text("utf-8"), "utf-8")
        assert load(str(file)).title == own.title
    file.write_text(MARK + "To be, or not to be.", "utf-8")
    assert models.load_text(file) == "To be, or not to be."
    file.write_text(MARK + '{"a": 1}\n', "utf-8")
    assert models.load_records(file) == [{"a": 1}]
    file.write_text(MARK + '[{"a": 1}]', "utf-8")
    assert read_rows(file) == [{"a": 1}]


@pytest.mark.parametrize("text", ["a = " + "[" * 3000 + "]" * 3000, "[design]\nsamples = " + "9" * 5000])
def test_what_toml_cannot_hold_names_the_file(tmp_path, text):
    (file := tmp_path / "d.toml").write_text(text)
    with pytest.raises(ValueError, match=rf"design file {file}: "):
        Design.from_toml(file)


def test_a_layer_far_away_costs_no_memory(tmp_path):
    (file := tmp_path / "d.toml").write_text("[[layers]]\nlayers = [0, 1000000]\n")
    tracemalloc.start()
    with pytest.raises(ValueError, match="the schedule misses layer 1"):
        Schedule.from_toml(file)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_json_that_is_too_deep_is_told(tmp_path):
    (file := tmp_path / "rows.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"rows.json is not JSON \(maximum recursion"):
        read_rows(file)
    with pytest.raises(ValueError, match=r"line 1 is not JSON \(maximum recursion"):
        models.load_records(file)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_rows_that_could_not_be_written_again_are_refused_before_the_run(tmp_path, number):
    (file := tmp_path / "rows.json").write_text(json.dumps([{"kl_to_dense": number}]))
    with pytest.raises(ValueError, match=r"rows.json holds NaN or infinity: numbers of JSON"):
        Rows(file)


def test_a_full_disk_leaves_the_file_and_nothing_else(tmp_path, monkeypatch):
    rows = Rows(tmp_path / "rows.json")
    rows.add({"seed": 0})

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        rows.add({"seed": 1})
    assert [file.name for file in tmp_path.iterdir()] == ["rows.json"]
    assert read_rows(tmp_path / "rows.json") == [{"seed": 0}]


def test_a_user_that_there_is_not_is_a_file_that_is_not_there():
    for load, told in (
        (models.load_text, "no such text"),
        (models.load_records, "no such file"),
        (models.load, "not a folder, a file, nor a hub id"),
    ):
        with pytest.raises(ValueError, match=told):
            load("~nobody-of-this-name/file")


@pytest.mark.parametrize("content", ["[]", '"run"', "1"])
def test_a_budget_run_of_another_kind_is_told(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run.json holds no JSON object"), Folder(tmp_path).coordinating({}):
        pass


def test_a_library_of_cells_in_another_encoding_is_told(tmp_path):
    if lack := synth.missing():
        pytest.skip(lack)
    (file := tmp_path / "cells.lib").write_bytes("library (µ) { é".encode("latin-1"))
    with pytest.raises(ValueError, match="yosys refuses module mass"):
        synth.netlist("mass", liberty=file)
