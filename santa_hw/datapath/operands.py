"""From floats to operand codes (numeric contract 3.1): the only place where the datapath touches a float.

The query is multiplied once by scale·log2(e), so that scores are base-2 logarithms, and takes one exponent a head and
step. K and V exponents are static: fixed from a calibration text before the first key is stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from santa_hw.compiled import compiled
from santa_hw.datapath import parallel
from santa_hw.design import Design
from santa_hw.rounding_loops import smallest_exponent

LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Exponents:
    """Static exponents of one layer's K and V.

    Parameters
    ----------
    k, v : numpy.ndarray
        Integers of shape (KV heads, d), one a channel, or (KV heads, 1), one a KV head. A value x of a set with
        exponent e has the code round(x * 2**(bits - 1 - e)).
    """

    k: NDArray[np.int64]
    v: NDArray[np.int64]


@dataclass(frozen=True)
class Codes:
    """Operand codes of one call: what kernels and RTL take. Shapes: B batch, H heads, KV heads, T queries, N keys.

    Parameters
    ----------
    q : numpy.ndarray
        int32 (B, H, T, d).
    exponents : numpy.ndarray
        int32 (B, H, T, blocks): the sum e of the query's and the keys' exponents.
    k, v : numpy.ndarray
        int16 or int32 (B, KV, N, d).
    v_exponents : numpy.ndarray
        int64 (KV, d): the exponent of each output lane.
    saturations : dict
        Codes clipped by the quantiser, by operand (``q``, ``k``, ``v``); of K and V among the T newest keys, those that
        the call's own tokens store, so that a stored code is counted once.
    """

    q: NDArray[np.int32]
    exponents: NDArray[np.int32]
    k: NDArray[Any]
    v: NDArray[Any]
    v_exponents: NDArray[np.int64]
    saturations: dict[str, int]


def encode(
    design: Design,
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    exponents: Exponents,
    scale: float | None = None,
) -> Codes:
    """Quantise the operands of one layer.

    Parameters
    ----------
    design : Design
    q : array_like
        Floats (B, H, T, d); H a multiple of KV.
    k, v : array_like
        Floats (B, KV, N, d), after position embedding.
    exponents : Exponents
    scale : float, optional
        The model's own softmax scale; default 1/sqrt(d).

    Raises
    ------
    ValueError
        For shapes that do not fit, exponents outside the design's range, NaN or infinity.
    """
    _check_shapes(design, q, k, v)
    k_exponents = channel_exponents(design, "k", exponents.k, k.shape)
    v_exponents = channel_exponents(design, "v", exponents.v, v.shape)
    scale = 1.0 / math.sqrt(design.head_dim) if scale is None else float(scale)
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale = {scale}: a positive finite number is allowed")
    folded = design.k_exponents == "per_channel"
    q_codes, q_exponents, q_saturations = _encode_query(design, q, scale, k_exponents if folded else None)
    if not folded:
        group = q.shape[1] // k.shape[1]
        q_exponents += np.repeat(k_exponents[:, 0], group)[None, :, None, None].astype(np.int32)
    newest = max(0, k.shape[2] - q.shape[2])
    k_codes, k_saturations = _encode_cache("k", k, k_exponents, design.k_bits, newest)
    v_codes, v_saturations = _encode_cache("v", v, v_exponents, design.v_bits, newest)
    saturations = {"q": q_saturations, "k": k_saturations, "v": v_saturations}
    return Codes(q_codes, q_exponents, k_codes, v_codes, v_exponents, saturations)


def _check_shapes(design: Design, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4 or x.shape[3] != design.head_dim:
            raise ValueError(
                f"{name} has shape {x.shape}: (batch, heads, rows, head_dim = {design.head_dim}) is allowed"
            )
        if not np.issubdtype(x.dtype, np.floating):
            raise ValueError(f"{name} has dtype {x.dtype}: a float dtype is allowed")
    if k.shape != v.shape or k.shape[0] != q.shape[0]:
        raise ValueError(f"k {k.shape} and v {v.shape}: equal shapes with q's batch {q.shape[0]} are allowed")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"q has {q.shape[1]} heads: a multiple of the {k.shape[1]} KV heads is allowed")


def channel_exponents(design: Design, name: str, given: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """One exponent a channel, (KV, d), whatever the design's grouping; checks shape and range."""
    e = np.asarray(given)
    per_channel = getattr(design, f"{name}_exponents") == "per_channel"
    want = (shape[1], shape[3] if per_channel else 1)
    if e.shape != want or not np.issubdtype(e.dtype, np.integer):
        raise ValueError(
            f"exponents.{name}: {e.dtype} {e.shape}: integers of shape {want} are allowed with "
            f"{name}_exponents = {getattr(design, f'{name}_exponents')}"
        )
    if e.size and (e.min() < design.e_min or e.max() > design.e_max):
        raise ValueError(f"exponents.{name} reach {e.min()} to {e.max()}: {design.e_min} to {design.e_max} is allowed")
    return np.broadcast_to(e.astype(np.int64), (shape[1], shape[3]))


def _encode_query(
    design: Design, q: NDArray[Any], scale: float, fold: NDArray[np.int64] | None
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    batch, heads, rows, dim = q.shape
    factor = np.float64(scale) * LOG2E
    folds = np.ones((heads, dim)) if fold is None else np.ldexp(1.0, np.repeat(fold, heads // fold.shape[0], axis=0))
    codes = np.empty((batch, heads, rows, dim), dtype=np.int32)
    exponents = np.empty((batch, heads, rows, design.blocks), dtype=np.int32)
    saturated = np.zeros((batch, heads), dtype=np.int64)

    def task(b: int, h: int) -> None:
        limits = (design.q_bits, design.e_min, design.e_max)
        saturated[b, h] = _query_rows(q[b, h], factor, folds[h], *limits, codes[b, h], exponents[b, h])

    parallel.run([partial(task, b, h) for b in range(batch) for h in range(heads)], q.size)
    return codes, exponents, _checked_total("q", saturated)


def _encode_cache(
    name: str, x: NDArray[Any], exponents: NDArray[np.int64], bits: int, newest: int
) -> tuple[NDArray[Any], int]:
    """Codes of all rows; saturations of the rows from `newest` on, so that a stored code is counted once."""
    codes = np.empty(x.shape, dtype=np.int16 if bits <= 16 else np.int32)
    saturated = np.zeros(x.shape[:2], dtype=np.int64)
    units, limit = np.ldexp(1.0, bits - 1 - exponents), float((1 << (bits - 1)) - 1)

    def task(b: int, h: int) -> None:
        saturated[b, h] = _cache_rows(x[b, h], units[h], limit, newest, codes[b, h])

    parallel.run([partial(task, b, h) for b in range(x.shape[0]) for h in range(x.shape[1])], x.size)
    return codes, _checked_total(name, saturated)


def _checked_total(name: str, saturated: NDArray[np.int64]) -> int:
    """Clipped codes in all; the encoders mark a head with NaN or infinity by -1."""
    if saturated.size and saturated.min() < 0:
        raise ValueError(f"{name} holds NaN or infinity: finite values are allowed")
    return int(saturated.sum())


@compiled(nogil=True)
def _query_rows(q, factor, folds, bits, e_min, e_max, codes, exponents):  # type: ignore[no-untyped-def]
    """Codes and exponents of one head's queries (T, d); returns the clipped codes, or -1 for NaN or infinity."""
    rows, dim = q.shape
    blocks = exponents.shape[1]
    width = dim // blocks
    limit = float((1 << (bits - 1)) - 1)
    x = np.empty(dim, dtype=np.float64)
    clipped = 0
    for t in range(rows):
        for i in range(dim):
            x[i] = np.float64(q[t, i]) * factor * folds[i]
        for block in range(blocks):
            part = x[block * width : (block + 1) * width]
            total, top = 0.0, 0.0
            for i in range(width):
                total += part[i] - part[i]
                top = max(top, abs(part[i]))
            if total != 0.0:  # a NaN or infinity makes the difference NaN
                return -1
            e = smallest_exponent(top, bits, e_min, e_max)
            exponents[t, block] = e
            unit = math.ldexp(1.0, bits - 1 - e)
            for i in range(width):
                y = np.rint(part[i] * unit)
                z = min(max(y, -limit), limit)
                clipped += y != z
                codes[t, block * width + i] = np.int32(z)
    return clipped


@compiled(nogil=True)
def _cache_rows(x, units, limit, newest, codes):  # type: ignore[no-untyped-def]
    """Saturating half_even codes of one KV head (N, d); returns the clipped codes, or -1 for NaN or infinity."""
    keys, dim = x.shape
    clipped = 0
    for n in range(keys):
        total = 0.0
        for i in range(dim):
            value = np.float64(x[n, i])
            total += value - value
            y = np.rint(value * units[i])
            z = min(max(y, -limit), limit)
            clipped += n >= newest and y != z
            codes[n, i] = np.int32(z)
        if total != 0.0:  # a NaN or infinity makes the difference NaN
            return -1
    return clipped
