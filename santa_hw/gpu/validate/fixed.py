"""`fixed` against the golden model: every intermediate, bit for bit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from santa_hw import gpu
from santa_hw.datapath import Codes, Draw, Exponents, attend
from santa_hw.design import Design
from santa_hw.gpu import attention
from santa_hw.gpu.cases import (
    DESIGNS,
    EDGE_WEIGHT_BITS,
    LARGE_KEYS,
    Case,
    FixedOperands,
    edge_operands,
    far_apart,
    fixed_operands,
    sweep,
)
from santa_hw.gpu.comparison import compare, golden, run_fixed, trace_fixed, union
from santa_hw.gpu.validate.outcome import Outcome


def fixed_equals_golden_model(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Every intermediate of `fixed`, on random codes: groups, head dimensions, designs, ragged and paged caches."""
    for number, case in enumerate(sweep()):
        operands = fixed_operands(case, seed + number)
        found, expected = run_fixed(operands), golden(operands)
        differing = compare(found, expected)
        differing["unique"] = int((found["unique"] != union(expected["counts"], case.kv_heads)).sum())
        yield Outcome("fixed_equals_golden_model", str(case), not any(differing.values()), differing)
    for bits in EDGE_WEIGHT_BITS:
        operands = edge_operands(bits, seed)
        differing = compare(run_fixed(operands), golden(operands))
        shape = f"extreme codes and shifts, weights of {bits} bits"
        yield Outcome("fixed_equals_golden_model", shape, not any(differing.values()), differing)


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
        arguments[name] = far_apart(arguments[name])
    differing = compare(trace_fixed(operands.design, arguments, LARGE_KEYS), golden(operands))
    yield Outcome("fixed_beyond_32_bits", str(case), not any(differing.values()), differing)


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
