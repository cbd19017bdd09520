"""Workers as processes and on Ray: killed, failing, missing, and replaced."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import toy_budget
from toy_budget import log_of

from santa_hw import cli
from santa_hw.budget.folder import Folder
from santa_hw.budget.policy import Settings
from santa_hw.budget.workers import MOST_DEATHS, Ray, share

# Processes, and kills ---------------------------------------------------------------------------


def start(folder, episodes, workers, delay):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, toy_budget.__file__, *map(str, (folder, episodes, workers, delay))]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process):
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def lines(folder):
    log = folder / "episodes.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def logged(folder):
    """Episodes in a log that is being written."""
    whole = (folder / "episodes.jsonl").read_bytes().rpartition(b"\n")[0]
    return [json.loads(line)["episode"] for line in whole.splitlines()]


def claimants(folder):
    """Workers that hold a claim now, by process number, and their episodes."""
    found = {}
    for claim in (folder / "jobs").glob("*.claim"):
        try:
            found[int(claim.read_text().rpartition("-")[2])] = int(claim.stem)
        except (FileNotFoundError, ValueError):
            continue
    return found


def kill(number):
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def test_killed_workers_and_a_killed_coordinator_lose_nothing(tmp_path):
    episodes, folder = 40, tmp_path / "run"
    with start(folder, episodes, 2, 0.2) as process:
        wait_for(lambda: lines(folder) >= 3, process)
        # Jobs that were claimed this moment, so that the kill finds them half done.
        seen = set(claimants(folder).values())
        fresh = wait_for(lambda: {w: job for w, job in claimants(folder).items() if job not in seen}, process)
        killed = {worker: job for worker, job in fresh.items() if kill(worker)}
        wait_for(lambda: lines(folder) >= 10 and set(killed.values()) <= set(logged(folder)), process)
        survivors = wait_for(lambda: set(claimants(folder)) - set(killed), process)
        process.kill()
    kept = log_of(folder, timing=True)
    assert 10 <= len(kept) < episodes
    # Workers that lost their coordinator end by themselves.
    deadline = time.monotonic() + 60
    while any(alive(worker) for worker in survivors):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with start(folder, episodes, 2, 0.0) as process:
        assert process.wait(120) == 0, process.stderr.read()
    after = log_of(folder, timing=True)
    assert after[: len(kept)] == kept
    assert Counter(episode["episode"] for episode in after) == Counter(range(episodes))
    assert len({episode["worker"] for episode in after}) >= 4
    assert all(episode["version"] <= place for place, episode in enumerate(after))
    for episode in after:
        assert sum(episode["shares"]) == 60
        assert episode["reward"] == toy_budget.reward(episode["samples"], 0)
    assert not list(folder.glob("*/*"))


def alive(number):
    try:
        # A killed worker whose parent is gone may wait for its burial.
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_with_one_worker_that_is_killed_again_and_again_is_the_unbroken_run(tmp_path):
    toy_budget.run(tmp_path / "whole", 30)
    folder = tmp_path / "run"
    for goal in (4, 9, 17):
        with start(folder, 30, 1, 0.01) as process:
            wait_for(lambda goal=goal: lines(folder) >= goal, process)
            process.kill()
    assert 17 <= lines(folder) < 30
    toy_budget.run(folder, 30)
    assert log_of(folder) == log_of(tmp_path / "whole")


@pytest.mark.parametrize(
    "fail, kind, message",
    [
        ("open", ValueError, "no such toy"),
        ("reward", RuntimeError, "ZeroDivisionError: planted"),
        ("nan", ValueError, "reward of episode [01] is nan"),
    ],
)
def test_what_a_worker_fails_with_ends_the_run(tmp_path, fail, kind, message):
    settings = Settings(4, 60)
    with pytest.raises(kind, match=message):
        toy_budget.run(tmp_path / "run", 2, workers=2, fail=fail, settings=settings)
    # What was wrong is put right: the folder goes on.
    assert toy_budget.run(tmp_path / "run", 2, settings=settings).version == 2


def test_workers_that_die_at_once_are_not_replaced_for_ever(tmp_path):
    with pytest.raises(RuntimeError, match=f"killed {MOST_DEATHS + 1} times without a result .*exit code -9"):
        toy_budget.run(tmp_path / "run", 2, workers=2, fail="kill")


# Ray --------------------------------------------------------------------------------------------


def test_ray_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"--ray needs the package ray: pip install 'santa-hw\[cluster\]'"):
        Ray(Folder(tmp_path), toy_budget.Toy(), 2, "auto")


@pytest.mark.parametrize("cpus, workers, each", [([8], 3, 2), ([8, 4], 3, 4), ([8, 4], 4, 2), ([1, 1], 2, 1)])
def test_cpus_are_shared_out(cpus, workers, each):
    assert share(cpus, workers) == each
    with pytest.raises(ValueError, match=f"workers = 99: at most the cluster's {sum(cpus)} CPUs"):
        share(cpus, 99)


@pytest.mark.slow
def test_the_same_run_on_a_ray_cluster(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    # Ray's workers inherit it: they must find the toy too.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    place = Folder(tmp_path / "run")
    from santa_hw.budget.coordinator import learn

    policy = learn(place, Settings(4, 60, seed=1), {}, 12, Ray(place, toy_budget.Toy(0.02), 1, "local"))
    toy_budget.run(tmp_path / "whole", 12)
    assert policy.version == 12
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole")


@pytest.mark.slow
def test_ray_workers_that_lack_a_module_say_so(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    # They find santa_hw, but not the toy.
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))
    place = Folder(tmp_path / "run")
    from santa_hw.budget.coordinator import learn

    with pytest.raises(ValueError, match=r"--ray 'local': a worker says .*No module named 'toy_budget'"):
        learn(place, Settings(4, 60, seed=1), {}, 12, Ray(place, toy_budget.Toy(), 1, "local"))
