"""Decode attention on the GPU as torch operators: `sys` on floats and `fixed` on operand codes.

Everything that can be checked on the host is checked before the launch. The kernels run on the current stream, allocate
nothing when they are given `out` and `workspace`, and can be captured in a CUDA graph: `lengths`, `page_table` and
``draw.position`` are read on the device, so that a replay takes what they hold by then.

Caches are contiguous, (B, N, KV, d), or paged: a pool (pages, page size, KV, d) and a `page_table`. Their last two
dimensions must be dense; outer strides are free, 0 for sequences that share a cache.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from ctypes import byref
from typing import Any

import numpy as np
import torch

from santa_hw.design import Design
from santa_hw.gpu import library
from santa_hw.gpu.checks import DeviceDraw, check_call, check_counts, check_design, check_recent, check_tensor

_TILING: ContextVar[dict[str, int]] = ContextVar("tiling", default={})  # noqa: B039 (never changed in place)


@contextlib.contextmanager
def tiling(**cut: int) -> Iterator[None]:
    """Cut the work of the calls inside differently: for tests and measurements, no count depends on it.

    Parameters
    ----------
    steps : int
        16-token steps of a tile: 1, 2 or 4.
    tiles_per_unit : int
        Neighbouring tiles a warp takes at a time, 1 to 4.
    split : int
        Blocks that share a query head's samples: 1, 2 or 4.
    multiprocessors : int
        Blocks to plan for.
    """
    allowed = {"steps": (1, 2, 4), "tiles_per_unit": (1, 2, 3, 4), "split": (1, 2, 4)}
    for name, value in cut.items():
        if name not in (*allowed, "multiprocessors"):
            raise ValueError(f"tiling {name!r} is unknown")
        if name in allowed and value not in allowed[name]:
            raise ValueError(f"{name} = {value}: allowed are {', '.join(map(str, allowed[name]))}")
    token = _TILING.set(_TILING.get() | cut)
    try:
        yield
    finally:
        _TILING.reset(token)


# Arguments --------------------------------------------------------------------------------------------------------


def pointer(x: torch.Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _cache(x: torch.Tensor, page_table: torch.Tensor | None) -> library.Cache:
    size = x.element_size()
    return library.Cache(
        data=x.data_ptr(),
        outer_stride=x.stride(0) * size,
        token_stride=x.stride(1) * size,
        pages=pointer(page_table),
        page_tokens=x.shape[1] if page_table is not None else 1,
        pages_per_row=page_table.shape[1] if page_table is not None else 0,
        pool_pages=x.shape[0],
    )


def shape_arguments(q: torch.Tensor, k: torch.Tensor, samples: int, max_length: int) -> library.DecodeArguments:
    """What a plan depends on."""
    batch, heads, head_dim = q.shape
    return library.DecodeArguments(
        type=library.ELEMENT_TYPES[str(q.dtype).removeprefix("torch.")],
        batch=batch,
        heads=heads,
        kv_heads=k.shape[2],
        head_dim=head_dim,
        samples=samples,
        recent=-1,
        max_length=max_length,
        **_TILING.get(),
    )


def decode_arguments(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor | None,
    sequence: torch.Tensor,
    position: torch.Tensor,
    seed: int,
    layer: int,
    samples: int,
    max_length: int,
    out: torch.Tensor,
    workspace: torch.Tensor,
) -> library.DecodeArguments:
    """What all kernels take, as the library's struct; the tensors must outlive the launch."""
    made = shape_arguments(q, k, samples, max_length)
    made.k, made.v = _cache(k, page_table), _cache(v, page_table)
    made.draw = library.DrawArguments(sequence.data_ptr(), position.data_ptr(), seed, layer)
    made.q, made.lengths, made.out = q.data_ptr(), lengths.data_ptr(), out.data_ptr()
    made.workspace, made.workspace_bytes = workspace.data_ptr(), workspace.numel()
    return made


def stream() -> int:
    """The current stream's handle."""
    return torch.cuda.current_stream().cuda_stream


def _planned_bytes(arguments: library.DecodeArguments) -> int:
    return int(library.plan(arguments).bytes)


_WORKSPACE_BYTES: dict[str, Callable[[library.DecodeArguments], int]] = {}
"""Bytes that a decode function needs, by its name."""


def workspace(
    decode: Callable[..., torch.Tensor],
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    samples: int,
    max_length: int | None = None,
) -> torch.Tensor:
    """A workspace for calls of one shape, uint8, zeros where they must be; calls on one stream may share it.

    Counters and tile statistics lie in it that each call leaves at zero, and their places follow from the method, the
    sequences and the query heads: calls that differ in these are refused. Keys and samples may differ, as long as it
    is large enough.

    Parameters
    ----------
    decode : function
        ``decode_sys``, ``decode_fixed``, ``decode_prop`` or ``decode_flash``.
    q, k : torch.Tensor
        As of the calls; only their shapes, dtype and device count.
    samples : int
    max_length : int, optional
        As of the calls; default k's second dimension.
    """
    arguments = shape_arguments(q, k, samples, k.shape[1] if max_length is None else max_length)
    with torch.cuda.device(q.device):
        size = _WORKSPACE_BYTES[decode.__name__](arguments)
        made = torch.zeros(size, dtype=torch.uint8, device=q.device)
    _belongs_to(made, decode, q)
    return made


def _belongs_to(given: torch.Tensor, decode: Callable[..., torch.Tensor], q: torch.Tensor) -> None:
    """A workspace stays with the calls that it was first used for."""
    now = f"{decode.__name__} of {q.shape[0]} sequences and {q.shape[1]} query heads"
    first = vars(given).setdefault("santa_hw_calls", now)
    if first != now:
        raise ValueError(f"workspace serves {first}: a workspace of its own is allowed for {now}")


def given_or_made(
    given: torch.Tensor | None, decode: Callable[..., torch.Tensor], q: torch.Tensor, k: torch.Tensor, samples: int,
    bound: int,
) -> torch.Tensor:  # fmt: skip
    if given is None:
        return workspace(decode, q, k, samples=samples, max_length=bound)
    check_tensor("workspace", given, tuple(given.shape), (torch.uint8,), q.device)
    arguments = shape_arguments(q, k, samples, bound)
    needed = _WORKSPACE_BYTES[decode.__name__](arguments)
    if given.ndim != 1 or given.numel() < needed:
        raise ValueError(f"workspace has shape {tuple(given.shape)}: ({needed},) or more is allowed, see workspace()")
    _belongs_to(given, decode, q)
    return given


def error_flags(given: torch.Tensor) -> None:
    """Raise if a call with this workspace met a length or a page number out of range; waits for the device.

    Raises
    ------
    ValueError
    """
    flags = int(given[:4].view(torch.int32).item())
    if flags:
        given[:4].zero_()
        what = [text for bit, text in ((1, "lengths"), (2, "page_table")) if flags & bit]
        raise ValueError(f"{' and '.join(what)} held values out of range when a kernel ran; they were clamped")


# sys --------------------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("santa_hw", "FRAGMENT")
_COMMON = (
    "Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? page_table, Tensor sequence, Tensor position, int seed, "
    "int layer, int samples, int max_length, Tensor(a!) out, Tensor(b!) workspace"
)


def register(
    name: str, more: str, run: Callable[..., None], workspace_bytes: Callable[[library.DecodeArguments], int]
) -> None:
    """Make an operator of a kernel: `more` are its arguments beside the common ones."""
    _LIBRARY.define(f"{name}({_COMMON}, {more}) -> ()")
    _LIBRARY.impl(name, run, "CUDA")
    torch.library.register_fake(f"santa_hw::{name}", _fake, lib=_LIBRARY)
    _WORKSPACE_BYTES[name] = workspace_bytes


def _fake(*_: Any) -> None:
    """The kernels write to tensors that they are given: nothing to make."""


def _run_sys(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor | None,
    sequence: torch.Tensor, position: torch.Tensor, seed: int, layer: int, samples: int, max_length: int,
    out: torch.Tensor, workspace: torch.Tensor, recent: int, scale: float, counts: torch.Tensor | None,
    mass: torch.Tensor | None, offset: torch.Tensor | None,
) -> None:  # fmt: skip
    arguments = decode_arguments(
        q, k, v, lengths, page_table, sequence, position, seed, layer, samples, max_length, out, workspace
    )
    arguments.recent, arguments.scale = recent, scale
    arguments.counts, arguments.mass, arguments.offset = pointer(counts), pointer(mass), pointer(offset)
    arguments.keep = mass is not None  # a trace comes next
    with torch.cuda.device(q.device):
        library.call("santa_hw_decode", byref(arguments), stream())


register(
    "decode_sys",
    "int recent, float scale, Tensor(c!)? counts, Tensor(d!)? mass, Tensor(e!)? offset",
    _run_sys,
    _planned_bytes,
)


def softmax_scale(scale: float | None, head_dim: int) -> float:
    """The scale of scores as base-2 logarithms; `scale` is the model's own, default 1/sqrt(d)."""
    own = 1.0 / math.sqrt(head_dim) if scale is None else float(scale)
    if not (math.isfinite(own) and own > 0):
        raise ValueError(f"scale = {scale}: a positive finite number is allowed")
    return own * math.log2(math.e)


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
    if out is None:
        out = torch.empty_like(q)
    check_tensor("out", out, tuple(q.shape), (q.dtype,), q.device)
    mass = offset = None
    if trace is not None:
        mass, offset = (torch.empty((batch, heads), dtype=torch.int64, device=q.device) for _ in range(2))
    workspace = given_or_made(workspace, decode_sys, q, k, samples, bound)
    torch.ops.santa_hw.decode_sys(
        q, k, v, lengths, page_table, draw.sequence, draw.position, draw.seed, draw.layer, samples, bound, out,
        workspace, fresh, log2_scale, counts, mass, offset,
    )  # fmt: skip
    if trace is not None:
        trace |= _trace_sys(q, k, lengths, samples, bound, workspace) | {"mass": mass, "offset": offset}
    if counts is not None and unique is not None:
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


def unite(counts: torch.Tensor, unique: torch.Tensor, kv_heads: int) -> None:
    batch, heads, keys = counts.shape
    with torch.cuda.device(counts.device):
        group = heads // kv_heads
        library.call("santa_hw_union", pointer(counts), batch, kv_heads, group, keys, pointer(unique), stream())


# fixed ------------------------------------------------------------------------------------------------------------

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


def _run_fixed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor | None,
    sequence: torch.Tensor, position: torch.Tensor, seed: int, layer: int, samples: int, max_length: int,
    out: torch.Tensor, workspace: torch.Tensor, recent: int, design: list[int], shift: torch.Tensor,
    table: torch.Tensor, output_shift: torch.Tensor | None, scores: torch.Tensor | None, weights: torch.Tensor | None,
    counts: torch.Tensor | None, mass: torch.Tensor | None, offset: torch.Tensor | None,
    ternary_counts: torch.Tensor | None, accumulators: torch.Tensor | None,
) -> None:  # fmt: skip
    arguments = decode_arguments(
        q, k, v, lengths, page_table, sequence, position, seed, layer, samples, max_length, out, workspace
    )
    arguments.recent = recent
    for name, value in zip(_DESIGN_ARGUMENTS, design, strict=True):
        setattr(arguments, name, value)
    arguments.shift, arguments.table, arguments.output_shift = shift.data_ptr(), table.data_ptr(), pointer(output_shift)
    arguments.counts, arguments.mass, arguments.offset = pointer(counts), pointer(mass), pointer(offset)
    arguments.ternary_counts, arguments.accumulators = pointer(ternary_counts), pointer(accumulators)
    arguments.keep = scores is not None or weights is not None
    with torch.cuda.device(q.device):
        library.call("santa_hw_decode", byref(arguments), stream())
        if scores is not None or weights is not None:
            library.call("santa_hw_trace", byref(arguments), pointer(scores), pointer(weights), None, None, stream())


register(
    "decode_fixed",
    "int recent, int[] design, Tensor shift, Tensor table, Tensor? output_shift, Tensor(c!)? scores, "
    "Tensor(d!)? weights, Tensor(e!)? counts, Tensor(f!)? mass, Tensor(g!)? offset, Tensor(h!)? ternary_counts, "
    "Tensor(i!)? accumulators",
    _run_fixed,
    _planned_bytes,
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
    if out is None:
        out = torch.empty(q.shape, dtype=out_dtype, device=q.device)
    check_tensor("out", out, tuple(q.shape), (out_dtype,), q.device)
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
    workspace = given_or_made(workspace, decode_fixed, q, k, design.samples, bound)
    torch.ops.santa_hw.decode_fixed(
        q, k, v, lengths, page_table, draw.sequence, draw.position, draw.seed, draw.layer, design.samples, bound,
        out, workspace, fresh, [int(x) for x in numbers], shift, table, output_shift,
        *(kept.get(name) for name in TRACE_TYPES),
    )  # fmt: skip
    if unique is not None:
        unite(kept["counts"], unique, k.shape[2])
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


# Floors and settings ----------------------------------------------------------------------------------------------


def read_floor(k: torch.Tensor, v: torch.Tensor | None = None) -> None:
    """Only read K, and then V: what no kernel that does so can be faster than."""
    for name, x in (("k", k), ("v", v)):
        if x is None:
            continue
        if x.device.type != "cuda" or not x.is_contiguous() or x.nbytes != k.nbytes or x.nbytes % 16:
            kind = f"{x.dtype} {tuple(x.shape)} on {x.device}"
            raise ValueError(f"{name} is {kind}: contiguous CUDA tensors of one size are allowed")
    with torch.cuda.device(k.device):
        library.call("santa_hw_read", k.data_ptr(), k.nbytes, pointer(v), stream())


def persist_l2(size: int) -> None:
    """Set aside `size` bytes of the L2 for data that asks to stay, as the kernels' scratch does; 0 gives it back.

    A setting of the whole device for this process: other kernels have less L2 while it lasts.
    """
    if size < 0:
        raise ValueError(f"size = {size}: 0 or more bytes are allowed")
    library.call("santa_hw_persist_l2", size)
