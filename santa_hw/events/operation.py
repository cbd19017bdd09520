"""From a tally to operations: every addition, comparison, memory access and random word of a decode step, by stage.

One function serves counted and analytic tallies, so that the two agree by construction. Nothing here knows an energy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from santa_hw.design import Design
from santa_hw.events.tally import Tally
from santa_hw.rng import LFSR_STEPS, THREEFRY_ROUNDS

STAGES = (
    "query",
    "key rows",
    "random words",
    "score",
    "score memory",
    "maximum",
    "exponential",
    "mass",
    "offset",
    "sampler",
    "selection",
    "value rows",
    "value",
    "accumulators",
    "normalise",
    "output",
    "append",
)
"""Stages of a decode step, in order. A bill has a line for each, also where a method has nothing to do in it."""

KINDS = (
    "add",
    "multiply",
    "divide",
    "shift",
    "compare",
    "xor",
    "register",
    "sram-read",
    "sram-write",
    "dram-read",
    "dram-write",
    "activation",
)
"""Kinds of operation. A DRAM access is one burst; `activation` opens one DRAM row; `register` is one write."""

NUMBERS = {"int": 0, "bf16": 16, "fp16": 16, "fp32": 32}
"""Number formats and their storage bits; the integer widths are the design's."""

ACTIVATION_BITS = 16
"""Width in which queries and new keys and values arrive from the projections."""
THREEFRY_ADDS, THREEFRY_XORS, THREEFRY_ROTATIONS = 37, 22, THREEFRY_ROUNDS
"""Of one Threefry-2x32 block of 20 rounds, two words: 20 + 2 + 5 * 3 additions, 20 + 2 xors, a rotation a round."""
FLASH_TILE = 128
"""Keys between two rescalings of a floating-point baseline with online softmax."""
_SORT_WRITES = 2


@dataclass(frozen=True)
class Operation:
    """So many operations of one kind and width in one stage.

    Parameters
    ----------
    stage : str
        One of ``STAGES``.
    kind : str
        One of ``KINDS``.
    bits : tuple of int
        Operand widths: one for most kinds; both factors of a multiplication; quotient and divisor of a division; the
        bits of one memory access.
    count : int
    numbers : str
        One of ``NUMBERS``; a floating-point operation has the width of its format.
    size : int
        Bytes of the memory that an ``sram`` access goes to.
    """

    stage: str
    kind: str
    bits: tuple[int, ...]
    count: int
    numbers: str = "int"
    size: int = 0

    @property
    def name(self) -> str:
        """Kind, format, widths and memory size as text, the same for the same hardware."""
        if self.kind == "activation":
            return self.kind
        if self.kind.startswith("dram"):
            return f"{self.kind} {self.bits[0]} bit"
        if self.kind.startswith("sram"):
            return f"{self.kind} {self.bits[0]} bit of {self.size} B"
        if self.numbers != "int":
            return f"{self.kind} {self.numbers}"
        return f"{self.kind} int{'x'.join(map(str, self.bits))}"


@dataclass(frozen=True)
class Layout:
    """How keys, values and scores lie in memory.

    Parameters
    ----------
    key_layout : ``"row"`` or ``"feature"``
        A key's features side by side: a skipped feature saves nothing, since its burst is read for the others. Or a
        feature of all keys side by side: a skipped feature is not read, but a new key is written to d places.
    burst_bytes : int
        What one DRAM access moves.
    row_bytes : int
        A DRAM row (page) of one channel: what one activation opens.
    interleave_bytes : int
        Consecutive bytes that lie in one channel before the next one follows: a row read alone opens a DRAM row for
        each such piece.
    buffer_bytes : int
        On-chip buffer between DRAM and datapath, through which every fetched bit passes once.
    score_memory_bytes : int or None
        Score memory of one head; None makes it as large as ``max_keys`` asks for. Scores beyond it go to DRAM.
    """

    key_layout: str = "row"
    burst_bytes: int = 32
    row_bytes: int = 1024
    interleave_bytes: int = 256
    buffer_bytes: int = 8192
    score_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.key_layout not in ("row", "feature"):
            raise ValueError(f"key_layout = {self.key_layout!r}: allowed are row, feature")
        for name in ("burst_bytes", "row_bytes", "interleave_bytes", "buffer_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: 1 or more is allowed")
        if self.score_memory_bytes is not None and self.score_memory_bytes < 0:
            raise ValueError(f"score_memory_bytes = {self.score_memory_bytes}: 0 or more, or None, is allowed")

    @property
    def chunk_bits(self) -> int:
        """Bits that one activation serves when a piece is read by itself."""
        return 8 * min(self.interleave_bytes, self.row_bytes)


def operations(
    design: Design, tally: Tally, layout: Layout | None = None, *, numbers: str = "int"
) -> tuple[Operation, ...]:
    """All operations that a tally stands for, without those that are zero.

    Parameters
    ----------
    design : Design
        The design point that the tally was counted with, or worked out for.
    tally : Tally
    layout : Layout, optional
    numbers : str
        ``"int"`` is the datapath of the numeric contract. A floating-point format is the dense baseline with online
        softmax in that format, products and sums accumulated in fp32; the design's own widths are not used.

    Raises
    ------
    ValueError
        An unknown format, or a floating-point format with another method than dense.

    Notes
    -----
    What is charged where, and what is left out, is in ``docs/explanation/energy.md``. Sums over many steps hold no
    step's own length: bursts of a stream are counted on the sum, so that a step may be short of one burst.
    """
    if numbers not in NUMBERS:
        raise ValueError(f"numbers = {numbers!r}: allowed are {', '.join(NUMBERS)}")
    layout = layout or Layout()
    if numbers == "int":
        found = _integer(design, tally, layout)
    elif design.method == "dense":
        found = _floating(design, tally, layout, numbers)
    else:
        raise ValueError(f"numbers = {numbers!r}: int is allowed with method = {design.method}")
    return tuple(operation for operation in found if operation.count)


def traffic(design: Design, tally: Tally) -> dict[str, int]:
    """Rows as the method counts them beside rows as the memory sees them, summed over all steps.

    Keys: ``key_rows`` once a query head, ``key_rows_read`` once a KV head. Values: ``value_rows`` once a draw (what
    operation counts call a value read), ``value_rows_unique`` once a query head, ``value_rows_read`` once a KV head,
    after the union over its query heads.
    """
    draws = (tally.head_steps - tally.empty_steps) * design.samples if design.method == "santa" else tally.unique_rows
    return {
        "key_rows": tally.visible_keys,
        "key_rows_read": tally.group_keys,
        "value_rows": draws,
        "value_rows_unique": tally.unique_rows,
        "value_rows_read": tally.group_rows,
    }


def heap_insertions(keys: float, k: int) -> float:
    """Expected insertions into a heap that keeps the k largest of `keys` scores in random order.

    The n-th score enters with probability min(1, k / n): k + k * (H(keys) - H(k)), here with the logarithm in place of
    the harmonic numbers. In ascending order every score would enter.
    """
    return keys if keys <= k else k * (1.0 + math.log(keys / k))


def value_element(method: str, rows: int, numbers: str) -> tuple[Operation, ...]:
    """Arithmetic of the value stage for one output element, as published operation counts have it.

    A row costs one addition, and with ``"top-k"`` and ``"dense"`` one multiplication; selection, sampling and memory
    are left out, which is why :func:`operations` exists. arXiv 2605.01910, Table 8 and App. H.
    """
    if method not in ("santa", "top-k", "dense"):
        raise ValueError(f"method = {method!r}: allowed are santa, top-k, dense")
    if numbers == "int" or numbers not in NUMBERS:
        raise ValueError(f"numbers = {numbers!r}: allowed are {', '.join(name for name in NUMBERS if name != 'int')}")
    kinds = ("add",) if method == "santa" else ("multiply", "add")
    return tuple(Operation("value", kind, (NUMBERS[numbers],), rows, numbers) for kind in kinds)


# Shared by both datapaths ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Steps:
    """Steps that see a key; empty ones do nothing but append."""

    heads: int
    groups: int
    keys: float

    @classmethod
    def of(cls, tally: Tally) -> _Steps:
        heads = tally.head_steps - tally.empty_steps
        # Query heads of a group see the same keys, so that empty head steps come in whole groups.
        empty = tally.empty_steps * tally.group_steps // tally.head_steps if tally.head_steps else 0
        return cls(heads, tally.group_steps - empty, tally.visible_keys / heads if heads else 0.0)


def _stream(stage: str, layout: Layout, bits: int, kind: str = "dram-read") -> Iterator[Operation]:
    """Consecutive bits: every DRAM row is opened once and read to its end."""
    burst = 8 * layout.burst_bytes
    bursts = -(-bits // burst)
    yield Operation(stage, kind, (burst,), bursts)
    yield Operation(stage, "activation", (8 * layout.row_bytes,), -(-bits // (8 * layout.row_bytes)))
    yield from _buffer(stage, layout, bursts)


def _gather(stage: str, layout: Layout, rows: int, row_bits: int, all_rows: int) -> Iterator[Operation]:
    """Rows read one by one, in ascending order: no burst and no DRAM row is read more often than in a stream."""
    burst, page = 8 * layout.burst_bytes, 8 * layout.row_bytes
    everything = all_rows * row_bits
    bursts = min(rows * -(-row_bits // burst), -(-everything // burst))
    opened = min(rows * -(-row_bits // layout.chunk_bits), -(-everything // page))
    yield Operation(stage, "dram-read", (burst,), bursts)
    yield Operation(stage, "activation", (page,), opened)
    yield from _buffer(stage, layout, bursts)


def _buffer(stage: str, layout: Layout, bursts: int) -> Iterator[Operation]:
    for kind in ("sram-write", "sram-read"):
        yield Operation(stage, kind, (8 * layout.burst_bytes,), bursts, size=layout.buffer_bytes)


def _append(layout: Layout, tally: Tally, dim: int, k_bits: int, v_bits: int) -> Iterator[Operation]:
    """The step's own key and value row, written once a KV head."""
    burst, page = 8 * layout.burst_bytes, 8 * layout.row_bytes

    def row(bits: int) -> tuple[int, int]:
        return -(-bits // burst), -(-bits // layout.chunk_bits)

    key = row(dim * k_bits) if layout.key_layout == "row" else (dim, dim)
    value = row(dim * v_bits)
    yield Operation("append", "dram-write", (burst,), tally.group_steps * (key[0] + value[0]))
    yield Operation("append", "activation", (page,), tally.group_steps * (key[1] + value[1]))


def _vectors(stage: str, kind: str, layout: Layout, steps: int, dim: int, bits: int) -> Operation:
    """A query or an output: one access a feature to the on-chip buffer."""
    return Operation(stage, kind, (bits,), steps * dim, size=layout.buffer_bytes)


# The datapath of the numeric contract ---------------------------------------------------------------------------------


def _integer(design: Design, tally: Tally, layout: Layout) -> Iterator[Operation]:
    widths, steps = design.derived(), _Steps.of(tally)
    yield from _query(design, steps, layout)
    features = tally.key_features if layout.key_layout == "row" else tally.feature_reads
    yield from _stream("key rows", layout, features * design.k_bits)
    yield from _random_words(design, steps)
    yield from _score(design, tally, widths)
    yield from _score_memory(design, tally, steps, layout)
    yield from _weights(design, tally, widths)
    if design.method == "santa":
        yield from _sampler(design, tally, steps, widths)
    elif design.method == "top-k":
        yield from _selection(design, steps)
    row_bits = design.head_dim * design.v_bits
    if design.method == "dense":
        yield from _stream("value rows", layout, tally.group_rows * row_bits)
    else:
        yield from _gather("value rows", layout, tally.group_rows, row_bits, tally.group_keys)
    yield from _value(design, tally, widths)
    if design.method != "santa":
        quotients = steps.heads * design.head_dim
        yield Operation("normalise", "divide", (widths["quotient"], widths["mass"] + 1), quotients)
        yield Operation("normalise", "add", (widths["dividend"],), quotients)
    yield from _output(design, steps, widths, layout)
    yield from _append(layout, tally, design.head_dim, design.k_bits, design.v_bits)
    encoded = tally.group_steps * 2 * design.head_dim
    yield Operation("append", "shift", (ACTIVATION_BITS,), encoded)
    yield Operation("append", "compare", (ACTIVATION_BITS,), 2 * encoded)


def _query(design: Design, steps: _Steps, layout: Layout) -> Iterator[Operation]:
    """Maximum, exponent and codes of each query; scale * log2(e) is folded into the projection's weights."""
    dim = design.head_dim
    yield _vectors("query", "sram-read", layout, steps.heads, dim, ACTIVATION_BITS)
    folded = design.k_exponents == "per_channel"
    yield Operation("query", "shift", (ACTIVATION_BITS,), steps.heads * dim * (2 if folded else 1))
    yield Operation("query", "compare", (ACTIVATION_BITS,), steps.heads * dim)
    if folded:
        exponent = max(1, (design.e_max - design.e_min).bit_length())
        yield _vectors("query", "sram-read", layout, steps.groups, dim, exponent)
    if design.scores != "ternary":
        return
    if design.ternary_draw == "iid":
        yield Operation("query", "compare", (design.q_bits - 1,), steps.heads * dim * design.ternary_samples)
    else:
        yield Operation("query", "add", (design.q_bits - 1 + design.beta,), steps.heads * dim)


def _random_words(design: Design, steps: _Steps) -> Iterator[Operation]:
    queries = steps.groups if design.ternary_offset == "shared" else steps.heads
    draws = ((steps.heads, design.offset_words), (queries, design.ternary_words))
    if design.rng == "lfsr":
        clocks = sum(draw * words for draw, words in draws) * LFSR_STEPS
        yield Operation("random words", "xor", (32,), clocks)
        yield Operation("random words", "register", (32,), clocks)
        return
    blocks = sum(draw * -(-words // 2) for draw, words in draws)
    yield Operation("random words", "add", (32,), blocks * THREEFRY_ADDS)
    yield Operation("random words", "xor", (32,), blocks * THREEFRY_XORS)
    yield Operation("random words", "shift", (32,), blocks * THREEFRY_ROTATIONS)


def _score(design: Design, tally: Tally, widths: dict[str, int]) -> Iterator[Operation]:
    """One addition a term; with dense scores a multiplication too. A shift and both limits a key (and block)."""
    accumulator = (widths["score_accumulator"],)
    if design.scores == "dense":
        yield Operation("score", "multiply", (design.q_bits, design.k_bits), tally.score_terms)
    yield Operation("score", "add", accumulator, tally.score_terms)
    yield Operation("score", "shift", accumulator, tally.visible_keys * design.blocks)
    yield Operation("score", "compare", (widths["block_score"],), 2 * tally.visible_keys * design.blocks)
    if design.blocks > 1:
        yield Operation("score", "add", (widths["score_sum"],), tally.visible_keys * (design.blocks - 1))
    yield Operation("accumulators", "register", accumulator, tally.visible_keys * design.blocks)


def _passes(design: Design) -> int:
    """How often a stored score is read: for the mass and for the sampler; top-k keeps its own and stores none."""
    return {"santa": 2, "dense": 1, "top-k": 0}[design.method]


def _score_memory(design: Design, tally: Tally, steps: _Steps, layout: Layout) -> Iterator[Operation]:
    passes, bits = _passes(design), design.score_bits
    if not passes:
        return
    wanted = -(-design.max_keys * bits // 8)
    size = wanted if layout.score_memory_bytes is None else min(wanted, layout.score_memory_bytes)
    kept = min(tally.visible_keys, steps.heads * (8 * size // bits))
    yield Operation("score memory", "sram-write", (bits,), kept, size=size)
    yield Operation("score memory", "sram-read", (bits,), kept * passes, size=size)
    spilled = (tally.visible_keys - kept) * bits
    if spilled:
        yield from _stream("score memory", layout, spilled, "dram-write")
        yield from _stream("score memory", layout, spilled * passes)


def _weights(design: Design, tally: Tally, widths: dict[str, int]) -> Iterator[Operation]:
    """Maximum of the integer parts; a weight is a table entry shifted, made again in each pass over the scores."""
    keys = tally.unique_rows if design.method == "top-k" else tally.visible_keys
    made = keys * max(1, _passes(design))
    yield Operation("maximum", "compare", (widths["score_integer_part"],), keys)
    yield Operation("exponential", "add", (widths["score_integer_part"],), made)
    if design.exp == "table":
        yield Operation("exponential", "sram-read", (design.W,), made, size=-(-widths["table_bits"] // 8))
    yield Operation("exponential", "shift", (design.W,), made)
    if design.weight_rounding == "half_up":
        yield Operation("exponential", "add", (design.W,), made)
    yield Operation("mass", "add", (widths["mass"],), keys)
    yield Operation("mass", "register", (widths["mass"],), keys)


def _sampler(design: Design, tally: Tally, steps: _Steps, widths: dict[str, int]) -> Iterator[Operation]:
    """One addition a key, one a sample (three with an offset a stratum); i.i.d. sorts its thresholds first."""
    mass, emitted = (widths["mass"],), steps.heads * design.samples
    yield Operation("offset", "add", mass, steps.heads * design.offset_words * design.rng_bits)
    yield Operation("offset", "register", mass, steps.heads * design.offset_words * design.rng_bits)
    if design.sampler == "iid":
        exchanges = steps.heads * (design.samples // 2) * design.sigma * (design.sigma + 1) // 2
        yield Operation("sampler", "compare", mass, exchanges + tally.visible_keys + emitted)
        yield Operation("sampler", "register", mass, exchanges * _SORT_WRITES + tally.visible_keys)
        yield Operation("sampler", "add", mass, tally.visible_keys)
    else:
        additions = tally.visible_keys + emitted * (3 if design.sampler == "stratified" else 1)
        yield Operation("sampler", "add", (widths["residual"],), additions)
        yield Operation("sampler", "register", (widths["residual"],), tally.visible_keys + emitted)
    entry = max(1, (design.max_keys - 1).bit_length()) + widths["count"]
    yield Operation("sampler", "register", (entry,), tally.unique_rows)


def _selection(design: Design, steps: _Steps) -> Iterator[Operation]:
    """A heap of the k best: every score meets the root; one that enters sinks, with two comparisons a level."""
    entry = design.score_bits + max(1, (design.max_keys - 1).bit_length())
    size = -(-design.samples * entry // 8)
    levels = design.samples.bit_length() - 1
    entered = round(steps.heads * heap_insertions(steps.keys, design.samples))
    yield Operation(
        "selection", "compare", (design.score_bits,), round(steps.heads * steps.keys) + 2 * levels * entered
    )
    yield Operation("selection", "sram-write", (entry,), entered * (levels + 1), size=size)
    yield Operation("selection", "sram-read", (entry,), 2 * levels * entered, size=size)


def _value(design: Design, tally: Tally, widths: dict[str, int]) -> Iterator[Operation]:
    """One addition a term and feature; the baselines multiply too."""
    terms, accumulator = tally.value_terms * design.head_dim, (widths["accumulator"],)
    if design.method != "santa":
        yield Operation("value", "multiply", (design.W, design.v_bits), terms)
    elif design.gather == "shift_add":
        yield Operation("value", "shift", accumulator, terms)
    yield Operation("value", "add", accumulator, terms)
    yield Operation("accumulators", "register", accumulator, terms)


def _output(design: Design, steps: _Steps, widths: dict[str, int], layout: Layout) -> Iterator[Operation]:
    features = steps.heads * design.head_dim
    if design.out_bits is not None:
        yield Operation("output", "shift", (widths["accumulator"],), features)
        yield Operation("output", "compare", (design.out_bits,), 2 * features)
    yield _vectors("output", "sram-write", layout, steps.heads, design.head_dim, widths["output"])


# The floating-point baseline ------------------------------------------------------------------------------------------


def _floating(design: Design, tally: Tally, layout: Layout, numbers: str) -> Iterator[Operation]:
    """Dense attention with online softmax: products in `numbers`, everything else in fp32."""
    steps, dim, bits = _Steps.of(tally), design.head_dim, NUMBERS[numbers]
    keys, outputs = tally.visible_keys, steps.heads * design.head_dim

    def fp(stage: str, kind: str, count: int, numbers: str = "fp32") -> Operation:
        return Operation(stage, kind, (NUMBERS[numbers],), count, numbers=numbers)

    yield _vectors("query", "sram-read", layout, steps.heads, dim, bits)
    yield from _stream("key rows", layout, tally.key_features * bits)
    yield fp("score", "multiply", keys * dim, numbers)
    yield fp("score", "add", keys * dim)
    yield Operation("maximum", "compare", (32,), keys)
    # The maximum is taken off; 2**x by a polynomial of degree three.
    yield fp("exponential", "add", 4 * keys)
    yield fp("exponential", "multiply", 3 * keys)
    yield fp("mass", "add", keys)
    yield Operation("mass", "register", (32,), keys)
    yield from _stream("value rows", layout, tally.group_rows * dim * bits)
    yield fp("value", "multiply", keys * dim, numbers)
    yield fp("value", "add", keys * dim)
    yield Operation("accumulators", "register", (32,), keys + keys * dim)
    # Sum and accumulators are rescaled once a tile; at the end one reciprocal, two Newton steps from a table.
    rescaled = -(-keys // FLASH_TILE) * (dim + 1)
    yield fp("normalise", "multiply", rescaled + 4 * steps.heads + outputs)
    yield fp("normalise", "add", 2 * steps.heads)
    yield _vectors("output", "sram-write", layout, steps.heads, dim, bits)
    yield from _append(layout, tally, dim, bits, bits)
