"""The whole decode step, bit for bit: scores, weights, mass, offset, counts, accumulators, output codes.

Every query position is a decode step of its own. Positions are cut into blocks so that a tile of scores stays in the
cache; integer addition is associative, so neither the block size nor the thread count changes a bit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from santa_hw.compiled import compiled
from santa_hw.datapath import parallel
from santa_hw.datapath import scores as score_stage
from santa_hw.datapath.counts import draw as draw_keys
from santa_hw.datapath.operands import Codes, Exponents, encode
from santa_hw.datapath.scores import row_scores
from santa_hw.datapath.values import divide_row, gather_add, requantise_row, select_top_k, set_bits
from santa_hw.datapath.weights import REFERENCE_BITS, row_lost_mass, row_maximum, row_weights
from santa_hw.design import Design, DesignLike, exp2_table
from santa_hw.events import Tally
from santa_hw.rng import Purpose, words

INTERMEDIATES = (
    "q_codes",
    "k_codes",
    "v_codes",
    "exponents",
    "shift",
    "ternary_counts",
    "scores",
    "weights",
    "mass",
    "offset",
    "counts",
    "accumulators",
    "output_codes",
)
"""Named intermediates that :func:`decode` can return."""

_PER_KEY = {"scores": np.int32, "weights": np.int64, "counts": np.int32}
_METHODS = {"santa": 0, "top-k": 1, "dense": 2}
_SAMPLERS = {"systematic": 0, "stratified": 1, "iid": 2}
_TILE_BYTES, _TILE_ROWS = 1 << 20, 128
"""Largest score tile, a core's share of the second-level cache, and most positions in it, so that threads share."""


@dataclass(frozen=True)
class Draw:
    """Which random words a call uses (numeric contract 3.9).

    Parameters
    ----------
    seed, layer : int
    sequence : numpy.ndarray
        Integers (B,), one for each sequence of the batch.
    position : numpy.ndarray
        Integers (B, T): absolute position of each query. No two decode steps of a sequence may share one.
    """

    seed: int
    layer: int
    sequence: NDArray[np.int64]
    position: NDArray[np.int64]


@dataclass(frozen=True)
class Result:
    """What a call returns. Shapes: B batch, H heads, T queries, d head dimension, N keys.

    Parameters
    ----------
    output : numpy.ndarray
        float64 (B, H, T, d): the output codes at their binary points.
    output_frac : numpy.ndarray
        int64 (KV, d): the binary point of each output lane.
    empty : numpy.ndarray
        bool (B, T): steps that saw no key; their output is zero.
    tally : Tally
    trace : dict
        The intermediates asked for, by name (see ``INTERMEDIATES``): q_codes (B, H, T, d), exponents and shift
        (B, H, T, blocks), ternary_counts (B, H, T, d), scores, weights and counts (B, H, T, N), mass (B, H, T),
        offset (B, H, T, words), accumulators and output_codes (B, H, T, d). Entries of scores, weights and counts
        beyond a step's length are zero.
    """

    output: NDArray[np.float64]
    output_frac: NDArray[np.int64]
    empty: NDArray[np.bool_]
    tally: Tally
    trace: dict[str, NDArray[Any]]


def attend(
    design: DesignLike,
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    exponents: Exponents,
    draw: Draw,
    scale: float | None = None,
    lengths: NDArray[np.int64] | None = None,
    mask: NDArray[np.bool_] | None = None,
    keep: Collection[str] = (),
) -> Result:
    """Attention of one layer through the fixed-point datapath: :func:`encode`, then :func:`decode`.

    Parameters
    ----------
    design : Design or Schedule
        Of a schedule, the design of the layer that `draw` names.
    q : numpy.ndarray
        Floats (B, H, T, d); H query heads, a multiple of the KV heads. T = 1 is one decode step, T = N a window.
    k, v : numpy.ndarray
        Floats (B, KV, N, d).
    exponents : Exponents
        The layer's static K and V exponents.
    draw : Draw
    scale : float, optional
        Default 1/sqrt(d).
    lengths : numpy.ndarray, optional
        Integers (B, T): keys [0, length) are visible. Default N - T + 1 + t: causal, aligned at the end.
    mask : numpy.ndarray, optional
        bool (B, T, N), True where visible; it is combined with `lengths`. Sliding windows and sinks are masks.
    keep : collection of str
        Intermediates to return.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        Names the argument, its value and what is allowed.

    Examples
    --------
    >>> import numpy as np
    >>> from santa_hw.design import Design
    >>> x = np.random.default_rng(0).normal(size=(3, 1, 4, 8, 16))
    >>> zeros = np.zeros((4, 16), dtype=np.int64)
    >>> steps = Draw(seed=0, layer=0, sequence=np.zeros(1, dtype=int), position=np.arange(8)[None])
    >>> result = attend(Design(head_dim=16), *x, exponents=Exponents(k=zeros + 2, v=zeros + 2), draw=steps)
    >>> result.output.shape
    (1, 4, 8, 16)
    """
    own = design.layer(draw.layer)
    return _decode(own, encode(own, q, k, v, exponents, scale), draw, lengths, mask, keep)


def decode(
    design: DesignLike,
    codes: Codes,
    *,
    draw: Draw,
    lengths: NDArray[np.int64] | None = None,
    mask: NDArray[np.bool_] | None = None,
    keep: Collection[str] = (),
) -> Result:
    """The datapath proper, from operand codes on: integers in, integers out. Arguments as for :func:`attend`."""
    own = design.layer(draw.layer)
    _check_codes(own, codes)
    return _decode(own, codes, draw, lengths, mask, keep)


def _decode(
    design: Design,
    codes: Codes,
    draw: Draw,
    lengths: NDArray[np.int64] | None,
    mask: NDArray[np.bool_] | None,
    keep: Collection[str],
) -> Result:
    run = _prepare(design, codes, draw, lengths, mask, keep)
    tasks = [partial(_decode_block, run, b, kv, part) for b, kv, part in _blocks(run)]
    parallel.run(tasks, codes.q.shape[1] * int(run.lengths.sum()))
    return _finish(run)


@dataclass(frozen=True)
class _Run:
    """Everything one call works on; arrays are (B, H, T, ...)."""

    design: Design
    codes: Codes
    factors: NDArray[np.int32]
    shift: NDArray[np.int32]
    words: NDArray[np.uint32]
    lengths: NDArray[np.int64]
    mask: NDArray[np.bool_] | None
    keep: frozenset[str]
    kept: dict[str, NDArray[Any]]
    accumulators: NDArray[np.int64]
    mass: NDArray[np.int64]
    offset: NDArray[np.int64]
    stats: NDArray[np.int64]  # (B, H, T, 4): visible keys, unique rows, value terms, score saturations
    lost: NDArray[np.float64]
    group_stats: NDArray[np.int64]  # (B, KV, T, 2): streamed keys, value rows of the union

    @property
    def batch(self) -> int:
        return self.codes.q.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.codes.k.shape[1]

    @property
    def group(self) -> int:
        return self.codes.q.shape[1] // self.codes.k.shape[1]


def _prepare(
    design: Design,
    codes: Codes,
    draw: Draw,
    lengths: NDArray[np.int64] | None,
    mask: NDArray[np.bool_] | None,
    keep: Collection[str],
) -> _Run:
    unknown = sorted(set(keep) - set(INTERMEDIATES))
    if unknown:
        raise ValueError(f"keep holds {unknown[0]!r}: allowed are {', '.join(INTERMEDIATES)}")
    batch, heads, rows, dim = codes.q.shape
    kv_heads, keys = codes.k.shape[1:3]
    if keys > design.max_keys:
        raise ValueError(f"k has {keys} keys: at most max_keys = {design.max_keys} are allowed")
    lengths = _check_lengths(lengths, mask, batch, rows, keys)
    sequence, position = _check_draw(draw, batch, rows)
    drawn = offset_words(design, draw, sequence, position, heads)
    factors = codes.q
    if design.scores == "ternary":
        query_words = ternary_words(design, draw, sequence, position, heads, kv_heads)
        factors = score_stage.ternary_counts(design, codes.q, query_words)
    kept = {
        name: np.zeros((batch, heads, rows, keys if name in keep else 0), dtype=dtype)
        for name, dtype in _PER_KEY.items()
    }
    return _Run(
        design=design,
        codes=codes,
        factors=factors,
        shift=score_stage.shifts(design, codes.exponents),
        words=drawn,
        lengths=lengths,
        mask=None if mask is None else np.ascontiguousarray(mask),
        keep=frozenset(keep),
        kept=kept,
        accumulators=np.zeros((batch, heads, rows, dim), dtype=np.int64),
        mass=np.zeros((batch, heads, rows), dtype=np.int64),
        offset=np.zeros((batch, heads, rows, design.offset_words), dtype=np.int64),
        stats=np.zeros((batch, heads, rows, 4), dtype=np.int64),
        lost=np.zeros((batch, heads, rows), dtype=np.float64),
        group_stats=np.zeros((batch, kv_heads, rows, 2), dtype=np.int64),
    )


def _check_codes(design: Design, codes: Codes) -> None:
    for name, bits in (("q", design.q_bits), ("k", design.k_bits), ("v", design.v_bits)):
        array = getattr(codes, name)
        limit = (1 << (bits - 1)) - 1
        if array.ndim != 4 or array.shape[-1] != design.head_dim:
            raise ValueError(
                f"codes.{name} has shape {array.shape}: (batch, heads, rows, {design.head_dim}) is allowed"
            )
        if array.size and (array.min() < -limit or array.max() > limit):
            raise ValueError(
                f"codes.{name} reach {array.min()} to {array.max()}: {-limit} to {limit} is allowed "
                f"with {name}_bits = {bits}"
            )
    want = (*codes.q.shape[:3], design.blocks)
    if codes.exponents.shape != want:
        raise ValueError(f"codes.exponents has shape {codes.exponents.shape}: {want} is allowed")


def _check_lengths(
    lengths: NDArray[np.int64] | None, mask: NDArray[np.bool_] | None, batch: int, rows: int, keys: int
) -> NDArray[np.int64]:
    if lengths is None:
        causal = np.clip(np.arange(keys - rows + 1, keys + 1), 0, keys)
        lengths = np.broadcast_to(causal, (batch, rows))
    lengths = np.ascontiguousarray(lengths, dtype=np.int64)
    if lengths.shape != (batch, rows):
        raise ValueError(f"lengths has shape {lengths.shape}: {(batch, rows)} is allowed")
    if lengths.size and (lengths.min() < 0 or lengths.max() > keys):
        raise ValueError(f"lengths reach {lengths.min()} to {lengths.max()}: 0 to {keys} keys are allowed")
    if mask is not None and (mask.shape != (batch, rows, keys) or mask.dtype != np.bool_):
        raise ValueError(f"mask is {mask.dtype} {mask.shape}: bool {(batch, rows, keys)} is allowed")
    return lengths


def _check_draw(draw: Draw, batch: int, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sequence = np.asarray(draw.sequence, dtype=np.int64)
    position = np.asarray(draw.position, dtype=np.int64)
    for name, array, shape in (("sequence", sequence, (batch,)), ("position", position, (batch, rows))):
        if array.shape != shape:
            raise ValueError(f"draw.{name} has shape {array.shape}: {shape} is allowed")
    return sequence[:, None, None], position[:, None, :]


def offset_words(
    design: Design, draw: Draw, sequence: NDArray[Any], position: NDArray[Any], heads: int
) -> NDArray[np.uint32]:
    """The sampler's words, uint32 (B, H, T, words a step)."""
    stream = (draw.layer * heads + np.arange(heads))[None, :, None]
    return words(
        design.rng,
        seed=draw.seed,
        sequence=sequence,
        position=position,
        purpose=Purpose.OFFSET,
        stream=stream,
        count=design.offset_words,
        bits=design.rng_bits,
    )


def ternary_words(
    design: Design, draw: Draw, sequence: NDArray[Any], position: NDArray[Any], heads: int, kv_heads: int
) -> NDArray[np.uint32]:
    """The ternary query's words, uint32 (B, H, T, d) or (B, H, T, d, B); a shared draw is its group's first head's."""
    first = np.arange(heads)
    if design.ternary_offset == "shared":
        first -= first % (heads // kv_heads)
    drawn = words(
        design.rng,
        seed=draw.seed,
        sequence=sequence,
        position=position,
        purpose=Purpose.TERNARY,
        stream=(draw.layer * heads + first)[None, :, None],
        count=design.ternary_words,
        bits=design.rng_bits,
    )
    if design.ternary_draw == "iid":
        return drawn.reshape(*drawn.shape[:3], design.head_dim, design.ternary_samples)
    return drawn


def _blocks(run: _Run) -> list[tuple[int, int, slice]]:
    """(sequence, KV head, block of positions) of all tasks, longest first so that threads end together."""
    item = np.dtype(score_stage.tile_dtypes(run.design)[0]).itemsize
    blocks = []
    for b in range(run.batch):
        rows, longest = run.lengths.shape[1], int(run.lengths[b].max(initial=0))
        step = min(max(1, _TILE_BYTES // max(1, run.group * longest * item)), _TILE_ROWS)
        parts = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
        blocks += [(b, kv, part) for part in reversed(parts) for kv in range(run.kv_heads)]
    return blocks


def _decode_block(run: _Run, b: int, kv: int, part: slice) -> None:
    """All stages for a block of query positions of one KV head and its group of query heads."""
    design = run.design
    seen = int(run.lengths[b, part].max(initial=0))
    if seen == 0:
        return
    heads = slice(kv * run.group, (kv + 1) * run.group)
    _, score_dtype = score_stage.tile_dtypes(design)
    shift = run.shift[b, heads, part].reshape(-1, design.blocks)
    lengths = run.lengths[b, part]
    saturated = np.zeros(shift.shape[0], dtype=np.int64)
    products = score_stage.score_tile(
        design,
        run.factors[b, heads, part].reshape(-1, design.head_dim),
        run.codes.k[b, kv, :seen],
        shift,
        np.tile(lengths, run.group),
        saturated,
    )
    low, high = design.score_limits
    _decode_tile(
        products,
        np.full(shift.shape[0], design.block_guard, dtype=np.int32) if design.blocks > 1 else shift[:, 0],
        lengths,
        run.mask[b, part] if run.mask is not None else np.zeros((0, 0), dtype=np.bool_),
        run.codes.v[b, kv],
        design.table.astype(score_dtype),
        exp2_table(design.score_frac, REFERENCE_BITS, design.exp),
        run.words[b, heads, part],
        _METHODS[design.method],
        _SAMPLERS[design.sampler],
        design.samples,
        design.sigma,
        design.score_frac,
        design.W,
        design.weight_rounding == "half_up",
        design.rng_bits,
        design.gather == "shift_add",
        low,
        high,
        run.accumulators[b, heads, part],
        run.mass[b, heads, part],
        run.offset[b, heads, part],
        run.stats[b, heads, part],
        run.lost[b, heads, part],
        run.group_stats[b, kv, part],
        *(run.kept[name][b, heads, part] for name in _PER_KEY),
    )
    run.stats[b, heads, part, 3] += saturated.reshape(run.group, -1)


@compiled(nogil=True)
def _decode_tile(  # type: ignore[no-untyped-def]
    products,
    shift,
    lengths,
    mask,
    values,
    table,
    reference,
    drawn_words,
    method,
    sampler,
    samples,
    sigma,
    frac,
    weight_bits,
    half_up,
    rng_bits,
    shift_add,
    low,
    high,
    accumulators,
    mass,
    offset,
    stats,
    lost,
    group_stats,
    kept_scores,
    kept_weights,
    kept_counts,
):
    """All stages after the dot products for a tile of (group, positions) rows; one position a thread at a time."""
    group, rows = accumulators.shape[:2]
    masked = mask.shape[0] > 0
    for t in range(rows):
        n_keys = lengths[t]
        visible_mask = mask[t, :n_keys] if masked else np.zeros(0, dtype=np.bool_)
        # Rows of their own, not written over the products: compilers vectorise only what cannot overlap.
        scores = np.empty(n_keys, dtype=table.dtype)
        weights = np.empty(n_keys, dtype=table.dtype)
        capacity = min(n_keys, samples) if method < 2 else n_keys
        keys = np.empty(capacity, dtype=np.int64)
        factors = np.empty(capacity, dtype=np.int64)
        read = np.zeros(n_keys, dtype=np.uint8)
        sums = np.empty(accumulators.shape[2], dtype=np.int64)
        for g in range(group):
            row = g * rows + t
            stats[g, t, 3] = row_scores(products[row, :n_keys], scores, shift[row], low, high)
            visible, top = row_maximum(scores, visible_mask, masked)
            stats[g, t, 0] = visible
            if kept_scores.shape[2] > 0:
                kept_scores[g, t, :n_keys] = scores
            if visible == 0:
                continue
            z = row_weights(scores, top, table, frac, weight_bits, half_up, visible_mask, masked, weights)
            lost[g, t] = row_lost_mass(scores, weights, top, reference, frac, weight_bits, visible_mask, masked)
            if kept_weights.shape[2] > 0:
                kept_weights[g, t, :n_keys] = weights
            terms = 0
            if method == 0:
                drawn = draw_keys(sampler, weights, z, drawn_words[g, t], rng_bits, sigma, offset[g, t], keys, factors)
                for j in range(drawn):
                    terms += set_bits(factors[j]) if shift_add else factors[j]
                    if kept_counts.shape[2] > 0:
                        kept_counts[g, t, keys[j]] = factors[j]
            elif method == 1:
                drawn = select_top_k(scores, visible_mask, masked, samples, keys)
                z = np.int64(0)
                for j in range(drawn):
                    factors[j] = weights[keys[j]]
                    z += factors[j]
                terms = drawn
            else:
                drawn = 0
                for n in range(n_keys):
                    if not masked or visible_mask[n]:
                        keys[drawn] = n
                        factors[drawn] = weights[n]
                        drawn += 1
                terms = drawn
            gather_add(values, keys, factors, drawn, sums)
            accumulators[g, t] = sums
            for j in range(drawn):
                read[keys[j]] = 1
            mass[g, t] = z
            stats[g, t, 1] = drawn
            stats[g, t, 2] = terms
        union = 0
        for n in range(n_keys):
            union += read[n]
        group_stats[t, 0] = stats[0, t, 0]
        group_stats[t, 1] = union


def _finish(run: _Run) -> Result:
    """Output codes, floats, tally and trace."""
    design, codes = run.design, run.codes
    guard = design.sigma if design.method == "santa" else design.guard
    frac = design.v_bits - 1 - codes.v_exponents + guard
    output_codes = run.accumulators if design.method == "santa" and design.out_bits is None else run.accumulators.copy()
    saturated = np.zeros(run.mass.shape, dtype=np.int64)
    if output_codes is not run.accumulators:
        lane_frac = np.repeat(frac, run.group, axis=0)
        _normalise(
            output_codes,
            run.mass,
            lane_frac,
            design.method != "santa",
            design.guard,
            design.out_bits or 0,
            design.out_frac or 0,
            saturated,
        )
    if design.out_bits is not None:
        frac = np.full_like(frac, design.out_frac)
    output: NDArray[np.float64] = (
        output_codes.astype(np.float64) * np.ldexp(1.0, -np.repeat(frac, run.group, axis=0))[None, :, None, :]
    )
    available = {
        "q_codes": codes.q,
        "k_codes": codes.k,
        "v_codes": codes.v,
        "exponents": codes.exponents,
        "shift": run.shift,
        "ternary_counts": run.factors,
        "mass": run.mass,
        "offset": run.offset,
        "accumulators": run.accumulators,
        "output_codes": output_codes,
        **{name: array for name, array in run.kept.items() if name in run.keep},
    }
    trace = {name: available[name] for name in INTERMEDIATES if name in run.keep}
    return Result(output, frac, run.stats[:, 0, :, 0] == 0, _tally(run, int(saturated.sum())), trace)


@compiled
def _normalise(codes, mass, frac, divides, guard, out_bits, out_frac, saturated):  # type: ignore[no-untyped-def]
    batch, heads, rows, _ = codes.shape
    for b in range(batch):
        for h in range(heads):
            for t in range(rows):
                if mass[b, h, t] == 0:
                    continue
                if divides:
                    divide_row(codes[b, h, t], mass[b, h, t], guard)
                if out_bits > 0:
                    row = codes[b, h, t]
                    saturated[b, h, t] = requantise_row(row, frac[h], out_bits, out_frac, row)


def _tally(run: _Run, output_saturations: int) -> Tally:
    batch, heads, rows, dim = run.factors.shape
    visible = run.stats[..., 0]
    used = np.abs(run.factors) if run.design.scores == "ternary" else np.ones(1, dtype=np.int64)
    terms = used.sum(axis=-1, dtype=np.int64) if run.design.scores == "ternary" else dim
    grouped = run.factors.reshape(batch, run.kv_heads, run.group, rows, dim)
    features = (grouped != 0).any(axis=2).sum(axis=-1) if run.design.scores == "ternary" else dim
    streamed = run.group_stats[..., 0]
    return Tally(
        head_steps=batch * heads * rows,
        group_steps=batch * run.kv_heads * rows,
        empty_steps=int((visible == 0).sum()),
        visible_keys=int(visible.sum()),
        group_keys=int(streamed.sum()),
        feature_reads=int((streamed * features).sum()),
        key_features=int(streamed.sum()) * dim,
        score_terms=int((visible * terms).sum()),
        unique_rows=int(run.stats[..., 1].sum()),
        group_rows=int(run.group_stats[..., 1].sum()),
        value_terms=int(run.stats[..., 2].sum()),
        saturated_q=run.codes.saturations["q"],
        saturated_k=run.codes.saturations["k"],
        saturated_v=run.codes.saturations["v"],
        saturated_score=int(run.stats[..., 3].sum()),
        saturated_output=output_saturations,
        lost_mass=float(run.lost.sum()),
    )
