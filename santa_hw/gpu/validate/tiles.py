"""`prop` and `flash`: as published, S honoured."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from santa_hw import gpu
from santa_hw.datapath import Draw
from santa_hw.gpu.cases import FloatOperands, dtype_name, float_operands, float_variants
from santa_hw.gpu.validate.outcome import Outcome, relative_error, rounding_error
from santa_hw.reference import proportional_budgets, uniform_budgets
from santa_hw.rng import Purpose, words


def tile_methods(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Budgets and counts of `prop` and `flash` follow from the kernel's own weights; outputs from the counts."""
    for number, case, dtype, samples in float_variants():
        operands = float_operands(case, seed + number, dtype)
        for name in ("prop", "flash"):
            yield _tile_method(name, operands, f"{name}, {case}, {dtype_name(dtype)}, S {samples}", samples)


def _tile_method(name: str, operands: FloatOperands, shape: str, samples: int) -> Outcome:
    arguments = operands.on_device()
    counts = torch.full((*operands.q.shape[:2], operands.k.shape[1]), -99, dtype=torch.int32, device=operands.q.device)
    trace: dict[str, torch.Tensor] = {}
    decode_method = {"prop": gpu.decode_prop, "flash": gpu.decode_flash}[name]
    output = decode_method(**arguments, samples=samples, counts=counts, trace=trace)
    found = {key: tensor.cpu().numpy() for key, tensor in trace.items()} | {"counts": counts.cpu().numpy()}
    wrong = {"budgets": 0, "counts": 0, "sums": 0}
    expected_output = torch.zeros(operands.q.shape, dtype=torch.float64, device=output.device)
    group = operands.q.shape[1] // operands.v.shape[2]
    for b, length in enumerate(operands.lengths):
        for head in range(operands.q.shape[1]):
            word = _tile_words(operands.draw, b, head, operands.q.shape[1], found["budgets"].shape[-1])
            row = {key: array[b, head] for key, array in found.items()}
            budgets, own, merge = tile_reference(name, row, length, samples, word)
            tiles = len(budgets)
            wrong["budgets"] += int((row["budgets"][:tiles] != budgets).sum())
            wrong["counts"] += int((row["counts"] != own).sum())
            wrong["sums"] += int(row["counts"].sum() != (samples if length else 0))
            factors = torch.from_numpy(own * merge).to(output.device)
            values = torch.nan_to_num(operands.v[b, :, head // group].double())
            expected_output[b, head] = factors @ values
    error = relative_error(output, expected_output)
    passed = not any(wrong.values()) and error < 2 * rounding_error(output.dtype)
    return Outcome("tile_methods", shape, passed, {"wrong": wrong, "output error": error})


def _tile_words(draw: Draw, b: int, head: int, heads: int, tiles: int) -> np.ndarray:
    return words(
        "threefry", seed=draw.seed, sequence=draw.sequence[b], position=draw.position[b, 0], purpose=Purpose.OFFSET,
        stream=draw.layer * heads + head, count=tiles,
    )  # fmt: skip


def tile_reference(
    name: str, row: dict[str, np.ndarray], length: int, samples: int, word: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Budgets, counts (N,) and what a count is worth (N,), of one head, from the kernel's weights and tile maxima."""
    keys = len(row["counts"])
    counts, worth = np.zeros(keys, dtype=np.int64), np.zeros(keys)
    if length == 0:
        return np.zeros(0, dtype=np.int64), counts, worth
    tile = 64 if name == "prop" else max(64, -(-length // samples))
    starts = np.arange(0, length, tile)
    weights = [row["weights"][start : min(start + tile, length)].astype(np.int64) for start in starts]
    masses = np.array([int(own.sum()) for own in weights])
    maxima = row["tile_maximum"][: len(starts)].astype(np.float64)
    shares = masses * np.exp2(maxima - maxima.max())
    shares /= shares.sum()
    if name == "prop":
        budgets = proportional_budgets(torch.from_numpy(shares), samples).numpy()
    else:
        budgets = uniform_budgets(torch.ones(len(starts), dtype=torch.bool), samples).numpy()
    for t, (start, own) in enumerate(zip(starts, weights, strict=True)):
        budget = int(budgets[t])
        if budget == 0:
            continue
        offset = int(word[t]) * int(masses[t]) >> 32
        thresholds = [offset + j * int(masses[t]) for j in range(budget)]
        running = [budget * int(x) for x in np.cumsum(own)]
        for threshold in thresholds:
            counts[start + bisect_right(running, threshold)] += 1
        worth[start : start + len(own)] = 1 / samples if name == "prop" else shares[t] / budget
    return budgets, counts, worth
