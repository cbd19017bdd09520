"""Learned layer budgets against uniform ones at the same total, on held-out text (arXiv 2605.01910, App. J).

    python benchmarks/reproduction/budget.py [float-sys] [santa]

For each method and three seeds it calls `santa-hw budget` on SmolLM2: a total of 480 samples (16 a layer), 350
episodes, one window of 128 tokens of As You Like It, another passage for each seed. Then KL to dense of the uniform
and of each learned schedule on two windows of 512 tokens of Hamlet, eight seeds of random words each. Whatever was
interrupted goes on: runs are kept in build/budget/, rows in build/budget.json. It draws docs/images/budget.svg and
prints the paired differences with their 95 % bootstrap intervals.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from santa_hw import models, sweep
from santa_hw.budget.reward import TaskReward
from santa_hw.evaluate.statistics import bootstrap

ROOT = Path(__file__).resolve().parents[2]
BUILD, FIGURE = ROOT / "build", ROOT / "docs" / "images" / "budget.svg"
METHODS = ("float-sys", "santa")
SEEDS, EVALUATION_SEEDS = range(3), range(8)
TOTAL, EPISODES = 480, 350
# The play's own words begin after the list of persons; passages lie far apart.
FIRST, STRIDE, LENGTH = 3000, 30000, 8000
HELD_OUT = {"text": models.EVALUATION_TEXT, "windows": 2, "window": 512}

Row = dict[str, Any]


def learn(method: str, seed: int) -> Row:
    """What one `santa-hw budget` call prints."""
    start = FIRST + STRIDE * seed
    passage = BUILD / "budget" / f"passage-{seed}.txt"
    passage.parent.mkdir(parents=True, exist_ok=True)
    passage.write_text(models.load_text(models.CALIBRATION_TEXT)[start : start + LENGTH], encoding="utf-8")
    command = [
        sys.executable, "-m", "santa_hw", "budget", "--method", method, "--total", str(TOTAL), "--episodes",
        str(EPISODES), "--seed", str(seed), "--text", str(passage), "--window", "128", "--out",
        str(BUILD / "budget" / f"{method}-{seed}"), "--json",
    ]  # fmt: skip
    print("$ santa-hw", *command[3:], flush=True)
    found: Row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def judge(method: str, schedules: Sequence[Sequence[int]]) -> list[list[float]]:
    """KL of each schedule on the held-out windows, one value a seed and window."""
    source = TaskReward("smollm2-135m-instruct", "perplexity", HELD_OUT, method, calibration_window=512)
    opened = source.open()
    rows = sweep.Rows(BUILD / "budget.json")
    results = []
    for schedule in schedules:
        kls: list[float] = []
        for seed in EVALUATION_SEEDS:
            row = opened.about() | {"samples": list(schedule), "seed": seed}
            found = rows.find(row)
            if found is None:
                found = row | opened.task.evaluate(opened.hook(schedule, seed))
                rows.add(found)
                print(f"  {method} seed {seed}: KL {found['kl_to_dense']:.4f}", flush=True)
            kls += [window["kl"] for window in found["per_window"]]
        results.append(kls)
    return results


def change(kls: Sequence[float], base: Sequence[float]) -> str:
    """Mean relative change of values that belong together in pairs, in percent with its interval."""
    return "{:+.1f} % [{:+.1f}, {:+.1f}]".format(*(100 * np.array(bootstrap(np.divide(kls, base) - 1))))


def report(method: str, runs: list[Row], curves: plt.Axes, budgets: plt.Axes) -> None:
    """One method's table on stdout, and its two panels."""
    even = runs[0]["uniform"]
    base, *learned = judge(method, [even, *(run["samples"] for run in runs)])
    mean, low, high = bootstrap(base)
    print(f"{method}, total {TOTAL}: uniform KL {mean:.4f} [{low:.4f}, {high:.4f}]")
    for run, kls in zip(runs, learned, strict=True):
        kl = bootstrap(kls)
        print(f"  learned, seed {run['seed']}: KL {kl.mean:.4f} [{kl.low:.4f}, {kl.high:.4f}], {change(kls, base)}")
        print(f"    {run['samples']}, sum {sum(run['samples'])}")
        smooth = np.convolve(run["rewards"], np.ones(20) / 20, mode="valid")
        curves.plot(np.arange(20, 20 + len(smooth)), -smooth, label=f"seed {run['seed']}", linewidth=1)
        budgets.plot(run["samples"], "o-", markersize=3, linewidth=1, label=f"seed {run['seed']}")
    print(f"  all of them against uniform: {change(np.mean(learned, axis=0), base)}")
    budgets.axhline(TOTAL / len(even), color="grey", linestyle="--", label="uniform")
    curves.set(xlabel="episode", ylabel="KL, mean of 20 episodes", title=f"{method}: while learning")
    budgets.set(xlabel="layer", ylabel="S", title=f"{method}: learned budgets", yscale="log")
    for axis in (curves, budgets):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)


def main() -> None:
    methods = sys.argv[1:] or METHODS
    figure, axes = plt.subplots(len(methods), 2, figsize=(9, 3.3 * len(methods)), layout="constrained", squeeze=False)
    for method, panels in zip(methods, axes, strict=True):
        report(method, [learn(method, seed) for seed in SEEDS], *panels)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()
