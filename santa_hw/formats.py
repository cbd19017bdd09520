"""Fixed-point formats: rounding, saturation and shared exponents, exact at every width.

A *code* ``x`` in a format with ``frac`` fraction bits stands for ``x * 2**-frac``. Every function here either
returns the mathematically exact result or raises; no step depends on floating-point rounding or on what the
machine does with an over-long shift. Codes of up to 63 bits are int64 arrays, handled by compiled loops;
wider ones are object arrays of Python integers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from santa_hw.rounding_loops import (
    ERROR,
    MAGIC_BITS,
    OVERFLOWS,
    ROUNDINGS,
    Overflow,
    Rounding,
    half_even_block,
    half_even_blocks,
    quantise_loop,
    shift_half_up,
    shift_loop,
    shift_saturate,
    smallest_exponent,
)

__all__ = [
    "Format",
    "Overflow",
    "Quantised",
    "Rounding",
    "dequantise",
    "exponent",
    "quantise",
    "requantise",
    "shift_half_up",
    "shift_round",
    "shift_saturate",
    "smallest_exponent",
]

_WORD_BITS = 32  # a stochastic rounding word is a uint32
_NARROW_BITS = 63  # the widest code that is stored as int64
_PARALLEL = 1 << 20  # smaller arrays are not worth waking threads for (milliseconds on a busy machine)
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Format:
    """A fixed-point format.

    Parameters
    ----------
    bits : int
        Width of a code, sign included, 1 or more.
    frac : int
        Fraction bits: the code ``x`` stands for ``x * 2**-frac``. May be negative or exceed `bits`.
    signed : bool
        Two's complement if true, else unsigned.
    symmetric : bool
        Leave out the most negative two's complement code, so that every code has its negative.

    Examples
    --------
    >>> Format(8, 4).min_code, Format(8, 4, symmetric=True).min_code, Format(8, 4).max_code
    (-128, -127, 127)
    """

    bits: int
    frac: int
    signed: bool = True
    symmetric: bool = False

    def __post_init__(self) -> None:
        least = 2 if self.symmetric else 1
        if not isinstance(self.bits, (int, np.integer)) or self.bits < least:
            raise ValueError(f"bits must be an integer of at least {least}, got {self.bits!r}")
        if not isinstance(self.frac, (int, np.integer)):
            raise ValueError(f"frac must be an integer, got {self.frac!r}")
        if self.symmetric and not self.signed:
            raise ValueError("symmetric must be False when signed is False, got True")
        object.__setattr__(self, "bits", int(self.bits))
        object.__setattr__(self, "frac", int(self.frac))

    @property
    def min_code(self) -> int:
        """The smallest code."""
        if not self.signed:
            return 0
        return -(1 << (self.bits - 1)) + int(self.symmetric)

    @property
    def max_code(self) -> int:
        """The largest code."""
        return (1 << (self.bits - 1 if self.signed else self.bits)) - 1


class Quantised(NamedTuple):
    """Codes and how many of them saturation changed.

    `codes` is an int64 array for formats of up to 63 bits, else an object array of Python integers.
    """

    codes: npt.NDArray[Any]
    saturations: int


# ------------------------------------------------------------------------------------------------------------
# Exact Python integers, for codes beyond 63 bits


def _round_integer(x: int, shift: int, rounding: str, word: int) -> int:
    """``x / 2**shift`` rounded, for integers of any size."""
    if shift <= 0:
        return x << -shift
    half = 1 << (shift - 1)
    if rounding == "floor":
        return x >> shift
    if rounding == "half_up":
        return (x + half) >> shift
    if rounding == "half_even":
        floor = x >> shift
        rest = x - (floor << shift)
        return floor + int(rest > half or (rest == half and floor & 1 == 1))
    if rounding == "toward_zero":
        return -(-x >> shift) if x < 0 else x >> shift
    return ((x << _WORD_BITS) + (word << shift)) >> (shift + _WORD_BITS)


def _float_code(value: float, frac: int, rounding: str, word: int) -> int:
    numerator, denominator = float(value).as_integer_ratio()
    return _round_integer(numerator, denominator.bit_length() - 1 - frac, rounding, word)


def _wrap_integer(code: int, fmt: Format) -> int:
    low = code & ((1 << fmt.bits) - 1)
    return low - (1 << fmt.bits) if fmt.signed and low >> (fmt.bits - 1) else low


def _exact_loop(
    round_one: Callable[[Any, int], int],
    items: list[Any],
    fmt: Format,
    overflow: str,
    words: list[int] | None,
) -> tuple[list[int], int, int]:
    """Codes, saturations, and the index of the first code out of range under ``error`` (or -1)."""
    codes: list[int] = []
    saturations = 0
    lo, hi = fmt.min_code, fmt.max_code
    for i, item in enumerate(items):
        code = round_one(item, words[i] if words is not None else 0)
        if not lo <= code <= hi:
            if overflow == "error":
                return codes, saturations, i
            if overflow == "wrap":
                code = _wrap_integer(code, fmt)
            else:
                code = min(max(code, lo), hi)
                saturations += 1
        codes.append(code)
    return codes, saturations, -1


def _pack(codes: list[int], bits: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    if bits <= _NARROW_BITS:
        return np.array(codes, dtype=np.int64).reshape(shape)
    packed = np.empty(len(codes), dtype=object)
    packed[:] = codes
    return packed.reshape(shape)


# ------------------------------------------------------------------------------------------------------------
# Arguments


def _check_modes(fmt: Format | None, rounding: str, overflow: str, words: object) -> None:
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {rounding!r}")
    if overflow not in OVERFLOWS:
        raise ValueError(f"overflow must be one of {', '.join(OVERFLOWS)}, got {overflow!r}")
    if fmt is not None and fmt.symmetric and overflow == "wrap":
        raise ValueError("overflow must be saturate or error for a symmetric format, got 'wrap'")
    if (words is not None) != (rounding == "stochastic"):
        got = "None" if words is None else f"words with rounding {rounding!r}"
        raise ValueError(f"words must be given for stochastic rounding and for no other, got {got}")


def _flat_words(words: npt.ArrayLike | None, shape: tuple[int, ...]) -> npt.NDArray[np.uint32] | None:
    if words is None:
        return None
    given = np.asarray(words)
    if given.dtype.kind not in "iu":
        raise ValueError(f"words must be integers in [0, 2**32), got dtype {given.dtype}")
    if given.dtype != np.uint32:
        outside = (given < 0) | (given > np.uint32(0xFFFFFFFF))
        if outside.any():
            raise ValueError(f"words must be integers in [0, 2**32), got {given[outside].flat[0]}")
    try:
        spread = np.broadcast_to(given.astype(np.uint32, copy=False), shape)
    except ValueError:
        raise ValueError(f"words must broadcast to the shape {shape}, got shape {given.shape}") from None
    return np.array(spread).reshape(-1)


def _integers(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """An int64 array if every value fits, else an object array of Python integers."""
    array = np.asarray(values)
    if array.dtype.kind in "bi" or (array.dtype.kind == "u" and array.dtype.itemsize < 8):
        return array.astype(np.int64, copy=False)
    if array.dtype.kind == "u":
        return array.astype(np.int64 if not array.size or array.max() <= _INT64_MAX else object)
    if array.dtype.kind == "O":
        try:
            items = [operator.index(item) for item in array.reshape(-1)]
        except TypeError:
            raise ValueError(f"{name} must be integers, got an object array with other items") from None
        narrow = all(_INT64_MIN <= item <= _INT64_MAX for item in items)
        return _pack(items, 1 if narrow else 64, array.shape)
    if array.size == 0:
        return array.astype(np.int64)
    raise ValueError(f"{name} must be integers, got dtype {array.dtype}")


def _out_of_range(name: str, value: object, fmt: Format, frac: int) -> ValueError:
    return ValueError(
        f"{name} must round to codes in [{fmt.min_code}, {fmt.max_code}] at {frac} fraction bits "
        f"({fmt.bits} bits), got {value}"
    )


def _not_finite(name: str, values: npt.NDArray[Any]) -> ValueError:
    first = values[~np.isfinite(values)][0]
    return ValueError(f"{name} must be finite, got {first}")


# ------------------------------------------------------------------------------------------------------------
# Public functions on arrays


def quantise(
    x: npt.ArrayLike,
    fmt: Format,
    *,
    rounding: Rounding = "half_even",
    overflow: Overflow = "saturate",
    words: npt.ArrayLike | None = None,
) -> Quantised:
    """Real values to codes: ``round(x * 2**frac)``, exact at any width.

    Parameters
    ----------
    x : array of float64, any shape
        Narrower floats are upcast, integers are taken as they are.
    fmt : Format
        The target format.
    rounding : {"floor", "half_up", "half_even", "toward_zero", "stochastic"}
        ``half_up`` adds half and takes the floor, ``stochastic`` adds ``word / 2**32`` and takes the floor.
    overflow : {"saturate", "wrap", "error"}
        Clamp to the range, keep the low bits (two's complement), or raise.
    words : array of uint32, broadcastable to `x`
        One uniform word an element; for stochastic rounding only.

    Returns
    -------
    Quantised
        Codes of the shape of `x`, and how many of them saturation changed (0 under "wrap" and "error").

    Raises
    ------
    ValueError
        NaN or infinity in `x`; a value out of range with overflow "error"; wrong modes or words.

    Examples
    --------
    >>> quantise([0.3, -0.5, 9.0], Format(4, 2))
    Quantised(codes=array([ 1, -2,  7]), saturations=1)
    """
    _check_modes(fmt, rounding, overflow, words)
    values = np.asarray(x)
    if values.dtype.kind in "biuO":
        return requantise(values, 0, fmt, rounding=rounding, overflow=overflow, words=words)
    if values.dtype.kind != "f" or values.dtype.itemsize > 8:
        raise ValueError(f"x must be real values of at most 64 bits, got dtype {values.dtype}")
    if values.dtype != np.float32:
        values = values.astype(np.float64, copy=False)
    shape = values.shape
    flat = np.ascontiguousarray(values).reshape(-1)
    spread = _flat_words(words, shape)
    if fmt.bits > _NARROW_BITS or not -1022 <= fmt.frac <= 1023:  # 2.0**frac must be a normal float64
        return _quantise_exactly(flat, fmt, rounding, overflow, spread, shape)
    codes = np.empty(flat.size, dtype=np.int64)
    scale = 2.0**fmt.frac
    if rounding == "half_even" and overflow == "saturate" and fmt.bits < MAGIC_BITS:
        run = half_even_block if flat.size < _PARALLEL else half_even_blocks
        saturations, broken = run(flat, scale, float(fmt.min_code), float(fmt.max_code), codes)
        if broken:
            raise _not_finite("x", flat)
        return Quantised(codes.reshape(shape), int(saturations))
    saturations, stopped = quantise_loop(
        flat,
        scale,
        ROUNDINGS.index(rounding),
        OVERFLOWS.index(overflow),
        fmt.bits,
        fmt.signed,
        fmt.min_code,
        fmt.max_code,
        spread if spread is not None else _NO_WORDS,
        codes,
    )
    if stopped < 0:
        return Quantised(codes.reshape(shape), int(saturations))
    if not np.isfinite(flat[stopped]):
        raise _not_finite("x", flat)
    if overflow == "error":
        raise _out_of_range("x", flat[stopped], fmt, fmt.frac)
    # A wrapped code beyond the 64-bit word.
    return _quantise_exactly(flat, fmt, rounding, overflow, spread, shape)


_NO_WORDS = np.zeros(0, dtype=np.uint32)


def _quantise_exactly(
    flat: npt.NDArray[Any],
    fmt: Format,
    rounding: str,
    overflow: str,
    words: npt.NDArray[np.uint32] | None,
    shape: tuple[int, ...],
) -> Quantised:
    if not np.isfinite(flat).all():
        raise _not_finite("x", flat)
    codes, saturations, stopped = _exact_loop(
        lambda value, word: _float_code(value, fmt.frac, rounding, word),
        flat.tolist(),
        fmt,
        overflow,
        None if words is None else words.tolist(),
    )
    if stopped >= 0:
        raise _out_of_range("x", flat[stopped], fmt, fmt.frac)
    return Quantised(_pack(codes, fmt.bits, shape), saturations)


def requantise(
    codes: npt.ArrayLike,
    frac: int,
    fmt: Format,
    *,
    rounding: Rounding = "half_up",
    overflow: Overflow = "saturate",
    words: npt.ArrayLike | None = None,
) -> Quantised:
    """Codes with `frac` fraction bits to codes of `fmt`, integer to integer, exact at any width.

    Parameters
    ----------
    codes : array of integers, any shape
        int64, or an object array of Python integers.
    frac : int
        Fraction bits of `codes`.
    fmt, rounding, overflow, words
        As in `quantise`.

    Returns
    -------
    Quantised

    Raises
    ------
    ValueError
        A code out of range with overflow "error"; codes that are not integers; wrong modes or words.

    Examples
    --------
    >>> requantise([-5, 5, 7], 1, Format(3, 0)).codes
    array([-2,  3,  3])
    """
    _check_modes(fmt, rounding, overflow, words)
    source = _integers("codes", codes)
    shift = operator.index(frac) - fmt.frac
    flat = np.ascontiguousarray(source).reshape(-1)
    spread = _flat_words(words, source.shape)
    if source.dtype == np.int64 and fmt.bits <= _NARROW_BITS:
        out = np.empty(flat.size, dtype=np.int64)
        saturations, stopped = shift_loop(
            flat,
            min(max(shift, -(2**31)), 2**31),  # further shifts change nothing more
            ROUNDINGS.index(rounding),
            OVERFLOWS.index(overflow),
            fmt.bits,
            fmt.signed,
            fmt.min_code,
            fmt.max_code,
            spread if spread is not None else _NO_WORDS,
            out,
        )
        if stopped >= 0:
            raise _out_of_range("codes", flat[stopped], fmt, fmt.frac)
        return Quantised(out.reshape(source.shape), int(saturations))
    exact, saturations, stopped = _exact_loop(
        lambda code, word: _round_integer(code, shift, rounding, word),
        flat.tolist(),
        fmt,
        overflow,
        None if spread is None else spread.tolist(),
    )
    if stopped >= 0:
        raise _out_of_range("codes", flat[stopped], fmt, fmt.frac)
    return Quantised(_pack(exact, fmt.bits, source.shape), saturations)


def dequantise(codes: npt.ArrayLike, frac: int | npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The values of codes: ``codes * 2**-frac``, correctly rounded to float64.

    Parameters
    ----------
    codes : array of integers, any shape
    frac : int, or array of integers that broadcasts with `codes`

    Returns
    -------
    array of float64

    Raises
    ------
    ValueError
        A value beyond the largest float64.

    Examples
    --------
    >>> dequantise([-3, 5], 1)
    array([-1.5,  2.5])
    """
    source = _integers("codes", codes)
    places = _integers("frac", frac)
    if source.dtype == np.int64 and not (np.abs(source) > 2**53).any():
        # Exact as float64, so the only rounding is that of a subnormal result.
        with np.errstate(over="ignore", under="ignore"):
            values = np.ldexp(source.astype(np.float64), -np.clip(places, -5000, 5000).astype(np.int32))
    else:
        values = np.asarray(np.frompyfunc(_value, 2, 1)(source.astype(object), places), dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"frac must keep codes * 2**-frac within float64, got {frac!r}")
    return np.asarray(values, dtype=np.float64)


def _value(code: int, frac: int) -> float:
    try:  # the quotient of Python integers is correctly rounded
        return code / (1 << frac) if frac >= 0 else float(code << -frac)
    except OverflowError:
        return float("inf")


def shift_round(
    x: npt.ArrayLike, shift: int, rounding: Rounding, words: npt.ArrayLike | None = None
) -> npt.NDArray[np.int64]:
    """``x / 2**shift`` rounded to integers; a negative shift goes left.

    Parameters
    ----------
    x : array of int64, any shape
    shift : int
        Any size, never left to the machine's instruction: past the word ``floor`` gives 0 or -1, and every
        other mode what the exact quotient rounds to.
    rounding, words
        As in `quantise`.

    Returns
    -------
    array of int64, the shape of `x`

    Raises
    ------
    ValueError
        A left shift whose result needs more than 64 bits.

    Examples
    --------
    >>> shift_round(np.array([-6, -5, 5, 6]), 2, "half_up")
    array([-1, -1,  1,  2])
    """
    _check_modes(None, rounding, "error", words)
    source = _integers("x", x)
    if source.dtype != np.int64:
        raise ValueError(f"x must fit 64-bit integers, got {source.flat[0]}")
    flat = np.ascontiguousarray(source).reshape(-1)
    spread = _flat_words(words, source.shape)
    out = np.empty(flat.size, dtype=np.int64)
    _, stopped = shift_loop(
        flat,
        min(max(operator.index(shift), -(2**31)), 2**31),
        ROUNDINGS.index(rounding),
        ERROR,
        _NARROW_BITS,
        True,
        _INT64_MIN,
        _INT64_MAX,
        spread if spread is not None else _NO_WORDS,
        out,
    )
    if stopped >= 0:
        raise ValueError(f"x << {-shift} must fit 64 bits, got x = {flat[stopped]}")
    return out.reshape(source.shape)


def exponent(maximum: npt.ArrayLike, bits: int, e_min: int, e_max: int) -> npt.NDArray[np.int64]:
    """The shared exponent of a set of values, from its largest magnitude.

    The smallest ``e`` in ``[e_min, e_max]`` with
    ``round_half_even(maximum * 2**(bits-1-e)) <= 2**(bits-1) - 1``. Where no ``e`` in range is large enough,
    it is `e_max` and codes will saturate; zero takes `e_min`.

    Parameters
    ----------
    maximum : array of float64, any shape
        Largest magnitudes, not negative.
    bits : int
        Width of the codes, sign included, 2 or more.
    e_min, e_max : int

    Returns
    -------
    array of int64, the shape of `maximum`

    Examples
    --------
    >>> exponent([0.0, 0.99, 1.0, 127 / 128], 8, -32, 31)
    array([-32,   0,   1,   0])
    """
    if bits < 2:
        raise ValueError(f"bits must be at least 2, got {bits}")
    if e_min > e_max:
        raise ValueError(f"e_min must be at most e_max = {e_max}, got {e_min}")
    values = np.asarray(maximum, dtype=np.float64)
    allowed = np.isfinite(values) & (values >= 0)
    if not allowed.all():
        raise ValueError(f"maximum must be finite and not negative, got {values[~allowed].flat[0]}")
    exponents = [smallest_exponent(top, bits, e_min, e_max) for top in values.ravel()]
    return np.array(exponents, dtype=np.int64).reshape(values.shape)
