"""The fixed-point datapath on operand codes as a torch operator."""

from __future__ import annotations

import functools
from ctypes import byref

import numpy as np
import torch

from santa_hw.design import Design
from santa_hw.gpu import library
from santa_hw.gpu.checks import DeviceDraw, check_call, check_counts, check_design, check_recent, check_tensor
from santa_hw.gpu.operators import (
    out_or_made,
    planned_bytes,
    pointer,
    register,
    stream,
    unite,
    workspace_or_made,
)

_DESIGN_ARGUMENTS = (
    "score_frac", "score_bits", "weight_bits", "half_up", "rng_bits", "out_bits", "ternary", "ternary_shared", "beta",
    "query_frac",
)  # fmt: skip
TRACE_TYPES: dict[str, torch.dtype] = {
    "scores": torch.int32,
    "weights": torch.int64,
    "counts": torch.int32,
    "mass": torch.int64,
    "offset": torch.int64,
    "ternary_counts": torch.int32,
    "accumulators": torch.int32,
}
"""Intermediates that :func:`decode_fixed` can return, and their dtypes."""

_PER_KEY = ("scores", "weights", "counts")


def _launch(
    arguments: library.DecodeArguments, recent: int, design: list[int], shift: torch.Tensor, table: torch.Tensor,
    output_shift: torch.Tensor | None, scores: torch.Tensor | None, weights: torch.Tensor | None,
    counts: torch.Tensor | None, mass: torch.Tensor | None, offset: torch.Tensor | None,
    ternary_counts: torch.Tensor | None, accumulators: torch.Tensor | None,
) -> None:  # fmt: skip
    arguments.recent = recent
    for name, value in zip(_DESIGN_ARGUMENTS, design, strict=True):
        setattr(arguments, name, value)
    arguments.shift, arguments.table, arguments.output_shift = shift.data_ptr(), table.data_ptr(), pointer(output_shift)
    arguments.counts, arguments.mass, arguments.offset = pointer(counts), pointer(mass), pointer(offset)
    arguments.ternary_counts, arguments.accumulators = pointer(ternary_counts), pointer(accumulators)
    arguments.keep = scores is not None or weights is not None
    library.call("santa_hw_decode", byref(arguments), stream())
    if arguments.keep:
        library.call("santa_hw_trace", byref(arguments), pointer(scores), pointer(weights), None, None, stream())


register(
    "decode_fixed",
    "int recent, int[] design, Tensor shift, Tensor table, Tensor? output_shift, Tensor(c!)? scores, "
    "Tensor(d!)? weights, Tensor(e!)? counts, Tensor(f!)? mass, Tensor(g!)? offset, Tensor(h!)? ternary_counts, "
    "Tensor(i!)? accumulators",
    _launch,
    planned_bytes,
)


@functools.lru_cache(maxsize=64)
def _table(entries: bytes, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(entries, dtype=np.int32).copy()).to(device)


def decode_fixed(
    design: Design,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    shift: torch.Tensor,
    lengths: torch.Tensor,
    draw: DeviceDraw,
    output_shift: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    max_length: int | None = None,
    recent: int | None = None,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    trace: dict[str, torch.Tensor] | None = None,
    check: bool = True,
) -> torch.Tensor:
    """One decode step of the fixed-point datapath: :func:`santa_hw.datapath.decode` bit for bit.

    Parameters
    ----------
    design : Design
        One that :func:`check_design` lets pass. Its table is copied to the device at first use: call once before a
        graph is captured.
    q, k, v : torch.Tensor
        int8 codes, shapes as for :func:`decode_sys`.
    shift : torch.Tensor
        int32 (B, H): right shift from a dot product to a score; negative: left.
    lengths, draw, page_table, max_length, recent, workspace, check
        As for :func:`decode_sys`.
    output_shift : torch.Tensor, optional
        int32 (KV, d): right shift from an accumulator to an output code; needed if, and only if, the design has an
        output format.
    out : torch.Tensor, optional
        (B, H, d), int32 accumulators, or int64 codes if the design has an output format.
    trace : dict, optional
        Tensors to write, by name: ``scores`` int32, ``weights`` int64 and ``counts`` int32 (B, H, max_length), ``mass``
        and ``offset`` int64 (B, H), ``ternary_counts`` and ``accumulators`` int32 (B, H, d); ``unique`` int32 (B, KV),
        value rows that a group reads, needs ``counts``.

    Returns
    -------
    torch.Tensor
        `out`.

    Raises
    ------
    ValueError
        Before any launch; names the argument, its value and what is allowed.
    """
    check_design(design)
    bound = check_call(q, k, v, lengths, draw, design.samples, page_table, max_length, check, (torch.int8,))
    batch, heads, head_dim = q.shape
    if design.head_dim != head_dim:
        raise ValueError(f"q has head dimension {head_dim}: the design's, {design.head_dim}, is allowed")
    if bound > design.max_keys:
        raise ValueError(f"max_length = {bound}: at most the design's max_keys = {design.max_keys} is allowed")
    check_tensor("shift", shift, (batch, heads), (torch.int32,), q.device)
    if (output_shift is None) != (design.out_bits is None):
        state = "missing" if output_shift is None else "given"
        raise ValueError(f"output_shift is {state}: it goes with the design's out_bits, {design.out_bits}")
    if output_shift is not None:
        check_tensor("output_shift", output_shift, (k.shape[2], head_dim), (torch.int32,), q.device)
    out_dtype = torch.int32 if design.out_bits is None else torch.int64
    out = out_or_made(out, tuple(q.shape), out_dtype, q.device)
    kept = _check_trace(design, {name: x for name, x in (trace or {}).items() if name != "unique"}, q, bound)
    unique = None if trace is None else trace.get("unique")
    check_counts(q, k, kept.get("counts"), unique, bound)
    fresh = check_recent(recent)
    table = _table(design.table.astype(np.uint32).tobytes(), q.device)
    ternary = design.scores == "ternary"
    numbers = [
        design.score_frac, design.score_bits, design.W, design.weight_rounding == "half_up", design.rng_bits,
        design.out_bits or 0, ternary, design.ternary_offset == "shared", design.beta, design.q_bits - 1,
    ]  # fmt: skip
    workspace = workspace_or_made(workspace, decode_fixed, q, k, design.samples, bound)
    torch.ops.santa_hw.decode_fixed(
        q, k, v, lengths, page_table, draw.sequence, draw.position, draw.seed, draw.layer, design.samples, bound,
        out, workspace, fresh, [int(x) for x in numbers], shift, table, output_shift,
        *(kept.get(name) for name in TRACE_TYPES),
    )  # fmt: skip
    unite(kept.get("counts"), unique, k.shape[2])
    return out


def _check_trace(
    design: Design, trace: dict[str, torch.Tensor], q: torch.Tensor, bound: int
) -> dict[str, torch.Tensor]:
    for name, x in trace.items():
        if name not in TRACE_TYPES:
            raise ValueError(f"trace holds {name!r}: allowed are {', '.join(TRACE_TYPES)}, unique")
        if name == "ternary_counts" and design.scores != "ternary":
            raise ValueError("trace holds 'ternary_counts': they are allowed with scores = ternary")
        rows = tuple(q.shape[:2])
        shape = (*rows, bound) if name in _PER_KEY else rows if name in ("mass", "offset") else tuple(q.shape)
        check_tensor(f"trace[{name!r}]", x, shape, (TRACE_TYPES[name],), q.device)
    return trace
