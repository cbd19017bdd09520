"""Several codes side by side in one signal."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from santa_hw.design import Design


def pack(codes: Iterable[int], bits: int) -> int:
    """Codes of `bits` bits in one word, two's complement, the first in the low bits.

    >>> hex(pack([1, -1, 2], 4))
    '0x2f1'
    """
    word = 0
    for lane, code in enumerate(codes):
        word |= (int(code) & ((1 << bits) - 1)) << (lane * bits)
    return word


def lanes_of(lanes: int | None, design: Design) -> int:
    """The lanes asked for, or the RTL's default: 16, or what of it divides the head dimension."""
    return gcd(16, design.head_dim) if lanes is None else lanes


def lane_parameters(lanes: int | None) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The RTL parameter that sets the lanes, if they were asked for."""
    return {} if lanes is None else {"Lanes": (lanes, (lanes,))}


def check_lanes(lanes: int | None, block: str, design: Design) -> None:
    """ValueError unless `lanes` divides the head dimension."""
    if lanes is not None and (lanes < 1 or design.head_dim % lanes):
        raise ValueError(f"Lanes = {lanes}: a divisor of head_dim = {design.head_dim} is allowed in block {block}")
