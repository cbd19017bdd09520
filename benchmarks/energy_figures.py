"""The figures and numbers of docs/explanation/energy.md.

    python benchmarks/energy_figures.py

It calls `santa-hw energy` for the bill and the sensitivity of Llama-3.1-8B's attention, and prints the tables over
length and over accelerators. For the cost of equal accuracy it runs `santa-hw accuracy` (SmolLM2, two 1024-token
windows, two seeds; a quarter of an hour on two cores), keeps the rows in build/energy-smollm2.json, where a second
call finds them, and prices them. Figures go to docs/images/.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from santa_hw.cycles import Machine, cycles
from santa_hw.energy import alone_and_streamed, bill, load_memory, load_table
from santa_hw.events import SHAPES, operations, workload

ROOT = Path(__file__).resolve().parents[1]
IMAGES, ROWS = ROOT / "docs" / "images", ROOT / "build" / "energy-smollm2.json"
SHAPE, KEYS, SAMPLES, TARGET = "llama-3.1-8b", 32768, 128, "0.05"
BUDGETS = ("--samples", "8,32,128,512", "--windows", "2", "--seeds", "2", "--json", str(ROWS))
SWEEPS = (
    ("--method", "santa,top-k,dense"),
    ("--method", "santa,top-k,dense", "--bits", "6"),
    ("--method", "santa", "--sampler", "iid"),
    ("--method", "santa", "--scores", "ternary", "--ternary-samples", "16,32"),
)


def santa_hw(*words: str) -> None:
    print("$ santa-hw", *words, flush=True)
    subprocess.run([sys.executable, "-m", "santa_hw", *words], check=True)


def lengths() -> None:
    """Energy against the number of keys, with the upper bound of rows."""
    table, memory = load_table("horowitz-45nm"), load_memory("hbm2")
    print(f"{'keys':>8s} {'dense':>10s} {'santa':>10s} {'ratio':>6s} {'K reads':>8s} {'top-k':>10s}")
    for keys in (512, 1024, 2048, 4096, 32768, 131072):
        made = {}
        for method in ("dense", "santa", "top-k"):
            work = workload(method, SHAPES[SHAPE], keys, samples=SAMPLES)
            made[method] = bill(operations(work.design, work.tally, memory.layout()), table, memory)
        dense, santa, top = (made[method].total_pj for method in ("dense", "santa", "top-k"))
        columns = [f"{pj / 1e9:7.2f} mJ" for pj in (dense, santa)]
        columns += [f"{santa / dense:6.2f}", f"{made['santa'].share('key rows'):8.0%}", f"{top / 1e9:7.2f} mJ"]
        print(f"{keys:8d}", *columns)


def machines() -> None:
    """Speed-up over dense on the same machine, a layer and sequence."""
    layout = load_memory("hbm2").layout()
    print(f"{'batch':>5s} {'engines':>7s} {'weights':>7s}" + "".join(f"{m:>24s}" for m in ("dense", "top-k", "santa")))
    for batch, engines, weights in ((1, 32, 1), (1, 32, 4), (1, 16, 1), (1, 8, 1), (16, 32, 1), (16, 8, 1)):
        shape = dataclasses.replace(SHAPES[SHAPE], batch=batch, layers=1)
        machine = Machine(engines=engines, weights_per_cycle=weights)
        line, dense = f"{batch:5d} {engines:7d} {weights:7d}", 0.0
        for method in ("dense", "top-k", "santa"):
            work = workload(method, shape, KEYS, samples=SAMPLES)
            time = cycles(work.design, work.tally, layout, machine, parallel_heads=shape.heads * batch)
            dense = dense or time.total
            line += f"{time.total / batch:12,.0f} {time.bound:>6.6s} {dense / time.total:4.2f}"
        print(line)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    ROWS.parent.mkdir(exist_ok=True)
    step = ("energy", "--shape", SHAPE, "--keys", str(KEYS), "--samples", str(SAMPLES), "--methods", "all")
    santa_hw(*step, "--plot", str(IMAGES / "energy-bill.svg"))
    santa_hw(*step, "--table", "all", "--memory", "all", "--plot", str(IMAGES / "energy-sensitivity.svg"))
    santa_hw("energy", "--shape", "smollm2-135m", "--keys", "8192", "--samples", "64", "--methods", "all")
    for bits in (2048, 1024, 512):
        alone, streamed = alone_and_streamed(load_memory("hbm2"), bits)
        print(f"a row of {bits // 8} bytes from HBM2: {alone:.2f} pJ/bit alone, {streamed:.2f} in a stream")
    lengths()
    machines()
    for sweep in SWEEPS:
        santa_hw("accuracy", *sweep, *BUDGETS)
    santa_hw("energy", "--from", str(ROWS), "--target", TARGET, "--plot", str(IMAGES / "energy-pareto.svg"))


if __name__ == "__main__":
    main()
