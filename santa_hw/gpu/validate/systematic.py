"""`sys`: exact counts on the kernel's own weights and masses, an output that follows from them, and no bias."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from santa_hw import gpu
from santa_hw.datapath import Draw, offset
from santa_hw.gpu.cases import LARGE_KEYS, Case, FloatOperands, dtype_name, far_apart, float_operands, float_variants
from santa_hw.gpu.validate.outcome import Outcome, relative_error, rounding_error
from santa_hw.reference import systematic_counts
from santa_hw.rng import Purpose, words

SEEDS, PLATEAU_SEEDS = 4096, (64, 256, 1024, 4096)
BIAS_SHAPES = ((4096, 1.0), (32768, 1.0), (32768, 4.0), (131072, 1.0), (131072, 4.0))
"""Keys, and how much sharper than N(0, 1) the query is."""


def sys_counts(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Counts sum to S, equal a float64 reference on the kernel's own weights and masses, and give the output."""
    for number, case, dtype, samples in float_variants():
        operands = float_operands(case, seed + number, dtype)
        yield counts_outcome(operands, f"{case}, {dtype_name(dtype)}, S {samples}", samples)


def counts_outcome(
    operands: FloatOperands, shape: str, samples: int, arguments: dict[str, Any] | None = None
) -> Outcome:
    """One call's counts, offsets and output, against float64 references on its own weights and masses."""
    arguments = operands.on_device() if arguments is None else arguments
    batch, heads, _ = operands.q.shape
    keys, group = operands.k.shape[1], heads // operands.k.shape[2]
    device = operands.q.device
    counts = torch.full((batch, heads, keys), -99, dtype=torch.int32, device=device)
    unique = torch.full((batch, heads // group), -99, dtype=torch.int32, device=device)
    trace: dict[str, torch.Tensor] = {}
    output = gpu.decode_sys(**arguments, samples=samples, counts=counts, unique=unique, trace=trace)
    lengths = arguments["lengths"]
    visible = torch.arange(keys, device=device) < lengths[:, None, None]
    expected_sum = torch.where(lengths > 0, samples, 0)[:, None].expand(-1, heads)
    wrong_sums = int((counts.sum(dim=-1) != expected_sum).sum())
    beyond = int(((counts != 0) & ~visible).sum())
    union = (counts > 0).unflatten(1, (-1, group)).any(dim=2).sum(dim=-1)
    differing, far = _reference_counts(trace, counts, lengths, samples)
    scores = _score_error(operands, trace, lengths)
    offsets = _offset_errors(operands.draw, heads, trace)
    error = _output_error(operands, counts, output, samples)
    measured = {
        "rows with a wrong sum": wrong_sums,
        "counts beyond the length": beyond,
        "wrong unions": int((unique != union).sum()),
        "counts off the reference": differing,
        "off by more than a boundary": far,
        "wrong offsets": offsets,
        "probability error": scores,
        "output error": error,
    }
    exact = wrong_sums == beyond == measured["wrong unions"] == differing == offsets == 0
    return Outcome("sys_counts", shape, exact and scores < 5e-3 and error < rounding_error(output.dtype), measured)


def _probabilities(trace: dict[str, torch.Tensor], lengths: torch.Tensor) -> torch.Tensor:
    """What the kernel draws from, float64 (B, H, N): a tile's mass, shared among its keys by their weights."""
    weights, masses = trace["weights"].double(), trace["tile_mass"].double()
    keys = weights.shape[-1]
    tile = int(trace["tile"])
    padded = torch.nn.functional.pad(weights, (0, -keys % tile)).unflatten(-1, (-1, tile))
    tiles = padded.shape[2]
    own = padded.sum(dim=-1, keepdim=True).clamp_min(1)
    shares = padded / own * masses[..., :tiles, None]
    return shares.flatten(-2)[..., :keys]


def _reference_counts(
    trace: dict[str, torch.Tensor], counts: torch.Tensor, lengths: torch.Tensor, samples: int
) -> tuple[int, int]:
    """Counts that differ from the float64 reference's: all, and those that no shared boundary explains."""
    p = _probabilities(trace, lengths)
    mass = trace["mass"].double()
    uniforms = (trace["offset"].double() / mass.clamp_min(1)).clamp(0, 1 - 2**-53)
    expected = systematic_counts(p, samples, uniforms)
    differing = (counts != expected) & (p.sum(dim=-1, keepdim=True) > 0)
    shifted = (counts - expected).cumsum(dim=-1).abs() > 1
    return int(differing.sum()), int(shifted.sum())


def _score_error(operands: FloatOperands, trace: dict[str, torch.Tensor], lengths: torch.Tensor) -> float:
    """Largest total variation between the kernel's probabilities and float64 softmax."""
    p = _probabilities(trace, lengths)
    p = p / p.sum(dim=-1, keepdim=True).clamp_min(1)
    return float((p - _softmax(operands, lengths)).abs().sum(dim=-1).max()) / 2


def _softmax(operands: FloatOperands, lengths: torch.Tensor) -> torch.Tensor:
    group = operands.q.shape[1] // operands.k.shape[2]
    k = operands.k.double().repeat_interleave(group, dim=2)
    scores = torch.einsum("bhd,bnhd->bhn", operands.q.double(), k) / math.sqrt(operands.q.shape[-1])
    visible = torch.arange(k.shape[1], device=k.device) < lengths[:, None, None]
    p = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1)
    return torch.where((lengths > 0)[:, None, None], p, 0.0)


def _offset_errors(draw: Draw, heads: int, trace: dict[str, torch.Tensor]) -> int:
    """Offsets that are not floor(word * mass / 2**32) with the contract's word (3.5, 3.9)."""
    drawn = words(
        "threefry", seed=draw.seed, sequence=draw.sequence[:, None], position=draw.position, purpose=Purpose.OFFSET,
        stream=(draw.layer * heads + np.arange(heads))[None], count=1,
    )[..., 0]  # fmt: skip
    mass = trace["mass"].cpu().numpy()
    return int((trace["offset"].cpu().numpy() != offset(mass, drawn, 32)).sum())


def _output_error(operands: FloatOperands, counts: torch.Tensor, output: torch.Tensor, samples: int) -> float:
    """Largest relative error of the output against the sum of c * v / S in float64, by head."""
    group = operands.q.shape[1] // operands.v.shape[2]
    v = operands.v.double().repeat_interleave(group, dim=2)
    expected = torch.einsum("bhn,bnhd->bhd", counts.double(), v) / samples
    return relative_error(output, expected)


def sys_beyond_32_bits(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """More than 2**21 keys, at byte offsets beyond 2**32."""
    operands = float_operands(Case(4, 1, 64, (LARGE_KEYS,)), seed, torch.bfloat16, sharpness=1.0)
    arguments = operands.on_device()
    for name in ("k", "v"):
        arguments[name] = far_apart(arguments[name])
    outcome = counts_outcome(operands, f"B 1, group 4 x 1, d 64, N {LARGE_KEYS}, bfloat16, S 128", 128, arguments)
    yield dataclasses.replace(outcome, name="sys_beyond_32_bits")


def sys_is_unbiased(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """The error of the mean over M seeds falls as 1/sqrt(M), at every shape; that of `prop` reaches a plateau."""
    for keys, sharpness in BIAS_SHAPES:
        errors = {
            name: mean_errors(decode, keys, sharpness, 128, seed)
            for name, decode in (("sys", gpu.decode_sys), ("prop", gpu.decode_prop), ("flash", gpu.decode_flash))
        }
        steps = np.log2(np.array(PLATEAU_SEEDS, dtype=float))
        slopes = {name: float(np.polyfit(steps, np.log2(found), 1)[0]) for name, found in errors.items()}
        measured = {"seeds": list(PLATEAU_SEEDS), "relative error of the mean": errors, "slope": slopes}
        # -1/2 within what 32 independent heads leave uncertain; a plateau flattens it.
        passed = abs(slopes["sys"] + 0.5) < 0.06 and errors["prop"][-1] > 2 * errors["sys"][-1]
        yield Outcome("sys_is_unbiased", f"1x{keys}, query x {sharpness:g}", passed, measured)


def mean_errors(
    decode_method: Callable[..., torch.Tensor], keys: int, sharpness: float, samples: int, seed: int
) -> list[float]:
    """Relative error of the mean output over the first M of 4096 sequences' draws, for each M of PLATEAU_SEEDS."""
    heads, kv_heads, dim, rows = 32, 8, 128, 64
    generator = torch.Generator("cuda").manual_seed(seed)
    q = torch.randn(1, heads, dim, generator=generator, device="cuda").mul(sharpness).to(torch.bfloat16)
    k, v = (
        torch.randn(1, keys, kv_heads, dim, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    group = heads // kv_heads
    scores = torch.einsum("hgd,nhd->hgn", q[0].double().unflatten(0, (kv_heads, group)), k[0].double())
    exact = torch.einsum("hgn,nhd->hgd", torch.softmax(scores / math.sqrt(dim), dim=-1), v[0].double()).flatten(0, 1)
    del scores
    # Rows of a batch share one cache; each is another sequence, so another offset.
    lengths = torch.full((rows,), keys, dtype=torch.int32, device="cuda")
    total = torch.zeros_like(exact)
    errors = []
    for start in range(0, SEEDS, rows):
        sequence = torch.arange(start, start + rows, dtype=torch.int64, device="cuda")
        draw = gpu.DeviceDraw(seed, 0, sequence, torch.zeros_like(sequence))
        output = decode_method(
            q.expand(rows, -1, -1).contiguous(), k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1),
            lengths=lengths, draw=draw, samples=samples,
        )  # fmt: skip
        total += output.double().sum(dim=0)
        if start + rows in PLATEAU_SEEDS:
            errors.append(float((total / (start + rows) - exact).norm() / exact.norm()))
    return errors
