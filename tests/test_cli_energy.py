"""The command `energy`: what it prints and writes, and what it refuses, in one line."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from typer.testing import CliRunner

from santa_hw import cli, report_cost
from santa_hw.cost import baseline_of, pairs
from santa_hw.design import Design
from santa_hw.energy import names
from santa_hw.events import METHODS, STAGES, Shape, analytic

PROMISED = ("method", "table", "memory", "total_pj", "compute_pj", "memory_pj", "stages", "events", "cycles", "bound")
SMALL = ("--heads", 4, "--kv-heads", 2, "--head-dim", 16, "--keys", 500, "--samples", 8)


def run(*arguments):
    return CliRunner().invoke(cli.app, ["energy", *map(str, arguments)])


def rows_of(path):
    return json.loads(path.read_text())


@pytest.fixture
def results(tmp_path):
    """A file of accuracy rows: santa at three budgets and two seeds, dense."""
    shape = Shape(9, 3, 64, 30)
    rows = []
    for design in (*(Design(samples=s) for s in (8, 32, 128)), Design(method="dense")):
        for seed in range(1 if design.method == "dense" else 2):
            kl = 0.003 if design.method == "dense" else 2.0 / design.samples * (1 + 0.1 * seed)
            rows.append({
                "method": design.method, "samples": None if design.method == "dense" else design.samples,
                "design": design.to_dict(), "seed": seed, "task": "perplexity", "model": "smollm2-135m-instruct",
                "window": 64, "windows": 1, "kl_to_dense": kl, "per_window": [{"kl": kl}], "accuracy": None,
                "unique_rows": 5.0, "tally": dataclasses.asdict(analytic(design, shape, 1000)),
            })  # fmt: skip
    rows.append({"method": "float-sys", "design": None, "samples": 8, "kl_to_dense": 0.1})
    path = tmp_path / "results.json"
    path.write_text(json.dumps(rows))
    return path


def test_the_issues_command(tmp_path):
    """Every key that a row promises; energies that add up; the bill on the terminal."""
    file = tmp_path / "e.json"
    done = run(
        "--keys", 32768, "--heads", 32, "--kv-heads", 8, "--head-dim", 128, "--samples", 128, "--top-k", 128,
        "--methods", "dense,top-k,santa,santa-ternary", "--table", "horowitz-45nm", "--memory", "hbm2",
        "--json", file, "--plot", tmp_path / "e.png",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert [row["method"] for row in rows_of(file)] == ["dense", "top-k", "santa", "santa-ternary"]
    for row in rows_of(file):
        assert set(PROMISED) <= set(row)
        assert (row["table"], row["memory"]) == ("horowitz-45nm", "hbm2")
        assert list(row["stages"]) == list(STAGES)
        assert row["total_pj"] == pytest.approx(sum(row["stages"].values()))
        assert row["total_pj"] == pytest.approx(row["compute_pj"] + row["memory_pj"])
        assert row["total_pj"] > 0 and row["cycles"] > 0
        # Ternary scores take a pass of the keys for each bit of the counts.
        assert row["bound"] == ("engine" if row["method"] == "santa-ternary" else "memory")
        assert all(line["sources"] and line["confidence"] for line in row["provenance"])
    for stage in STAGES:
        assert stage in done.output
    assert "Control, wires, clock tree, leakage and refresh are not modelled." in done.output
    assert "unique_rows: upper bound" in done.output
    assert (tmp_path / "e.png").read_bytes()[:4] == b"\x89PNG"


def test_all_methods_under_all_tables(tmp_path):
    file = tmp_path / "e.json"
    every = ("--methods", "all", "--table", "all", "--memory", "all")
    done = run(*SMALL, *every, "--json", file, "--plot", tmp_path / "e.svg")
    assert done.exit_code == 0, done.output
    rows = rows_of(file)
    assert len(rows) == len(METHODS) * len(names("logic")) * len(names("memory"))
    assert {row["method"] for row in rows} == set(METHODS)
    assert list(pairs(rows)) == [(table, memory) for table in names("logic") for memory in names("memory")]
    assert all(name in done.output for name in names("memory"))
    assert (tmp_path / "e.svg").read_bytes()[:5] == b"<?xml"


def test_shapes_bring_their_layers(tmp_path):
    file = tmp_path / "e.json"
    common = ("--shape", "smollm2-135m", "--keys", 1000, "--methods", "dense", "--json", file)
    assert run(*common).exit_code == 0
    whole = rows_of(file)[0]
    assert run(*common, "--layers", 1).exit_code == 0
    one = rows_of(file)[0]
    assert whole["total_pj"] == pytest.approx(30 * one["total_pj"], rel=1e-3)
    assert whole["traffic"]["key_rows"] == 30 * 9 * 1000
    assert whole["cycles"] == pytest.approx(30 * one["cycles"], rel=1e-3)


def test_measured_means_replace_bounds(tmp_path):
    file = tmp_path / "e.json"
    done = run(*SMALL, "--methods", "santa,dense", "--unique-rows", 3, "--group-rows", 4.5, "--json", file)
    assert done.exit_code == 0, done.output
    assert "upper bound" not in done.output
    assert rows_of(file)[0]["traffic"]["value_rows_read"] == 9
    done = run(*SMALL, "--methods", "santa-ternary", "--features", 5, "--additions", 7, "--json", file)
    assert done.exit_code == 0 and "normal features" not in done.output
    assert sum(rows_of(file)[0]["events"]["score"].values()) >= 4 * 500 * 7


def test_layout_options(tmp_path):
    file = tmp_path / "e.json"
    read = {}
    for options in ((), ("--burst", 64), ("--interleave", 8), ("--score-memory", 0)):
        assert run(*SMALL, "--keys", 5000, "--methods", "santa", *options, "--json", file).exit_code == 0
        read[options] = rows_of(file)[0]
    plain, wide, narrow, none = (row["events"] for row in read.values())
    # Rows of 16 bytes: a burst is one either way, but twice as large; pieces of 8 bytes need two openings.
    assert plain["value rows"]["dram-read 256 bit"] == wide["value rows"]["dram-read 512 bit"]
    assert narrow["value rows"]["activation"] == 2 * plain["value rows"]["activation"] == 64
    assert "dram-write 256 bit" in none["score memory"] and "dram-write 256 bit" not in plain["score memory"]


def test_a_design_file_gives_the_other_widths(tmp_path):
    (tmp_path / "d.toml").write_text('[design]\ngather = "shift_add"\nv_bits = 4\nhead_dim = 16\n')
    done = run(*SMALL, "--methods", "santa", "--design", tmp_path / "d.toml", "--json", tmp_path / "e.json")
    assert done.exit_code == 0, done.output
    design = rows_of(tmp_path / "e.json")[0]["design"]
    assert (design["gather"], design["v_bits"], design["max_keys"]) == ("shift_add", 4, 4096)


def test_a_table_of_ones_own(tmp_path):
    from test_energy import GOOD, GOOD_MEMORY

    (tmp_path / "wide.toml").write_text(GOOD_MEMORY)
    (tmp_path / "mine.toml").write_text(GOOD)
    done = run(*SMALL, "--methods", "dense", "--memory", tmp_path / "wide.toml", "--json", tmp_path / "e.json")
    assert done.exit_code == 0 and rows_of(tmp_path / "e.json")[0]["memory"] == "wide"
    done = run(*SMALL, "--methods", "dense", "--table", tmp_path / "mine.toml")
    assert done.exit_code == 2
    assert "mine.toml: no entry for" in done.output and "needs as" in done.output
    (tmp_path / "mine.toml").write_text(GOOD.replace("7.0", "0"))
    done = run(*SMALL, "--methods", "dense", "--table", tmp_path / "mine.toml")
    assert done.exit_code == 2 and "mine.toml, line 11: operations[0].energy = 0" in done.output


def test_beside_accuracy(results, tmp_path):
    file = tmp_path / "cost.json"
    done = run("--from", results, "--target", 0.05, "--json", file, "--plot", tmp_path / "p.png")
    assert done.exit_code == 0, done.output
    rows = rows_of(file)
    points, equal = [r for r in rows if "target" not in r], [r for r in rows if "target" in r]
    budgets = [("santa", 8), ("santa", 32), ("santa", 128), ("dense", None)]
    assert [(r["method"], r["samples"]) for r in points] == budgets
    assert [r["method"] for r in equal] == ["dense", "santa"] and equal[1]["status"] == "interpolated"
    # Divergence is 2.1 / S on the mean of the seeds.
    assert equal[1]["samples"] == pytest.approx(42)
    ends = equal[1]["samples_interval"]
    assert ends["low"] == pytest.approx(40) and ends["high"] == pytest.approx(44)
    assert equal[1]["ratio_to_dense"] < 1 and set(equal[1]["ratio_to_dense_interval"]) == {"low", "high"}
    # Every row has what rows promise; between two budgets only the energy is known.
    assert all(set(PROMISED) <= set(r) for r in rows)
    santa, dense = equal[1], equal[0]
    assert santa["total_pj_interval"]["low"] <= santa["total_pj"] <= santa["total_pj_interval"]["high"]
    assert all(santa[name] is None for name in ("compute_pj", "memory_pj", "stages", "events", "cycles", "bound"))
    assert dense["total_pj"] == pytest.approx(dense["compute_pj"] + dense["memory_pj"])
    assert dense["cycles"] == points[-1]["cycles"] and dense["stages"] == points[-1]["stages"]
    assert "1 rows of schedules or floating-point methods are left out" in done.output
    assert "dense-bf16 on the same steps" in done.output and "Equal accuracy" in done.output
    assert (tmp_path / "p.png").stat().st_size > 1000


BAD = [
    (("--methods", "snata"), "--methods 'snata' (did you mean santa?): allowed are dense-bf16"),
    (("--methods", ","), "--methods ',': one name at least is allowed"),
    (("--table", "horowitz"), "--table 'horowitz'"),
    (("--memory", "hbm"), "--memory 'hbm'"),
    (("--table", "none.toml"), "none.toml cannot be read"),
    (("--shape", "lama"), "--shape 'lama'"),
    (("--samples", 0), "--samples 0: allowed is 1 to 65536"),
    (("--samples", 100), "--samples 100: a power of two is allowed"),
    (("--top-k", 0, "--methods", "top-k"), "--top-k 0: allowed is 1 to 65536"),
    (("--keys", -1), "--keys -1: 0 to 1073741824 is allowed"),
    (("--keys", 1 << 31), "--keys 2147483648: 0 to 1073741824 is allowed"),
    (("--heads", 3, "--kv-heads", 2), "--kv-heads 2: a divisor of heads = 3"),
    (("--heads", 12), "--kv-heads 8 (its default): a divisor of heads = 12"),
    (("--batch", 0), "--batch 0: 1 or more is allowed"),
    (("--head-dim", 0), "--head-dim 0: 1 or more is allowed"),
    (("--bits", 1), "--bits 1: allowed is 2 to 24"),
    (("--ternary-samples", 3, "--methods", "all"), "--ternary-samples 3: a power of two is allowed"),
    (("--key-layout", "column"), "--key-layout 'column': allowed are row, feature"),
    (("--burst", 0), "--burst 0: 1 or more is allowed"),
    (("--interleave", -4), "--interleave -4: 1 or more is allowed"),
    (("--score-memory", -1), "--score-memory -1: "),
    (("--engines", 0), "--engines 0: 1 or more is allowed"),
    (("--weights-per-cycle", 0), "--weights-per-cycle 0: 1 or more is allowed"),
    (("--clock", 0), "--clock 0.0: a number above zero is allowed"),
    (("--latency", -1), "--latency -1.0: zero or more is allowed"),
    (("--bandwidth", 0), "--bandwidth 0.0: a number above zero is allowed"),
    (("--unique-rows", 129), "--unique-rows 129.0: 0 to 128 is allowed"),
    (("--methods", "dense", "--top-k", 3), "--top-k has no effect with --methods dense: leave it out, or choose top-k"),
    (("--ternary-samples", 8), "--ternary-samples has no effect with --methods dense-bf16,dense,top-k,santa: leave it"),
    (("--methods", "dense,top-k", "--unique-rows", 3), "--unique-rows has no effect with --methods dense,top-k"),
    (("--methods", "dense", "--group-rows", 3), "--group-rows has no effect with --methods dense"),
    (("--features", 3), "--features has no effect with --methods"),
    (("--additions", 3), "--additions has no effect with --methods"),
    (("--methods", "dense-fp16", "--bits", 6), "--bits has no effect with --methods dense-fp16"),
    (("--methods", "dense-bf16", "--samples", 8), "--samples has no effect with --methods dense-bf16"),
    (("--methods", "top-k", "--samples", 8, "--top-k", 8), "--samples has no effect with --methods top-k"),
    (("--methods", "top-k", "--score-memory", 8), "--score-memory has no effect with --methods top-k"),
    (("--json", "."), "--json .: it is a folder; a file is allowed"),
    (("--from", "."), "--from .: it is a folder; a file is allowed"),
    (("--json", "no/e.json"), "--json no/e.json: there is no folder no"),
    (("--target", 0.1), "--target has no effect without --from: leave it out"),
    (("--shape", "llama-3.1-8b", "--heads", 8), "--shape and --heads: one of them is allowed"),
    (("--plot", "e.gif"), "e.gif: a name that ends in .png, .svg, .pdf is allowed"),
    (("--plot", "no/e.png"), "there is no folder"),
    (("--json", "e.png", "--plot", "e.png"), "files of different names are allowed"),
    (("--from", "nothing.json"), "nothing.json cannot be read"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_input_is_one_clear_line(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*options)
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_bad_files_of_rows(results, tmp_path):
    done = run("--from", results, "--keys", 100)
    assert done.exit_code == 2 and "--keys has no effect with --from, whose rows say it" in done.stderr
    done = run("--from", results, "--table", "all", "--plot", tmp_path / "p.png")
    assert done.exit_code == 2 and "one --table and one --memory are allowed" in done.stderr
    done = run("--from", results, "--target", 0)
    assert done.exit_code == 2 and "--target 0.0: a number above zero is allowed" in done.stderr
    done = run("--from", results, "--shape", "llama-3.1-8b")
    assert done.exit_code == 2 and "the rows' 64 is allowed" in done.stderr


def test_a_shape_for_rows_of_an_unknown_model(results, tmp_path):
    rows = [row | {"model": "mine"} for row in json.loads(results.read_text())]
    results.write_text(json.dumps(rows))
    done = run("--from", results)
    assert done.exit_code == 2 and "model = 'mine': no shape of that name is known; give --shape" in done.stderr
    done = run("--from", results, "--heads", 9)
    assert done.exit_code == 2 and "all of them are allowed, or none" in done.stderr
    done = run("--from", results, "--heads", 9, "--kv-heads", 3, "--layers", 30, "--json", tmp_path / "a.json")
    assert done.exit_code == 0, done.output
    assert run("--from", results, "--shape", "smollm2-135m", "--json", tmp_path / "b.json").exit_code == 0
    assert rows_of(tmp_path / "a.json") == rows_of(tmp_path / "b.json")
    done = run("--from", results, "--heads", 8, "--kv-heads", 3, "--layers", 30)
    assert done.exit_code == 2 and "--kv-heads 3: a divisor of heads = 8" in done.stderr
    done = run("--from", results, "--heads", 9, "--kv-heads", 3, "--layers", 7)
    assert done.exit_code == 2 and "whole steps of 7 layers, 9 heads and 3 KV heads are allowed" in done.stderr


def test_a_target_out_of_reach_has_null_cost(results, tmp_path):
    assert run("--from", results, "--target", 1e-6, "--json", tmp_path / "e.json").exit_code == 0
    for row in (r for r in rows_of(tmp_path / "e.json") if "target" in r):
        assert row["status"] == "not reached" and row["total_pj"] is None and row["total_pj_interval"] is None


def test_rows_of_several_settings(results):
    """Shown side by side, but no target over both, and no reference that would be one of them's."""
    rows = json.loads(results.read_text())
    results.write_text(json.dumps([*rows, *(row | {"window": 128, "dtype": "bfloat16"} for row in rows[:2])]))
    done = run("--from", results)
    assert done.exit_code == 0 and "rows of several settings (dtype, window differ)" in done.output
    assert "dense-bf16 on the same steps" not in done.output
    done = run("--from", results, "--target", 0.05)
    assert done.exit_code == 2 and "error: rows differ in dtype, window (dtype = " in done.stderr


DAMAGED = [
    ({"design": {}}, "design = {}: a table with the field method is allowed"),
    ({"window": "x"}, "window = 'x': 1 or more, or null, is allowed"),
    ({"tally": 5}, "tally = 5: a table of counts, or null, is allowed"),
    ({"per_window": [{}]}, "per_window: kl = None: a number from zero is allowed"),
    ({"kl_to_dense": math.nan}, "kl_to_dense = nan: a number from zero, or null, is allowed"),
    ({"model": "mine"}, "model = 'mine': no shape of that name is known; give --shape"),
]


@pytest.mark.parametrize(("changes", "message"), DAMAGED, ids=[m for _, m in DAMAGED])
@pytest.mark.parametrize("sizes", [(), ("--heads", 9, "--kv-heads", 3, "--layers", 30)])
def test_damaged_rows_are_one_clear_line(changes, message, sizes, results):
    rows = json.loads(results.read_text())
    rows[2] |= changes
    results.write_text(json.dumps(rows))
    done = run("--from", results, *sizes)
    if sizes and "model" in changes:
        assert done.exit_code == 0
        return
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"error: {results}, row 3: {message}" in done.stderr


def test_rows_of_cost_are_no_rows_of_accuracy(tmp_path):
    assert run(*SMALL, "--json", tmp_path / "cost.json").exit_code == 0
    done = run("--from", tmp_path / "cost.json")
    assert done.exit_code == 2 and "cost.json, row 1: method = 'dense-bf16': allowed are santa" in done.stderr


@pytest.mark.parametrize("text", [None, "[]", "", "{}", "[1]", '[{"method": "santa"}]', "\xff"])
def test_only_rows_of_cost_are_replaced(text, results, tmp_path):
    """What accuracy computed, or anything else, stays as it was."""
    file = tmp_path / "there.json"
    file.write_text(results.read_text() if text is None else text, encoding="latin-1")
    before = file.read_bytes()
    done = run(*SMALL, "--methods", "dense", "--json", file)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"--json {file}: it is there already and holds no rows of cost; a new name" in done.stderr
    assert file.read_bytes() == before and done.stdout == ""


def test_files_are_written_whole(tmp_path, monkeypatch):
    """Nothing is left of a write that fails but the file that was there; a link stays one."""
    file, link = tmp_path / "e.json", tmp_path / "link.json"
    link.symlink_to(file)
    assert run(*SMALL, "--methods", "dense", "--json", link).exit_code == 0
    assert link.is_symlink() and len(rows_of(file)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.json", "link.json"]

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    assert run(*SMALL, "--methods", "dense,santa", "--json", file).exit_code == 2
    assert len(rows_of(file)) == 1


def test_a_design_files_budget_is_the_default(tmp_path):
    (tmp_path / "d.toml").write_text("[design]\nsamples = 32\nhead_dim = 16\n")
    common = (*SMALL[:-2], "--methods", "santa,top-k", "--design", tmp_path / "d.toml", "--json", tmp_path / "e.json")
    for options, budgets in (((), [32, 32]), (("--samples", 8), [8, 8]), (("--top-k", 5), [32, 5])):
        assert run(*common, *options).exit_code == 0
        assert [row["samples"] for row in rows_of(tmp_path / "e.json")] == budgets
    (tmp_path / "d.toml").write_text('[design]\nmethod = "top-k"\nsamples = 100\n')
    done = run("--design", tmp_path / "d.toml")
    assert done.exit_code == 2 and "d.toml): a power of two is allowed" in done.stderr
    (tmp_path / "d.toml").write_text("[design]\nhead_dim = 16\n")
    assert run(*common).exit_code == 0
    assert [row["samples"] for row in rows_of(tmp_path / "e.json")] == [128, 128]


def test_fields_of_a_design_file_that_give_way_are_named(tmp_path):
    fields = 'scores = "ternary"\nsampler = "stratified"\nhead_dim = 64\nmax_keys = 16\nmethod = "dense"'
    (tmp_path / "d.toml").write_text(f"[design]\n{fields}\n")
    done = run(*SMALL, "--methods", "dense-bf16,dense,santa-ternary,iid", "--design", tmp_path / "d.toml")
    assert done.exit_code == 0, done.output
    for line in (
        "d.toml: method = dense gives way to santa for santa-ternary, santa for iid",
        "d.toml: scores = ternary gives way to dense for dense, dense for iid",
        "d.toml: sampler = stratified gives way to iid for iid",
        "d.toml: head_dim = 64 gives way to 16 for dense, 16 for santa-ternary, 16 for iid",
        "d.toml: max_keys = 16 gives way to 500 for dense, 500 for santa-ternary, 500 for iid",
    ):
        assert line in done.output.replace("\n", " ").replace("  ", " ")
    (tmp_path / "d.toml").write_text("[design]\nhead_dim = 16\n")
    assert "gives way" not in run(*SMALL, "--methods", "santa", "--design", tmp_path / "d.toml").output


def test_santa_is_not_costed_with_independent_draws(tmp_path):
    """They are a method of their own, and would be called santa otherwise."""
    (tmp_path / "d.toml").write_text('[design]\nsampler = "iid"\n')
    done = run(*SMALL, "--methods", "santa", "--design", tmp_path / "d.toml")
    assert done.exit_code == 2
    assert "d.toml: sampler = 'iid': systematic or stratified is allowed with method santa" in done.stderr
    assert run(*SMALL, "--methods", "iid", "--design", tmp_path / "d.toml").exit_code == 0


def test_numbers_as_text():
    assert [report_cost.energy_text(x) for x in (0, 0.5, 999, 999.7, 1234, 5.6e6, 7e9, 1.2e12, 3e15)] == [
        "0 pJ", "0.5 pJ", "999 pJ", "1 nJ", "1.23 nJ", "5.6 µJ", "7 mJ", "1.2 J", "3e+03 J"
    ]  # fmt: skip
    assert report_cost.bytes_text(67.2e6) == "67.2 MB"


def test_without_dense_there_is_nothing_to_compare_with(tmp_path):
    files = ("--plot", tmp_path / "e.png", "--json", tmp_path / "e.json")
    done = run(*SMALL, "--methods", "santa,top-k", "--memory", "all", *files)
    assert done.exit_code == 0, done.output
    assert baseline_of(rows_of(tmp_path / "e.json")) is None
    assert run(*SMALL, "--methods", "santa").exit_code == 0


@pytest.mark.parametrize("keys", [0, 1])
def test_no_key_and_one_key(keys, tmp_path):
    files = ("--plot", tmp_path / "e.png", "--json", tmp_path / "e.json")
    done = run(*SMALL[:6], "--keys", keys, "--methods", "all", *files)
    assert done.exit_code == 0, done.output
    for row in rows_of(tmp_path / "e.json"):
        assert row["total_pj"] >= 0 and math.isfinite(row["cycles"])
        if not keys:
            assert row["cycles"] == 0 and row["bound"] == "none" and row["total_pj"] == row["stages"]["append"]
