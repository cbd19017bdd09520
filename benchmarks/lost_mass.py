"""Mass lost to the weight width on a row with one sink key: a table and docs/images/lost-mass.svg.

    python benchmarks/lost_mass.py

One key (the sink) holds half of the softmax mass; the other keys share the rest, with scores N(0, 1) in nats. Every
weight below one unit is lost, so the loss grows with the number of keys: W must grow with log2 of the keys.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

from santa_hw.datapath import weights_of
from santa_hw.design import Design

mpl.use("Agg")
from matplotlib import pyplot as plt

WIDTHS = range(8, 25)
KEYS = (1024, 8192, 32768, 131072)
FIGURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "lost-mass.svg"


def sink_row(keys: int, frac: int, seed: int = 0) -> np.ndarray:
    """Score codes (base-2 logarithms, `frac` fraction bits) of a row whose first key holds half of the mass."""
    others = np.random.default_rng(seed).normal(size=keys - 1)
    sink = np.log(np.exp(others).sum())
    codes = np.rint(np.concatenate([[sink], others]) / np.log(2) * (1 << frac))
    return codes.astype(np.int64)


def main() -> None:
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    print("lost mass, one sink key with half of the mass")
    print("  W   " + "".join(f"{n:>10d}" for n in KEYS) + "   keys")
    rows = {keys: sink_row(keys, Design().score_frac) for keys in KEYS}
    lost = {
        keys: [weights_of(Design(max_keys=keys, weight_bits=w), rows[keys]).lost_mass for w in WIDTHS] for keys in KEYS
    }
    for i, w in enumerate(WIDTHS):
        print(f"  {w:2d}  " + "".join(f"{lost[keys][i]:10.4f}" for keys in KEYS))
    for keys in KEYS:
        axis.plot(WIDTHS, lost[keys], marker="o", markersize=3, label=f"{keys} keys")
        axis.axvline(np.log2(keys) + 4, color=axis.lines[-1].get_color(), linestyle=":", linewidth=0.8)
    axis.set(yscale="log", xlabel="weight width W (bits)", ylabel="lost mass (share of the row)", ylim=(1e-4, 1))
    axis.grid(alpha=0.3)
    axis.legend(title="dotted: log2(keys) + 4")
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()
