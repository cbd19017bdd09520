"""The two protocols: how long a call takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

WARM_UP, TIMED, FLUSH_BYTES = 10, 40, 512_000_000
L2_MULTIPLE, LEAST_SETS, LEAST_CALLS, REPLAYS = 4, 2, 16, 7

Call = Callable[[int], Any]
"""Runs a method once on set i."""


def time_graph(call: Call, sets: int) -> float:
    """Microseconds a call: replays of a graph of calls on each set in turn, median of several, divided.

    A graph's start takes microseconds, during which nothing runs: with few calls it would be a part of each.
    """
    calls = sets * math.ceil(LEAST_CALLS / sets)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(min(sets, 3)):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i % sets)
    graph.replay()
    torch.cuda.synchronize()
    first = _elapsed(graph.replay)
    # A measurement of some milliseconds, whatever the shape.
    repeats = max(1, min(50, round(5000 / max(1.0, first))))
    return statistics.median(_elapsed(graph.replay, repeats) for _ in range(REPLAYS)) / (repeats * calls)


def time_eager(call: Call, sets: int) -> float:
    """Microseconds a call with a cold L2 cache, median (App. Q)."""
    flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    times = []
    for i in range(WARM_UP + TIMED):
        flush.add_(1.0)
        start, end = _events()
        start.record()
        call(i % sets)
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) * 1e3 for start, end in times[WARM_UP:])


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _elapsed(work: Callable[[], Any], repeats: int = 1) -> float:
    """Microseconds of `repeats` runs, from one event to another."""
    start, end = _events()
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3
