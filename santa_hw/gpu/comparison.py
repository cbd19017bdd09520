"""The `fixed` kernels against the golden model, on the same operand codes: every intermediate, number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from santa_hw.datapath import decode
from santa_hw.design import Design
from santa_hw.gpu.cases import FixedOperands
from santa_hw.gpu.fixed import decode_fixed

INTERMEDIATES = ("ternary_counts", "scores", "weights", "mass", "offset", "counts", "accumulators", "output_codes")
"""What `fixed` must share with the golden model, bit for bit."""

PER_KEY = ("scores", "weights", "counts")


def run_fixed(operands: FixedOperands) -> dict[str, np.ndarray]:
    """All intermediates of a call of the kernel, in the golden model's shapes without T, keys beyond a length zero."""
    arguments = operands.on_device()
    return trace_fixed(operands.design, arguments, operands.codes.k.shape[2])


def trace_fixed(design: Design, arguments: dict[str, Any], keys: int) -> dict[str, np.ndarray]:
    """Run `decode_fixed` with everything traced."""
    q = arguments["q"]
    batch, heads, _ = q.shape
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "scores": ((batch, heads, keys), torch.int32),
        "weights": ((batch, heads, keys), torch.int64),
        "counts": ((batch, heads, keys), torch.int32),
        "unique": ((batch, arguments["k"].shape[2]), torch.int32),
        "mass": ((batch, heads), torch.int64),
        "offset": ((batch, heads), torch.int64),
        "accumulators": (tuple(q.shape), torch.int32),
        "ternary_counts": (tuple(q.shape), torch.int32),
    }
    if design.scores == "dense":
        del shapes["ternary_counts"]
    # Whatever a kernel leaves unwritten shows.
    trace = {name: torch.full(shape, -99, dtype=dtype, device=q.device) for name, (shape, dtype) in shapes.items()}
    output = decode_fixed(design, **arguments, trace=trace)
    found = {name: tensor.cpu().numpy() for name, tensor in trace.items()} | {"output_codes": output.cpu().numpy()}
    visible = np.arange(keys) < arguments["lengths"].cpu().numpy()[:, None]
    for name in PER_KEY:
        found[name] = np.where(visible[:, None], found[name], 0)
    return found


def golden(operands: FixedOperands) -> dict[str, np.ndarray]:
    """The golden model's intermediates of the same call, T left out."""
    lengths = np.array(operands.lengths, dtype=np.int64)[:, None]
    keep = [name for name in INTERMEDIATES if name != "ternary_counts" or operands.design.scores == "ternary"]
    result = decode(operands.design, operands.codes, draw=operands.draw, lengths=lengths, keep=keep)
    trace = {name: array[:, :, 0] for name, array in result.trace.items()}
    trace["offset"] = trace["offset"][..., 0]
    return trace


def union(counts: np.ndarray, kv_heads: int) -> np.ndarray:
    """Value rows that a group reads, (B, KV), from counts (B, H, N)."""
    batch, heads, keys = counts.shape
    return (counts > 0).reshape(batch, kv_heads, heads // kv_heads, keys).any(axis=2).sum(axis=-1)


def compare(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, int]:
    """How many numbers of each intermediate differ."""
    return {name: int((found[name].astype(np.int64) != array).sum()) for name, array in expected.items()}
