"""santa-hw budget: rewards of tasks, and the command."""

import json
import os
from dataclasses import replace

import pytest
import tiny
from toy_budget import log_of
from typer.testing import CliRunner

from santa_hw import cli, models
from santa_hw.budget.reward import TaskReward
from santa_hw.design import Design, load_budgets, load_design


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and a text."""
    folder = tmp_path_factory.mktemp("place")
    tiny.folder(folder / "model")
    (folder / "text.txt").write_text(tiny.prose(1))
    return folder


@pytest.fixture
def budget(place, tmp_path):
    def call(*options, total=16, episodes=4):
        given = {
            "--model": place / "model", "--text": place / "text.txt", "--window": 48, "--total": total,
            "--episodes": episodes, "--out": tmp_path / "run",
        }  # fmt: skip
        if "santa" in options:
            given["--calibration-text"] = place / "text.txt"
        parts = [part for pair in given.items() if pair[0] not in options for part in pair]
        return CliRunner().invoke(cli.app, ["budget", *map(str, (*parts, *options))])

    return call


def test_a_budget_a_layer_reaches_each_layer():
    loaded = tiny.loaded()
    hook = models.float_method("float-top-k", (1, 30))
    seen = []
    method = hook._method
    hook._method = lambda *args, samples, **more: seen.append(samples) or method(*args, samples=samples, **more)
    import torch

    with models.attention(loaded, hook, phases="both"):
        loaded.model(input_ids=torch.arange(3, 23)[None], use_cache=False)
    assert seen == [1, 30]
    short = models.float_method("float-sys", (4,))
    with pytest.raises(ValueError, match="schedule has 1 layers: it misses layer 1"), models.attention(loaded, short):
        loaded.model(input_ids=torch.arange(3, 23)[None], use_cache=False)


@pytest.mark.parametrize("method", ["float-sys", pytest.param("santa", marks=pytest.mark.slow)])
def test_the_command_learns_writes_and_goes_on(budget, place, tmp_path, method):
    first = budget("--method", method)
    assert first.exit_code == 0, first.output
    assert "schedule in" in first.stdout
    again = budget("--method", method, "--json", episodes=6)
    assert again.exit_code == 0, again.output
    found = json.loads(again.stdout)
    assert found["episodes"] == len(found["rewards"]) == 6
    assert found["uniform"] == [8, 8]
    assert sum(found["samples"]) <= found["total"] == 16
    assert all(reward < 0 for reward in found["rewards"])
    file = tmp_path / "run" / "schedule.toml"
    if method == "santa":
        assert [layer.samples for layer in load_design(file).designs] == found["samples"]
        use = ["--design", file, "--calibration-text", write_other(tmp_path)]
    else:
        assert list(load_budgets(str(file))) == found["samples"]
        use = ["--method", method, "--schedule", file]
    rows = tmp_path / "rows.json"
    result = CliRunner().invoke(
        cli.app,
        list(map(str, [
            "accuracy", "--model", place / "model", "--text", place / "text.txt", "--window", 48, "--windows", 1,
            "--seeds", 1, "--json", rows, *use,
        ])),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert len(json.loads(rows.read_text())) == 1


def write_other(folder):
    path = folder / "other.txt"
    path.write_text(tiny.prose(2))
    return path


def test_rewards_are_what_the_tasks_say(place, seed):
    options = {"text": str(place / "text.txt"), "windows": 1, "window": 40}
    opened = TaskReward(str(place / "model"), "perplexity", options, "float-sys").open(1)
    hook = models.float_method("float-sys", (3, 9), seed)
    assert opened((3, 9), seed) == -opened.task.evaluate(hook)["kl_to_dense"] < 0
    assert opened((3, 9), seed) == opened((3, 9), seed) != opened((9, 3), seed)
    options = {"text": str(place / "text.txt"), "context": 800, "trials": 1}
    opened = TaskReward(str(place / "model"), "needle", options, "float-sys").open(1)
    assert 0 <= opened((3, 9), seed) <= 1


def test_the_folder_knows_what_decides_a_reward(budget, tmp_path):
    assert budget().exit_code == 0
    known = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {"layers", "total", "powers", "seed", "rate", "method", "text_sha256", "model_identity", "version"} <= set(
        known
    )
    changed = budget("--window", 47)
    assert changed.exit_code == 2
    assert "window = 47" in changed.stderr and "has learned with 48" in changed.stderr
    assert budget("--method", "float-santa").exit_code == 2


def test_a_reward_of_another_calibration_is_another(place):
    options = {"text": str(place / "text.txt"), "windows": 1, "window": 40}
    source = TaskReward(str(place / "model"), "perplexity", options, "santa", calibration_text=options["text"],
                        calibration_windows=1, calibration_window=40)  # fmt: skip
    opened = source.open(1)
    wider = replace(opened, calibration=opened.calibration.widened(1))
    changed = {name for name, value in wider.about().items() if value != opened.about()[name]}
    assert changed == {"calibration_sha256"}


@pytest.mark.slow
def test_workers_of_the_command(budget, tmp_path):
    result = budget("--workers", 2, "--json", episodes=3)
    assert result.exit_code == 0, result.output
    logged = log_of(tmp_path / "run", timing=True)
    assert not any(episode["worker"].endswith(f"-{os.getpid()}") for episode in logged)
    rewards = json.loads(result.stdout)["rewards"]
    assert rewards == [episode["reward"] for episode in logged]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--method", "float-dense"], "method = 'float-dense': allowed are santa, top-k, float-top-k"),
        (["--task", "chess"], "--task 'chess'"),
        (["--total", 1], "total = 1: 2 (one sample in each of 2 layers)"),
        (["--episodes", 0], "episodes = 0: 1 or more"),
        (["--workers", 0], "workers = 0: 1 or more"),
        (["--timeout", 0], "timeout = 0.0: more than 0 seconds"),
        (["--rate", 2], "rate = 2.0: above 0"),
        (["--needles", 2], "--needles has no effect with --task perplexity"),
        (["--design", "d.toml"], "d.toml"),
        (["--calibration", "c.npz"], "--calibration has no effect with method float-sys"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_bad_input(budget, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    result = budget(*options)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "run" / "episodes.jsonl").exists()


def test_a_design_beside_a_float_method(budget, tmp_path):
    (tmp_path / "d.toml").write_text(Design(max_keys=16).to_toml())
    assert "--design has no effect with method float-sys" in budget("--design", tmp_path / "d.toml").stderr
    small = budget("--design", tmp_path / "d.toml", "--method", "santa")
    assert "max_keys = 16: at least the task's 48 keys" in small.stderr
