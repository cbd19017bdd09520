"""Several codes side by side in one signal."""

from __future__ import annotations

from collections.abc import Iterable

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


def check_lanes(lanes: int, block: str, design: Design) -> None:
    """ValueError unless `lanes` divides the head dimension."""
    if lanes < 1 or design.head_dim % lanes:
        raise ValueError(f"Lanes = {lanes}: a divisor of head_dim = {design.head_dim} is allowed in block {block}")
