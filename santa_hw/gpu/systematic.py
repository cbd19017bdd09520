"""S²ANTA-sys on floats as a torch operator."""

from __future__ import annotations

from ctypes import byref
from typing import Any

import torch

from santa_hw.gpu import library
from santa_hw.gpu.checks import DeviceDraw, check_call, check_counts, check_recent
from santa_hw.gpu.operators import (
    out_or_made,
    planned_bytes,
    pointer,
    register,
    shape_arguments,
    softmax_scale,
    stream,
    unite,
    workspace_or_made,
)


def _launch(
    arguments: library.DecodeArguments, recent: int, scale: float, counts: torch.Tensor | None,
    mass: torch.Tensor | None, offset: torch.Tensor | None,
) -> None:  # fmt: skip
    arguments.recent, arguments.scale = recent, scale
    arguments.counts, arguments.mass, arguments.offset = pointer(counts), pointer(mass), pointer(offset)
    arguments.keep = mass is not None  # a trace comes next
    library.call("santa_hw_decode", byref(arguments), stream())


register(
    "decode_sys",
    "int recent, float scale, Tensor(c!)? counts, Tensor(d!)? mass, Tensor(e!)? offset",
    _launch,
    planned_bytes,
)


def decode_sys(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    lengths: torch.Tensor,
    draw: DeviceDraw,
    samples: int,
    scale: float | None = None,
    page_table: torch.Tensor | None = None,
    max_length: int | None = None,
    recent: int | None = None,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    unique: torch.Tensor | None = None,
    trace: dict[str, Any] | None = None,
    check: bool = True,
) -> torch.Tensor:
    """One decode step of S²ANTA-sys: unbiased, reads all keys once and at most `samples` value rows a query head.

    Parameters
    ----------
    q : torch.Tensor
        bfloat16 or float16 (B, H, d), d one of 64, 80, 96, 128, 256.
    k, v : torch.Tensor
        q's dtype, (B, N, KV, d), or with a page table (pages, page size, KV, d). Rows beyond a sequence's length, and
        value rows that are not drawn, may hold anything.
    lengths : torch.Tensor
        int32 (B,): keys of each sequence; 0 gives zeros.
    draw : DeviceDraw
    samples : int
        S, 1 to 65536.
    scale : float, optional
        Of the softmax; default 1/sqrt(d).
    page_table : torch.Tensor, optional
        int32 (B, pages).
    max_length : int, optional
        Bound of all lengths; default N. Required with a page table.
    recent : int, optional
        How many of a sequence's newest keys may be on their way: the kernel ahead on the stream, and others that still
        run, leave the older ones alone, and these are fetched meanwhile. In a decode step that has just appended its
        key, 1. Default: any may be, and none is fetched before the kernel ahead has ended. With a page table none is
        either.
    out : torch.Tensor, optional
        (B, H, d) of q's dtype.
    workspace : torch.Tensor, optional
        From :func:`workspace`; calls that may run at the same time need one each.
    counts : torch.Tensor, optional
        int32 (B, H, max_length), written: how often each key is drawn; every row sums to S.
    unique : torch.Tensor, optional
        int32 (B, KV), written: value rows that a group reads; needs `counts`.
    trace : dict, optional
        Filled: ``weights`` int64 (B, H, max_length), relative to their tile's largest, 65535; ``tile``, keys a tile;
        ``tile_maximum`` float32 and ``tile_mass`` int64 (B, H, tiles), the row's fixed-point masses; ``mass`` and
        ``offset`` int64 (B, H).
    check : bool
        Check lengths, page table and draw on the device, which waits for it; skipped while a graph is captured. Without
        it they are clamped, and :func:`error_flags` tells.

    Returns
    -------
    torch.Tensor
        (B, H, d), q's dtype: `out` if given.

    Raises
    ------
    ValueError
        Before any launch; names the argument, its value and what is allowed.
    """
    bound = check_call(q, k, v, lengths, draw, samples, page_table, max_length, check)
    batch, heads, _ = q.shape
    log2_scale, fresh = softmax_scale(scale, q.shape[2]), check_recent(recent)
    check_counts(q, k, counts, unique, bound)
    out = out_or_made(out, tuple(q.shape), q.dtype, q.device)
    mass = offset = None
    if trace is not None:
        mass, offset = (torch.empty((batch, heads), dtype=torch.int64, device=q.device) for _ in range(2))
    workspace = workspace_or_made(workspace, decode_sys, q, k, samples, bound)
    torch.ops.santa_hw.decode_sys(
        q, k, v, lengths, page_table, draw.sequence, draw.position, draw.seed, draw.layer, samples, bound, out,
        workspace, fresh, log2_scale, counts, mass, offset,
    )  # fmt: skip
    if trace is not None:
        trace |= _trace_sys(q, k, lengths, samples, bound, workspace) | {"mass": mass, "offset": offset}
    unite(counts, unique, k.shape[2])
    return out


def _trace_sys(
    q: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor, samples: int, bound: int, workspace: torch.Tensor
) -> dict[str, Any]:
    arguments = shape_arguments(q, k, samples, bound)
    arguments.lengths = lengths.data_ptr()
    arguments.workspace, arguments.workspace_bytes = workspace.data_ptr(), workspace.numel()
    plan = library.plan(arguments)
    rows = tuple(q.shape[:2])
    weights = torch.empty((*rows, bound), dtype=torch.int64, device=q.device)
    maximum = torch.empty((*rows, plan.tiles), dtype=torch.float32, device=q.device)
    masses = torch.empty((*rows, plan.tiles), dtype=torch.int64, device=q.device)
    with torch.cuda.device(q.device):
        library.call(
            "santa_hw_trace", byref(arguments), None, pointer(weights), pointer(maximum), pointer(masses), stream()
        )
    return {"weights": weights, "tile": int(plan.tile), "tile_maximum": maximum, "tile_mass": masses}
