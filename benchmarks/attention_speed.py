"""Time of one layer of bit-accurate attention against torch's eager float32 attention, and the peak memory.

    python benchmarks/attention_speed.py

One layer of SmolLM2's shape (9 heads, 3 KV heads, d = 64), 1024 causal positions, all cores for both sides; the two
sides take turns in one process, and the ratio of their best times is printed, so that a busy machine hurts both. Then
one decode step of 32 heads over 32768 keys (Llama-3.1-8B's shape), with the peak memory of the process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np
import torch

from santa_hw.datapath import Draw, Exponents, attend
from santa_hw.design import Design


def best_times(functions: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """Least seconds of each function; they take turns."""
    for function in functions.values():
        function()
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def window() -> None:
    rng = np.random.default_rng(0)
    heads, kv_heads, rows, dim = 9, 3, 1024, 64
    q, k, v = (rng.normal(size=(1, h, rows, dim)).astype(np.float32) for h in (heads, kv_heads, kv_heads))
    exponents = Exponents(np.full((kv_heads, dim), 3), np.full((kv_heads, dim), 3))
    draw = Draw(0, 0, np.zeros(1, dtype=int), np.arange(rows)[None])
    tq, tk, tv = (torch.from_numpy(x) for x in (q, k.repeat(3, axis=1), v.repeat(3, axis=1)))
    bias = torch.full((rows, rows), float("-inf")).triu(1)

    def fixed(**fields: object) -> Callable[[], object]:
        design = Design(**fields)
        return lambda: attend(design, q, k, v, exponents=exponents, draw=draw)

    functions: dict[str, Callable[[], object]] = {
        "torch eager float32": lambda: torch.softmax(tq @ tk.transpose(2, 3) * 0.125 + bias, -1) @ tv,
        "santa, S = 64": fixed(),
        "santa, S = 256": fixed(samples=256),
        "santa, S = 64, ternary": fixed(scores="ternary"),
        "top-k, k = 64": fixed(method="top-k"),
        "dense fixed point": fixed(method="dense"),
    }
    best = best_times(functions)
    print("one layer, 9 heads, d = 64, 1024 causal positions")
    for name, seconds in best.items():
        print(f"  {name:24s} {seconds * 1e3:8.1f} ms   {seconds / best['torch eager float32']:6.2f} x eager")


def long_step() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, h, n, 128), dtype=np.float32) for h, n in ((32, 1), (8, 32768), (8, 32768)))
    exponents = Exponents(np.full((8, 128), 3), np.full((8, 128), 3))
    draw = Draw(0, 0, np.zeros(1, dtype=int), np.array([[32767]]))
    design = Design(head_dim=128, max_keys=1 << 15)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = best_times({"step": lambda: attend(design, q, k, v, exponents=exponents, draw=draw)}, rounds=5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("one decode step, 32 heads, 8 KV heads, d = 128, 32768 keys (the float K and V alone are 256 MiB)")
    print(
        f"  {best['step'] * 1e3:.0f} ms; peak memory of the process {peak / 1024:.0f} MiB, {before / 1024:.0f} before"
    )


if __name__ == "__main__":
    long_step()
    window()
