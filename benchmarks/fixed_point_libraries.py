"""The same decode step written with fxpmath and with apytypes, against santa-hw: time ratios in one run.

    python benchmarks/fixed_point_libraries.py

One layer of SmolLM2 (9 heads, 3 KV heads, d = 64), N keys, S = 64. Each library does what it can do with its own
fixed-point arrays: dot products, the shift to the score format, the weights' table and shift, the mass, the gather
and the output; the sampler's residual register is written with its scalars. All three must agree in every bit before
they are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import apytypes
import numpy as np
from apytypes import APyFixed, APyFixedArray, OverflowMode, QuantizationMode
from fxpmath import Fxp

from santa_hw.datapath import Codes, Draw, Result, decode
from santa_hw.design import Design
from santa_hw.rng import Purpose, words

Row = np.ndarray[Any, Any]


HEADS, KV_HEADS = 9, 3


def step_codes(design: Design, keys: int) -> tuple[Codes, Draw]:
    rng = np.random.default_rng(0)
    d = design.head_dim
    q, k, v = (rng.integers(-127, 128, (1, h, n, d)) for h, n in ((HEADS, 1), (KV_HEADS, keys), (KV_HEADS, keys)))
    codes = Codes(
        q.astype(np.int32),
        np.full((1, HEADS, 1, 1), 3, dtype=np.int32),
        k.astype(np.int16),
        v.astype(np.int16),
        np.zeros((KV_HEADS, d), dtype=np.int64),
        {"q": 0, "k": 0, "v": 0},
    )
    return codes, Draw(0, 0, np.zeros(1, dtype=int), np.full((1, 1), keys - 1))


def with_fxpmath(design: Design, codes: Codes, head: int, word: int) -> Row:
    kv = head // (HEADS // KV_HEADS)
    d, keys = design.head_dim, codes.k.shape[2]
    q = Fxp(codes.q[0, head, 0], signed=True, n_word=8, n_frac=0)
    k = Fxp(codes.k[0, kv], signed=True, n_word=8, n_frac=0)
    shift = 14 - design.score_frac - int(codes.exponents[0, head, 0, 0])
    scores = []
    for n in range(keys):
        dot = (q * k[n]).get_val().sum()
        score = Fxp(dot / 2.0**shift, signed=True, n_word=16, n_frac=0, rounding="floor", overflow="saturate")
        score(np.floor(dot / 2.0**shift + 0.5))
        scores.append(int(score.get_val()))
    low = (1 << design.score_frac) - 1
    top = max(s >> design.score_frac for s in scores)
    weights = []
    for s in scores:
        entry = Fxp(int(design.table[s & low]), signed=False, n_word=design.W, n_frac=0)
        weights.append(int((entry >> (top - (s >> design.score_frac))).get_val()))
    mass = sum(weights)
    wide = {"signed": True, "n_word": 48, "n_frac": 0}
    residual = Fxp((word * mass) >> 32, **wide)
    total = Fxp(np.zeros(d), **wide)
    for n, weight in enumerate(weights):
        residual = Fxp(residual - Fxp(weight << design.sigma, **wide), **wide)
        while residual.get_val() < 0:
            residual = Fxp(residual + Fxp(mass, **wide), **wide)
            total = Fxp(total + Fxp(codes.v[0, kv, n], **wide), **wide)
    return total.get_val().astype(np.int64)


def with_apytypes(design: Design, codes: Codes, head: int, word: int) -> Row:
    kv = head // (HEADS // KV_HEADS)
    q = APyFixedArray.from_float(codes.q[0, head].astype(float), int_bits=8, frac_bits=0)
    k = APyFixedArray.from_float(codes.k[0, kv].astype(float), int_bits=8, frac_bits=0)
    shift = 14 - design.score_frac - int(codes.exponents[0, head, 0, 0])
    scores = ((k @ q.T) >> shift).cast(
        int_bits=16, frac_bits=0, quantization=QuantizationMode.RND, overflow=OverflowMode.SAT
    )
    codes_of_scores = scores.to_numpy().astype(np.int64).ravel()
    low = (1 << design.score_frac) - 1
    top = int(codes_of_scores.max()) >> design.score_frac
    weights = []
    for s in codes_of_scores.tolist():
        entry = APyFixed(int(design.table[s & low]), int_bits=design.W + 1, frac_bits=0)
        weights.append((entry >> (top - (s >> design.score_frac))).cast(design.W + 1, 0))
    mass = APyFixed(sum(w.to_bits() for w in weights), int_bits=40, frac_bits=0)
    residual = APyFixed((word * mass.to_bits()) >> 32, int_bits=48, frac_bits=0)
    values = APyFixedArray.from_float(codes.v[0, kv].astype(float), int_bits=8, frac_bits=0)
    total = APyFixedArray.from_float(np.zeros(design.head_dim), int_bits=48, frac_bits=0)
    for n, weight in enumerate(weights):
        residual = (residual - (weight << design.sigma)).cast(48, 0)
        while residual < 0:
            residual = (residual + mass).cast(48, 0)
            total = (total + values[n]).cast(48, 0)
    return total.to_numpy().astype(np.int64)


def seconds(function: Callable[[], object], rounds: int) -> float:
    function()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    design = Design()
    print(f"one decode step of one layer, 9 heads, 3 KV heads, d = 64, S = 64; apytypes {apytypes.__version__}")
    for keys in (256, 1024):
        codes, draw = step_codes(design, keys)
        drawn = words(
            "threefry", seed=0, sequence=0, position=keys - 1, purpose=Purpose.OFFSET, stream=np.arange(HEADS), count=1
        )

        def ours(codes: Codes = codes, draw: Draw = draw) -> Result:
            return decode(design, codes, draw=draw, keep=["accumulators"])

        want = ours().trace["accumulators"][0, :, 0]
        base = seconds(ours, 30)
        line = f"  N = {keys:5d}: santa-hw {base * 1e6:7.0f} µs"
        for name, library in (("apytypes", with_apytypes), ("fxpmath", with_fxpmath)):
            start = time.perf_counter()
            rows = [library(design, codes, head, int(drawn[head, 0])) for head in range(HEADS)]
            taken = time.perf_counter() - start
            if (np.array(rows) != want).any():
                raise SystemExit(f"{name} disagrees with the golden model")
            line += f"; {name} {taken * 1e3:8.1f} ms, {taken / base:7.0f} x"
        print(line)


if __name__ == "__main__":
    main()
