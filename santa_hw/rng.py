"""The counter-based generator: which random word every draw uses.

Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011; Random123): additions, rotations and exclusive-ors only, so it is cheap in hardware, and a word
depends on nothing but its key and counter::

    key     = (seed, sequence)
    counter = (position, purpose (2 bits) | stream (14 bits) | j >> 1 (16 bits)),  word j = output[j & 1]

The cheap alternative is a 32-bit Galois LFSR, one for each (seed, sequence, stream, purpose), seeded from
Threefry, so that the effect of poor randomness can be measured.
"""

from __future__ import annotations

import functools
import operator
from enum import IntEnum
from typing import Literal

import numba
import numpy as np
import numpy.typing as npt

from santa_hw.compiled import compiled

__all__ = ["LFSR_MASK", "Purpose", "lfsr_jump", "lfsr_step", "threefry2x32", "words"]

LFSR_MASK = 0xA3000000
THREEFRY_ROUNDS = 20
LFSR_PERIOD = 2**32 - 1
LFSR_STEPS = 32  # single-bit steps a word
STREAM_BITS = 14
COUNT_BITS = 17  # 16 bits of counter, two words each

_PARITY = 0x1BD11BDA
_LONG_ROW = 16
_BLOCK = 1 << 13  # words one thread takes at a time
_PARALLEL = 1 << 20  # fewer words are not worth waking threads for (milliseconds on a busy machine)


class Purpose(IntEnum):
    """What a word is for; two bits of the counter."""

    OFFSET = 0
    TERNARY = 1
    ROUNDING = 2
    LFSR = 3


@compiled(nogil=True)
def _rotate(x, places):  # type: ignore[no-untyped-def]
    return np.uint32((x << np.uint32(places)) | (x >> np.uint32(32 - places)))


@compiled(nogil=True)
def threefry2x32(k0: int, k1: int, c0: int, c1: int) -> tuple[np.uint32, np.uint32]:
    """Threefry-2x32-20: the two words of key (k0, k1) and counter (c0, c1), of each the low 32 bits.

    Examples
    --------
    >>> [hex(x) for x in threefry2x32(0, 0, 0, 0)]
    ['0x6b200159', '0x99ba4efe']
    """
    ks0 = np.uint32(k0)
    ks1 = np.uint32(k1)
    ks2 = np.uint32(np.uint32(_PARITY) ^ ks0 ^ ks1)
    x0 = np.uint32(np.uint32(c0) + ks0)
    x1 = np.uint32(np.uint32(c1) + ks1)
    # Five groups of four rounds, each followed by a key injection with its number added.
    x0, x1 = _even_rounds(x0, x1)
    x0, x1 = np.uint32(x0 + ks1), np.uint32(x1 + ks2 + np.uint32(1))
    x0, x1 = _odd_rounds(x0, x1)
    x0, x1 = np.uint32(x0 + ks2), np.uint32(x1 + ks0 + np.uint32(2))
    x0, x1 = _even_rounds(x0, x1)
    x0, x1 = np.uint32(x0 + ks0), np.uint32(x1 + ks1 + np.uint32(3))
    x0, x1 = _odd_rounds(x0, x1)
    x0, x1 = np.uint32(x0 + ks1), np.uint32(x1 + ks2 + np.uint32(4))
    x0, x1 = _even_rounds(x0, x1)
    return np.uint32(x0 + ks2), np.uint32(x1 + ks0 + np.uint32(5))


@compiled(nogil=True)
def _even_rounds(x0, x1):  # type: ignore[no-untyped-def]
    x0 = np.uint32(x0 + x1)
    x1 = _rotate(x1, 13) ^ x0
    x0 = np.uint32(x0 + x1)
    x1 = _rotate(x1, 15) ^ x0
    x0 = np.uint32(x0 + x1)
    x1 = _rotate(x1, 26) ^ x0
    x0 = np.uint32(x0 + x1)
    x1 = _rotate(x1, 6) ^ x0
    return x0, x1


@compiled(nogil=True)
def _odd_rounds(x0, x1):  # type: ignore[no-untyped-def]
    x0 = np.uint32(x0 + x1)
    x1 = _rotate(x1, 17) ^ x0
    x0 = np.uint32(x0 + x1)
    x1 = _rotate(x1, 29) ^ x0
    x0 = np.uint32(x0 + x1)
    x1 = _rotate(x1, 16) ^ x0
    x0 = np.uint32(x0 + x1)
    x1 = _rotate(x1, 24) ^ x0
    return x0, x1


@compiled(nogil=True)
def lfsr_step(state: int) -> np.uint32:
    """One step of the right-shifting Galois LFSR.

    Examples
    --------
    >>> hex(lfsr_step(1))
    '0xa3000000'
    """
    s = np.uint32(state)
    return np.uint32((s >> np.uint32(1)) ^ (np.uint32(LFSR_MASK) * (s & np.uint32(1))))


@compiled(nogil=True)
def _apply(table, state):  # type: ignore[no-untyped-def]
    """A GF(2) matrix times a state; row b of the (4, 256) table holds the products of byte b's values."""
    mask = np.uint32(255)
    return (
        table[0, state & mask]
        ^ table[1, (state >> np.uint32(8)) & mask]
        ^ table[2, (state >> np.uint32(16)) & mask]
        ^ table[3, state >> np.uint32(24)]
    )


@compiled(nogil=True)
def _make_tables():  # type: ignore[no-untyped-def]
    tables = np.zeros((32, 4, 256), dtype=np.uint32)
    for k in range(32):
        for byte in range(4):
            for bit in range(8):
                image = np.uint32(1) << np.uint32(8 * byte + bit)
                if k == 0:
                    image = lfsr_step(image)
                else:  # twice as many steps as the table before
                    image = _apply(tables[k - 1], _apply(tables[k - 1], image))
                for value in range(1 << bit):  # linear: the new bit on top of every smaller value
                    tables[k, byte, (1 << bit) + value] = image ^ tables[k, byte, value]
    return tables


@functools.cache
def _tables() -> npt.NDArray[np.uint32]:
    """Tables of ``2**k`` steps for k = 0 .. 31; the map has order ``2**32 - 1``, so no more are needed."""
    made: npt.NDArray[np.uint32] = _make_tables()
    made.flags.writeable = False
    return made


@compiled(nogil=True)
def _jump(tables, state, steps):  # type: ignore[no-untyped-def]
    k = 0
    while steps > 0:
        if steps & 1:
            state = _apply(tables[k], state)
        steps >>= 1
        k += 1
    return state


def lfsr_jump(state: int, steps: int) -> int:
    """The LFSR state after `steps` >= 0 single-bit steps, by powers of the GF(2) matrix of a step.

    Examples
    --------
    >>> lfsr_jump(1, 2) == lfsr_step(lfsr_step(1))
    True
    """
    if not 0 <= state < 2**32:
        raise ValueError(f"state must be in [0, 2**32), got {state}")
    if steps < 0:
        raise ValueError(f"steps must be 0 or more, got {steps}")
    return int(_jump(_tables(), np.uint32(state), int(steps) % LFSR_PERIOD))


# ------------------------------------------------------------------------------------------------------------
# Rows of words: one row a draw


@compiled(nogil=True)
def _threefry_rows(seed, sequence, position, high, drop, out):  # type: ignore[no-untyped-def]
    """Row r of `out`: words of key (seed, sequence[r]) and counters (position[r], high[r] | pair)."""
    rows, count = out.shape
    pairs = count >> 1
    if count >= _LONG_ROW:  # the inner loop is the one that the compiler vectorises: make it the long one
        for r in range(rows):
            k1, c0, c1 = sequence[r], position[r], high[r]
            for pair in range(pairs):
                x0, x1 = threefry2x32(seed, k1, c0, c1 | np.uint32(pair))
                out[r, 2 * pair] = x0 >> drop
                out[r, 2 * pair + 1] = x1 >> drop
    else:
        for pair in range(pairs):
            for r in range(rows):
                x0, x1 = threefry2x32(seed, sequence[r], position[r], high[r] | np.uint32(pair))
                out[r, 2 * pair] = x0 >> drop
                out[r, 2 * pair + 1] = x1 >> drop
    if count & 1:
        for r in range(rows):
            x0, _ = threefry2x32(seed, sequence[r], position[r], high[r] | np.uint32(pairs))
            out[r, count - 1] = x0 >> drop


@compiled(nogil=True, parallel=True)
def _threefry_blocks(seed, sequence, position, high, drop, out):  # type: ignore[no-untyped-def]
    rows, count = out.shape
    size = max(1, _BLOCK // count)
    for block in numba.prange((rows + size - 1) // size):
        a, b = block * size, min((block + 1) * size, rows)
        _threefry_rows(seed, sequence[a:b], position[a:b], high[a:b], drop, out[a:b])


@compiled(nogil=True)
def _lfsr_rows(tables, seed, sequence, position, purpose, seed_high, drop, out):  # type: ignore[no-untyped-def]
    """Row r of `out`: the words of the LFSR that Threefry seeds at counter (purpose, seed_high[r])."""
    rows, count = out.shape
    word = tables[5]  # 32 steps
    for r in range(rows):
        state, _ = threefry2x32(seed, sequence[r], purpose, seed_high[r])
        state = max(state, np.uint32(1))  # the all-zero state would never leave itself
        steps = (np.int64(LFSR_STEPS) * np.int64(position[r]) * np.int64(count)) % np.int64(LFSR_PERIOD)
        state = _jump(tables, state, steps)
        for j in range(count):
            state = _apply(word, state)
            out[r, j] = state >> drop


@compiled(nogil=True, parallel=True)
def _lfsr_blocks(tables, seed, sequence, position, purpose, seed_high, drop, out):  # type: ignore[no-untyped-def]
    rows, count = out.shape
    size = max(1, _BLOCK // count)
    for block in numba.prange((rows + size - 1) // size):
        a, b = block * size, min((block + 1) * size, rows)
        _lfsr_rows(tables, seed, sequence[a:b], position[a:b], purpose, seed_high[a:b], drop, out[a:b])


def _field(name: str, values: npt.ArrayLike, bits: int) -> npt.NDArray[np.uint32]:
    array = np.asarray(values)
    if array.dtype.kind not in "iuO" or (array.dtype.kind == "O" and not _all_integers(array)):
        raise ValueError(f"{name} must be integers in [0, 2**{bits}), got dtype {array.dtype}")
    if array.size and (array.min() < 0 or array.max() >= 2**bits):
        outside = (array < 0) | (array >= 2**bits)
        raise ValueError(f"{name} must be in [0, 2**{bits}), got {array[outside].flat[0]}")
    return array.astype(np.uint32, copy=False)


def _all_integers(array: npt.NDArray[np.object_]) -> bool:
    return all(isinstance(item, (int, np.integer)) for item in array.flat)


def words(
    kind: Literal["threefry", "lfsr"],
    *,
    seed: int,
    sequence: npt.ArrayLike,
    position: npt.ArrayLike,
    purpose: Purpose,
    stream: npt.ArrayLike,
    count: int,
    bits: int = 32,
) -> npt.NDArray[np.uint32]:
    """Random words of draws.

    Parameters
    ----------
    kind : {"threefry", "lfsr"}
        The generator.
    seed : int in [0, 2**32)
    sequence, position : integers in [0, 2**32), arrays that broadcast together with `stream`
        Which sequence, and the absolute position of the decode step in it.
    purpose : Purpose
        OFFSET, TERNARY or ROUNDING; LFSR is kept for the seeds of the LFSRs.
    stream : integers in [0, 2**14)
        ``layer * heads + head``.
    count : int in [0, 2**17]
        Words a draw.
    bits : int in [1, 32]
        Keep the top `bits` bits of every word.

    Returns
    -------
    array of uint32, the broadcast shape + (count,)

    Notes
    -----
    The LFSR of a (seed, sequence, stream, purpose) runs freely: a decode step takes `count` words of 32
    single-bit steps each, so word j at position p is the state after ``32 * (p * count + j + 1)`` steps.

    Examples
    --------
    >>> words("threefry", seed=0, sequence=0, position=0, purpose=Purpose.OFFSET, stream=0, count=2)
    array([1797259609, 2579123966], dtype=uint32)
    """
    if kind not in ("threefry", "lfsr"):
        raise ValueError(f"kind must be one of threefry, lfsr, got {kind!r}")
    if purpose not in (Purpose.OFFSET, Purpose.TERNARY, Purpose.ROUNDING):
        raise ValueError(f"purpose must be OFFSET, TERNARY or ROUNDING, got {purpose!r}")
    if not 0 <= operator.index(count) <= 2**COUNT_BITS:
        raise ValueError(f"count must be in [0, 2**{COUNT_BITS}], got {count}")
    if not 1 <= operator.index(bits) <= 32:
        raise ValueError(f"bits must be in [1, 32], got {bits}")
    key = _field("seed", seed, 32)
    if key.ndim:
        raise ValueError(f"seed must be one integer in [0, 2**32), got an array of shape {key.shape}")
    given = (
        _field("sequence", sequence, 32),
        _field("position", position, 32),
        _field("stream", stream, STREAM_BITS),
    )
    try:
        shape = np.broadcast_shapes(*(field.shape for field in given))
    except ValueError:
        shapes = ", ".join(str(field.shape) for field in given)
        raise ValueError(f"sequence, position and stream must broadcast together, got shapes {shapes}") from None
    # Copies, so that the compiled loops see one type of array, whatever was given.
    rows_sequence, rows_position, rows_stream = (np.array(np.broadcast_to(x, shape)).reshape(-1) for x in given)
    out = np.empty((rows_sequence.size, int(count)), dtype=np.uint32)
    high = rows_stream << np.uint32(16)
    drop = np.uint32(32 - bits)
    parallel = out.size >= _PARALLEL
    if kind == "threefry":
        high |= np.uint32(int(purpose) << 30)
        fill = _threefry_blocks if parallel else _threefry_rows
        fill(np.uint32(key), rows_sequence, rows_position, high, drop, out)
    else:
        high |= np.uint32(int(Purpose.LFSR) << 30)
        fill = _lfsr_blocks if parallel else _lfsr_rows
        fill(_tables(), np.uint32(key), rows_sequence, rows_position, np.uint32(purpose), high, drop, out)
    return out.reshape(*shape, int(count))
