"""The folder of a run: what is torn, doubled, late or left behind, and taken up again."""

import json
import os
import re
import time

import pytest
import toy_budget
from toy_budget import log_of

from santa_hw.budget.folder import Folder
from santa_hw.budget.policy import Policy, Settings
from santa_hw.budget.workers import do_job


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


BROKEN = [
    ({}, "has no field episode; allowed: a file that santa-hw budget wrote"),
    ({"episode": 3}, "has no field samples"),
    ({"episode": 3, "samples": [1], "version": 0, "shares": [1]}, "has no field seed"),
    ({"episode": 3, "samples": "64", "seed": 0}, ": samples = '64': a value of type list is allowed"),
    ({"episode": "3", "samples": [1], "seed": 0}, ": episode = '3': a value of type int is allowed"),
    ([], "holds no JSON object"),
]


@pytest.mark.parametrize(
    "job, message", [*BROKEN, (BROKEN[1][0] | {"samples": [1], "seed": 0}, "has no field version")]
)
def test_a_job_that_is_none_is_told_by_file_and_field(tmp_path, job, message):
    toy_budget.run(tmp_path, 3)
    (tmp_path / "jobs" / "000003.json").write_text(json.dumps(job))
    with pytest.raises(ValueError, match=rf"jobs/000003\.json ?{re.escape(message)}"):
        toy_budget.run(tmp_path, 4)


@pytest.mark.parametrize("job, message", BROKEN)
def test_a_worker_tells_a_job_that_is_none(tmp_path, job, message):
    folder = Folder(tmp_path)
    with folder.coordinating({}):
        (tmp_path / "jobs" / "000003.json").write_text(json.dumps(job))
        with pytest.raises(ValueError, match=rf"jobs/000003\.json ?{re.escape(message)}"):
            folder.claim("one", 60)


@pytest.mark.parametrize("result, message", [({"episode": 3}, "has no field reward"), (
    {"episode": 3, "reward": "1"}, ": reward = '1': a value of type float is allowed")])  # fmt: skip
def test_a_result_that_is_none_is_told_by_file_and_field(tmp_path, result, message):
    toy_budget.run(tmp_path, 3)
    Folder(tmp_path).hand_in(result)
    with pytest.raises(ValueError, match=rf"results/000003\.json ?{re.escape(message)}"):
        toy_budget.run(tmp_path, 4)


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
