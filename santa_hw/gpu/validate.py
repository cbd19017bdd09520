"""Checks of the kernels on a GPU: `fixed` against the golden model, the others against float64 references.

Every check is a function ``(seed, captured) -> results``; :data:`CHECKS` lists them. A check that cannot run fails.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from santa_hw import gpu
from santa_hw.datapath import Codes, Draw, Exponents, attend, offset
from santa_hw.design import Design
from santa_hw.gpu import attention, library
from santa_hw.gpu.cases import (
    DESIGNS,
    GROUPS,
    HEAD_DIMS,
    LENGTHS,
    Case,
    FixedOperands,
    FloatOperands,
    fixed_operands,
    float_operands,
    sweep,
)
from santa_hw.gpu.comparison import compare, golden, run_fixed, trace_fixed, union
from santa_hw.gpu.operators import stream
from santa_hw.reference import proportional_budgets, systematic_counts, uniform_budgets
from santa_hw.rng import Purpose, words

LARGE_KEYS = (1 << 21) + 37
LARGE_STRIDE = 2048
"""Bytes between neighbouring keys of the large caches: offsets reach beyond 2**32."""

SEEDS, PLATEAU_SEEDS = 4096, (64, 256, 1024, 4096)
BIAS_SHAPES = ((4096, 1.0), (32768, 1.0), (32768, 4.0), (131072, 1.0), (131072, 4.0))
"""Keys, and how much sharper than N(0, 1) the query is."""


@dataclass(frozen=True)
class Outcome:
    """One result of a check: whether it holds at a shape, and what was measured."""

    name: str
    shape: str
    passed: bool
    measured: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Check = Callable[[int, Path | None], Iterator[Outcome]]


def run(check: Check, seed: int, captured: Path | None = None) -> list[Outcome]:
    """The results of one check; an exception is a failed one."""
    found = []
    try:
        for outcome in check(seed, captured):
            found.append(outcome)
        torch.cuda.synchronize()
    except Exception as error:  # whatever goes wrong in a check is its result
        where = traceback.format_exc(limit=-3)
        found.append(Outcome(check.__name__, "exception", False, {"error": f"{error}", "where": where}))
    return found


def select(only: str | None) -> list[Check]:
    """The checks that a comma list names; None: all."""
    names = {check.__name__: check for check in CHECKS}
    if only is None:
        return list(CHECKS)
    chosen = [name.strip() for name in only.split(",")]
    for name in chosen:
        if name not in names:
            raise ValueError(f"check {name!r}: allowed are {', '.join(names)}")
    return [names[name] for name in chosen]


# fixed: equal to the golden model -----------------------------------------------------------------


def fixed_equals_golden_model(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Every intermediate of `fixed`, on random codes: groups, head dimensions, designs, ragged and paged caches."""
    for number, case in enumerate(sweep()):
        operands = fixed_operands(case, seed + number)
        found, expected = run_fixed(operands), golden(operands)
        differing = compare(found, expected)
        differing["unique"] = int((found["unique"] != union(expected["counts"], case.kv_heads)).sum())
        yield Outcome("fixed_equals_golden_model", str(case), not any(differing.values()), differing)


def fixed_equals_golden_model_on_captured(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Every intermediate of `fixed`, on a real model's operands (``--captured``)."""
    if captured is None:
        return
    from santa_hw.capture import Capture

    capture = Capture.load(captured)
    positions = len(capture.positions)
    for number, layer in enumerate(capture.layers):
        k, v = (np.repeat(x[number][None], positions, axis=0).astype(np.int16) for x in (capture.k, capture.v))
        codes = Codes(
            q=np.moveaxis(capture.q[number], 1, 0)[:, :, None].astype(np.int32, order="C"),
            exponents=np.moveaxis(capture.exponents[number], 1, 0)[:, :, None].copy(),
            k=k,
            v=v,
            v_exponents=capture.v_exponents[number],
            saturations={"q": 0, "k": 0, "v": 0},
        )
        draw = Draw(
            capture.seed, int(layer), np.full(positions, capture.sequence), capture.positions[:, None].astype(np.int64)
        )
        operands = FixedOperands(capture.design, codes, draw, tuple(int(p) + 1 for p in capture.positions))
        differing = compare(run_fixed(operands), golden(operands))
        shape = f"{capture.identity}, layer {layer}, {positions} positions up to {int(capture.positions[-1])}"
        yield Outcome("fixed_equals_golden_model_on_captured", shape, not any(differing.values()), differing)


def model_attention_equals_cpu(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Floats to output and events, as `accuracy --device cuda` runs them, against the CPU: codes, bits and counts."""
    for number, (name, fields) in enumerate(DESIGNS.items()):
        generator = np.random.default_rng(seed + number)
        design = Design(**dict(samples=64, head_dim=64) | fields)
        steps, keys = 40, 90
        q = generator.standard_normal((2, 9, steps, 64), dtype=np.float32) * 2
        k, v = generator.standard_normal((2, 2, 3, keys, 64), dtype=np.float32)
        exponents = Exponents(*generator.integers(1, 3, size=(2, 3, 64)))
        lengths = generator.integers(0, keys + 1, size=(2, steps))
        draw = Draw(seed, 5, generator.integers(1 << 32, size=2), generator.integers(1 << 32, size=(2, steps)))
        expected = attend(design, q, k, v, exponents=exponents, draw=draw, lengths=lengths)
        output, tally = attention.attend(
            design,
            *(torch.from_numpy(x).cuda() for x in (q, k, v)),
            exponents=exponents,
            seed=seed,
            layer=5,
            sequence=torch.from_numpy(draw.sequence).cuda(),
            position=torch.from_numpy(draw.position).cuda(),
            lengths=torch.from_numpy(lengths).cuda(),
            scale=64**-0.5,
        )
        differing = int((output.cpu().numpy() != expected.output).sum())
        events = [
            field.name
            for field in dataclasses.fields(tally)
            if not math.isclose(getattr(tally, field.name), getattr(expected.tally, field.name), rel_tol=1e-9)
        ]
        measured = {"outputs that differ": differing, "events that differ": events}
        yield Outcome("model_attention_equals_cpu", name, not differing and not events, measured)


def fixed_any_tiling(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """The same bits for any number of blocks, tiles and launches."""
    case = Case(4, 2, 128)
    operands = fixed_operands(case, seed)
    expected = golden(operands)
    for cut in TILINGS:
        with gpu.tiling(**cut):
            differing = compare(run_fixed(operands), expected)
        yield Outcome("fixed_any_tiling", f"{case}, {cut}", not any(differing.values()), differing)


TILINGS: tuple[dict[str, int], ...] = (
    dict(multiprocessors=1),
    dict(multiprocessors=7),
    dict(steps=1, tiles_per_unit=1),
    dict(steps=4, tiles_per_unit=4),
    dict(steps=2, tiles_per_unit=3),
    dict(split=1),
    dict(split=2),
    dict(split=4, multiprocessors=3),
)


def fixed_beyond_32_bits(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """More than 2**21 keys, at byte offsets beyond 2**32."""
    case = Case(4, 1, 64, (LARGE_KEYS,))
    operands = fixed_operands(case, seed)
    arguments = operands.on_device()
    for name in ("k", "v"):
        arguments[name] = _far_apart(arguments[name])
    differing = compare(trace_fixed(operands.design, arguments, LARGE_KEYS), golden(operands))
    yield Outcome("fixed_beyond_32_bits", str(case), not any(differing.values()), differing)


def _far_apart(cache: torch.Tensor) -> torch.Tensor:
    """The same (B, N, KV, d) cache, its keys ``LARGE_STRIDE`` bytes apart."""
    width = LARGE_STRIDE // cache.dtype.itemsize
    wide = torch.empty((*cache.shape[:2], width), dtype=cache.dtype, device=cache.device)
    slot = wide[..., : cache.shape[2] * cache.shape[3]].unflatten(-1, cache.shape[2:])
    return slot.copy_(cache)


class _Flipped(Design):
    """A design whose table has one bit wrong, in the entry that the most keys of a random row use."""

    @property
    def table(self) -> np.ndarray:
        entries = super().table.copy()
        entries[1] ^= 1 << (self.W - 3)
        return entries


def planted_fault_is_found(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """A flipped bit in one entry of the table that the kernel is handed must show."""
    operands = fixed_operands(Case(4, 2, 128), seed)
    faulty = dataclasses.replace(operands, design=_Flipped(**operands.design.to_dict()))
    differing = compare(run_fixed(faulty), golden(operands))
    caught = differing["weights"] > 0 and differing["mass"] > 0 and differing["scores"] == 0
    yield Outcome("planted_fault_is_found", "one bit of table entry 1", caught, differing)


# sys: exact counts, unbiased -----------------------------------------------------------------------


def float_cases() -> list[Case]:
    """Every group with every head dimension, caches taking turns."""
    pages = (None, 1, 16, 17, 64)
    return [
        Case(group, kv_heads, head_dim, page_size=pages[(i + j) % len(pages)])
        for i, (group, kv_heads) in enumerate(GROUPS.items())
        for j, head_dim in enumerate(HEAD_DIMS)
    ]


def float_variants() -> Iterator[tuple[int, Case, torch.dtype, int]]:
    """Cases with their numbers; element types and budgets take turns, budgets that are no power of two among them."""
    for number, case in enumerate(float_cases()):
        yield number, case, (torch.bfloat16, torch.float16)[number % 2], (128, 1, 100, 64, 1024)[number % 5]


def sys_counts(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Counts sum to S, equal a float64 reference on the kernel's own weights and masses, and give the output."""
    for number, case, dtype, samples in float_variants():
        operands = float_operands(case, seed + number, dtype)
        yield _sys_counts(operands, f"{case}, {_name(dtype)}, S {samples}", samples)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sys_counts(operands: FloatOperands, shape: str, samples: int, arguments: dict[str, Any] | None = None) -> Outcome:
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
    return Outcome("sys_counts", shape, exact and scores < 5e-3 and error < _rounding(output.dtype), measured)


def _rounding(dtype: torch.dtype) -> float:
    """Largest relative error of one rounding to a 16-bit type, with room for float32 sums."""
    return 1.1 * float(torch.finfo(dtype).eps)


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
    return _relative(output, expected)


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest over heads of |found - expected| / |expected|; NaN where a number is."""
    scale = expected.norm(dim=-1).clamp_min(1e-6)
    return float(((found.double() - expected).norm(dim=-1) / scale).max())


def sys_beyond_32_bits(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """More than 2**21 keys, at byte offsets beyond 2**32."""
    operands = float_operands(Case(4, 1, 64, (LARGE_KEYS,)), seed, torch.bfloat16, sharpness=1.0)
    arguments = operands.on_device()
    for name in ("k", "v"):
        arguments[name] = _far_apart(arguments[name])
    outcome = _sys_counts(operands, f"B 1, group 4 x 1, d 64, N {LARGE_KEYS}, bfloat16, S 128", 128, arguments)
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


# prop and flash: as published, S honoured -----------------------------------------------------------


def tile_methods(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Budgets and counts of `prop` and `flash` follow from the kernel's own weights; outputs from the counts."""
    for number, case, dtype, samples in float_variants():
        operands = float_operands(case, seed + number, dtype)
        for name in ("prop", "flash"):
            yield _tile_method(name, operands, f"{name}, {case}, {_name(dtype)}, S {samples}", samples)


def _tile_method(name: str, operands: FloatOperands, shape: str, samples: int) -> Outcome:
    arguments = operands.on_device()
    counts = torch.full((*operands.q.shape[:2], operands.k.shape[1]), -99, dtype=torch.int32, device=operands.q.device)
    trace: dict[str, torch.Tensor] = {}
    decode_method = {"prop": gpu.decode_prop, "flash": gpu.decode_flash}[name]
    output = decode_method(**arguments, samples=samples, counts=counts, trace=trace)
    found = {key: tensor.cpu().numpy() for key, tensor in trace.items()} | {"counts": counts.cpu().numpy()}
    wrong = {"budgets": 0, "counts": 0, "sums": 0}
    expected_output = torch.zeros(operands.q.shape, dtype=torch.float64, device=output.device)
    group = operands.q.shape[1] // operands.v.shape[2]
    for b, length in enumerate(operands.lengths):
        for head in range(operands.q.shape[1]):
            word = _tile_words(operands.draw, b, head, operands.q.shape[1], found["budgets"].shape[-1])
            row = {key: array[b, head] for key, array in found.items()}
            budgets, own, merge = tile_reference(name, row, length, samples, word)
            tiles = len(budgets)
            wrong["budgets"] += int((row["budgets"][:tiles] != budgets).sum())
            wrong["counts"] += int((row["counts"] != own).sum())
            wrong["sums"] += int(row["counts"].sum() != (samples if length else 0))
            factors = torch.from_numpy(own * merge).to(output.device)
            values = torch.nan_to_num(operands.v[b, :, head // group].double())
            expected_output[b, head] = factors @ values
    error = _relative(output, expected_output)
    passed = not any(wrong.values()) and error < 2 * _rounding(output.dtype)
    return Outcome("tile_methods", shape, passed, {"wrong": wrong, "output error": error})


def _tile_words(draw: Draw, b: int, head: int, heads: int, tiles: int) -> np.ndarray:
    return words(
        "threefry", seed=draw.seed, sequence=draw.sequence[b], position=draw.position[b, 0], purpose=Purpose.OFFSET,
        stream=draw.layer * heads + head, count=tiles,
    )  # fmt: skip


def tile_reference(
    name: str, row: dict[str, np.ndarray], length: int, samples: int, word: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Budgets, counts (N,) and what a count is worth (N,), of one head, from the kernel's weights and tile maxima."""
    keys = len(row["counts"])
    counts, worth = np.zeros(keys, dtype=np.int64), np.zeros(keys)
    if length == 0:
        return np.zeros(0, dtype=np.int64), counts, worth
    tile = 64 if name == "prop" else max(64, -(-length // samples))
    starts = np.arange(0, length, tile)
    weights = [row["weights"][start : min(start + tile, length)].astype(np.int64) for start in starts]
    masses = np.array([int(own.sum()) for own in weights])
    maxima = row["tile_maximum"][: len(starts)].astype(np.float64)
    shares = masses * np.exp2(maxima - maxima.max())
    shares /= shares.sum()
    if name == "prop":
        budgets = proportional_budgets(torch.from_numpy(shares), samples).numpy()
    else:
        budgets = uniform_budgets(torch.ones(len(starts), dtype=torch.bool), samples).numpy()
    for t, (start, own) in enumerate(zip(starts, weights, strict=True)):
        budget = int(budgets[t])
        if budget == 0:
            continue
        offset = int(word[t]) * int(masses[t]) >> 32
        thresholds = [offset + j * int(masses[t]) for j in range(budget)]
        running = [budget * int(x) for x in np.cumsum(own)]
        for threshold in thresholds:
            counts[start + bisect_right(running, threshold)] += 1
        worth[start : start + len(own)] = 1 / samples if name == "prop" else shares[t] / budget
    return budgets, counts, worth


# Graphs, streams, memory that must not be read, operators, errors -----------------------------------


def graph_replay(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """A captured graph draws anew when positions are updated in place, and gives an eager call's bits."""
    for name, call in _calls(seed):
        arguments = call.arguments
        position = arguments["draw"].position
        first = position.clone()
        eager = []
        for step in range(3):
            position.copy_(first + step)
            eager.append(call.run().clone())
        position.copy_(first)
        out = torch.zeros_like(eager[0])
        graph = torch.cuda.CUDAGraph()
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            call.run(out=out)
        torch.cuda.current_stream().wait_stream(warm_up)
        with torch.cuda.graph(graph):
            call.run(out=out)
        same = []
        for step in range(3):
            position.copy_(first + step)
            graph.replay()
            same.append(bool(torch.equal(out, eager[step])))
        position.copy_(first)
        fresh = not torch.equal(eager[0], eager[1])
        yield Outcome("graph_replay", name, all(same) and fresh, {"replays equal": same, "draws anew": fresh})


def streams(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Work goes to the current stream: a call behind slow work on its stream waits for it."""
    for name, call in _calls(seed):
        expected = call.run().clone()
        q = call.arguments["q"]
        right = q.clone()
        side = torch.cuda.Stream()
        q.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            q.copy_(right)
            found = call.run()
        side.synchronize()
        yield Outcome("streams", name, bool(torch.equal(found, expected)), {})


def late_lengths(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Lengths that are written while the kernel has already begun count, not those that stood there before."""
    for case in (
        Case(4, 2, 128),
        Case(4, 2, 128, LENGTHS * 2),
        Case(4, 2, 128, page_size=17),
        Case(4, 2, 128, (1000,)),
    ):
        floats, codes = float_operands(case, seed, torch.bfloat16).on_device(), fixed_operands(case, seed)
        for name, call in (
            ("sys", _Call(gpu.decode_sys, (), floats | {"samples": codes.design.samples})),
            ("fixed", _Call(gpu.decode_fixed, (codes.design,), codes.on_device())),
        ):
            lengths, q, k = (call.arguments[name] for name in ("lengths", "q", "k"))
            right, expected = lengths.clone(), call.run().clone()
            bound = call.arguments.get("max_length")
            workspace = gpu.workspace(call.method, q, k, samples=codes.design.samples, max_length=bound)
            out = torch.empty_like(expected)
            before = {"others": right.flip(0), "longest": torch.full_like(right, int(right.max())), "none": right * 0}
            for what, stale in before.items():
                lengths.copy_(stale)
                torch.cuda.synchronize()
                library.call("santa_hw_copy_late", right.data_ptr(), lengths.data_ptr(), lengths.numel(), stream())
                call.run(check=False, out=out, workspace=workspace)
                passed = bool(torch.equal(out, expected))
                yield Outcome("late_lengths", f"{name}, {case}, {what} before", passed, {})


def unread_values(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Value rows with count 0 may hold NaN (or any code): the output does not change."""
    for name, call in _calls(seed):
        q, v = call.arguments["q"], call.arguments["v"]
        batch, heads, _ = q.shape
        counts = torch.zeros((batch, heads, v.shape[1]), dtype=torch.int32, device=q.device)
        options = {"trace": {"counts": counts}} if name == "fixed" else {"counts": counts}
        expected = call.run(**options).clone()
        read = (counts > 0).unflatten(1, (v.shape[2], -1)).any(dim=2).transpose(1, 2)
        fill = 55 if v.dtype == torch.int8 else math.nan
        v.masked_fill_(~read[..., None], fill)
        found = call.run()
        measured = {"rows overwritten": int((~read).sum())}
        yield Outcome("unread_values", name, bool(torch.equal(found, expected)), measured)


@dataclass(frozen=True)
class _Call:
    """A decode function with arguments."""

    method: Callable[..., torch.Tensor]
    leading: tuple[Any, ...]
    arguments: dict[str, Any]

    def run(self, **options: Any) -> torch.Tensor:
        return self.method(*self.leading, **self.arguments, **options)


def _calls(seed: int) -> Iterator[tuple[str, _Call]]:
    """One call of each method, on contiguous caches."""
    case = Case(4, 2, 128, (700, 1, 0, 1000))
    for name, method in (("sys", gpu.decode_sys), ("prop", gpu.decode_prop), ("flash", gpu.decode_flash)):
        arguments = float_operands(case, seed, torch.bfloat16).on_device()
        yield name, _Call(method, (), arguments | {"samples": 32})
    operands = fixed_operands(case, seed)
    yield "fixed", _Call(gpu.decode_fixed, (operands.design,), operands.on_device())


class _Watch(TorchDispatchMode):
    """Keeps the operator calls made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "santa_hw":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def operators(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Schemas and fake implementations of the operators, by torch.library.opcheck."""
    for name, call in _calls(seed):
        with _Watch() as watch:
            call.run()
        (operator, arguments), *more = watch.calls
        found = torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
        passed = not more and all(result == "SUCCESS" for result in found.values())
        yield Outcome("operators", name, passed, {key: str(value) for key, value in found.items()})


def refused(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Lengths and page numbers that lie on the device are checked before the launch, by name."""
    for name, call in _calls(seed):
        lengths = call.arguments["lengths"]
        for what, value in (("negative", -1), ("over-long", call.arguments["k"].shape[1] + 1)):
            arguments = call.arguments | {"lengths": torch.full_like(lengths, value)}
            try:
                call.method(*call.leading, **arguments)
                message = "no exception"
            except ValueError as error:
                message = str(error)
            passed = "lengths" in message and str(value) in message
            yield Outcome("refused", f"{name}, {what} lengths", passed, {"message": message})


CHECKS: tuple[Check, ...] = (
    fixed_equals_golden_model,
    fixed_equals_golden_model_on_captured,
    model_attention_equals_cpu,
    fixed_any_tiling,
    fixed_beyond_32_bits,
    planted_fault_is_found,
    sys_counts,
    sys_beyond_32_bits,
    sys_is_unbiased,
    tile_methods,
    graph_replay,
    streams,
    late_lengths,
    unread_values,
    operators,
    refused,
)
