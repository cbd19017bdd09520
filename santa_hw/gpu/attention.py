"""A model's attention on the GPU: floats to operand codes, the `fixed` kernels, and the events that the CPU counts.

Codes, and so every later bit, equal those of :func:`santa_hw.datapath.attend` on the same floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from santa_hw.datapath import Exponents
from santa_hw.datapath.operands import LOG2E, channel_exponents
from santa_hw.datapath.weights import REFERENCE_BITS
from santa_hw.design import Design, exp2_table
from santa_hw.events import Tally
from santa_hw.gpu.checks import DeviceDraw
from santa_hw.gpu.fixed import decode_fixed

_TRACE_ELEMENTS = 1 << 26
"""Most numbers of one per-key trace: the query positions of a long window go to the kernels in parts."""


@dataclass(frozen=True)
class DeviceCodes:
    """Operand codes on the device, in the kernels' layout. B batch, H heads, KV heads, T queries, N keys.

    Parameters
    ----------
    q : torch.Tensor
        int8 (B, T, H, d).
    shift : torch.Tensor
        int32 (B, T, H): right shift from a dot product to a score.
    k, v : torch.Tensor
        int8 (B, N, KV, d).
    v_exponents : torch.Tensor
        int64 (KV, d).
    saturations : dict
        Clipped codes by operand, as in :class:`santa_hw.datapath.Codes`.
    """

    q: torch.Tensor
    shift: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    v_exponents: torch.Tensor
    saturations: dict[str, int]


def encode(
    design: Design, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, exponents: Exponents, scale: float
) -> DeviceCodes:
    """Quantise one layer's operands on their device; :func:`santa_hw.datapath.encode` bit for bit.

    Parameters
    ----------
    design : Design
    q : torch.Tensor
        Floats (B, H, T, d).
    k, v : torch.Tensor
        Floats (B, KV, N, d).
    exponents : Exponents
    scale : float
        Of the softmax.

    Raises
    ------
    ValueError
        For NaN or infinity, or exponents that do not fit the design.
    """
    shape = tuple(k.shape)
    k_exponents = torch.from_numpy(channel_exponents(design, "k", exponents.k, shape).copy()).to(q.device)
    v_exponents = torch.from_numpy(channel_exponents(design, "v", exponents.v, shape).copy()).to(q.device)
    group = q.shape[1] // k.shape[1]
    x = q.double() * (scale * LOG2E)
    per_head = k_exponents.repeat_interleave(group, dim=0)[:, None]
    if design.k_exponents == "per_channel":
        x = x * _power_of_two(per_head)
    e = _smallest_exponents(x.abs().amax(dim=-1), design)
    codes, q_clipped = _codes("q", x, _power_of_two(design.q_bits - 1 - e)[..., None], design.q_bits, 0)
    if design.k_exponents == "per_head":
        e = e + per_head[..., 0]
    total = design.query_frac + design.k_bits - 1 - design.score_frac
    newest = max(0, k.shape[2] - q.shape[2])
    k_units = _power_of_two(design.k_bits - 1 - k_exponents)[:, None]
    v_units = _power_of_two(design.v_bits - 1 - v_exponents)[:, None]
    k_codes, k_clipped = _codes("k", k.double(), k_units, design.k_bits, newest)
    v_codes, v_clipped = _codes("v", v.double(), v_units, design.v_bits, newest)
    return DeviceCodes(
        q=codes.transpose(1, 2).contiguous(),
        shift=(total - e).to(torch.int32).transpose(1, 2).contiguous(),
        k=k_codes.transpose(1, 2).contiguous(),
        v=v_codes.transpose(1, 2).contiguous(),
        v_exponents=v_exponents,
        saturations={"q": q_clipped, "k": k_clipped, "v": v_clipped},
    )


def attend(
    design: Design,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    exponents: Exponents,
    seed: int,
    layer: int,
    sequence: torch.Tensor,
    position: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, Tally]:
    """:func:`santa_hw.datapath.attend` on the GPU: every query position is a decode step of its own.

    Parameters
    ----------
    design : Design
        One that the kernels build.
    q : torch.Tensor
        Floats (B, H, T, d) on a CUDA device.
    k, v : torch.Tensor
        Floats (B, KV, N, d).
    exponents : Exponents
        The layer's.
    seed, layer : int
    sequence : torch.Tensor
        int64 (B,).
    position, lengths : torch.Tensor
        int64 (B, T).
    scale : float

    Returns
    -------
    output : torch.Tensor
        float64 (B, H, T, d).
    tally : Tally
    """
    if k.shape[2] > design.max_keys:
        raise ValueError(f"k has {k.shape[2]} keys: at most max_keys = {design.max_keys} are allowed")
    codes = encode(design, q, k, v, exponents, scale)
    frac = design.v_bits - 1 + design.sigma - codes.v_exponents
    output_shift = None if design.out_frac is None else (frac - design.out_frac).to(torch.int32)
    binary_point = frac if design.out_frac is None else torch.full_like(frac, design.out_frac)
    units = _power_of_two(-binary_point).repeat_interleave(q.shape[1] // k.shape[1], dim=0)
    output = torch.zeros(codes.q.shape, dtype=torch.float64, device=q.device)
    tally = Tally(saturated_q=codes.saturations["q"], saturated_k=codes.saturations["k"],
                  saturated_v=codes.saturations["v"])  # fmt: skip
    rows = max(1, _TRACE_ELEMENTS // max(1, q.shape[1] * k.shape[2]))
    for b in range(q.shape[0]):
        for start in range(0, q.shape[2], rows):
            part = slice(start, start + rows)
            found, counted = _steps(
                design, codes, b, part, sequence[b], position[b, part], lengths[b, part], seed, layer, output_shift
            )
            output[b, part] = found.double() * units
            tally += counted
    return output.transpose(1, 2), tally


def _steps(
    design: Design,
    codes: DeviceCodes,
    b: int,
    part: slice,
    sequence: torch.Tensor,
    position: torch.Tensor,
    lengths: torch.Tensor,
    seed: int,
    layer: int,
    output_shift: torch.Tensor | None,
) -> tuple[torch.Tensor, Tally]:
    """Decode steps at some positions of one sequence: rows of one batch that share a cache; output codes and events."""
    q, shift = codes.q[b, part], codes.shift[b, part]
    steps, heads, _ = q.shape
    keys = codes.k.shape[1]
    per_key = (steps, heads, keys)
    names = {"scores": torch.int32, "counts": torch.int32, "accumulators": torch.int32}
    trace = {
        name: torch.zeros(q.shape if name == "accumulators" else per_key, dtype=dtype, device=q.device)
        for name, dtype in names.items()
    }
    if design.scores == "ternary":
        trace["ternary_counts"] = torch.zeros(q.shape, dtype=torch.int32, device=q.device)
    draw = DeviceDraw(seed, layer, sequence.expand(steps).contiguous(), position.contiguous())
    found = decode_fixed(
        design,
        q,
        codes.k[b].expand(steps, -1, -1, -1),
        codes.v[b].expand(steps, -1, -1, -1),
        shift=shift,
        lengths=lengths.to(torch.int32),
        draw=draw,
        output_shift=output_shift,
        trace=trace,
    )
    return found, _tally(design, codes, b, q, shift, lengths, trace, output_shift)


def _tally(
    design: Design,
    codes: DeviceCodes,
    b: int,
    q: torch.Tensor,
    shift: torch.Tensor,
    lengths: torch.Tensor,
    trace: dict[str, torch.Tensor],
    output_shift: torch.Tensor | None,
) -> Tally:
    """What these steps did, in the words of :class:`santa_hw.events.Tally`; operand saturations apart."""
    steps, heads, dim = q.shape
    keys, kv_heads = codes.k.shape[1:3]
    group = heads // kv_heads
    factors = trace["ternary_counts"] if design.scores == "ternary" else q.to(torch.int32)
    visible = torch.arange(keys, device=q.device) < lengths[:, None]
    counts = trace["counts"]
    read = counts > 0
    streamed = int(lengths.sum())
    used = (factors != 0).unflatten(1, (kv_heads, group)).any(dim=2).sum(dim=-1)
    terms = factors.abs().sum(dim=-1)
    if design.scores == "dense":
        used, terms = torch.full_like(used, dim), torch.full_like(terms, dim)
    ones = _set_bits(counts) if design.gather == "shift_add" else counts
    return Tally(
        head_steps=steps * heads,
        group_steps=steps * kv_heads,
        empty_steps=int((lengths == 0).sum()) * heads,
        visible_keys=streamed * heads,
        group_keys=streamed * kv_heads,
        feature_reads=int((used * lengths[:, None]).sum()),
        key_features=streamed * kv_heads * dim,
        score_terms=int((terms * lengths[:, None]).sum()),
        unique_rows=int(read.sum()),
        group_rows=int(read.unflatten(1, (kv_heads, group)).any(dim=2).sum()),
        value_terms=int(ones.sum()),
        saturated_score=_clipped_scores(design, factors, codes.k[b], shift, trace["scores"], visible),
        saturated_output=0 if output_shift is None else _clipped_outputs(design, trace["accumulators"], output_shift),
        lost_mass=_lost_mass(design, trace["scores"], visible),
    )


def _clipped_scores(
    design: Design,
    factors: torch.Tensor,
    k: torch.Tensor,
    shift: torch.Tensor,
    scores: torch.Tensor,
    visible: torch.Tensor,
) -> int:
    """Scores at the format's limits that would have been beyond it; the products are exact in float64."""
    low, high = design.score_limits
    at_limit = ((scores == low) | (scores == high)) & visible[:, None]
    if not bool(at_limit.any()):
        return 0
    row, head, key = at_limit.nonzero(as_tuple=True)
    group = factors.shape[1] // k.shape[1]
    products = (factors[row, head].double() * k[key, head // group].double()).sum(dim=-1)
    rounded = _shifted(products, shift[row, head])
    return int(((rounded < low) | (rounded > high)).sum())


def _clipped_outputs(design: Design, accumulators: torch.Tensor, output_shift: torch.Tensor) -> int:
    assert design.out_bits is not None
    if design.out_bits >= 63:
        return 0  # as the golden model: no accumulator reaches such a limit
    group = accumulators.shape[1] // output_shift.shape[0]
    rounded = _shifted(accumulators.double(), output_shift.repeat_interleave(group, dim=0))
    high = float((1 << (design.out_bits - 1)) - 1)
    return int(((rounded < -high - 1) | (rounded > high)).sum())


def _shifted(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Shift integers in float64 right by `shift`, half up, or left by ``-shift``; exact below 2**52."""
    return torch.floor(x * _power_of_two(-shift.to(torch.int64)) + torch.where(shift > 0, 0.5, 0.0))


def _lost_mass(design: Design, scores: torch.Tensor, visible: torch.Tensor) -> float:
    """Share of the 32-bit mass that the design's weights fall short of, summed over head steps."""
    if scores.shape[-1] == 0:
        return 0.0
    scores = scores.to(torch.int64).masked_fill(~visible[:, None], torch.iinfo(torch.int64).min)
    integer, low = scores >> design.score_frac, scores & ((1 << design.score_frac) - 1)
    sh = integer.amax(dim=-1, keepdim=True) - integer
    table = torch.from_numpy(design.table.copy()).to(scores.device)[low]
    reference = exp2_table(design.score_frac, REFERENCE_BITS, design.exp)
    wide = torch.from_numpy(reference.copy()).to(scores.device)[low] >> sh.clamp(0, 63)
    narrow = table >> sh.clamp(0, 63)
    if design.weight_rounding == "half_up":
        half = 1 << (sh - 1).clamp(0, design.W)
        narrow = torch.where(sh == 0, table, torch.where(sh <= design.W, (table + half) >> sh.clamp(0, 63), 0))
    wide, narrow = (x.masked_fill(~visible[:, None], 0) for x in (wide, narrow))
    total = wide.sum(dim=-1)
    lost = (wide - (narrow << (REFERENCE_BITS - design.W))).clamp_min(0).sum(dim=-1)
    return float((lost.double() / total.clamp_min(1)).sum())


def _set_bits(x: torch.Tensor) -> torch.Tensor:
    """Ones in each count, at most 2**16."""
    return sum(((x >> bit) & 1 for bit in range(17)), start=torch.zeros_like(x))


def _codes(name: str, x: torch.Tensor, units: torch.Tensor, bits: int, newest: int) -> tuple[torch.Tensor, int]:
    """Saturating half_even int8 codes of (B, heads, rows, d), and how many were clipped from row `newest` on."""
    if not bool(x.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinity: finite values are allowed")
    limit = float((1 << (bits - 1)) - 1)
    exact = torch.round(x * units)
    codes = exact.clamp(-limit, limit)
    return codes.to(torch.int8), int((codes != exact)[:, :, newest:].sum())


def _smallest_exponents(top: torch.Tensor, design: Design) -> torch.Tensor:
    """:func:`santa_hw.formats.smallest_exponent` of every magnitude, int64."""
    mantissa, power = torch.frexp(top)
    power = power.to(torch.int64) + (mantissa >= 1.0 - 2.0**-design.q_bits)
    return power.clamp(design.e_min, design.e_max).masked_fill(top == 0.0, design.e_min)


def _power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """float64 powers of two from their bits: torch.ldexp goes through float32, and exp2 need not be exact."""
    return ((exponents.to(torch.int64) + 1023) << 52).view(torch.float64)
