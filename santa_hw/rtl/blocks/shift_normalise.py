"""shift_normalise: the binary point moves, half_up and saturating (numeric contract 3.2 and 3.7)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from santa_hw.design import Design
from santa_hw.formats import shift_saturate
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, row_lengths
from santa_hw.rtl.lanes import lane_parameters, lanes_of, pack

SHIFT_BITS = 9
"""Width of a shift, sign included: it holds every shift that a design's formats and exponents can ask for."""


def block(lanes: int | None = None, widths: tuple[int, int] | None = None) -> Block:
    """The block with `lanes` lanes, 16 or what of it divides head_dim by default.

    `widths` are those of a code, (in, out); by default those of accumulators and output codes.
    """
    parameters = lane_parameters(lanes)
    if widths is not None:
        parameters |= {name: (bits, (bits,)) for name, bits in zip(("InBits", "OutBits"), widths, strict=True)}
    return Block(
        "shift_normalise",
        partial(_streams, lanes, widths),
        partial(_vectors, lanes, widths),
        parameters=parameters,
    )


def scores(design: Design, lanes: int) -> Block:
    """The block between a score accumulator and the scores."""
    return block(lanes, (design.derived()["score_accumulator"], design.score_bits))


def normalise(code: int, shift: int, in_bits: int, out_bits: int) -> tuple[int, bool]:
    """A code shifted right by `shift`, half_up, and saturated; and whether it was clipped."""
    high = (1 << (out_bits - 1)) - 1
    found = int(shift_saturate(code, shift, -high - 1, high))
    exact = code << -shift if shift <= 0 else (code + (1 << (shift - 1))) >> shift
    return found, exact != found


def _widths(design: Design, widths: tuple[int, int] | None) -> tuple[int, int]:
    derived = design.derived()
    return widths or (derived["accumulator"], derived["output"])


def _streams(
    lanes: int | None, widths: tuple[int, int] | None, design: Design
) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    in_bits, out_bits = _widths(design, widths)
    lanes = lanes_of(lanes, design)
    last = Field("last", 1)
    return (
        (Stream("in", (Field("codes", lanes * in_bits), Field("shifts", lanes * SHIFT_BITS), last)),),
        (Stream("out", (Field("codes", lanes * out_bits), Field("saturated", lanes), last)),),
    )


def _vectors(
    lanes: int | None, widths: tuple[int, int] | None, design: Design, count: int, generator: np.random.Generator
) -> Iterator[Vector]:
    """Packets of all lengths; codes of all magnitudes and the extremes, shifts about the words' widths and far off."""
    in_bits, out_bits = _widths(design, widths)
    lanes = lanes_of(lanes, design)
    low, high = -(1 << (in_bits - 1)), (1 << (in_bits - 1)) - 1
    extremes = np.array([low, low + 1, -1, 0, 1, high - 1, high])
    far = 1 << (SHIFT_BITS - 1)
    edges = np.array([-far, -out_bits, 1 - out_bits, -1, 0, 1, in_bits - 1, in_bits, in_bits + 1, far - 1])
    for n in row_lengths(design, count):
        shape = (n, lanes)
        codes = generator.integers(low, high, size=shape, endpoint=True) >> generator.integers(in_bits, size=shape)
        codes = np.where(generator.random(shape) < 0.3, generator.choice(extremes, size=shape), codes)
        shifts = generator.integers(-out_bits - 2, in_bits + 3, size=shape)
        shifts = np.where(generator.random(shape) < 0.3, generator.choice(edges, size=shape), shifts)
        inputs, outputs = [], []
        for beat in range(n):
            pairs = [
                normalise(int(x), int(s), in_bits, out_bits) for x, s in zip(codes[beat], shifts[beat], strict=True)
            ]
            last = int(beat == n - 1)
            inputs.append((pack(codes[beat], in_bits), pack(shifts[beat], SHIFT_BITS), last))
            outputs.append((pack((y for y, _ in pairs), out_bits), pack((c for _, c in pairs), 1), last))
        yield Vector(f"{n} beats", {"in": inputs}, {"out": outputs})


BLOCK = block()
