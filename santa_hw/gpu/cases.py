"""Decode steps to try kernels on: random operand codes or floats, ragged lengths, contiguous and paged caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from santa_hw.datapath import Codes, Draw
from santa_hw.datapath.scores import shifts
from santa_hw.design import Design
from santa_hw.gpu.checks import DeviceDraw

GROUPS = {1: 2, 3: 3, 4: 2, 5: 1, 6: 1, 7: 2, 8: 1, 16: 1}
"""Query heads of a group -> KV heads of the case."""
HEAD_DIMS = (64, 80, 96, 128, 256)
PAGE_SIZES = (1, 16, 17, 64)
LENGTHS = (0, 1, 15, 16, 17, 31, 33, 54, 63, 64, 65, 97, 127, 128, 129, 255, 257, 513, 1000)
"""Ragged: nothing, one key, one beside every size that a tile may have."""

LARGE_KEYS = (1 << 21) + 37
LARGE_STRIDE = 2048
"""Bytes between neighbouring keys of the large caches: offsets reach beyond 2**32."""

DESIGNS: dict[str, dict[str, Any]] = {
    "default": {},
    "half_up": dict(weight_rounding="half_up"),
    "mitchell": dict(exp="mitchell"),
    "narrow": dict(q_bits=4, k_bits=5, v_bits=6, score_bits=10, score_frac=3, weight_bits=8, rng_bits=16, samples=16),
    "wide": dict(weight_bits=32, score_frac=8, samples=1024),
    "one sample": dict(samples=1, gather="shift_add"),
    "output format": dict(out_bits=12, out_frac=6),
    "ternary": dict(scores="ternary", ternary_samples=8),
    "ternary independent": dict(scores="ternary", ternary_samples=64, ternary_offset="independent"),
    "ternary one": dict(scores="ternary", ternary_samples=1, weight_rounding="half_up"),
}


@dataclass(frozen=True)
class Case:
    """What one call looks like.

    Parameters
    ----------
    group, kv_heads, head_dim : int
    lengths : tuple of int
        Keys of each sequence.
    design : str
        Name of one of ``DESIGNS``; the float kernels take its budget alone.
    page_size : int or None
        None for a contiguous cache.
    """

    group: int
    kv_heads: int
    head_dim: int
    lengths: tuple[int, ...] = LENGTHS
    design: str = "default"
    page_size: int | None = None

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads

    def make_design(self) -> Design:
        """The design point, with room for the keys of the case."""
        keys = max(1, *self.lengths)
        return Design(**dict(samples=64, head_dim=self.head_dim, max_keys=max(4096, keys)) | DESIGNS[self.design])

    def __str__(self) -> str:
        keys = self.lengths[0] if len(self.lengths) == 1 else f"{min(self.lengths)}-{max(self.lengths)}"
        cache = "contiguous" if self.page_size is None else f"pages of {self.page_size}"
        return (
            f"B {len(self.lengths)}, group {self.group} x {self.kv_heads}, d {self.head_dim}, N {keys}, {cache}, "
            f"{self.design}"
        )


def sweep() -> list[Case]:
    """Every group with every head dimension; designs and caches take turns. Then each design, and each page size."""
    cases = []
    names, pages = list(DESIGNS), (None, *PAGE_SIZES)
    for i, (group, kv_heads) in enumerate(GROUPS.items()):
        for j, head_dim in enumerate(HEAD_DIMS):
            number = i * len(HEAD_DIMS) + j
            cases.append(Case(group, kv_heads, head_dim, LENGTHS, names[number % len(names)], pages[(i + j) % 5]))
    cases += [Case(4, 2, 128, design=name) for name in names]
    cases += [Case(3, 3, 64, design=name, page_size=17) for name in names]
    cases += [Case(4, 2, 128, page_size=size) for size in PAGE_SIZES]
    return list(dict.fromkeys(cases))


def float_cases() -> list[Case]:
    """Every group with every head dimension, caches taking turns."""
    pages = (None, 1, 16, 17, 64)
    return [
        Case(group, kv_heads, head_dim, page_size=pages[(i + j) % len(pages)])
        for i, (group, kv_heads) in enumerate(GROUPS.items())
        for j, head_dim in enumerate(HEAD_DIMS)
    ]


def float_variants() -> Iterator[tuple[int, Case, torch.dtype, int]]:
    """Cases with their numbers; element types and budgets take turns, budgets that are no power of two among them."""
    for number, case in enumerate(float_cases()):
        yield number, case, (torch.bfloat16, torch.float16)[number % 2], (128, 1, 100, 64, 1024)[number % 5]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Cache:
    """K and V as a kernel takes them, with what lies beyond a sequence's length filled with `fill`.

    Parameters
    ----------
    k, v : torch.Tensor
        (B, N, KV, d), or (pages, page size, KV, d).
    page_table : torch.Tensor or None
        int32 (B, pages of the longest sequence).
    """

    k: torch.Tensor
    v: torch.Tensor
    page_table: torch.Tensor | None
    max_length: int

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the decode functions."""
        if self.page_table is None:
            return {}
        return {"page_table": self.page_table, "max_length": self.max_length}


def store(
    k: torch.Tensor, v: torch.Tensor, lengths: tuple[int, ...], page_size: int | None, generator: np.random.Generator,
    fill: float,
) -> Cache:  # fmt: skip
    """Put (B, N, KV, d) keys and values into a cache; pages lie in random order, some of them unused."""
    batch, keys = k.shape[:2]
    k, v = (x.clone(memory_format=torch.contiguous_format) for x in (k, v))
    for b, length in enumerate(lengths):
        k[b, length:], v[b, length:] = fill, fill
    if page_size is None:
        return Cache(k, v, None, keys)
    columns = -(-keys // page_size)
    padding = columns * page_size - keys
    numbers = generator.permutation(batch * columns + 3)[: batch * columns]
    table = torch.from_numpy(numbers.reshape(batch, columns).astype(np.int32)).to(k.device)
    pools = []
    for x in (k, v):
        padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, padding), value=fill)
        pool = torch.full((batch * columns + 3, page_size, *x.shape[2:]), fill, dtype=x.dtype, device=x.device)
        pool[table.flatten().long()] = padded.reshape(batch * columns, page_size, *x.shape[2:])
        pools.append(pool)
    return Cache(pools[0], pools[1], table, keys)


def far_apart(cache: torch.Tensor) -> torch.Tensor:
    """The same (B, N, KV, d) cache, its keys ``LARGE_STRIDE`` bytes apart."""
    width = LARGE_STRIDE // cache.dtype.itemsize
    wide = torch.empty((*cache.shape[:2], width), dtype=cache.dtype, device=cache.device)
    slot = wide[..., : cache.shape[2] * cache.shape[3]].unflatten(-1, cache.shape[2:])
    return slot.copy_(cache)


@dataclass(frozen=True)
class FixedOperands:
    """One call of the fixed-point datapath, for the golden model and for the kernel."""

    design: Design
    codes: Codes
    draw: Draw
    lengths: tuple[int, ...]
    page_size: int | None = None
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def on_device(self, device: str | torch.device = "cuda") -> dict[str, Any]:
        """Arguments of ``decode_fixed``, the design apart."""
        k, v = (torch.from_numpy(x.astype(np.int8)).to(device).transpose(1, 2) for x in (self.codes.k, self.codes.v))
        cache = store(k, v, self.lengths, self.page_size, self.generator, fill=-77)
        shift = shifts(self.design, self.codes.exponents)[:, :, 0, 0]
        options: dict[str, Any] = cache.options
        if self.design.out_frac is not None:
            frac = self.design.v_bits - 1 - self.codes.v_exponents + self.design.sigma
            options["output_shift"] = torch.from_numpy((frac - self.design.out_frac).astype(np.int32)).to(device)
        return {
            "q": torch.from_numpy(self.codes.q[:, :, 0].astype(np.int8)).to(device),
            "k": cache.k,
            "v": cache.v,
            "shift": torch.from_numpy(np.ascontiguousarray(shift)).to(device),
            "lengths": torch.tensor(self.lengths, dtype=torch.int32, device=device),
            "draw": device_draw(self.draw, device),
            **options,
        }


def device_draw(draw: Draw, device: str | torch.device = "cuda") -> DeviceDraw:
    """The same words, named on the device."""
    sequence = torch.from_numpy(np.asarray(draw.sequence, dtype=np.int64)).to(device)
    position = torch.from_numpy(np.ascontiguousarray(draw.position[:, 0], dtype=np.int64)).to(device)
    return DeviceDraw(draw.seed, draw.layer, sequence, position)


def fixed_operands(case: Case, seed: int) -> FixedOperands:
    """Random codes of a case; exponents such that weights span some octaves, a few heads saturating or flat."""
    generator = np.random.default_rng(seed)
    design = case.make_design()
    batch, keys = len(case.lengths), max(1, *case.lengths)

    def codes(bits: int, *shape: int) -> NDArray[Any]:
        limit = (1 << (bits - 1)) - 1
        return generator.integers(-limit, limit + 1, size=shape, dtype=np.int32)

    q = codes(design.q_bits, batch, case.heads, 1, case.head_dim)
    k = codes(design.k_bits, batch, case.kv_heads, keys, case.head_dim).astype(np.int16)
    v = codes(design.v_bits, batch, case.kv_heads, keys, case.head_dim).astype(np.int16)
    # A dot product has about |q| * |k| * sqrt(d) / 3; the exponents put that at 2 to 16 octaves, some far off.
    size = (design.q_bits + design.k_bits - 2) + (case.head_dim.bit_length() - 1) / 2 - np.log2(3)
    octaves = generator.choice([1, 2, 3, 4, -9, 14], p=[0.2, 0.3, 0.3, 0.1, 0.05, 0.05], size=(batch, case.heads, 1, 1))
    exponents = (octaves - size + design.q_bits + design.k_bits - 2).round().astype(np.int32)
    saturations = {"q": 0, "k": 0, "v": 0}
    v_exponents = generator.integers(-2, 3, size=(case.kv_heads, case.head_dim)).astype(np.int64)
    draw = Draw(
        seed=int(generator.integers(1 << 32)),
        layer=int(generator.integers(30)),
        sequence=generator.integers(1 << 32, size=batch),
        position=generator.integers(1 << 32, size=(batch, 1)),
    )
    made = Codes(q, exponents, k, v, v_exponents, saturations)
    return FixedOperands(design, made, draw, case.lengths, case.page_size, generator)


EDGE_WEIGHT_BITS = (16, 26, 27, 32)
"""Around where the sum of a tile's weights no longer fits in 32 bits."""


def edge_operands(weight_bits: int, seed: int) -> FixedOperands:
    """Extreme codes; scores that all saturate, that just do not; tiles of equal weights, some nine octaves below."""
    operands = fixed_operands(Case(8, 1, 128, (200,)), seed)
    codes, design = operands.codes, replace(operands.design, weight_bits=weight_bits)
    # A larger exponent is a smaller shift.
    shift = np.array([-20, 0, 5, 6, 7, 13, 13, 13])[:, None, None]
    exponents = (codes.exponents + shifts(design, codes.exponents) - shift).astype(np.int32)
    q, k = np.full_like(codes.q, -127), np.full_like(codes.k, -127)
    q[:, 6:] = np.array([-125, -121])[:, None, None]
    k[:, :, 70:128], k[:, :, 128:] = 127, 20
    return replace(operands, design=design, codes=replace(codes, q=q, k=k, exponents=exponents))


@dataclass(frozen=True)
class FloatOperands:
    """One call of a float method; keys and values beyond a length are NaN.

    Parameters
    ----------
    q, k, v : torch.Tensor
        (B, H, d) and (B, N, KV, d), before they went into the cache.
    cache : Cache
    draw : Draw
    lengths : tuple of int
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cache: Cache
    draw: Draw
    lengths: tuple[int, ...]

    def on_device(self) -> dict[str, Any]:
        """Arguments of ``decode_sys``, ``decode_prop`` and ``decode_flash``, the budget apart."""
        return {
            "q": self.q,
            "k": self.cache.k,
            "v": self.cache.v,
            "lengths": torch.tensor(self.lengths, dtype=torch.int32, device=self.q.device),
            "draw": device_draw(self.draw, self.q.device),
            **self.cache.options,
        }


def float_operands(
    case: Case, seed: int, dtype: torch.dtype, device: str | torch.device = "cuda", sharpness: float = 2.0
) -> FloatOperands:
    """N(0, 1) operands, the query `sharpness` times as large."""
    generator = np.random.default_rng(seed)
    batch, keys = len(case.lengths), max(1, *case.lengths)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(device, dtype)

    q = normal(batch, case.heads, case.head_dim) * sharpness
    k, v = (normal(batch, keys, case.kv_heads, case.head_dim) for _ in range(2))
    draw = Draw(
        seed=int(generator.integers(1 << 32)),
        layer=int(generator.integers(30)),
        sequence=generator.integers(1 << 32, size=batch),
        position=generator.integers(1 << 32, size=(batch, 1)),
    )
    cache = store(k, v, case.lengths, case.page_size, generator, fill=float("nan"))
    return FloatOperands(q, k, v, cache, draw, case.lengths)
