"""santa_decode: the decode step of one KV head and its group of query heads (numeric contract 3.2 to 3.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from santa_hw.capture import Capture
from santa_hw.datapath.operands import Codes
from santa_hw.datapath.step import INTERMEDIATES, Draw, decode, offset_words, ternary_words
from santa_hw.design import Design
from santa_hw.rtl.blocks import Block, Field, Stream, Vector, row_lengths, score_sampler
from santa_hw.rtl.blocks.shift_normalise import SHIFT_BITS, normalise
from santa_hw.rtl.lanes import check_lanes, lane_parameters, lanes_of, pack
from santa_hw.rtl.package import key_bits, keys_bits

MAX_GROUP = 16
NEEDS = (
    "mac_dot", "ternary_query", "ternary_dot", "shift_normalise", "score_sampler", "gather_accumulate",
)  # fmt: skip
KINDS = ("random", "masked", "equal", "one key", "all masked", "sinks", "limits", "clipped")
"""Steps that vectors cycle through."""


def block(lanes: int | None = None, group: int = 1, outstanding: int = 4) -> Block:
    """The block for `group` query heads, with `lanes` lanes a head and `outstanding` value rows under way."""
    return Block(
        "santa_decode",
        partial(_streams, lanes, group),
        partial(_vectors, lanes, group),
        partial(_check, lanes),
        NEEDS,
        parameters={
            "Group": (group, tuple(range(1, MAX_GROUP + 1))),
            "Outstanding": (outstanding, tuple(range(1, 65))),
            **lane_parameters(lanes),
        },
        rebuild=partial(_rebuild, lanes, group, outstanding),
    )


def captured(capture: Capture) -> Block:
    """The block for a capture's group and design; its vectors are captured steps, spread evenly over all of them."""
    base = block(group=capture.group)
    return replace(
        base,
        vectors=partial(_captured_vectors, capture),
        parameters=base.parameters | {"Group": (capture.group, (capture.group,))},
        rebuild=None,
    )


def _captured_vectors(capture: Capture, design: Design, count: int, generator: np.random.Generator) -> Iterator[Vector]:
    if design != capture.design:
        raise ValueError(f"design {design}: that of the capture, {capture.design}, is allowed")
    lanes = lanes_of(None, design)
    return (decode_vector(design, lanes, step.codes, step.draw, name=step.name) for step in capture.spread(count))


def decode_vector(
    design: Design,
    lanes: int,
    codes: Codes,
    draw: Draw,
    lengths: NDArray[np.int64] | None = None,
    mask: NDArray[np.bool_] | None = None,
    *,
    kv_head: int = 0,
    name: str | None = None,
) -> Vector:
    """One decode step of one KV head through the golden model, as the block's beats: every named intermediate.

    Parameters
    ----------
    design : Design
    lanes : int
        Features a beat.
    codes : Codes
        Operand codes of one sequence and one query position, (1, H, 1, d) and (1, KV, N, d).
    draw, lengths, mask
        As for :func:`santa_hw.datapath.decode`; they say which words the step takes.
    kv_head : int
        Which KV head. The others only fix the words' identity: a captured layer may be passed whole.
    name : str, optional
        Of the vector; its number of keys by default.

    Raises
    ------
    ValueError
        If codes hold more than one sequence or position or lack the KV head, a shift does not fit its port, or what
        :func:`~santa_hw.datapath.decode` refuses.
    """
    (batch, heads, positions, _), kv_heads = codes.q.shape, codes.k.shape[1]
    if (batch, positions) != (1, 1):
        raise ValueError(f"codes.q has shape {codes.q.shape}: one sequence and one position, (1, H, 1, d), are allowed")
    if not 0 <= kv_head < kv_heads:
        raise ValueError(f"kv_head = {kv_head}: 0 to {kv_heads - 1} is allowed")
    result = decode(design, codes, draw=draw, lengths=lengths, mask=mask, keep=INTERMEDIATES)
    keys = codes.k.shape[2] if lengths is None else int(lengths[0, 0])
    visible = np.ones(keys, dtype=np.bool_) if mask is None else mask[0, 0, :keys]
    group = heads // kv_heads
    part = slice(kv_head * group, (kv_head + 1) * group)
    trace = {name: array[0, part, 0] for name, array in result.trace.items() if name not in ("k_codes", "v_codes")}
    k, v = codes.k[0, kv_head, :keys], codes.v[0, kv_head, :keys]
    counts = trace["counts"][:, :keys]
    rows = np.flatnonzero(counts.any(axis=0))
    bits = design.derived()
    identity = draw.sequence[:, None, None], draw.position[:, None, :], heads

    inputs: dict[str, list[tuple[int, ...]]] = {"step": [(keys,)]}
    outputs: dict[str, list[tuple[int, ...]]] = {}
    if keys:
        words = offset_words(design, draw, *identity)[0, part, 0, 0]
        inputs["head"] = [(_pack_shifts("shift", trace["shift"][:, 0]), pack(words, design.rng_bits))]
        inputs["query"] = [(pack(feature, design.q_bits),) for feature in trace["q_codes"].T]
        if design.scores == "ternary":
            drawn = ternary_words(design, draw, *identity, kv_heads)[0, part, 0].reshape(group, -1)
            inputs["word"] = [(pack(feature, design.rng_bits),) for feature in drawn.T]
        inputs["key"] = [
            (pack(beat, design.k_bits), int(seen))
            for key, seen in zip(k, visible, strict=True)
            for beat in key.reshape(-1, lanes)
        ]
        outputs["score"] = [(pack(key, design.score_bits),) for key in trace["scores"][:, :keys].T]
        outputs["weight"] = [(pack(key, design.W),) for key in trace["weights"][:, :keys].T]
        outputs["mass"] = [(pack(trace["mass"], bits["mass"]),)]
        outputs["offset"] = [(pack(trace["offset"][:, 0], bits["mass"]),)]
    outputs["request"] = [(int(n), pack(counts[:, n], bits["count"])) for n in rows]
    inputs["value"] = [(pack(beat, design.v_bits),) for n in rows for beat in v[n].reshape(-1, lanes)]

    beats = design.head_dim // lanes
    accumulators = trace["accumulators"]
    outputs["accumulator"] = [(pack(x, bits["accumulator"]),) for x in _beats(accumulators, lanes)]
    saturated = np.zeros(accumulators.shape, dtype=np.int64)
    if design.out_bits is not None and design.out_frac is not None:
        moves = design.v_bits - 1 - codes.v_exponents[kv_head] + design.sigma - design.out_frac
        inputs["format"] = [(_pack_shifts("format", beat),) for beat in moves.reshape(-1, lanes)]
        for (g, i), code in np.ndenumerate(accumulators):
            saturated[g, i] = normalise(int(code), int(moves[i]), bits["accumulator"], design.out_bits)[1]
    outputs["output"] = [
        (pack(x, bits["output"]), pack(clipped, 1), int(b == beats - 1))
        for b, (x, clipped) in enumerate(
            zip(_beats(trace["output_codes"], lanes), _beats(saturated, lanes), strict=True)
        )
    ]
    return Vector(name or f"{keys} keys", inputs, outputs)


def value_terms(design: Design, vector: Vector, group: int) -> int:
    """What a step's value phase takes, in rows: the largest number of terms of any head, summed over drawn keys."""
    width = design.derived()["count"]
    total = 0
    for _, word in vector.outputs["request"]:
        counts = [(word >> (g * width)) & ((1 << width) - 1) for g in range(group)]
        total += max(c.bit_count() if design.gather == "shift_add" else c for c in counts)
    return total


def _beats(rows: NDArray[np.int64], lanes: int) -> Iterable[NDArray[np.int64]]:
    """(heads, d) as d / lanes beats of heads * lanes codes, the first head's in the low bits."""
    return rows.reshape(len(rows), -1, lanes).swapaxes(0, 1).reshape(-1, len(rows) * lanes)


def _pack_shifts(name: str, moves: NDArray[np.int64]) -> int:
    limit = 1 << (SHIFT_BITS - 1)
    if moves.min() < -limit or moves.max() >= limit:
        raise ValueError(f"{name} reaches {moves.min()} to {moves.max()}: {-limit} to {limit - 1} is allowed")
    return pack(moves, SHIFT_BITS)


def _rebuild(lanes: int | None, group: int, outstanding: int, parameters: Mapping[str, int]) -> Block:
    return block(
        parameters.get("Lanes", lanes), parameters.get("Group", group), parameters.get("Outstanding", outstanding)
    )


def _check(lanes: int | None, design: Design) -> None:
    check_lanes(lanes, "santa_decode", design)
    if lanes is not None and lanes & (lanes - 1):
        raise ValueError(f"Lanes = {lanes}: a power of two is allowed in block santa_decode")
    score_sampler.check("santa_decode", design)
    if design.blocks > 1:
        raise ValueError(
            f"ternary_block = {design.ternary_block}: None (one exponent a query) is allowed in block santa_decode"
        )


def _streams(lanes: int | None, group: int, design: Design) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    bits, lanes, words = design.derived(), lanes_of(lanes, design), Field("words", group * design.rng_bits)
    inputs = (
        Stream("step", (Field("keys", keys_bits(design)),)),
        Stream("head", (Field("shifts", group * SHIFT_BITS), words)),
        Stream("query", (Field("codes", group * design.q_bits),)),
        Stream("word", (words,)),
        Stream("key", (Field("codes", lanes * design.k_bits), Field("visible", 1))),
        Stream("value", (Field("codes", lanes * design.v_bits),)),
        Stream("format", (Field("shifts", lanes * SHIFT_BITS),)),
    )
    outputs = (
        Stream("request", (Field("key", key_bits(design)), Field("counts", group * bits["count"]))),
        Stream(
            "output",
            (Field("codes", group * lanes * bits["output"]), Field("saturated", group * lanes), Field("last", 1)),
        ),
        Stream("score", (Field("scores", group * design.score_bits),), monitor=True),
        Stream("weight", (Field("weights", group * design.W),), monitor=True),
        Stream("mass", (Field("masses", group * bits["mass"]),), monitor=True),
        Stream("offset", (Field("offsets", group * bits["mass"]),), monitor=True),
        Stream("accumulator", (Field("accumulators", group * lanes * bits["accumulator"]),), monitor=True),
    )
    return inputs, outputs


def _vectors(
    lanes: int | None, group: int, design: Design, count: int, generator: np.random.Generator
) -> Iterator[Vector]:
    """Steps of all lengths and kinds (see ``KINDS``), from codes and words' identities drawn at random."""
    lanes = lanes_of(lanes, design)
    for i, n in enumerate(row_lengths(design, count)):
        kind = KINDS[(i + i // len(KINDS)) % len(KINDS)]
        codes, mask = operands(design, group, n, kind, generator)
        draw = Draw(
            seed=int(generator.integers(1 << 32)), layer=0, sequence=generator.integers(1 << 20, size=1),
            position=np.array([[max(0, n - 1)]]),
        )  # fmt: skip
        yield decode_vector(design, lanes, codes, draw, mask=mask, name=f"{kind}, {n} keys")


def operands(
    design: Design, group: int, keys: int, kind: str, generator: np.random.Generator
) -> tuple[Codes, NDArray[np.bool_] | None]:
    """Codes of one step of a kind, and its mask: exponents are such that weights spread over a few octaves."""
    d = design.head_dim
    q_limit, k_limit, v_limit = ((1 << (bits - 1)) - 1 for bits in (design.q_bits, design.k_bits, design.v_bits))
    q = generator.integers(-q_limit, q_limit, size=(1, group, 1, d), endpoint=True, dtype=np.int32)
    k = generator.integers(-k_limit, k_limit, size=(1, 1, keys, d), endpoint=True, dtype=np.int32)
    v = generator.integers(-v_limit, v_limit, size=(1, 1, keys, d), endpoint=True, dtype=np.int32)
    mask = None
    # A dot product of random codes is about a third of sqrt(d) * q * k; its score about a fraction or a few octaves.
    spread = np.log2(np.sqrt(d) / 3) + generator.uniform(-3, 1, size=(1, group, 1, 1))
    if kind == "masked":
        mask = generator.random((1, 1, keys)) < 0.6
    elif kind == "all masked":
        mask = np.zeros((1, 1, keys), dtype=np.bool_)
    elif kind == "equal":
        k[:] = k[:, :, :1]
    elif kind in ("one key", "sinks") and keys:  # a key in line with head 0's query; the first keys
        where = generator.integers(keys) if kind == "one key" else slice(0, 2)
        k[:] //= 4
        k[0, 0, where] = np.sign(q[0, 0, 0]) * k_limit
        spread -= 3
    elif kind == "limits":
        q[:] = np.where(generator.random(q.shape) < 0.5, -q_limit, q_limit)
        v[:] = np.where(generator.random(v.shape) < 0.1, v, -v_limit)
    elif kind == "clipped":
        spread -= 20
    exponents = np.clip(-np.round(spread), 2 * design.e_min, 2 * design.e_max).astype(np.int32)
    # The common output format is met from both sides.
    centre = design.v_bits - 1 + design.sigma - (design.out_frac or 0) - 4
    v_exponents = np.clip(generator.integers(centre - 6, centre + 12, size=(1, d)), design.e_min, design.e_max)
    return Codes(q, exponents, k, v, v_exponents, {"q": 0, "k": 0, "v": 0}), mask


BLOCK = block()
