"""What a check of the kernels finds, and how it measures the error of floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Outcome:
    """One result of a check: whether it holds at a shape, and what was measured."""

    name: str
    shape: str
    passed: bool
    measured: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Check = Callable[[int, Path | None], Iterator[Outcome]]


def rounding_error(dtype: torch.dtype) -> float:
    """Largest relative error of one rounding to a 16-bit type, with room for float32 sums."""
    return 1.1 * float(torch.finfo(dtype).eps)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest over heads of |found - expected| / |expected|; NaN where a number is."""
    scale = expected.norm(dim=-1).clamp_min(1e-6)
    return float(((found.double() - expected).norm(dim=-1) / scale).max())
