"""Decode attention on the GPU as torch operators: what `sys`, `fixed`, `prop` and `flash` share.

Everything that can be checked on the host is checked before the launch. The kernels run on the current stream, allocate
nothing when they are given `out` and `workspace`, and can be captured in a CUDA graph: `lengths`, `page_table` and
``draw.position`` are read on the device, so that a replay takes what they hold by then.

Caches are contiguous, (B, N, KV, d), or paged: a pool (pages, page size, KV, d) and a `page_table`. Their last two
dimensions must be dense; outer strides are free, 0 for sequences that share a cache.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from santa_hw.gpu import library
from santa_hw.gpu.checks import check_tensor

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


def planned_bytes(arguments: library.DecodeArguments) -> int:
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


def workspace_or_made(
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


def out_or_made(
    given: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The output tensor, the caller's if it is one that fits."""
    if given is None:
        return torch.empty(shape, dtype=dtype, device=device)
    check_tensor("out", given, shape, (dtype,), device)
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


# Registration -----------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("santa_hw", "FRAGMENT")
_COMMON = (
    "Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor? page_table, Tensor sequence, Tensor position, int seed, "
    "int layer, int samples, int max_length, Tensor(a!) out, Tensor(b!) workspace"
)


IMPLEMENTATIONS: dict[str, Callable[..., None]] = {}
"""What an operator runs, by its name."""


def register(
    name: str, more: str, launch: Callable[..., None], workspace_bytes: Callable[[library.DecodeArguments], int]
) -> None:
    """Make an operator of a kernel: `more` are its arguments beside the common ones.

    `launch` takes the library's struct with what is common to all kernels in place, and then these.
    """
    common = _COMMON.count(",") + 1

    def run(*given: Any) -> None:
        with torch.cuda.device(given[0].device):
            launch(decode_arguments(*given[:common]), *given[common:])

    _LIBRARY.define(f"{name}({_COMMON}, {more}) -> ()")
    _LIBRARY.impl(name, run, "CUDA")
    torch.library.register_fake(f"santa_hw::{name}", _fake, lib=_LIBRARY)
    IMPLEMENTATIONS[name], _WORKSPACE_BYTES[name] = run, workspace_bytes


def _fake(*_: Any) -> None:
    """The kernels write to tensors that they are given: nothing to make."""


def softmax_scale(scale: float | None, head_dim: int) -> float:
    """The scale of scores as base-2 logarithms; `scale` is the model's own, default 1/sqrt(d)."""
    own = 1.0 / math.sqrt(head_dim) if scale is None else float(scale)
    if not (math.isfinite(own) and own > 0):
        raise ValueError(f"scale = {scale}: a positive finite number is allowed")
    return own * math.log2(math.e)


def unite(counts: torch.Tensor | None, unique: torch.Tensor | None, kv_heads: int) -> None:
    """Write to `unique`, if it is given, how many keys any query head of a group draws."""
    if counts is None or unique is None:
        return
    batch, heads, keys = counts.shape
    with torch.cuda.device(counts.device):
        group = heads // kv_heads
        library.call("santa_hw_union", pointer(counts), batch, kv_heads, group, keys, pointer(unique), stream())


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
