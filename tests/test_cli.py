"""The command line: what it prints, what it refuses, and the codes it leaves with."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

from santa_hw import __version__, cli, cli_fields, sweep
from santa_hw.design import FIELDS, Design, Schedule
from santa_hw.evaluate import gsm8k
from santa_hw.team_design import TEAM_FIELDS

ROW = {
    "design": dict | None,
    "method": str,
    "samples": int | None,
    "seed": int,
    "task": str,
    "model": str,
    "model_identity": str,
    "text": str | None,
    "windows": int | None,
    "window": int | None,
    "phases": str,
    "perplexity": float | None,
    "kl_to_dense": float | None,
    "top1_agreement": float | None,
    "accuracy": float | None,
    "unique_rows": float | None,
    "kv_reads": float | None,
    "group_kv_reads": float | None,
    "teams": dict | None,
    "saturations": int | None,
    "lost_mass": float | None,
    "seconds": float,
    "per_window": list | None,
    "per_trial": list | None,
}


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and two texts."""
    folder = tmp_path_factory.mktemp("place")
    tiny.folder(folder / "model")
    (folder / "text.txt").write_text(tiny.prose(1))
    (folder / "other.txt").write_text(tiny.prose(2))
    (folder / "short.txt").write_text("Too short.")
    return folder


@pytest.fixture
def accuracy(place, tmp_path, monkeypatch):
    """Run `accuracy` on the tiny model, in a folder of its own; options given win."""
    monkeypatch.chdir(tmp_path)

    def call(*options):
        given = {
            "--model": place / "model", "--text": place / "text.txt", "--calibration-text": place / "other.txt",
            "--window": 48, "--json": "rows.json",
        }  # fmt: skip
        if "needle" in options or "fwe" in options:
            del given["--window"]
            given["--context"] = 800
        if "fwe" in options:
            del given["--text"]
        given = {name: value for name, value in given.items() if name not in options}
        options = list(options)
        while None in options:
            # An option whose value is None is the fixture's, left out.
            at = options.index(None)
            del options[at - 1 : at + 1]
        return run("accuracy", *(part for pair in given.items() for part in pair), *options)

    return call


# A fast start -----------------------------------------------------------------------------------


def test_nothing_heavy_is_imported_before_a_command_runs():
    code = "import sys, santa_hw.cli; print([m for m in ('torch', 'numpy', 'numba', 'matplotlib') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert result.stdout.strip() == "[]"


def test_version_and_help():
    assert run("--version").stdout.strip() == __version__
    for arguments in ([], ["accuracy"], ["report"], ["design"], ["calibrate"], ["fetch"]):
        result = run(*arguments, "--help")
        assert result.exit_code == 0
        assert "Usage" in result.stdout


def test_every_design_field_is_an_option():
    assert set(cli_fields.OWN_HELP) | set(cli_fields.FIELD_HELP) == set(FIELDS)
    assert not set(cli_fields.OWN_HELP) & set(cli_fields.FIELD_HELP)


def test_every_team_field_is_an_option():
    assert set(cli_fields.TEAM_HELP) == set(TEAM_FIELDS)
    assert not set(cli_fields.TEAM_HELP) & {*cli_fields.OWN_HELP, *cli_fields.FIELD_HELP}


# accuracy ---------------------------------------------------------------------------------------


def test_rows_table_and_plot(accuracy, tmp_path):
    result = accuracy("--samples", "4,16", "--seeds", 2, "--bits", "4,8", "--plot", "plot.svg")
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "rows.json").read_text())
    # Two widths of: santa with two budgets and two seeds, top-k with two budgets, dense.
    assert len(rows) == 2 * (2 * 2 + 2 + 1)
    for row in rows:
        for name, kind in ROW.items():
            assert isinstance(row[name], kind), (name, row[name])
        assert set(row["design"]) == set(FIELDS)
        assert row["design"]["q_bits"] == row["design"]["k_bits"] == row["design"]["v_bits"] in (4, 8)
        assert (row["samples"] is None) == (row["method"] == "dense")
        assert row["design"]["method"] == row["method"]
        assert (row["task"], row["windows"], row["window"]) == ("perplexity", 2, 48)
    assert (tmp_path / "plot.svg").read_bytes().startswith(b"<?xml")
    assert "Perplexity" in result.stdout
    assert "14 of 14 rows" in result.stderr
    # Coarser operands diverge more, seeds differ.
    dense = {row["design"]["q_bits"]: row["kl_to_dense"] for row in rows if row["method"] == "dense"}
    assert dense[4] > dense[8]
    assert len({row["kl_to_dense"] for row in rows}) == len(rows)


def test_a_second_run_resumes_and_another_grid_adds(accuracy, tmp_path, monkeypatch):
    assert accuracy("--method", "dense", "--seeds", 1).exit_code == 0
    first = json.loads((tmp_path / "rows.json").read_text())
    measured = []
    measure = sweep.measure
    monkeypatch.setattr(sweep, "measure", lambda *a: measured.append(a[1].method) or measure(*a))
    result = accuracy("--method", "dense,float-dense,float-sys", "--samples", 4, "--seeds", 1)
    assert result.exit_code == 0, result.output
    assert measured == ["float-dense", "float-sys"]
    assert json.loads((tmp_path / "rows.json").read_text())[:1] == first


def test_teams_on_the_command_line(accuracy, tmp_path):
    result = accuracy(
        "--method", "santapp,top-means", "--samples", 4, "--seeds", 2, "--block", 8, "--team", "2,4", "--sinks", 0,
        "--sharing", "reuse", "--weights", "clipped", "--clip", 1.5,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["method"], row["teams"]["team"], row["seed"]) for row in rows] == [
        *(("santapp", team, seed) for team in (2, 4) for seed in (0, 1)), ("top-means", 2, 0), ("top-means", 4, 0)
    ]  # fmt: skip
    assert rows[0]["teams"] == {"block": 8, "team": 2, "sharing": "reuse", "weights": "clipped", "exponent": 0.5,
                                "clip": 1.5, "sinks": 0}  # fmt: skip
    assert all(0.2 < row["kv_reads"] <= row["group_kv_reads"] < 1 for row in rows)
    for word in ("S,k,M", "KV", "Group", "santapp", "top-means"):
        assert word in result.stdout
    drawn = run("report", tmp_path / "rows.json", "--plot", "reads.svg", "--x", "group_kv_reads")
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "reads.svg").exists()


@pytest.mark.parametrize("method", ["dense", "float-dense", "dense,float-dense"])
def test_methods_without_a_budget_need_none(accuracy, tmp_path, method):
    assert accuracy("--method", method).exit_code == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["method"], row["samples"]) for row in rows] == [(name, None) for name in method.split(",")]


def test_limit_stops_early(accuracy, tmp_path):
    result = accuracy("--samples", 4, "--limit", 2)
    assert result.exit_code == 0
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 2
    assert "2 of 6 rows" in result.stderr


@pytest.mark.parametrize("task", ["needle", "fwe"])
def test_decoding_tasks(accuracy, tmp_path, task):
    result = accuracy(
        "--task", task, "--trials", 2, "--method", "santa", "--samples", 8, "--seeds", 1, "--plot", "p.png"
    )
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    for name, kind in ROW.items():
        assert isinstance(row[name], kind), (name, row[name])
    assert (row["task"], row["phases"], row["trials"], row["perplexity"]) == (task, "decode", 2, None)
    assert 0 <= row["accuracy"] <= 1
    assert row["unique_rows"] <= 8
    assert len(row["per_trial"]) == 2
    assert "Accuracy" in result.stdout


def test_a_design_file_is_the_base(accuracy, tmp_path):
    (tmp_path / "d.toml").write_text(Design(samples=4, v_bits=5, sampler="stratified").to_toml())
    assert accuracy("--design", "d.toml", "--q-bits", "6,7", "--seeds", 1).exit_code == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(r["method"], r["samples"], r["design"]["q_bits"], r["design"]["v_bits"]) for r in rows] == [
        ("santa", 4, 6, 5), ("santa", 4, 7, 5)
    ]  # fmt: skip
    assert rows[0]["design"]["sampler"] == "stratified"


def test_a_schedule_is_a_base_too(accuracy, tmp_path):
    (tmp_path / "s.toml").write_text(Schedule((Design(samples=4), Design(samples=4, v_bits=5))).to_toml())
    result = accuracy("--design", "s.toml", "--seeds", 1)
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert [layer["v_bits"] for layer in row["design"]["layers"]] == [8, 5]
    assert (row["method"], row["samples"]) == ("santa", 4)
    (tmp_path / "s.toml").write_text(Schedule((Design(samples=4),) * 3).to_toml())
    refused = accuracy("--design", "s.toml", "--seeds", 1)
    assert refused.exit_code == 2
    assert "3 layers" in refused.stderr


def test_budgets_by_layer(accuracy, tmp_path):
    options = ["--method", "santa,float-sys", "--seeds", 1]
    result = accuracy(*options, "--schedule", "4,16")
    assert result.exit_code == 0, result.output
    fixed, free = json.loads((tmp_path / "rows.json").read_text())
    assert [layer["samples"] for layer in fixed["design"]["layers"]] == [4, 16] == free["schedule"]
    assert fixed["samples"] is fixed["schedule"] is free["samples"] is free["design"] is None
    assert "schedule" in result.stdout
    assert [line.split(",")[:2] for line in result.stderr.splitlines() if ": KL" in line] == [
        ["santa 4", "16"], ["float-sys 4", "16"],
    ]  # fmt: skip
    # The same budgets from files of both kinds are the same rows.
    (tmp_path / "budgets.toml").write_text("[schedule]\nsamples = [4, 16]\n")
    assert accuracy(*options, "--schedule", "budgets.toml").exit_code == 0
    (tmp_path / "designs.toml").write_text(run("design", "--schedule", "4,16", "--toml").stdout)
    assert accuracy(*options, "--schedule", "designs.toml").exit_code == 0
    assert accuracy(*options, "--design", "designs.toml").exit_code == 0
    assert json.loads((tmp_path / "rows.json").read_text()) == [fixed, free]
    for method in ("santa", "float-sys"):
        refused(accuracy("--method", method, "--schedule", "4", "--seeds", 1), "it misses layer 1")


GSM8K = {"question": "What is 3 * 24?", "answer": "#### 72"}


def test_a_task_with_data(accuracy, tmp_path, monkeypatch):
    monkeypatch.setattr(gsm8k, "NEW_TOKENS", 6)
    (tmp_path / "data.jsonl").write_text(json.dumps(GSM8K) + "\n")
    options = ["--task", "gsm8k", "--data", "data.jsonl", "--trials", 1, "--text", None, "--window", None]
    result = accuracy(*options, "--method", "santa", "--samples", 8, "--seeds", 1)
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    for name, kind in ROW.items():
        assert isinstance(row[name], kind), (name, row[name])
    assert (row["task"], row["phases"], row["trials"], row["text"]) == ("gsm8k", "decode", 1, "data.jsonl")
    assert row["per_trial"][0]["answers"] == ["72"]
    assert row["unique_rows"] <= 8
    monkeypatch.setattr(gsm8k, "NEW_TOKENS", 2000)
    refused(accuracy(*options, "--method", "dense", "--max-keys", 1025), "max_keys = 1025: at least the task's 2")
    refused(accuracy(*options[:4], "--trials", 2, *options[6:]), "trials is 2; allowed: at most the data's 1 records")


def test_wider_rows_widen_the_default_weight(accuracy, tmp_path):
    assert accuracy("--method", "dense", "--max-keys", 131072).exit_code == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["design"]["weight_bits"] == Design(max_keys=131072).weight_bits == 21


# Bad input --------------------------------------------------------------------------------------


def refused(result, message):
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, result.stderr
    assert message in lines[0]
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "options, message",
    [
        (["--task", "chess"], "--task 'chess': allowed are perplexity, needle, niah-multivalue, fwe, qa, gsm8k, mmlu"),
        (["--task", "gsm8k", "--text", None, "--window", None], "--task gsm8k needs --data"),
        (["--data", "x.jsonl"], "--data has no effect with --task perplexity"),
        (["--task", "niah-multivalue", "--window", None, "--data", "x.jsonl"], "--data and --text: one of them"),
        (["--task", "qa", "--text", None, "--window", None, "--data", "nowhere.jsonl"], "no such file"),
        (["--schedule", "4,16", "--samples", "4"], "samples and schedule: one of them"),
        (["--schedule", "4 16"], "'4 16' is no budget"),
        (["--schedule", "4,12"], "layer 1 of the schedule: samples = 12: a power of two"),
        (["--schedule", "nowhere.toml"], "nowhere.toml"),
        (["--schedule", "4,16", "--method", "dense"], "schedule has no effect with method dense"),
        (["--task", "needle", "--phases", "never"], "--phases 'never': allowed are"),
        (["--method", "banana"], "method = 'banana'"),
        (["--method", ""], "method = ''"),
        (["--samples", "12"], "samples = 12: a power of two"),
        (["--samples", "many"], "--samples 'many': a whole number"),
        (["--samples", "4,,8"], "--samples '': a whole number"),
        (["--samples", "0", "--method", "top-k"], "samples = 0"),
        (["--q-bits", "6.5"], "--q-bits '6.5': a whole number"),
        (["--q-bits", "99"], "q_bits = 99"),
        (["--scores", "fast"], "scores = 'fast'"),
        (["--bits", "4", "--k-bits", "4"], "--bits and --k-bits"),
        (["--seeds", "0"], "seeds = 0"),
        (["--seed", "-1"], "seed = -1"),
        (["--method", "dense", "--samples", "16"], "samples has no effect"),
        (["--method", "dense", "--sampler", "iid"], "sampler has no effect"),
        (["--ternary-samples", "8"], "ternary_samples has no effect"),
        (["--needles", "2"], "--needles has no effect with --task perplexity"),
        (["--phases", "both"], "--phases has no effect with --task perplexity"),
        (["--calibration", "x.npz", "--calibration-text", "y.txt"], "--calibration and --calibration-text"),
        (["--method", "float-sys", "--calibration", "x.npz"], "--calibration has no effect"),
        (["--method", "santapp", "--samples", "100"], "samples = 100: at most 0, the teams of the task's 48 keys"),
        (["--method", "santapp", "--team", "3"], "team = 3: a divisor of block = 128"),
        (["--method", "santapp", "--block", "big"], "--block 'big': a whole number"),
        (["--method", "santapp", "--weights", "clipped", "--clip", "much"], "--clip 'much': a number"),
        (["--method", "santapp", "--clip", "2"], "clip has no effect with method santapp"),
        (["--method", "top-teams", "--weights", "clipped"], "weights has no effect with method top-teams"),
        (["--sharing", "own"], "sharing has no effect"),
        (["--window", "5000"], "max_keys = 4096"),
        (["--window", "1"], "window is 1"),
        (["--windows", "0"], "windows is 0"),
        (["--plot", "plot.jpg"], "plot.jpg"),
        (["--plot", "nowhere/plot.png"], "there is no folder nowhere"),
        (["--json", "nowhere/rows.json"], "nowhere/rows.json cannot be written"),
        (["--design", "nowhere.toml"], "nowhere.toml"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
        (["--device", "abacus"], "abacus"),
        (["--dtype", "float7"], "float7"),
        (["--calibration", "nowhere.npz"], "nowhere.npz"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_code_2(accuracy, options, message):
    # Options of the fixture that would contradict the one under test are left out.
    if "--calibration" in options and "--calibration-text" not in options:
        options = [*options, "--calibration-text", None]
    result = accuracy(*options)
    refused(result, message)


def test_needle_knows_no_windows(accuracy):
    refused(accuracy("--task", "needle", "--windows", 3), "--windows has no effect with --task needle")


def test_a_text_shorter_than_a_window(accuracy, place):
    refused(accuracy("--text", place / "short.txt"), "text has 10 tokens")


def test_a_text_that_calibrates_may_not_be_evaluated(accuracy, place):
    refused(accuracy("--calibration-text", place / "text.txt"), "calibration text")


def test_models_that_are_none(accuracy, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(accuracy("--model", "empty"), "config.json")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    refused(accuracy("--model", "broken.gguf"), "broken.gguf")
    (tmp_path / "other.gguf").write_bytes(b"not a model")
    refused(accuracy("--model", "other.gguf"), "not a GGUF file")


def test_a_file_that_holds_something_else_stays(accuracy, tmp_path):
    (tmp_path / "rows.json").write_text('{"precious": 1}')
    refused(accuracy(), "rows.json holds no list of rows")
    assert json.loads((tmp_path / "rows.json").read_text()) == {"precious": 1}


def test_a_damaged_row_is_named_before_the_work(accuracy, tmp_path, monkeypatch):
    assert accuracy("--method", "float-dense").exit_code == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    rows[0]["kl_to_dense"] = "low"
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    monkeypatch.setattr(sweep, "run", None)
    refused(accuracy("--method", "float-dense"), "rows.json, row 1: kl_to_dense = 'low': a finite number")
    assert json.loads((tmp_path / "rows.json").read_text()) == rows


def test_mid_run_errors_say_where_the_results_are(accuracy, tmp_path, monkeypatch):
    measure = sweep.measure

    def stop_at(error):
        calls = []

        def stopping(*arguments):
            calls.append(1)
            if len(calls) == 3:
                raise error
            return measure(*arguments)

        monkeypatch.setattr(sweep, "measure", stopping)
        Path("rows.json").unlink(missing_ok=True)
        result = accuracy("--samples", 4, "--method", "santa", "--seeds", 5)
        assert len(json.loads(Path("rows.json").read_text())) == 2
        assert result.stderr.splitlines()[-1].endswith("results so far kept in rows.json")
        return result

    stopped = stop_at(KeyboardInterrupt())
    assert stopped.exit_code == 130
    assert "Traceback" not in stopped.stderr
    refused(stop_at(ValueError("q holds NaN or infinity: finite values are allowed")), "q holds NaN")
    missing = stop_at(ModuleNotFoundError("No module named 'torch'"))
    assert missing.exit_code == 1
    assert "No module named 'torch': pip install 'santa-hw[model]'" in missing.stderr
    failed = stop_at(RuntimeError("planted"))
    assert failed.exit_code == 1
    assert "failure: RuntimeError: planted" in failed.stderr
    assert "Traceback" in failed.stderr


# The other commands -----------------------------------------------------------------------------


def test_calibrate_then_use_it(accuracy, place, tmp_path):
    options = ["--model", place / "model", "--text", place / "other.txt", "--window", 48, "--out", "c.npz"]
    result = run("calibrate", *options)
    assert result.exit_code == 0, result.output
    assert "192 tokens" in result.stdout
    assert accuracy("--method", "dense", "--calibration-text", None, "--calibration", "c.npz").exit_code == 0
    tiny.folder(tmp_path / "model2", seed=5)
    other = accuracy("--model", "model2", "--method", "dense", "--calibration-text", None, "--calibration", "c.npz")
    refused(other, "calibration is of model")
    refused(run("calibrate", *options[:-1], "nowhere/c.npz"), "there is no folder nowhere")
    refused(run("calibrate", *options[:4], "--windows", 999), "text has")


def test_design_prints_all_fields_and_widths():
    result = run("design", "--samples", 16, "--q-bits", 6)
    assert result.exit_code == 0
    for name in (*FIELDS, *Design().derived()):
        assert name in result.stdout
    described = json.loads(run("design", "--samples", 16, "--q-bits", 6, "--json").stdout)
    design = Design(samples=16, q_bits=6)
    assert described == {"design": design.to_dict(), "derived": design.derived()}


def test_design_files_go_out_and_come_in(tmp_path):
    file = tmp_path / "d.toml"
    file.write_text(run("design", "--method", "top-k", "--samples", 12, "--toml").stdout)
    assert tomllib.loads(file.read_text())["design"]["samples"] == 12
    described = json.loads(run("design", "--file", file, "--v-bits", 5, "--json").stdout)
    assert described["design"] == Design(method="top-k", samples=12, v_bits=5).to_dict()
    file.write_text(Schedule((Design(), Design(q_bits=5))).to_toml())
    layers = json.loads(run("design", "--file", file, "--json").stdout)["layers"]
    assert [layer["design"]["q_bits"] for layer in layers] == [8, 5]
    assert "layer 1" in run("design", "--file", file).stdout


@pytest.mark.parametrize(
    "options, message",
    [
        (["--samples", "12"], "samples = 12"),
        (["--q-bits", "4,6"], "--q-bits '4,6': a whole number"),
        (["--json", "--toml"], "--json and --toml"),
        (["--file", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_designs_that_are_refused(options, message):
    refused(run("design", *options), message)


def test_report_reads_what_accuracy_wrote(accuracy, tmp_path):
    accuracy("--samples", "4,8", "--seeds", 2)
    result = run("report", "rows.json", "--plot", "again.pdf", "--x", "samples")
    assert result.exit_code == 0, result.output
    assert "santa" in result.stdout
    assert (tmp_path / "again.pdf").read_bytes().startswith(b"%PDF")
    refused(run("report", "nowhere.json"), "nowhere.json cannot be read")
    refused(run("report", "rows.json", "--plot", "again.pdf", "--x", "banana"), "x = 'banana'")


def test_report_refuses_what_is_no_row_of_accuracy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("energy", "--keys", 64, "--json", "energy.json").exit_code == 0
    refused(run("report", "energy.json"), "energy.json, row 1: it holds a cost, as santa-hw energy writes it")
    row = {"method": "santa", "seed": 0, "task": "perplexity", "model": "m", "samples": 16, "kl_to_dense": 0.1}
    Path("damaged.json").write_text(json.dumps([row, row | {"per_window": [{"nll": 1.0}]}]))
    refused(run("report", "damaged.json"), "damaged.json, row 2: per_window: kl = None: a finite number is allowed")


def test_fetch_prints_where_things_are(monkeypatch):
    from santa_hw import models

    monkeypatch.setattr(models, "fetch", lambda *, force: Path(f"/cache/{force}"))
    assert run("fetch").stdout == "/cache/False\n"
    assert run("fetch", "--force").stdout == "/cache/True\n"
    monkeypatch.setattr(models, "fetch", lambda *, force: (_ for _ in ()).throw(models.FetchError("no route to host")))
    refused(run("fetch"), "no route to host")
