"""The first difference between a block and the golden model, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mismatch:
    """Where a simulation first differed.

    Parameters
    ----------
    block, signal : str
    vector : int
        Index of the vector.
    cycle : int
        Clock cycle since the end of reset.
    expected, found : str
        Binary, most significant bit first; x where a simulator knows no value.
    note : str
        What else is to be said: which beat, a stalled stream.
    """

    block: str
    vector: int
    cycle: int
    signal: str
    expected: str
    found: str
    note: str = ""

    @property
    def bit(self) -> int | None:
        """The first differing bit, counted from the most significant one's side; None if lengths differ."""
        for i, (a, b) in enumerate(zip(self.expected, self.found, strict=False)):
            if a != b:
                return len(self.expected) - 1 - i
        return None

    def __str__(self) -> str:
        bit = self.bit
        lines = [
            f"block {self.block}, vector {self.vector}, cycle {self.cycle}, signal {self.signal}"
            + (f" ({self.note})" if self.note else ""),
            f"  expected {self.expected}",
            f"  found    {self.found}",
        ]
        if bit is not None:
            lines.append(" " * (11 + len(self.expected) - 1 - bit) + f"^ bit {bit}")
        return "\n".join(lines)


def binary(value: int, width: int) -> str:
    """`value` in two's complement, `width` binary digits."""
    return format(value & ((1 << width) - 1), f"0{width}b")
