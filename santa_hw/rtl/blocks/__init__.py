"""The blocks by name: their streams, their parameters, and vectors from the golden model.

A block's ports are ``clk_i``, ``rst_ni`` and streams. An input stream ``x`` with field ``f`` has ``x_valid_i``,
``x_ready_o`` and ``x_f_i``; an output stream has ``x_valid_o``, ``x_ready_i`` and ``x_f_o``. A monitor is an output
stream without ready: whoever listens takes every beat.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from santa_hw.design import Design

NAMES = (
    "threefry2x32", "lfsr32", "exp2_weight", "mass", "offset_scale", "systematic_sampler",
    "ternary_query", "ternary_dot", "gather_accumulate", "shift_normalise", "score_sampler", "santa_decode",
    "mac_dot", "softmax_values", "topk_select", "softmax_attention",
)  # fmt: skip
"""Every block that can be co-simulated; module ``santa_hw.rtl.blocks.<name>`` describes it."""

LENGTHS = (0, 1, 2, 31, 32, 33, 255, 257, 1000)
"""Row lengths that vectors cycle through, as far as ``max_keys`` allows."""


@dataclass(frozen=True)
class Field:
    """One signal of a stream, `width` bits wide."""

    name: str
    width: int
    signed: bool = False


@dataclass(frozen=True)
class Stream:
    """A valid/ready stream and its signals; a monitor, always an output, has no ready."""

    name: str
    fields: tuple[Field, ...]
    monitor: bool = False


@dataclass(frozen=True)
class Vector:
    """One piece of work: the beats of each input stream and the beats that must come out, values by field."""

    name: str
    inputs: Mapping[str, Sequence[tuple[int, ...]]]
    outputs: Mapping[str, Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class Block:
    """A SystemVerilog module ``rtl_models/<name>/<name>.sv`` and what drives it.

    Parameters
    ----------
    streams : function
        Design -> (input streams, output streams).
    vectors : function
        (design, count, generator) -> `count` vectors, drawn as they are taken.
    check : function
        Raises ValueError if the block does not build the design.
    needs : tuple of str
        Blocks that it instantiates.
    parameters : dict
        Parameters that no design names, SystemVerilog name -> (default, allowed values).
    rebuild : function, optional
        Parameters by name -> the block with them, if its streams depend on them.
    """

    name: str
    streams: Callable[[Design], tuple[tuple[Stream, ...], tuple[Stream, ...]]]
    vectors: Callable[[Design, int, np.random.Generator], Iterator[Vector]]
    check: Callable[[Design], None] = lambda design: None
    needs: tuple[str, ...] = ()
    parameters: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    rebuild: Callable[[Mapping[str, int]], Block] | None = None

    def given(self, parameters: Mapping[str, int]) -> Block:
        """The block with the streams that these parameters give it."""
        return self if self.rebuild is None else self.rebuild(parameters)

    def resolve(self, given: Mapping[str, int]) -> dict[str, int]:
        """All parameters' values; ValueError for a name or a value that is not allowed."""
        for name, value in given.items():
            if name not in self.parameters:
                allowed = ", ".join(self.parameters) or "none"
                raise ValueError(f"block {self.name} has no parameter {name!r}: allowed are {allowed}")
            if value not in self.parameters[name][1]:
                allowed = ", ".join(map(str, self.parameters[name][1]))
                raise ValueError(f"{self.name}.{name} = {value}: allowed are {allowed}")
        return {name: given.get(name, default) for name, (default, _) in self.parameters.items()}


def load(name: str) -> Block:
    """The block called `name`; ValueError if there is none."""
    if name not in NAMES:
        raise ValueError(f"block {name!r} is unknown: allowed are {', '.join(NAMES)}")
    block: Block = importlib.import_module(f"santa_hw.rtl.blocks.{name}").BLOCK
    return block


def row_lengths(design: Design, count: int) -> Iterator[int]:
    """`count` row lengths: those of ``LENGTHS`` that the design allows, its own `max_keys`, and round again."""
    allowed = [n for n in LENGTHS if n <= design.max_keys]
    if design.max_keys <= max(LENGTHS):
        allowed.append(design.max_keys)
    return itertools.islice(itertools.cycle(allowed), count)


def at_most(name: str, value: int, limit: int, block: str) -> None:
    """ValueError if a design's field is too large for a block."""
    if value > limit:
        raise ValueError(f"{name} = {value}: at most {limit} is allowed in block {block}")
