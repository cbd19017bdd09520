"""What the decode functions take, and the checks of it on the host, before a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from santa_hw.design import Design

DEVICE_TYPE = "cuda"
FLOAT_TYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 80, 96, 128, 256)
MAX_GROUP = 16
MAX_SAMPLES = 1 << 16
MAX_LENGTH = 1 << 30
STREAMS = 1 << 14

FIXED_LIMITS: dict[str, tuple[int, int]] = {
    "q_bits": (2, 8),
    "k_bits": (2, 8),
    "v_bits": (2, 8),
    "score_bits": (2, 16),
    "ternary_samples": (1, 64),
}
FIXED_CHOICES: dict[str, tuple[Any, ...]] = {
    "method": ("santa",),
    "sampler": ("systematic",),
    "rng": ("threefry",),
    "ternary_draw": ("stratified",),
    "ternary_block": (None,),
}
"""What the `fixed` kernels build of a design, beside any choice of its other fields."""

_TERNARY_ONLY = ("ternary_samples", "ternary_draw", "ternary_block")


@dataclass(frozen=True)
class DeviceDraw:
    """Which random words a call uses (numeric contract 3.9); the kernel makes them.

    Parameters
    ----------
    seed, layer : int
    sequence, position : torch.Tensor
        int64 (B,), on the caches' device, in [0, 2**32). No two decode steps of a sequence may share a position.
    """

    seed: int
    layer: int
    sequence: torch.Tensor
    position: torch.Tensor


def check_tensor(
    name: str, x: torch.Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], device: torch.device
) -> None:
    """A contiguous tensor of exactly this kind."""
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: {shape} is allowed")
    if x.dtype not in dtypes:
        raise ValueError(f"{name} has dtype {x.dtype}: {' or '.join(map(str, dtypes))} is allowed")
    if x.device != device:
        raise ValueError(f"{name} lies on {x.device}: q's device, {device}, is allowed")
    if not x.is_contiguous():
        raise ValueError(f"{name} has strides {x.stride()}: a contiguous tensor is allowed")


def _check_cache(name: str, x: torch.Tensor, q: torch.Tensor, paged: bool) -> None:
    outer = "pages, page size" if paged else "B, N"
    if x.ndim != 4 or x.shape[3] != q.shape[2] or (not paged and x.shape[0] != q.shape[0]):
        allowed = f"({outer}, KV, {q.shape[2]}) is allowed with q {tuple(q.shape)}"
        raise ValueError(f"{name} has shape {tuple(x.shape)}: {allowed}")
    if x.dtype != q.dtype:
        raise ValueError(f"{name} has dtype {x.dtype}: q's, {q.dtype}, is allowed")
    if x.device != q.device:
        raise ValueError(f"{name} lies on {x.device}: q's device, {q.device}, is allowed")
    strides = x.stride()
    if x.numel() and (strides[3] != 1 or (x.shape[2] > 1 and strides[2] != x.shape[3])):
        raise ValueError(f"{name} has strides {strides}: (..., {x.shape[3]}, 1), dense heads and channels, is allowed")
    size = x.element_size()
    if any(strides[i] * size % 16 for i in (0, 1) if x.shape[i] > 1) or x.data_ptr() % 16:
        where = f"{name} has strides {strides} at address {x.data_ptr():#x}"
        raise ValueError(f"{where}: multiples of 16 bytes are allowed")


def check_call(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    draw: DeviceDraw,
    samples: int,
    page_table: torch.Tensor | None,
    max_length: int | None,
    check: bool,
    dtypes: tuple[torch.dtype, ...] = FLOAT_TYPES,
) -> int:
    """Check what all decode functions take; returns the bound of all lengths.

    Raises
    ------
    ValueError
        Names the argument, its value and what is allowed.
    """
    if q.ndim != 3 or q.shape[2] not in HEAD_DIMS:
        dims = ", ".join(map(str, HEAD_DIMS))
        raise ValueError(f"q has shape {tuple(q.shape)}: (B, H, d) with d one of {dims} is allowed")
    if q.device.type != DEVICE_TYPE:
        raise ValueError(f"q lies on {q.device}: a CUDA device is allowed")
    batch, heads, _ = q.shape
    check_tensor("q", q, tuple(q.shape), dtypes, q.device)
    paged = page_table is not None
    _check_cache("k", k, q, paged)
    _check_cache("v", v, q, paged)
    if k.shape != v.shape:
        raise ValueError(f"v has shape {tuple(v.shape)}: k's, {tuple(k.shape)}, is allowed")
    kv_heads = k.shape[2]
    if kv_heads == 0 or heads % kv_heads or not 1 <= heads // kv_heads <= MAX_GROUP:
        raise ValueError(f"q has {heads} heads: 1 to {MAX_GROUP} for each of the {kv_heads} KV heads are allowed")
    if not isinstance(samples, int) or not 1 <= samples <= MAX_SAMPLES:
        raise ValueError(f"samples = {samples}: 1 to {MAX_SAMPLES} is allowed")
    if page_table is None:
        room = k.shape[1]
    else:
        if page_table.ndim != 2:
            raise ValueError(f"page_table has shape {tuple(page_table.shape)}: (B = {batch}, pages) is allowed")
        check_tensor("page_table", page_table, (batch, page_table.shape[1]), (torch.int32,), q.device)
        room = page_table.shape[1] * k.shape[1]
        if max_length is None:
            raise ValueError("max_length = None: a bound of all lengths is needed with a page table")
    bound = room if max_length is None else max_length
    if not 0 <= bound <= min(room, MAX_LENGTH):
        where = "the cache has" if page_table is None else "the page table reaches"
        raise ValueError(f"max_length = {bound}: 0 to the {min(room, MAX_LENGTH)} keys that {where} are allowed")
    check_tensor("lengths", lengths, (batch,), (torch.int32,), q.device)
    check_tensor("draw.sequence", draw.sequence, (batch,), (torch.int64,), q.device)
    check_tensor("draw.position", draw.position, (batch,), (torch.int64,), q.device)
    if not 0 <= draw.seed < 1 << 32:
        raise ValueError(f"draw.seed = {draw.seed}: 0 to 2**32 - 1 is allowed")
    if not 0 <= draw.layer <= (STREAMS - heads) // heads:
        raise ValueError(f"draw.layer = {draw.layer}: 0 to {(STREAMS - heads) // heads} is allowed with {heads} heads")
    if check and not torch.cuda.is_current_stream_capturing():
        _check_values(lengths, draw, page_table, k, bound)
    return bound


def _check_values(
    lengths: torch.Tensor, draw: DeviceDraw, page_table: torch.Tensor | None, k: torch.Tensor, bound: int
) -> None:
    """Checks of what lies on the device: they wait for it."""
    if lengths.numel() == 0 or lengths.is_meta or isinstance(lengths, torch._subclasses.FakeTensor):
        return
    known = lengths.cpu()
    low, high = int(known.min()), int(known.max())
    if low < 0 or high > bound:
        raise ValueError(f"lengths reach {low} to {high}: 0 to max_length = {bound} is allowed")
    for name, x in (("sequence", draw.sequence), ("position", draw.position)):
        values = x.cpu()
        if int(values.min()) < 0 or int(values.max()) >= 1 << 32:
            raise ValueError(f"draw.{name} reach {int(values.min())} to {int(values.max())}: 0 to 2**32 - 1 is allowed")
    if page_table is not None and page_table.numel():
        needed = (known.to(torch.int64) + k.shape[1] - 1) // k.shape[1]
        used = page_table.cpu()[torch.arange(page_table.shape[1]) < needed[:, None]]
        if used.numel() and (int(used.min()) < 0 or int(used.max()) >= k.shape[0]):
            reached = f"{int(used.min())} to {int(used.max())}"
            raise ValueError(f"page_table reaches {reached}: 0 to {k.shape[0] - 1} is allowed")


def check_design(design: Design) -> None:
    """Refuse what the `fixed` kernels do not build of a design.

    Raises
    ------
    ValueError
        Names the field, its value and what is allowed.
    """
    for name, allowed in FIXED_CHOICES.items():
        value = getattr(design, name)
        if value not in allowed and (design.scores == "ternary" or name not in _TERNARY_ONLY):
            raise ValueError(f"{name} = {value!r}: on the GPU allowed are {', '.join(map(repr, allowed))}")
    for name, (low, high) in FIXED_LIMITS.items():
        value = getattr(design, name)
        if not low <= value <= high and (design.scores == "ternary" or name not in _TERNARY_ONLY):
            raise ValueError(f"{name} = {value}: on the GPU allowed is {low} to {high}")
    if design.head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim = {design.head_dim}: on the GPU allowed are {', '.join(map(str, HEAD_DIMS))}")


def check_recent(recent: int | None) -> int:
    """What the kernels take for it: -1 for None."""
    if recent is None:
        return -1
    if isinstance(recent, bool) or not isinstance(recent, int) or not 0 <= recent < 1 << 31:
        raise ValueError(f"recent = {recent!r}: None or 0 to 2**31 - 1 is allowed")
    return recent


def check_counts(
    q: torch.Tensor, k: torch.Tensor, counts: torch.Tensor | None, unique: torch.Tensor | None, bound: int
) -> None:
    if counts is not None:
        check_tensor("counts", counts, (*q.shape[:2], bound), (torch.int32,), q.device)
    if unique is not None:
        check_tensor("unique", unique, (q.shape[0], k.shape[2]), (torch.int32,), q.device)
        if counts is None:
            raise ValueError("unique is given without counts: both are allowed, or counts alone")
