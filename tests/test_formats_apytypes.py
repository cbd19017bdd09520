"""Fixed-point formats against apytypes, an implementation that shares no line with ours."""

from fractions import Fraction

import apytypes
import numpy as np
import pytest
from exact import TIES, signed

from santa_hw.formats import Format, quantise, requantise

MODES = {
    "floor": apytypes.QuantizationMode.TRN,
    "half_up": apytypes.QuantizationMode.RND,
    "half_even": apytypes.QuantizationMode.RND_CONV,
    "toward_zero": apytypes.QuantizationMode.TRN_ZERO,
}
WRAPS = {"saturate": apytypes.OverflowMode.SAT, "wrap": apytypes.OverflowMode.WRAP}
WIDTHS = [(12, 4, 8, 0), (16, 15, 8, 7), (40, 20, 20, 5), (63, 30, 16, 5), (63, 40, 63, 38), (64, 32, 64, 31)]
WIDTHS += [
    (64, 8, 66, 16),
    (90, 45, 40, 10),
    (130, 70, 70, 33),
    (200, 64, 128, 63),
    (12, 0, 8, 3),
    (100, 3, 140, 60),
]


def apytypes_codes(codes: list[int], bits: int, frac: int, fmt: Format, rounding: str, overflow: str) -> list[int]:
    # One bit more than the codes need: apytypes 0.5.1 wraps when it adds half to the largest 64-bit code.
    fixed = apytypes.APyFixedArray(codes, int_bits=bits + 1 - frac, frac_bits=frac)
    cast = fixed.cast(
        int_bits=fmt.bits - fmt.frac,
        frac_bits=fmt.frac,
        quantization=MODES[rounding],
        overflow=WRAPS[overflow],
    )
    return [signed(int(pattern), fmt.bits) for pattern in cast.to_bits()]


def random_codes(generator: np.random.Generator, bits: int, drop: int, count: int) -> list[int]:
    """Codes of every magnitude, and exact ties for a drop of so many bits."""
    codes = []
    for size in generator.integers(1, bits, count).tolist():
        codes.append(signed(int.from_bytes(generator.bytes(32), "little") & ((1 << size + 1) - 1), size + 1))
    ties = [(2 * n + 1) << (drop - 1) for n in range(-9, 9)] if drop > 0 else list(range(-9, 9))
    lo, hi = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return [*codes, lo, hi, lo + 1, hi - 1, *(tie for tie in ties if lo <= tie <= hi)]


@pytest.mark.parametrize("overflow", WRAPS)
@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("widths", WIDTHS, ids=lambda w: "{}.{}-to-{}.{}".format(*w))
def test_requantise_equals_apytypes(widths, rounding, overflow, generator):
    bits, frac, out_bits, out_frac = widths
    fmt = Format(out_bits, out_frac)
    codes = random_codes(generator, bits, frac - out_frac, 200)
    array = np.array(codes, dtype=np.int64 if bits <= 63 else object)
    ours = requantise(array, frac, fmt, rounding=rounding, overflow=overflow).codes.tolist()
    assert ours == apytypes_codes(codes, bits, frac, fmt, rounding, overflow)


@pytest.mark.parametrize("overflow", WRAPS)
@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("fmt", [Format(8, 6), Format(16, 5), Format(50, 40), Format(62, 50), Format(80, 60)], ids=str)
def test_quantise_equals_apytypes(fmt, rounding, overflow, generator):
    # Multiples of 2**-100 below 2**40: exact both as float64 and as 141-bit fixed point.
    x = np.round(generator.standard_normal(300) * 2.0**24) * 2.0 ** generator.integers(-60, 10, 300)
    x = np.concatenate([x, np.array(TIES) * 2.0**-fmt.frac, [0.0, 0.49999999999999994 * 2.0**-fmt.frac]])
    codes = [int(Fraction(v) * 2**120) for v in x.tolist()]
    ours = quantise(x, fmt, rounding=rounding, overflow=overflow).codes.tolist()
    assert ours == apytypes_codes(codes, 180, 120, fmt, rounding, overflow)


def test_the_apytypes_comparison_goes_red(generator):
    fmt = Format(40, 10)
    codes = random_codes(generator, 90, 35, 200)
    ours = requantise(np.array(codes, dtype=object), 45, fmt, rounding="half_up").codes.tolist()
    assert ours == apytypes_codes(codes, 90, 45, fmt, "half_up", "saturate")
    assert ours != apytypes_codes(codes, 90, 45, fmt, "half_even", "saturate")
    assert ours != apytypes_codes(codes, 90, 45, fmt, "half_up", "wrap")
