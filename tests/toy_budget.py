"""A reward that needs no model, with a known optimum; and a run of it as a process that can be killed."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from santa_hw.budget.coordinator import learn
from santa_hw.budget.folder import Folder
from santa_hw.budget.policy import Settings
from santa_hw.budget.workers import InProcess, Processes

COSTS = (64.0, 16.0, 4.0, 1.0)
BEST = (8, 4, 2, 1)
"""Shares of the best schedule: S is in proportion to the root of its layer's cost."""


def reward(samples, seed):
    """Minus the sum of c / S; like a variance, it falls with every sample."""
    return -sum(cost / size for cost, size in zip(COSTS, samples, strict=True))


@dataclass(frozen=True)
class Toy:
    """Opens the reward, slowed down; or fails, as it is told."""

    delay: float = 0.0
    fail: str = ""

    def open(self, threads):
        if self.fail == "open":
            raise ValueError("there is no such toy")
        if self.fail == "kill":
            # As for want of memory.
            os.kill(os.getpid(), signal.SIGKILL)

        def slow(samples, seed):
            time.sleep(self.delay)
            if self.fail == "reward":
                raise ZeroDivisionError("planted")
            return float("nan") if self.fail == "nan" else reward(samples, seed)

        return slow


def run(folder, episodes, *, workers=1, delay=0.0, fail="", patience=60.0, settings=None, on_episode=lambda *_: None):
    """The policy of a toy run."""
    toy, place = Toy(delay, fail), Folder(folder)
    crew = Processes(place, toy, workers, patience) if workers > 1 else InProcess(place, toy.open(1), patience)
    chosen = settings or Settings(len(COSTS), 60, seed=1)
    return learn(place, chosen, {"task": "toy"}, episodes, crew, on_episode=on_episode)


def log_of(folder, *, timing=False):
    """The episodes of a run, without what differs from run to run; or with it."""
    episodes = Folder(folder).episodes()
    return episodes if timing else [{k: v for k, v in e.items() if k not in ("seconds", "worker")} for e in episodes]


if __name__ == "__main__":
    # No claim is ever too old: a job comes back for a death that was seen, or by a new coordinator.
    run(Path(sys.argv[1]), int(sys.argv[2]), workers=int(sys.argv[3]), delay=float(sys.argv[4]), patience=1e6)
