"""The kernels' shared library through ctypes: its structs, its functions, its errors."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from santa_hw.gpu.build import build

ELEMENT_TYPES = {"bfloat16": 0, "float16": 1, "int8": 2}


class Cache(Structure):
    """``santa::Cache``."""

    _fields_ = [
        ("data", c_void_p),
        ("outer_stride", c_int64),
        ("token_stride", c_int64),
        ("pages", c_void_p),
        ("page_tokens", c_int32),
        ("pages_per_row", c_int32),
        ("pool_pages", c_int32),
    ]


class DrawArguments(Structure):
    """``santa::DrawArguments``."""

    _fields_ = [("sequence", c_void_p), ("position", c_void_p), ("seed", c_uint32), ("layer", c_int32)]


_TUNING = ("steps", "tiles_per_unit", "split", "multiprocessors")


class DecodeArguments(Structure):
    """``santa::DecodeArguments``."""

    _fields_ = [
        ("k", Cache),
        ("v", Cache),
        ("draw", DrawArguments),
        *[(name, c_void_p) for name in ("q", "lengths", "out", "workspace")],
        ("workspace_bytes", c_int64),
        ("max_length", c_int64),
        *[(name, c_int32) for name in ("type", "batch", "heads", "kv_heads", "head_dim", "samples", "recent")],
        ("scale", c_float),
        *[(name, c_void_p) for name in ("shift", "table", "output_shift")],
        *[(name, c_int32) for name in ("score_frac", "score_bits", "weight_bits", "half_up", "rng_bits", "out_bits")],
        *[(name, c_int32) for name in ("ternary", "ternary_shared", "beta", "query_frac")],
        *[(name, c_void_p) for name in ("counts", "mass", "offset", "ternary_counts", "accumulators")],
        *[(name, c_int32) for name in (*_TUNING, "keep")],
    ]


class Plan(Structure):
    """``santa::Plan``: how a call is cut into work, and where its scratch lies."""

    _fields_ = [
        *[(name, c_int32) for name in ("steps", "tile", "tile_shift", "tiles_per_unit")],
        *[(name, c_int32) for name in ("unit_tokens", "chunk", "chunks", "lanes", "group")],
        *[(name, c_int32) for name in ("stages", "stage_bytes", "grid", "split", "split_shift", "small_gather")],
        *[(name, c_int32) for name in ("kept", "exponent")],
        *[(name, c_int32) for name in ("score_shared", "gather_shared")],
        *[(name, c_int64) for name in ("tokens", "tiles", "counters_at", "stats_at", "stash_at", "bytes")],
    ]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "santa_hw_plan": (c_int, [POINTER(DecodeArguments), POINTER(Plan)]),
    "santa_hw_decode": (c_int, [POINTER(DecodeArguments), c_void_p]),
    "santa_hw_trace": (c_int, [POINTER(DecodeArguments), c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "santa_hw_union": (c_int, [c_void_p, c_int, c_int, c_int, c_int64, c_void_p, c_void_p]),
    "santa_hw_read": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "santa_hw_copy_late": (c_int, [c_void_p, c_void_p, c_int, c_void_p]),
    "santa_hw_persist_l2": (c_int, [c_int64]),
    "santa_hw_tiles_workspace": (c_int64, [POINTER(DecodeArguments), c_int]),
    "santa_hw_tiles_layout": (None, [POINTER(DecodeArguments), c_int, POINTER(c_int64)]),
    "santa_hw_decode_tiles": (c_int, [POINTER(DecodeArguments), c_int, c_void_p]),
    "santa_hw_error": (c_char_p, [c_int]),
}


class KernelError(RuntimeError):
    """The CUDA runtime or the library refused a call."""


@functools.cache
def library(path: Path | None = None) -> ctypes.CDLL:
    """The library, built for this machine's GPU at first use.

    Raises
    ------
    KernelError
        If it cannot be loaded, as one that was built on a machine with a newer C library.
    """
    built = path or build()
    try:
        loaded = ctypes.CDLL(str(built))
    except OSError as error:
        raise KernelError(f"{error}; without {built.parent} it is built anew") from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def call(name: str, *arguments: Any) -> None:
    """Call a function that returns an error code.

    Raises
    ------
    KernelError
    """
    code = getattr(library(), name)(*arguments)
    if code:
        raise KernelError(f"{name}: {library().santa_hw_error(code).decode()} (code {code})")


def plan(arguments: DecodeArguments) -> Plan:
    """How the library would cut a call into work; pointers are not looked at."""
    made = Plan()
    call("santa_hw_plan", byref(arguments), byref(made))
    return made
