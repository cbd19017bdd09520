"""Speed of the decode kernels beside dense attention and the read floors, all in one run on one GPU.

Two protocols. *graph*: a CUDA graph of at least 16 calls, which take turns with so many K/V sets that what the method
under test reads of them is at least four times the L2 cache, replayed and divided. *eager*: 10 warm-up and 40 timed
calls, CUDA events, 512 MB updated in place before each so that the cache is cold (arXiv 2605.01910, App. Q). Medians.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from santa_hw import gpu
from santa_hw.gpu.bench.measurement import DENSE, OURS, Measurement, plot, tables
from santa_hw.gpu.bench.methods import (
    FLASH_SAMPLES,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    SAMPLES,
    Method,
    Sets,
    make_sets,
    methods,
    sampled_bytes,
)
from santa_hw.gpu.bench.timing import time_eager, time_graph
from santa_hw.gpu.environment import environment, require_gpu

__all__ = ["OURS", "SHAPES", "Measurement", "compared", "parse_shape", "plot", "run", "select", "setting", "tables"]

SHAPES = ("1x4k", "1x8k", "1x16k", "1x32k", "1x128k", "4x4k", "4x32k", "4x128k", "16x4k", "16x32k", "16x128k")


def parse_shape(text: str) -> tuple[int, int]:
    """Sequences and keys of ``4x32k``; k is 1024.

    >>> parse_shape("4x32k")
    (4, 32768)
    """
    found = re.fullmatch(r"(\d+)x(\d+)(k?)", text.strip())
    if found is None or int(found[1]) < 1 or int(found[2]) < 1:
        raise ValueError(f"shape {text!r}: BATCHxKEYS is allowed, such as 4x32k")
    return int(found[1]), int(found[2]) * (1024 if found[3] else 1)


def select(names: str | None) -> list[Method]:
    """The methods that a comma list names, and the floors, in order; None: all."""
    known = methods()
    if names is None:
        return known
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in {method.name for method in known}:
            raise ValueError(f"method {name!r}: allowed are {', '.join(method.name for method in known)}")
    return [method for method in known if method.name in chosen or method.name.startswith("read ")]


def run(
    shapes: Sequence[str],
    chosen: Sequence[Method],
    *,
    persist_l2: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> list[Measurement]:
    """Measure every method at every shape.

    Parameters
    ----------
    shapes : sequence of str
        Such as ``"4x32k"``.
    chosen : sequence of Method
        From :func:`select`.
    persist_l2 : int
        Megabytes of the L2 set aside for persisting data while it runs: a setting of the whole device.
    tick : callable
        Called once a measurement.
    """
    sizes = [(shape, *parse_shape(shape)) for shape in shapes]
    require_gpu()
    found = []
    gpu.persist_l2(persist_l2 << 20)
    try:
        for shape, batch, keys in sizes:
            rows = []
            for dtype in dict.fromkeys(method.dtype for method in chosen):
                rows += _measure_all([method for method in chosen if method.dtype == dtype], shape, batch, keys, tick)
                torch.cuda.empty_cache()
            found += compared(rows)
    finally:
        gpu.persist_l2(0)
    return found


def _measure_all(
    chosen: Sequence[Method], shape: str, batch: int, keys: int, tick: Callable[[], None]
) -> list[Measurement]:
    """The methods of one element type at one shape, on the same sets."""
    try:
        sets = make_sets(batch, keys, chosen[0].dtype)
    except torch.OutOfMemoryError:
        reason = "not measured: the sets do not fit into the GPU's memory"
        return [Measurement(method.name, shape, None, None, 0, note=reason) for method in chosen]
    found = []
    for method in chosen:
        found.append(measure(method, shape, sets))
        tick()
    return found


def measure(method: Method, shape: str, sets: Sets) -> Measurement:
    """Time one method at one shape; what cannot run says why."""
    size = sets.k[0].numel() * sets.k[0].dtype.itemsize
    try:
        call = method.prepare(sets)
        graph_us, eager_us = time_graph(call, len(sets)), time_eager(call, len(sets))
        read = size * (2 if method.values else 1) + sampled_bytes(method, sets)
    except (ImportError, RuntimeError, ValueError, AttributeError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        torch.cuda.synchronize()
        return Measurement(method.name, shape, None, None, 0, note=f"not measured: {reason}")
    return Measurement(method.name, shape, graph_us, eager_us, read, note=method.note)


def compared(rows: Sequence[Measurement]) -> list[Measurement]:
    """The measurements of one shape with their floors and speed-ups."""
    times = {row.method: row.graph_us for row in rows}
    dense = [times[name] for name in DENSE if times.get(name) is not None]
    best, fp8 = min(dense, default=None), times.get("flashinfer-fp8")  # type: ignore[type-var]
    known = {method.name: method for method in methods()}

    def over(other: float | None, row: Measurement) -> float | None:
        return None if other is None or row.graph_us is None else other / row.graph_us

    return [
        replace(
            row,
            floor_us=times.get(_floor(known[row.method])),
            over_dense=over(best, row),
            over_fp8=over(fp8, row),
        )
        for row in rows
    ]


def _floor(method: Method) -> str:
    return f"read {'K and V' if method.values else 'K'}, {'int8' if method.dtype == torch.int8 else 'bf16'}"


def setting(persist_l2: int) -> dict[str, Any]:
    """What the figures were got with: machine, versions, shape and budgets."""
    versions = {}
    for name in ("flashinfer", "flash_attn", "flash_attn_interface"):
        if importlib.util.find_spec(name) is not None:
            versions[name] = getattr(importlib.import_module(name), "__version__", "unknown")
    return {
        **environment(),
        "cudnn": torch.backends.cudnn.version(),
        "persist_l2_megabytes": persist_l2,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "samples": SAMPLES,
        "flash_samples": FLASH_SAMPLES,
        **versions,
    }
