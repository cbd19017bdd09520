"""Speed of the decode kernels beside dense attention and the read floors, all in one run on one GPU.

Two protocols. *graph*: a CUDA graph of at least 16 calls, which take turns with so many K/V sets that what the method
under test reads of them is at least four times the L2 cache, replayed and divided. *eager*: 10 warm-up and 40 timed
calls, CUDA events, 512 MB updated in place before each so that the cache is cold (arXiv 2605.01910, App. Q). Medians.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from santa_hw import gpu
from santa_hw.design import Design
from santa_hw.gpu.environment import environment, require_gpu

SHAPES = ("1x4k", "1x8k", "1x16k", "1x32k", "1x128k", "4x4k", "4x32k", "4x128k", "16x4k", "16x32k", "16x128k")
HEADS, KV_HEADS, HEAD_DIM, SAMPLES, FLASH_SAMPLES = 32, 8, 128, 128, 2048

WARM_UP, TIMED, FLUSH_BYTES = 10, 40, 512_000_000
L2_MULTIPLE, LEAST_SETS, LEAST_CALLS, REPLAYS = 4, 2, 16, 7

DENSE = ("cudnn", "torch-flash", "flashinfer", "flash-attention")
"""Backends that read all of K and V in bf16; the best of them is what a speed-up is over."""


@dataclass(frozen=True)
class Measurement:
    """One method at one shape.

    Parameters
    ----------
    method, shape : str
        Shape is sequences x keys.
    graph_us, eager_us : float or None
        Medians in microseconds; None if not measured.
    bytes : int
        What the method must read in one call: keys, and the value rows it uses.
    floor_us : float or None
        Graph time of a kernel that only reads as much: K in the method's dtype for sampled methods, K and V for dense.
    over_dense, over_fp8 : float or None
        How much faster than the best dense bf16 backend of the same run, and than FlashInfer's fp8 decode (graph).
    note : str
        Why it was not measured, or the version and the configuration.
    """

    method: str
    shape: str
    graph_us: float | None
    eager_us: float | None
    bytes: int
    floor_us: float | None = None
    over_dense: float | None = None
    over_fp8: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields, and what follows from them."""
        return asdict(self) | {"bytes_per_second": self.bytes_per_second, "floor_share": self.floor_share}

    @property
    def bytes_per_second(self) -> float | None:
        """Achieved in the graph protocol."""
        return None if self.graph_us is None else self.bytes / (self.graph_us * 1e-6)

    @property
    def floor_share(self) -> float | None:
        """Time of the floor over the method's own, in the graph protocol."""
        return None if self.graph_us is None or self.floor_us is None else self.floor_us / self.graph_us


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


Call = Callable[[int], Any]
"""Runs a method once on set i."""


def parse_shape(text: str) -> tuple[int, int]:
    """Sequences and keys of ``4x32k``; k is 1024.

    >>> parse_shape("4x32k")
    (4, 32768)
    """
    found = re.fullmatch(r"(\d+)x(\d+)(k?)", text.strip())
    if found is None or int(found[1]) < 1 or int(found[2]) < 1:
        raise ValueError(f"shape {text!r}: BATCHxKEYS is allowed, such as 4x32k")
    return int(found[1]), int(found[2]) * (1024 if found[3] else 1)


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


# Protocols ----------------------------------------------------------------------------------------


def time_graph(call: Call, sets: int) -> float:
    """Microseconds a call: replays of a graph of calls on each set in turn, median of several, divided.

    A graph's start takes microseconds, during which nothing runs: with few calls it would be a part of each.
    """
    calls = sets * math.ceil(LEAST_CALLS / sets)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(min(sets, 3)):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i % sets)
    graph.replay()
    torch.cuda.synchronize()
    first = _elapsed(graph.replay)
    # A measurement of some milliseconds, whatever the shape.
    repeats = max(1, min(50, round(5000 / max(1.0, first))))
    return statistics.median(_elapsed(graph.replay, repeats) for _ in range(REPLAYS)) / (repeats * calls)


def time_eager(call: Call, sets: int) -> float:
    """Microseconds a call with a cold L2 cache, median (App. Q)."""
    flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    times = []
    for i in range(WARM_UP + TIMED):
        flush.add_(1.0)
        start, end = _events()
        start.record()
        call(i % sets)
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) * 1e3 for start, end in times[WARM_UP:])


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _elapsed(work: Callable[[], Any], repeats: int = 1) -> float:
    """Microseconds of `repeats` runs, from one event to another."""
    start, end = _events()
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


# Methods ------------------------------------------------------------------------------------------


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


RECENT = "-recent"
"""Ends the names of methods that are told that the kernel ahead writes at most the newest key."""


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


def select(names: str | None) -> list[Method]:
    """The methods that a comma list names, and the floors, in order; None: all."""
    known = methods()
    if names is None:
        return known
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in {method.name for method in known}:
            raise ValueError(f"method {name!r}: allowed are {', '.join(method.name for method in known)}")
    return [method for method in known if method.name in chosen or method.name.startswith("read ")]


# The run ------------------------------------------------------------------------------------------


def run(
    shapes: Sequence[str],
    chosen: Sequence[Method],
    *,
    persist_l2: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> list[Measurement]:
    """Measure every method at every shape.

    Parameters
    ----------
    shapes : sequence of str
        Such as ``"4x32k"``.
    chosen : sequence of Method
        From :func:`select`.
    persist_l2 : int
        Megabytes of the L2 set aside for persisting data while it runs: a setting of the whole device.
    tick : callable
        Called once a measurement.
    """
    sizes = [(shape, *parse_shape(shape)) for shape in shapes]
    require_gpu()
    found = []
    gpu.persist_l2(persist_l2 << 20)
    try:
        for shape, batch, keys in sizes:
            rows = []
            for dtype in dict.fromkeys(method.dtype for method in chosen):
                rows += _measure_all([method for method in chosen if method.dtype == dtype], shape, batch, keys, tick)
                torch.cuda.empty_cache()
            found += compared(rows)
    finally:
        gpu.persist_l2(0)
    return found


def _measure_all(
    chosen: Sequence[Method], shape: str, batch: int, keys: int, tick: Callable[[], None]
) -> list[Measurement]:
    """The methods of one element type at one shape, on the same sets."""
    try:
        sets = make_sets(batch, keys, chosen[0].dtype)
    except torch.OutOfMemoryError:
        reason = "not measured: the sets do not fit into the GPU's memory"
        return [Measurement(method.name, shape, None, None, 0, note=reason) for method in chosen]
    found = []
    for method in chosen:
        found.append(measure(method, shape, sets))
        tick()
    return found


def measure(method: Method, shape: str, sets: Sets) -> Measurement:
    """Time one method at one shape; what cannot run says why."""
    size = sets.k[0].numel() * sets.k[0].dtype.itemsize
    try:
        call = method.prepare(sets)
        graph_us, eager_us = time_graph(call, len(sets)), time_eager(call, len(sets))
        read = size * (2 if method.values else 1) + _sampled_bytes(method, sets)
    except (ImportError, RuntimeError, ValueError, AttributeError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        torch.cuda.synchronize()
        return Measurement(method.name, shape, None, None, 0, note=f"not measured: {reason}")
    return Measurement(method.name, shape, graph_us, eager_us, read, note=method.note)


def _sampled_bytes(method: Method, sets: Sets) -> int:
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


def compared(rows: Sequence[Measurement]) -> list[Measurement]:
    """The measurements of one shape with their floors and speed-ups."""
    times = {row.method: row.graph_us for row in rows}
    dense = [times[name] for name in DENSE if times.get(name) is not None]
    best, fp8 = min(dense, default=None), times.get("flashinfer-fp8")  # type: ignore[type-var]
    known = {method.name: method for method in methods()}

    def over(other: float | None, row: Measurement) -> float | None:
        return None if other is None or row.graph_us is None else other / row.graph_us

    return [
        replace(
            row,
            floor_us=times.get(_floor(known[row.method])),
            over_dense=over(best, row),
            over_fp8=over(fp8, row),
        )
        for row in rows
    ]


def _floor(method: Method) -> str:
    return f"read {'K and V' if method.values else 'K'}, {'int8' if method.dtype == torch.int8 else 'bf16'}"


def setting(persist_l2: int) -> dict[str, Any]:
    """What the figures were got with: machine, versions, shape and budgets."""
    versions = {}
    for name in ("flashinfer", "flash_attn", "flash_attn_interface"):
        if importlib.util.find_spec(name) is not None:
            versions[name] = getattr(importlib.import_module(name), "__version__", "unknown")
    return {
        **environment(),
        "cudnn": torch.backends.cudnn.version(),
        "persist_l2_megabytes": persist_l2,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "samples": SAMPLES,
        "flash_samples": FLASH_SAMPLES,
        **versions,
    }


# Showing ------------------------------------------------------------------------------------------


def tables(found: Sequence[Measurement]) -> Iterator[Table]:
    """A table for each shape."""
    for shape in dict.fromkeys(row.shape for row in found):
        table = Table(title=f"{shape}: microseconds a decode step", title_justify="left")
        for column in ("method", "graph", "eager, cold", "TB/s", "share of floor", "over dense", "over fp8", "note"):
            table.add_column(column, justify="left" if column in ("method", "note") else "right")
        for row in found:
            if row.shape == shape:
                speed = row.bytes_per_second
                table.add_row(
                    row.method,
                    _number(row.graph_us, ".1f"),
                    _number(row.eager_us, ".1f"),
                    _number(None if speed is None else speed / 1e12, ".2f"),
                    _number(row.floor_share, ".2f"),
                    _number(row.over_dense, ".2f"),
                    _number(row.over_fp8, ".2f"),
                    row.note,
                )
        yield table


def _number(x: float | None, form: str) -> str:
    return "-" if x is None else format(x, form)


def plot(found: Sequence[Measurement], path: Path) -> None:
    """Speed over the best dense backend at each shape, with the floor that reads only K."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(row.shape for row in found))
    ours = ("fixed", f"fixed{RECENT}"), ("sys", f"sys{RECENT}", "prop", "flash")
    drawn = ("read K, int8", *ours[0], "read K, bf16", *ours[1], "flashinfer-fp8")
    times = {(row.method, row.shape): row.over_dense for row in found}
    present = [name for name in drawn if any(times.get((name, shape)) is not None for shape in shapes)]
    figure = Figure(figsize=(1.1 * len(shapes) + 3, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(present))
    for i, name in enumerate(present):
        heights = [times.get((name, shape)) or 0.0 for shape in shapes]
        at = [x + (i - (len(present) - 1) / 2) * width for x in range(len(shapes))]
        axes.bar(at, heights, width, label=name, alpha=0.45 if name.startswith("read") else 1.0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(shapes)), shapes)
    axes.set_xlabel("sequences x keys")
    axes.set_ylabel("speed over the best dense backend")
    axes.legend(fontsize="small")
    figure.savefig(path)
