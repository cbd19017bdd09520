"""Where accuracy breaks: KL to dense over operand bits, exponents, score fraction bits F and weight bits W.

    python benchmarks/bit_width_sweep.py

It calls `santa-hw accuracy` once a panel (SmolLM2, one 512-token window, S = 64, one seed), keeps the rows in
build/sweep-*.json, where a second call finds them, and draws docs/images/bit-widths.svg.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "images" / "bit-widths.svg"
COMMON = ["--windows", "1", "--window", "512", "--seeds", "1", "--method", "santa,dense", "--samples", "64"]
BITS, FRACTIONS, WIDTHS = "3,4,5,6,7,8", "2,3,4,5,6,7,8", "6,8,10,12,14,16,18,20"
EXPONENTS = (("per_channel", "per_channel"), ("per_head", "per_channel"), ("per_head", "per_head"))

Row = dict[str, Any]


def accuracy(name: str, *options: str) -> list[Row]:
    """Rows of one `santa-hw accuracy` call."""
    path = ROOT / "build" / f"sweep-{name}.json"
    path.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "santa_hw", "accuracy", *COMMON, *options, "--json", str(path)]
    print("$ santa-hw", *command[3:], flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows: list[Row] = json.loads(path.read_text())
    return rows


def curve(axis: plt.Axes, rows: list[Row], field: str, label: str, style: str, **only: Any) -> None:
    """KL against a design field, over the rows whose design and method are as in `only`."""
    method = only.pop("method")
    chosen = [r for r in rows if r["method"] == method and all(r["design"][k] == v for k, v in only.items())]
    points = sorted((r["design"][field], r["kl_to_dense"]) for r in chosen)
    axis.plot(*zip(*points, strict=True), style, marker="o", markersize=3, label=label)
    print(f"  {label:28s}" + "  ".join(f"{x}: {kl:.4f}" for x, kl in points))


def main() -> None:
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), sharey=True, layout="constrained")
    (together, alone), (fraction, width) = axes

    rows = accuracy(
        "exponents", "--bits", BITS, "--k-exponents", "per_channel,per_head", "--v-exponents", "per_channel"
    )
    rows += accuracy("exponents-v", "--bits", BITS, "--k-exponents", "per_head", "--v-exponents", "per_head")
    for method, style in (("santa", "-"), ("dense", "--")):
        for i, (k, v) in enumerate(EXPONENTS):
            label = f"{method}, K {k[4:]}, V {v[4:]}"
            curve(together, rows, "q_bits", label, f"C{i}{style}", method=method, k_exponents=k, v_exponents=v)
    together.set(xlabel="bits of q, K and V together", title="operand bits and exponents")

    for i, operand in enumerate("qkv"):
        rows = accuracy(operand, f"--{operand}-bits", BITS)
        curve(alone, rows, f"{operand}_bits", f"santa, {operand}", f"C{i}-", method="santa")
        curve(alone, rows, f"{operand}_bits", f"dense, {operand}", f"C{i}--", method="dense")
    alone.set(xlabel="bits of one operand, the others at 8", title="one operand at a time")

    rows = accuracy("fraction", "--score-frac", FRACTIONS)
    for method, style in (("santa", "-"), ("dense", "--")):
        curve(fraction, rows, "score_frac", method, f"C0{style}", method=method)
    fraction.set(xlabel="fraction bits F of a score", title="score format")

    rows = accuracy("weights", "--weight-bits", WIDTHS)
    for method, style in (("santa", "-"), ("dense", "--")):
        curve(width, rows, "weight_bits", method, f"C0{style}", method=method)
    width.set(xlabel="weight bits W", title="weight format")

    for axis in axes.flat:
        axis.set(yscale="log", ylabel="KL to dense (nats a token)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle("SmolLM2-135M, 512 tokens, S = 64 (solid: sampled; dashed: dense fixed point)", fontsize=10)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()
