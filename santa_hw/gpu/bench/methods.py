"""What is measured: our kernels, dense attention and the read floors, each on sets of operands of one shape."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from santa_hw import gpu
from santa_hw.design import Design
from santa_hw.gpu.bench.measurement import RECENT
from santa_hw.gpu.bench.timing import L2_MULTIPLE, LEAST_SETS, Call

HEADS, KV_HEADS, HEAD_DIM, SAMPLES, FLASH_SAMPLES = 32, 8, 128, 128, 2048


@dataclass(frozen=True)
class Sets:
    """Several sets of operands of one shape, so that replays do not find their keys in the cache.

    Parameters
    ----------
    q : torch.Tensor
        (B, H, d).
    k, v : list of torch.Tensor
        (B, N, KV, d) each.
    lengths : torch.Tensor
        int32 (B,): all N.
    """

    q: torch.Tensor
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    lengths: torch.Tensor

    def __len__(self) -> int:
        return len(self.k)


def make_sets(batch: int, keys: int, dtype: torch.dtype) -> Sets:
    """N(0, 1) operands, or random int8 codes; as many sets as the graph protocol asks for."""
    device = torch.device("cuda")
    shape = (batch, keys, KV_HEADS, HEAD_DIM)
    key_bytes = math.prod(shape) * dtype.itemsize
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    count = max(LEAST_SETS, math.ceil(L2_MULTIPLE * l2 / key_bytes))
    generator = torch.Generator(device).manual_seed(0)

    def fill(*size: int) -> torch.Tensor:
        if dtype == torch.int8:
            return torch.randint(-127, 128, size, generator=generator, dtype=dtype, device=device)
        return torch.randn(size, generator=generator, dtype=dtype, device=device)

    return Sets(
        q=fill(batch, HEADS, HEAD_DIM),
        k=[fill(*shape) for _ in range(count)],
        v=[fill(*shape) for _ in range(count)],
        lengths=torch.full((batch,), keys, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True)
class Method:
    """What is measured.

    Parameters
    ----------
    name : str
    dtype : torch.dtype
        Of the cache that it reads.
    prepare : callable
        Takes the sets, returns the call; ImportError or RuntimeError says why it cannot be measured.
    values : bool
        Whether it reads all of V.
    note : str
        Version and configuration.
    """

    name: str
    dtype: torch.dtype
    prepare: Callable[[Sets], Call]
    values: bool
    note: str = ""


def _draw(sets: Sets) -> gpu.DeviceDraw:
    batch = sets.q.shape[0]
    position = torch.full((batch,), sets.k[0].shape[1] - 1, dtype=torch.int64, device=sets.q.device)
    return gpu.DeviceDraw(seed=0, layer=0, sequence=torch.arange(batch, device=sets.q.device), position=position)


def _sampled(decode: Callable[..., torch.Tensor], samples: int, **more: Any) -> Callable[[Sets], Call]:
    def prepare(sets: Sets) -> Call:
        draw, out = _draw(sets), torch.empty_like(sets.q)
        workspace = gpu.workspace(decode, sets.q, sets.k[0], samples=samples)
        options = dict(lengths=sets.lengths, draw=draw, samples=samples, out=out, workspace=workspace, check=False)
        return lambda i: decode(sets.q, sets.k[i], sets.v[i], **options, **more)

    return prepare


def _fixed(sets: Sets, recent: int | None = None) -> Call:
    batch, keys = sets.k[0].shape[:2]
    design = fixed_design(keys)
    shift = torch.full((batch, HEADS), FIXED_SHIFT, dtype=torch.int32, device=sets.q.device)
    out = torch.empty(sets.q.shape, dtype=torch.int32, device=sets.q.device)
    workspace = gpu.workspace(gpu.decode_fixed, sets.q, sets.k[0], samples=SAMPLES)
    options: dict[str, Any] = dict(
        shift=shift, lengths=sets.lengths, draw=_draw(sets), recent=recent, out=out, workspace=workspace, check=False
    )
    return lambda i: gpu.decode_fixed(design, sets.q, sets.k[i], sets.v[i], **options)


FIXED_SHIFT = 10
"""Puts the standard deviation of random codes' scores at some two octaves, about what N(0, 1) operands give."""


def fixed_design(keys: int) -> Design:
    """The default design at the measured shape."""
    return Design(samples=SAMPLES, head_dim=HEAD_DIM, max_keys=keys)


def _read(values: bool) -> Callable[[Sets], Call]:
    def prepare(sets: Sets) -> Call:
        return lambda i: gpu.read_floor(sets.k[i], sets.v[i] if values else None)

    return prepare


def _sdpa(backend: str) -> Callable[[Sets], Call]:
    def prepare(sets: Sets) -> Call:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        q = sets.q[:, :, None]
        chosen = getattr(SDPBackend, backend)

        def call(i: int) -> torch.Tensor:
            with sdpa_kernel(chosen):
                return scaled_dot_product_attention(
                    q, sets.k[i].transpose(1, 2), sets.v[i].transpose(1, 2), enable_gqa=True
                )

        return call

    return prepare


def _flashinfer(sets: Sets) -> Call:
    """Batch decode on tensor cores over pages of 16 tokens; fp8 caches are made from random codes."""
    import flashinfer

    page = 16
    batch, keys = sets.k[0].shape[:2]
    if keys % page:
        raise RuntimeError(f"{keys} keys are no multiple of its {page}-token pages")
    pages = batch * keys // page
    kind = torch.float8_e4m3fn if sets.k[0].dtype == torch.int8 else sets.k[0].dtype
    q = torch.randn(sets.q.shape, device="cuda").to(torch.bfloat16)
    caches = [
        tuple(x.to(kind).view(pages, page, KV_HEADS, HEAD_DIM) for x in pair)
        for pair in zip(sets.k, sets.v, strict=True)
    ]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True
    )
    wrapper.plan(
        torch.arange(batch + 1, dtype=torch.int32, device="cuda") * (keys // page),
        torch.arange(pages, dtype=torch.int32, device="cuda"),
        torch.full((batch,), page, dtype=torch.int32, device="cuda"),
        HEADS, KV_HEADS, HEAD_DIM, page, q_data_type=q.dtype, kv_data_type=kind,
    )  # fmt: skip
    return lambda i: wrapper.run(q, caches[i])


def _flash_attention(sets: Sets) -> Call:
    try:
        from flash_attn_interface import flash_attn_with_kvcache
    except ImportError:
        from flash_attn import flash_attn_with_kvcache
    q = sets.q[:, None]
    return lambda i: flash_attn_with_kvcache(q, sets.k[i], sets.v[i], cache_seqlens=sets.lengths)


def methods() -> list[Method]:
    """All methods, floors first: what later ones are compared with is measured before them."""
    bf16, int8 = torch.bfloat16, torch.int8
    return [
        Method("read K, bf16", bf16, _read(False), False),
        Method("read K and V, bf16", bf16, _read(True), True),
        Method("cudnn", bf16, _sdpa("CUDNN_ATTENTION"), True, f"cuDNN {torch.backends.cudnn.version()}"),
        Method("torch-flash", bf16, _sdpa("FLASH_ATTENTION"), True, f"torch {torch.__version__}"),
        Method("flashinfer", bf16, _flashinfer, True, "pages of 16, tensor cores"),
        Method("flash-attention", bf16, _flash_attention, True),
        Method("sys", bf16, _sampled(gpu.decode_sys, SAMPLES), False, f"S = {SAMPLES}"),
        Method(f"sys{RECENT}", bf16, _sampled(gpu.decode_sys, SAMPLES, recent=1), False, "recent = 1"),
        Method("prop", bf16, _sampled(gpu.decode_prop, SAMPLES), False, f"S = {SAMPLES}"),
        Method("flash", bf16, _sampled(gpu.decode_flash, FLASH_SAMPLES), False, f"S = {FLASH_SAMPLES}"),
        Method("read K, int8", int8, _read(False), False),
        Method("read K and V, int8", int8, _read(True), True),
        Method("flashinfer-fp8", int8, _flashinfer, True, "fp8 e4m3 K and V, bf16 query, pages of 16, tensor cores"),
        Method("fixed", int8, _fixed, False, f"S = {SAMPLES}"),
        Method(f"fixed{RECENT}", int8, functools.partial(_fixed, recent=1), False, "recent = 1"),
    ]


def sampled_bytes(method: Method, sets: Sets) -> int:
    """Bytes of the distinct value rows that a sampled method reads, counted on the first set."""
    name = method.name.removesuffix(RECENT)
    if name not in ("sys", "prop", "flash", "fixed"):
        return 0
    batch, keys = sets.k[0].shape[:2]
    counts = torch.zeros((batch, HEADS, keys), dtype=torch.int32, device=sets.q.device)
    if name == "fixed":
        shift = torch.full((batch, HEADS), FIXED_SHIFT, dtype=torch.int32, device=sets.q.device)
        gpu.decode_fixed(
            fixed_design(keys), sets.q, sets.k[0], sets.v[0], shift=shift, lengths=sets.lengths, draw=_draw(sets),
            trace={"counts": counts},
        )  # fmt: skip
    else:
        decode = {"sys": gpu.decode_sys, "prop": gpu.decode_prop, "flash": gpu.decode_flash}[name]
        samples = FLASH_SAMPLES if name == "flash" else SAMPLES
        decode(
            sets.q, sets.k[0], sets.v[0], lengths=sets.lengths, draw=_draw(sets), samples=samples, counts=counts
        )  # fmt: skip
    rows = sum(int((counts[b] > 0).unflatten(0, (KV_HEADS, -1)).any(dim=1).sum()) for b in range(batch))
    return rows * HEAD_DIM * method.dtype.itemsize
