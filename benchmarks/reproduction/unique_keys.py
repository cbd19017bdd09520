"""Unique keys (arXiv 2605.01910, Table 17) and error against S (Fig. 7) of SANTA, S²ANTA-strat and S²ANTA-sys.

    python benchmarks/reproduction/unique_keys.py

SmolLM2's own queries, keys and values: one 1024-token window, its last 64 positions, all 30 layers and 9 heads, each
drawn four times. The error is |ô − o|² / |o|², the mean over positions and draws of a head. Rows (one a sampler and S,
a number a head) are kept in build/unique-keys.json, where a second call finds them. It draws
docs/images/unique-keys.svg. Intervals are 95 %, bootstrapped over the 270 heads (or the 90 groups of three).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import torch
from matplotlib import pyplot as plt

from santa_hw import __version__, models, sweep
from santa_hw.evaluate.perplexity import windows
from santa_hw.evaluate.statistics import Estimate, bootstrap
from santa_hw.reference import attention_scores, probabilities, repeat_kv, unique_rows
from santa_hw.reference.values import SAMPLERS

ROOT = Path(__file__).resolve().parents[2]
FIGURE, ROWS = ROOT / "docs" / "images" / "unique-keys.svg", ROOT / "build" / "unique-keys.json"
WINDOW, POSITIONS, DRAWS, BUDGETS = 1024, 64, 4, (4, 8, 16, 32, 64, 128, 256, 512)
NAMES = {"iid": "SANTA", "stratified": "S²ANTA-strat", "systematic": "S²ANTA-sys"}
PUBLISHED = {"iid": -1.1, "stratified": -1.27, "systematic": -1.29}


class Recorder:
    """Dense attention that keeps each layer's probabilities (H, T, N) of the last positions, and its values."""

    def __init__(self) -> None:
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, call: models.Call) -> torch.Tensor:
        group = call.q.shape[1] // call.k.shape[1]
        k, v = (repeat_kv(x[0].double(), group) for x in (call.k, call.v))
        scores = attention_scores(call.q[0, :, -POSITIONS:], k, scale=call.scale)
        self.layers.append((probabilities(scores, call.visible()[0, -POSITIONS:]), v))
        return models.dense(call)


def measure(layers: list[tuple[torch.Tensor, torch.Tensor]], group: int, sampler: str, samples: int) -> sweep.Row:
    """Means over positions and draws: error and unique keys by layer and head, unique keys of a group's union."""
    found: dict[str, list[list[float]]] = {"error": [], "unique": [], "group_unique": []}
    generator = torch.Generator().manual_seed(samples)
    for p, v in layers:
        dense = p @ v
        counts = SAMPLERS[sampler](p.expand(DRAWS, *p.shape), samples, generator)
        error = (counts.double() @ v / samples - dense).square().sum(-1) / dense.square().sum(-1)
        found["error"].append(error.mean((0, 2)).tolist())
        found["unique"].append(unique_rows(counts).double().mean((0, 2)).tolist())
        found["group_unique"].append(unique_rows(counts, group).double().mean((0, 2)).tolist())
    return dict(found)


def text_of(estimate: Estimate) -> str:
    """Mean and interval."""
    return f"{estimate.mean:6.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def slope(error: np.ndarray, picks: np.ndarray | slice = slice(None)) -> float:
    """Least-squares slope of log(mean error of the picked heads) against log S, `error` (budgets, heads)."""
    return float(np.polyfit(np.log(BUDGETS), np.log(error[:, picks].mean(1)), 1)[0])


def main() -> None:
    loaded = models.load()
    text = models.load_text(models.EVALUATION_TEXT)
    recorder = Recorder()
    with models.attention(loaded, recorder), torch.inference_mode():
        loaded.model(torch.from_numpy(windows(loaded, text, 1, WINDOW)))
    ROWS.parent.mkdir(exist_ok=True)
    rows = sweep.Rows(ROWS)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for index, (sampler, name) in enumerate(NAMES.items()):
        made = []
        for samples in BUDGETS:
            identity = {
                "task": "unique-keys", "method": sampler, "samples": samples, "window": WINDOW, "trials": DRAWS,
                "model_identity": loaded.identity, "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
                "version": __version__,
            }  # fmt: skip
            row = rows.find(identity)
            if row is None:
                row = identity | measure(recorder.layers, loaded.heads // loaded.kv_heads, sampler, samples)
                rows.add(row)
            made.append(row)
            unique, union = (bootstrap(np.ravel(row[column])) for column in ("unique", "group_unique"))
            print(
                f"{name:13s} S = {samples:3d}: unique keys {text_of(unique)}, of a group {text_of(union)}, "
                f"error {np.mean(row['error']):.5f}",
                flush=True,
            )
        error = np.array([np.ravel(row["error"]) for row in made])
        picks = np.random.default_rng(0).integers(0, error.shape[1], (2000, error.shape[1]))
        low, high = np.quantile([slope(error, pick) for pick in picks], [0.025, 0.975])
        heads = [slope(error, slice(head, head + 1)) for head in range(error.shape[1])]
        quarter, median, three = np.quantile(heads, [0.25, 0.5, 0.75])
        print(
            f"{name:13s} slope {slope(error):.3f} ({low:.3f} to {high:.3f}), published {PUBLISHED[sampler]}; "
            f"heads alone: median {median:.3f}, quartiles {quarter:.3f} to {three:.3f}"
        )
        left.plot(BUDGETS, error.mean(1), f"C{index}o-", markersize=4, label=f"{name}, slope {slope(error):.2f}")
        right.plot(BUDGETS, [np.mean(row["unique"]) for row in made], f"C{index}o-", markersize=4, label=name)
        right.plot(BUDGETS, [np.mean(row["group_unique"]) for row in made], f"C{index}o--", markersize=4)
    right.plot(BUDGETS, BUDGETS, "k:", linewidth=1, label="S")
    left.set(ylabel="relative squared error of the output")
    right.set(ylabel="unique keys a step: a head (solid), a group (dashed)")
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlabel="samples S")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle("SmolLM2-135M, 1024 tokens, last 64 positions, all heads", fontsize=10)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()
