"""Layer budgets: schedules, what REINFORCE learns, and runs that are killed, torn, doubled and taken up again."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny
import toy_budget
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from santa_hw import cli, models
from santa_hw.budget.folder import Folder
from santa_hw.budget.policy import LARGEST_WEIGHT, MOST_SAMPLES, Policy, Settings, powers_of_two, uniform
from santa_hw.budget.reward import TaskReward
from santa_hw.budget.workers import MOST_DEATHS, Ray, do_job, share
from santa_hw.design import Design, load_budgets, load_design

# Schedules --------------------------------------------------------------------------------------


@st.composite
def problems(draw):
    layers = draw(st.integers(1, 40))
    total = draw(st.integers(layers, layers * draw(st.sampled_from([1, 2, 16, 300]))))
    return Settings(
        layers, total, draw(st.booleans()), draw(st.integers(0, 1 << 31)), draw(st.sampled_from([0.06, 1.0]))
    )


def check(settings, samples):
    assert len(samples) == settings.layers
    assert min(samples) >= 1
    if not settings.powers:
        assert sum(samples) == settings.total
        return
    assert all(size & (size - 1) == 0 for size in samples)
    left = settings.total - sum(samples)
    # Never more than the total, and nothing left that could double a layer.
    assert 0 <= left < min(samples)


@given(problems(), st.lists(st.floats(-1e6, 1e6), max_size=8))
def test_every_schedule_keeps_to_the_total(settings, rewards):
    policy = Policy(settings)
    for episode, reward in enumerate(rewards):
        draw = policy.draw(episode)
        assert sum(draw.shares) == settings.total
        check(settings, draw.samples)
        check(settings, policy.learned())
        policy.learn(draw.shares, draw.version, reward)
        assert policy.probabilities.sum() == pytest.approx(1)
    check(settings, policy.learned())
    check(settings, uniform(settings))
    assert max(uniform(settings)) <= 2 * min(uniform(settings))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30))
def test_powers_of_two_are_near_their_shares(shares):
    samples = powers_of_two(shares)
    for share_, size in zip(shares, samples, strict=True):
        assert share_ < 2 * size or size >= max(shares) / 2
    assert powers_of_two(samples) == samples
    assert powers_of_two([3 * MOST_SAMPLES]) == (MOST_SAMPLES,)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"layers": 0}, "layers = 0: 1 or more"),
        ({"total": 3}, r"total = 3: 4 \(one sample in each of 4 layers\) to 262144"),
        ({"total": 1 << 19}, "total = 524288: .* to 262144"),
        ({"seed": -1}, "seed = -1: 0 to"),
        ({"rate": 0.0}, "rate = 0.0: above 0"),
        ({"rate": float("nan")}, "rate = nan"),
    ],
)
def test_settings_that_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Settings(**({"layers": 4, "total": 60} | changes))


# REINFORCE --------------------------------------------------------------------------------------


def test_the_step_is_the_gradient_of_the_log_probability(seed):
    generator = np.random.default_rng(seed)
    settings = Settings(5, 45, rate=0.5)
    policy = Policy(settings)
    shares = policy.draw(0).shares
    # The first reward has no mean to stand against: it moves nothing.
    policy.learn(shares, 0, generator.normal())
    np.testing.assert_allclose(policy.probabilities, 0.2)
    for reward in generator.normal(size=3):
        before = policy.probabilities
        shares = policy.draw(policy.version).shares
        policy.learn(shares, policy.version, reward)
        step = np.log(policy.probabilities / before)

        def log_probability(odds, shares=shares):
            return (np.array(shares) - 1) @ (odds - np.logaddexp.reduce(odds))

        odds = np.log(before)
        gradient = [
            (log_probability(odds + 1e-6 * unit) - log_probability(odds - 1e-6 * unit)) / 2e-6 for unit in np.eye(5)
        ]
        # Log-odds count up to a constant, the step up to the advantage.
        step, gradient = step - step.mean(), np.array(gradient) - np.mean(gradient)
        assert abs(np.corrcoef(step, gradient)[0, 1]) == pytest.approx(1, abs=1e-6)


def test_advantages_are_those_of_plain_running_sums(seed):
    generator = np.random.default_rng(seed)
    policy, seen, squares = Policy(Settings(3, 9)), [], []
    for reward in generator.normal(size=30):
        expected = 0.0
        if seen:
            weights = 0.95 ** np.arange(len(seen))[::-1]
            distance = reward - np.average(seen, weights=weights)
            squares.append(distance**2)
            spread = np.sqrt(np.average(squares, weights=0.95 ** np.arange(len(squares))[::-1]))
            expected = np.clip(distance / spread, -3, 3)
        seen.append(reward)
        assert policy._advantage(reward) == pytest.approx(expected)


@pytest.mark.parametrize("reward", [-1.5, 0.1, 1 / 3])
def test_equal_rewards_teach_nothing(reward):
    policy = Policy(Settings(4, 40))
    for episode in range(10):
        policy.learn(policy.draw(episode).shares, policy.version, reward)
    np.testing.assert_allclose(policy.probabilities, 0.25)


def taught(policy, version, reward=1.0):
    """How far a fixed draw of some version moves the policy."""
    before = policy.probabilities
    policy.learn((7, 1, 1), version, reward)
    return np.log(policy.probabilities / before)[0]


def test_a_late_result_is_weighted_by_how_likely_its_draw_is_now():
    def policy(drift):
        settings = Settings(3, 9, rate=0.05)
        fresh = Policy(settings)
        fresh.learn((3, 3, 3), 0, 0.0)
        for _ in range(4):
            # Away from the draw (7, 1, 1), or towards it; alternating rewards keep mean and spread alike.
            fresh.learn((1, 4, 4) if drift < 0 else (7, 1, 1), fresh.version, 1.0)
        return fresh

    for drift in (-1, 1):
        now, late = policy(drift), policy(drift)
        ratio = np.exp(6 * np.log(3 * now.probabilities[0]))
        assert (ratio < 1) == (drift < 0)
        moved = taught(now, now.version)
        np.testing.assert_allclose(taught(late, 0), moved * min(ratio, LARGEST_WEIGHT), rtol=0.05)


def test_weights_make_a_stale_gradient_unbiased():
    """Enumerated: over all draws of an old policy, weighted steps have the mean of the new policy's own."""
    settings = Settings(3, 6, rate=1e-4)
    policy = Policy(settings)
    policy.learn((2, 2, 2), 0, 0.0)
    policy.learn((3, 2, 1), 0, 1.0)
    old, new = np.full(3, 1 / 3), policy.probabilities

    def probability(shares, p):
        drawn = [size - 1 for size in shares]
        return 6 / np.prod([[1, 1, 2, 6][n] for n in drawn]) * np.prod(p ** np.array(drawn))

    draws = [shares for shares in itertools.product(range(1, 5), repeat=3) if sum(shares) == 6]
    assert sum(probability(shares, old) for shares in draws) == pytest.approx(1)

    def mean_step(version, p):
        total = np.zeros(3)
        for shares in draws:
            fresh = Policy(settings)
            fresh.learn((2, 2, 2), 0, 0.0)
            fresh.learn((3, 2, 1), 0, 1.0)
            fresh._advantage = lambda reward: reward
            fresh.learn(shares, version, toy_budget.reward(shares, 0) if len(shares) == 4 else -(shares[0] ** -1.0))
            total += probability(shares, p) * (np.log(fresh.probabilities) - np.log(new))
        return total - total.mean()

    np.testing.assert_allclose(mean_step(0, old), mean_step(2, new), rtol=1e-3)


@pytest.mark.parametrize("powers", [False, True])
@pytest.mark.parametrize("number", range(4))
def test_a_known_optimum_is_learned(powers, number, seed):
    settings = Settings(4, 60, powers, seed + number)
    policy, noise = Policy(settings), np.random.default_rng(settings.seed)
    for episode in range(600):
        draw = policy.draw(episode)
        policy.learn(draw.shares, draw.version, toy_budget.reward(draw.samples, 0) * noise.uniform(0.95, 1.05))
    found, even = (-toy_budget.reward(samples, 0) for samples in (policy.learned(), uniform(settings)))
    best = -toy_budget.reward([4 * size for size in toy_budget.BEST], 0)
    assert best == min(
        -toy_budget.reward(schedule, 0)
        for schedule in itertools.product([1, 2, 4, 8, 16, 32], repeat=4)
        if sum(schedule) <= 60
    )
    assert best == pytest.approx(sum(np.sqrt(toy_budget.COSTS)) ** 2 / 60)
    assert found < 1.08 * best < 0.8 * even


def test_the_mean_over_versions_is_what_is_learned():
    policy = Policy(Settings(2, 1002))
    policy._logs = [np.log([a, 1 - a]) for a in (0.1, 0.9, 0.5, 0.8)]
    # Versions 0 to 3: the second half is 1, 2 and 3.
    assert policy.learned() == (734, 268)


# The folder -------------------------------------------------------------------------------------


def log_of(folder, *, timing=False):
    episodes = Folder(folder).episodes()
    return episodes if timing else [{k: v for k, v in e.items() if k not in ("seconds", "worker")} for e in episodes]


def test_same_seed_same_run_and_another_seed_another(tmp_path):
    logs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        toy_budget.run(tmp_path / name, 12, settings=Settings(4, 60, seed=seed))
        logs.append(log_of(tmp_path / name))
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]
    assert [episode["version"] for episode in logs[0]] == list(range(12))
    assert len({episode["seed"] for episode in logs[0]}) == 12


def test_a_run_goes_on_where_it_stopped_and_a_finished_one_does_nothing(tmp_path):
    toy_budget.run(tmp_path / "whole", 12)
    seen = []
    for episodes in (5, 5, 12):
        policy = toy_budget.run(tmp_path / "parts", episodes, on_episode=lambda episode, fresh: seen.append(fresh))
    assert log_of(tmp_path / "parts") == log_of(tmp_path / "whole")
    assert seen == [True] * 5 + [False] * 5 + [False] * 5 + [True] * 7
    replayed = Policy(Settings(4, 60, seed=1))
    for episode in log_of(tmp_path / "whole"):
        replayed.learn(episode["shares"], episode["version"], episode["reward"])
    assert (replayed.probabilities == policy.probabilities).all()
    assert not list((tmp_path / "parts").glob("*/*"))


@pytest.mark.parametrize("cut", [1, 20, 10_000])
def test_a_torn_last_line_is_run_again(tmp_path, cut):
    toy_budget.run(tmp_path / "whole", 6)
    toy_budget.run(tmp_path / "torn", 6)
    log = tmp_path / "torn" / "episodes.jsonl"
    data = log.read_bytes()
    last = data[data[:-1].rfind(b"\n") + 1 :]
    log.write_bytes(data[: -min(cut, len(last) - 1)])
    assert len(log_of(tmp_path / "torn")) == 5
    toy_budget.run(tmp_path / "torn", 6)
    assert log_of(tmp_path / "torn") == log_of(tmp_path / "whole")


@pytest.mark.parametrize("line", [b"{}", b"[1]", b'{"episode": 1, "rew', b'{"episode": "1"}', b"\xff"])
def test_a_broken_line_in_the_middle_is_named(tmp_path, line):
    toy_budget.run(tmp_path / "run", 3)
    log = tmp_path / "run" / "episodes.jsonl"
    lines = log.read_bytes().splitlines()
    log.write_bytes(b"\n".join([lines[0], line, lines[2], b""]))
    with pytest.raises(ValueError, match=r"episodes\.jsonl, line 2 is no episode"):
        toy_budget.run(tmp_path / "run", 3)


def test_results_that_come_twice_late_or_for_nothing_do_not_count(tmp_path):
    toy_budget.run(tmp_path / "whole", 6)
    toy_budget.run(tmp_path / "run", 3)
    folder = Folder(tmp_path / "run")
    for number in (0, 2, 77):
        folder.hand_in({"episode": number, "reward": -1e9, "seconds": 0.0, "worker": "late"})
    with (tmp_path / "run" / "episodes.jsonl").open("ab") as log:
        log.write(json.dumps(log_of(tmp_path / "run")[1] | {"reward": -1e9}).encode() + b"\n")
    toy_budget.run(tmp_path / "run", 6)
    assert log_of(tmp_path / "run") == log_of(tmp_path / "whole")
    assert not list((tmp_path / "run" / "results").iterdir())


def test_a_job_that_was_drawn_before_the_kill_is_kept_and_one_from_a_lost_future_is_not(tmp_path):
    toy_budget.run(tmp_path / "run", 3)
    folder = Folder(tmp_path / "run")
    shares = [57, 1, 1, 1]
    folder.post({"episode": 3, "version": 1, "shares": shares, "samples": shares, "seed": 5})
    folder.post({"episode": 4, "version": 9, "shares": shares, "samples": shares, "seed": 5})
    toy_budget.run(tmp_path / "run", 5)
    third, fourth = log_of(tmp_path / "run")[3:]
    assert (third["shares"], third["version"], third["seed"]) == (shares, 1, 5)
    assert fourth["shares"] != shares


def test_a_claim_keeps_others_out_until_it_is_old(tmp_path):
    folder = Folder(tmp_path)
    with folder.coordinating({}):
        folder.post({"episode": 0, "samples": [1], "seed": 0})
        assert folder.claim("one", 60)["episode"] == 0
        assert folder.claim("two", 60) is None
        claim = tmp_path / "jobs" / "000000.claim"
        os.utime(claim, (time.time() - 100,) * 2)
        folder.renew(0)
        assert folder.claim("two", 60) is None
        os.utime(claim, (time.time() - 100,) * 2)
        assert folder.claim("two", 60)["episode"] == 0
        assert claim.read_text() == "two"
        folder.release("one")
        assert folder.claim("three", 60) is None
        folder.release("two")
        assert folder.claim("three", 60)["episode"] == 0
        folder.hand_in({"episode": 0, "reward": 0.0})
        folder.release("three")
        assert folder.claim("four", 60) is None


def test_what_a_kill_left_behind_is_swept_up(tmp_path):
    folder = Folder(tmp_path)
    with folder.coordinating({}):
        folder.post({"episode": 0, "samples": [1], "seed": 0})
        assert folder.claim("dead", 60)
        (tmp_path / "results" / ".000000.json.77.part").write_text("{")
    with folder.coordinating({}):
        assert not list((tmp_path / "results").iterdir())
        assert folder.claim("two", 60)["episode"] == 0


def test_a_worker_at_work_renews_its_claim(tmp_path):
    folder, ages = Folder(tmp_path), []
    with folder.coordinating({}):
        folder.post({"episode": 0, "samples": [1], "seed": 0})
        claim = tmp_path / "jobs" / "000000.claim"

        def reward(samples, seed):
            os.utime(claim, (0, 0))
            deadline = time.monotonic() + 20
            while claim.stat().st_mtime == 0 and time.monotonic() < deadline:
                time.sleep(0.005)
            ages.append(time.time() - claim.stat().st_mtime)
            return 1.0

        assert do_job(folder, reward, 0.2)
        assert ages[0] < 60
        assert not do_job(folder, reward, 0.2)


def test_one_coordinator_at_a_time(tmp_path):
    with (
        Folder(tmp_path).coordinating({}),
        pytest.raises(ValueError, match="another run works in this folder"),
        Folder(tmp_path).coordinating({}),
    ):
        pass
    with Folder(tmp_path).coordinating({}):
        pass


def test_folders_that_are_refused(tmp_path):
    toy_budget.run(tmp_path / "run", 2)
    with pytest.raises(ValueError, match=r"total = 61: .* has learned with 60"):
        toy_budget.run(tmp_path / "run", 2, settings=Settings(4, 61, seed=1))
    with pytest.raises(ValueError, match="episodes = 0: 1 or more"):
        toy_budget.run(tmp_path / "run", 0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="holds other files"):
        toy_budget.run(tmp_path / "other", 2)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        toy_budget.run(tmp_path / "file", 2)
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is not JSON"):
        toy_budget.run(tmp_path / "run", 2)


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


# Tasks and the command --------------------------------------------------------------------------


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
