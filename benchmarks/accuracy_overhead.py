"""A design point of `santa-hw accuracy` against the same evaluation with dense float attention.

    python benchmarks/accuracy_overhead.py

SmolLM2, one 1024-token window: the forward pass with attention replaced, log-probabilities, KL and agreement. What
a run does once (loading, calibration, the reference pass) is left out, so that the ratio is the worst case. The methods
take turns in one process; ratios are of the best wall time, and of processor time, which a busy machine
disturbs less.
"""

from __future__ import annotations

import time

from santa_hw import models
from santa_hw.design import Design
from santa_hw.evaluate.perplexity import Perplexity, windows

ROUNDS = 2


def main() -> None:
    loaded = models.load()
    calibration = models.calibrate(loaded, windows(loaded, models.load_text(models.CALIBRATION_TEXT), 1, 512))
    task = Perplexity(loaded, windows(loaded, models.load_text(models.EVALUATION_TEXT), 1, 1024))
    task.prepare()
    hooks = {
        "dense float (sdpa)": None,
        "santa, S = 64": models.fixed_point(loaded, Design(), calibration),
        "santa, S = 64, ternary": models.fixed_point(loaded, Design(scores="ternary"), calibration),
        "top-k, k = 64": models.fixed_point(loaded, Design(method="top-k"), calibration),
        "dense fixed point": models.fixed_point(loaded, Design(method="dense"), calibration),
    }
    best = {name: [float("inf"), float("inf")] for name in hooks}
    for _ in range(ROUNDS):
        for name, hook in hooks.items():
            wall, processor = time.perf_counter(), time.process_time()
            task.evaluate(hook)
            times = time.perf_counter() - wall, time.process_time() - processor
            best[name] = [min(a, b) for a, b in zip(best[name], times, strict=True)]
    base = best["dense float (sdpa)"]
    print("one 1024-token window of SmolLM2, run and scored")
    for name, (wall, processor) in best.items():
        print(f"  {name:24s} {wall:6.2f} s, {wall / base[0]:5.2f} x; processor {processor / base[1]:5.2f} x")


if __name__ == "__main__":
    main()
