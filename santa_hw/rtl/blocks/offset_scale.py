"""offset_scale: the offset U = floor(r * Z / 2**R), bit-serial (numeric contract 3.5)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from santa_hw.datapath.counts import scaled_offset
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector


def _streams(design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    mass = design.derived()["mass"]
    return (
        (Stream("scale", (Field("word", design.rng_bits), Field("mass", mass))),),
        (Stream("offset", (Field("offset", mass),)),),
    )


def _vectors(design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    bits, mass_max = design.rng_bits, design.max_keys * ((1 << design.W) - 1)
    ones = (1 << bits) - 1
    # Word all ones and zero, mass at its limits, then masses of every magnitude.
    limits = [(ones, mass_max), (0, mass_max), (ones, 1), (ones, 0), (ones >> 1, mass_max)]
    for i in range(count):
        if i < len(limits):
            word, mass = limits[i]
        else:
            shift = int(generator.integers(0, mass_max.bit_length()))
            word, mass = int(generator.integers(0, ones + 1)), int(generator.integers(0, mass_max + 1)) >> shift
        found = int(scaled_offset(word, mass, bits))
        yield Vector(f"offset {i}", {"scale": [(word, mass)]}, {"offset": [(found,)]})


BLOCK = Block("offset_scale", _streams, _vectors)
