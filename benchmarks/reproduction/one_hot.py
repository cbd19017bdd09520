"""One-hot ablation (arXiv 2605.01910, App. I): S = 1 in one layer at a time, the others fixed.

    python benchmarks/reproduction/one_hot.py

SmolLM2, one 512-token window, float-sys with S = 64 in all other layers, two seeds: 62 evaluations, some ten seconds
each. Rows are kept in build/one-hot.json as they come; a second call computes what is missing, prints the KL of each
layer and draws docs/images/one-hot.svg, with both seeds as points.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from santa_hw import models, sweep
from santa_hw.design import Design

ROOT = Path(__file__).resolve().parents[2]
FIGURE, ROWS = ROOT / "docs" / "images" / "one-hot.svg", ROOT / "build" / "one-hot.json"
METHOD, SAMPLES, SEEDS = "float-sys", 64, range(2)


def schedules(layers: int) -> list[tuple[int, ...]]:
    """The uniform schedule, then one for each layer with S = 1 there."""
    uniform = (SAMPLES,) * layers
    return [uniform, *((*uniform[:layer], 1, *uniform[layer + 1 :]) for layer in range(layers))]


def main() -> None:
    loaded = models.load()
    task, setting = sweep.open_task(loaded, "perplexity", text=models.EVALUATION_TEXT, windows=1, window=512)
    ROWS.parent.mkdir(exist_ok=True)
    rows = sweep.Rows(ROWS)
    kls: list[list[float]] = []
    for index, schedule in enumerate(schedules(loaded.layers)):
        points = sweep.grid(Design(), [], methods=[METHOD], schedule=schedule, seeds=SEEDS)
        kls.append([row["kl_to_dense"] for row in sweep.run(loaded, task, setting, points, rows)])
        name = f"layer {index - 1:2d}" if index else "none    "
        print(f"S = 1 in {name}: KL " + ", ".join(f"{kl:.4f}" for kl in kls[-1]), flush=True)

    base, *layers = (sum(values) / len(values) for values in kls)
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    axis.bar(range(len(layers)), layers, color="C0", width=0.7, label="mean of two seeds")
    for layer, values in enumerate(kls[1:]):
        axis.plot([layer] * len(values), values, "k.", markersize=4, label=None if layer else "each seed")
    axis.axhline(base, color="C1", linestyle="--", label=f"S = {SAMPLES} in every layer")
    axis.set(yscale="log", xlabel="layer with S = 1", ylabel="KL to dense (nats a token)")
    axis.set_title(f"SmolLM2-135M, 512 tokens, {METHOD}, S = {SAMPLES} in the other layers", fontsize=10)
    axis.grid(axis="y", alpha=0.3)
    axis.legend(fontsize=8)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()
