"""Decode steps of a real model as operand codes, in one file: what the RTL and the CUDA kernels are run on.

:func:`santa_hw.models.capture` makes them; this module needs no model, so that a test bench can read them anywhere.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from santa_hw.datapath import Codes, Draw
from santa_hw.design import Design

_FORMAT = "santa-hw capture 1"
# RuntimeError: what zipfile takes for another version, method or encryption.
_UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error
)  # fmt: skip
_ARRAYS = ("layers", "positions", "q", "exponents", "k", "v", "v_exponents")


class Step(NamedTuple):
    """One decode step of one KV head and its group: the arguments of :func:`santa_hw.datapath.decode`."""

    name: str
    codes: Codes
    draw: Draw


@dataclass(frozen=True)
class Capture:
    """Operand codes of some layers and positions of one text. L layers, P positions, H heads, KV heads, N keys.

    Parameters
    ----------
    identity : str
        Of the model.
    design : Design
        What the codes were made for.
    seed, sequence : int
        Of the random words.
    layers, positions : numpy.ndarray
        int64 (L,) and (P,): a step at position p sees the p + 1 keys up to its own.
    q : numpy.ndarray
        Integers (L, H, P, d).
    exponents : numpy.ndarray
        int32 (L, H, P, blocks): the sum of the query's and the keys' exponents.
    k, v : numpy.ndarray
        Integers (L, KV, N, d).
    v_exponents : numpy.ndarray
        int64 (L, KV, d).
    """

    identity: str
    design: Design
    seed: int
    sequence: int
    layers: NDArray[np.int64]
    positions: NDArray[np.int64]
    q: NDArray[Any]
    exponents: NDArray[np.int32]
    k: NDArray[Any]
    v: NDArray[Any]
    v_exponents: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.layers) * self.kv_heads * len(self.positions)

    @property
    def kv_heads(self) -> int:
        """KV heads of the model."""
        return self.k.shape[1]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.q.shape[1] // self.kv_heads

    def step(self, index: int) -> Step:
        """Step `index` of ``len(self)``, ordered by layer, KV head and position.

        A KV head counts as a layer of its own, so that its group's random words are those of the whole model.
        """
        row, position = divmod(index, len(self.positions))
        layer, kv = divmod(row, self.kv_heads)
        heads = slice(kv * self.group, (kv + 1) * self.group)
        end = int(self.positions[position])
        codes = Codes(
            q=self.q[layer, heads, position][None, :, None].astype(np.int32),
            exponents=self.exponents[layer, heads, position][None, :, None],
            k=self.k[layer, kv, : end + 1][None, None].astype(np.int32),
            v=self.v[layer, kv, : end + 1][None, None].astype(np.int32),
            v_exponents=self.v_exponents[layer, kv][None],
            saturations={"q": 0, "k": 0, "v": 0},
        )
        draw = Draw(
            seed=self.seed,
            layer=int(self.layers[layer]) * self.kv_heads + kv,
            sequence=np.array([self.sequence]),
            position=np.array([[end]]),
        )
        return Step(f"layer {self.layers[layer]}, KV head {kv}, position {end}", codes, draw)

    def spread(self, count: int) -> Iterator[Step]:
        """`count` steps, spread evenly over all; ValueError if there are fewer."""
        if not 1 <= count <= len(self):
            raise ValueError(f"steps = {count}: 1 to the {len(self)} that were captured is allowed")
        return (self.step(index) for index in np.linspace(0, len(self) - 1, count).round().astype(int))

    def save(self, path: Path) -> None:
        """Write one ``.npz`` file, whole or not at all."""
        facts = {"identity": self.identity, "seed": self.seed, "sequence": self.sequence}
        described = json.dumps({"format": _FORMAT, "design": self.design.to_dict(), **facts})
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with part.open("wb") as file:
                np.savez_compressed(file, facts=np.array(described), **{name: getattr(self, name) for name in _ARRAYS})
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Capture:
        """Read what :meth:`save` wrote; ValueError if the file is something else."""
        try:
            with np.load(path, allow_pickle=False) as data:
                facts: dict[str, Any] = json.loads(str(data["facts"]))
                if facts.pop("format") != _FORMAT:
                    raise KeyError("format")
                design = Design.from_dict(facts.pop("design"))
                return cls(design=design, **facts, **{name: data[name] for name in _ARRAYS})
        except FileNotFoundError as error:
            raise ValueError(f"capture {str(path)!r}: no such file; run santa-hw capture") from error
        except _UNREADABLE as error:
            raise ValueError(f"capture {str(path)!r} is not what santa-hw capture writes") from error
