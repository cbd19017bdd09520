"""S²ANTA-prop and S²ANTA-flash as torch operators, as published (arXiv 2605.01910, Algorithms 2-8), to compare with.

`prop` is biased: its budgets follow from the scores alone. `flash` is not, but multiplies once a tile and divides once
a row. Both honour S exactly, as :mod:`santa_hw.reference.tiles` does: prop by largest remainders, flash by even budgets
in tiles that grow to ceil(N / S) keys where there would be more tiles than samples.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_int64
from typing import Any

import torch

from santa_hw.gpu import library
from santa_hw.gpu.checks import DeviceDraw, check_call, check_counts
from santa_hw.gpu.operators import (
    out_or_made,
    pointer,
    register,
    shape_arguments,
    softmax_scale,
    stream,
    unite,
    workspace_or_made,
)

TILE_KEYS = 64
MAX_KEYS = TILE_KEYS << 17
"""Most keys of a sequence: each of prop's tiles takes a word of its own, and a decode step has 2**17."""


def decode_prop(
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
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    unique: torch.Tensor | None = None,
    trace: dict[str, torch.Tensor] | None = None,
    check: bool = True,
) -> torch.Tensor:
    """One decode step of S²ANTA-prop; arguments as for :func:`~santa_hw.gpu.decode_sys`, `trace` apart.

    Parameters
    ----------
    trace : dict, optional
        Filled: ``weights`` int64 (B, H, max_length), 2**24 at a tile's largest; ``tile_maximum`` float32, ``tile_mass``
        int64 and ``budgets`` int32 (B, H, tiles). What lies beyond a row's last key or tile is undefined.
    """
    return _decode(
        decode_prop, q, k, v, lengths, draw, samples, scale, page_table, max_length, out, workspace, counts, unique,
        trace, check,
    )  # fmt: skip


def decode_flash(
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
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    unique: torch.Tensor | None = None,
    trace: dict[str, torch.Tensor] | None = None,
    check: bool = True,
) -> torch.Tensor:
    """One decode step of S²ANTA-flash; arguments as for :func:`decode_prop`."""
    return _decode(
        decode_flash, q, k, v, lengths, draw, samples, scale, page_table, max_length, out, workspace, counts, unique,
        trace, check,
    )  # fmt: skip


def _decode(
    method: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, draw: DeviceDraw,
    samples: int, scale: float | None, page_table: torch.Tensor | None, max_length: int | None,
    out: torch.Tensor | None, workspace: torch.Tensor | None, counts: torch.Tensor | None,
    unique: torch.Tensor | None, trace: dict[str, torch.Tensor] | None, check: bool,
) -> torch.Tensor:  # fmt: skip
    bound = check_call(q, k, v, lengths, draw, samples, page_table, max_length, check)
    if bound > MAX_KEYS:
        raise ValueError(f"max_length = {bound}: at most {MAX_KEYS} is allowed with {method.__name__}")
    log2_scale = softmax_scale(scale, q.shape[2])
    check_counts(q, k, counts, unique, bound)
    out = out_or_made(out, tuple(q.shape), q.dtype, q.device)
    workspace = workspace_or_made(workspace, method, q, k, samples, bound)
    operator = torch.ops.santa_hw.decode_flash if method is decode_flash else torch.ops.santa_hw.decode_prop
    operator(
        q, k, v, lengths, page_table, draw.sequence, draw.position, draw.seed, draw.layer, samples, bound, out,
        workspace, log2_scale, counts,
    )  # fmt: skip
    if trace is not None:
        trace |= _trace(method is decode_flash, q, k, samples, bound, workspace)
    unite(counts, unique, k.shape[2])
    return out


def _trace(
    is_flash: bool, q: torch.Tensor, k: torch.Tensor, samples: int, bound: int, workspace: torch.Tensor
) -> dict[str, torch.Tensor]:
    arguments = shape_arguments(q, k, samples, bound)
    layout = (c_int64 * 5)()
    library.library().santa_hw_tiles_layout(byref(arguments), is_flash, layout)
    tiles = int(layout[4])

    def read(start: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        numbers = shape[0] * shape[1] * shape[2]
        return workspace[start : start + numbers * dtype.itemsize].view(dtype).view(shape).clone()

    rows = q.shape[0], q.shape[1]
    return {
        "weights": read(layout[0], torch.int32, *rows, bound).to(torch.int64),
        "tile_maximum": read(layout[1], torch.float32, *rows, tiles),
        "tile_mass": read(layout[2], torch.int64, *rows, tiles),
        "budgets": read(layout[3], torch.int32, *rows, tiles),
    }


def _launch(is_flash: bool) -> Callable[..., None]:
    def launch(arguments: library.DecodeArguments, scale: float, counts: torch.Tensor | None) -> None:
        arguments.scale, arguments.counts = scale, pointer(counts)
        library.call("santa_hw_decode_tiles", byref(arguments), is_flash, stream())

    return launch


def _bytes(is_flash: bool) -> Callable[[library.DecodeArguments], int]:
    return lambda arguments: library.library().santa_hw_tiles_workspace(byref(arguments), is_flash)


for _name, _is_flash in (("decode_prop", False), ("decode_flash", True)):
    register(_name, "float scale, Tensor(c!)? counts", _launch(_is_flash), _bytes(_is_flash))
