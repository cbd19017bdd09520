"""Checks of the kernels on a GPU: `fixed` against the golden model, the others against float64 references.

Every check is a function ``(seed, captured) -> results``; :data:`CHECKS` lists them. A check that cannot run fails.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from santa_hw.gpu.validate.calls import (
    graph_replay,
    late_keys,
    late_lengths,
    operators,
    refused,
    streams,
    unread_values,
)
from santa_hw.gpu.validate.fixed import (
    fixed_any_tiling,
    fixed_beyond_32_bits,
    fixed_equals_golden_model,
    fixed_equals_golden_model_on_captured,
    model_attention_equals_cpu,
    planted_fault_is_found,
)
from santa_hw.gpu.validate.outcome import Check, Outcome
from santa_hw.gpu.validate.systematic import sys_beyond_32_bits, sys_counts, sys_is_unbiased
from santa_hw.gpu.validate.tiles import tile_methods

__all__ = ["CHECKS", "Check", "Outcome", "run", "select"]


def run(check: Check, seed: int, captured: Path | None = None) -> list[Outcome]:
    """The results of one check; an exception is a failed one."""
    found = []
    try:
        for outcome in check(seed, captured):
            found.append(outcome)
        torch.cuda.synchronize()
    except Exception as error:  # whatever goes wrong in a check is its result
        where = traceback.format_exc(limit=-3)
        found.append(Outcome(check.__name__, "exception", False, {"error": f"{error}", "where": where}))
    return found


def select(only: str | None) -> list[Check]:
    """The checks that a comma list names; None: all."""
    names = {check.__name__: check for check in CHECKS}
    if only is None:
        return list(CHECKS)
    chosen = [name.strip() for name in only.split(",")]
    for name in chosen:
        if name not in names:
            raise ValueError(f"check {name!r}: allowed are {', '.join(names)}")
    return [names[name] for name in chosen]


CHECKS: tuple[Check, ...] = (
    fixed_equals_golden_model,
    fixed_equals_golden_model_on_captured,
    model_attention_equals_cpu,
    fixed_any_tiling,
    fixed_beyond_32_bits,
    planted_fault_is_found,
    sys_counts,
    sys_beyond_32_bits,
    sys_is_unbiased,
    tile_methods,
    graph_replay,
    streams,
    late_lengths,
    late_keys,
    unread_values,
    operators,
    refused,
)
