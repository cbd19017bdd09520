"""How calls behave: graphs, streams, memory that must not be read, operators, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from santa_hw import gpu
from santa_hw.gpu import library
from santa_hw.gpu.cases import LENGTHS, Case, fixed_operands, float_operands
from santa_hw.gpu.validate.outcome import Outcome


def graph_replay(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """A captured graph draws anew when positions are updated in place, and gives an eager call's bits."""
    for name, call in _calls(seed):
        arguments = call.arguments
        position = arguments["draw"].position
        first = position.clone()
        eager = []
        for step in range(3):
            position.copy_(first + step)
            eager.append(call.run().clone())
        position.copy_(first)
        out = torch.zeros_like(eager[0])
        graph = torch.cuda.CUDAGraph()
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            call.run(out=out)
        torch.cuda.current_stream().wait_stream(warm_up)
        with torch.cuda.graph(graph):
            call.run(out=out)
        same = []
        for step in range(3):
            position.copy_(first + step)
            graph.replay()
            same.append(bool(torch.equal(out, eager[step])))
        position.copy_(first)
        fresh = not torch.equal(eager[0], eager[1])
        yield Outcome("graph_replay", name, all(same) and fresh, {"replays equal": same, "draws anew": fresh})


def streams(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Work goes to the current stream: a call behind slow work on its stream waits for it."""
    for name, call in _calls(seed):
        expected = call.run().clone()
        q = call.arguments["q"]
        right = q.clone()
        side = torch.cuda.Stream()
        q.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            q.copy_(right)
            found = call.run()
        side.synchronize()
        yield Outcome("streams", name, bool(torch.equal(found, expected)), {})


def late_lengths(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Lengths that are written while the kernel has already begun count, not those that stood there before."""
    for case in (
        Case(4, 2, 128),
        Case(4, 2, 128, LENGTHS * 2),
        Case(4, 2, 128, page_size=17),
        Case(4, 2, 128, (1000,)),
    ):
        yield from late_outcomes(case, seed)


def late_outcomes(case: Case, seed: int, device: str = "cuda") -> Iterator[Outcome]:
    """The same for one case."""
    for name, call in _late_calls(case, seed, device):
        lengths = call.arguments["lengths"]
        right, expected = lengths.clone(), call.run().clone()
        workspace = _workspace_of(call)
        out = torch.empty_like(expected)
        before = {"others": right.flip(0), "longest": torch.full_like(right, int(right.max())), "none": right * 0}
        for recent in (None, 1):
            for what, stale in before.items():
                lengths.copy_(stale)
                out.fill_(-1)
                _copy_late(right, lengths)
                call.run(check=False, out=out, workspace=workspace, recent=recent)
                shape = f"{name}, {case}, recent = {recent}, {what} before"
                yield Outcome("late_lengths", shape, bool(torch.equal(out, expected)), {})


def late_keys(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """The newest keys may be written while the kernel has begun, if `recent` says so; by default every key may."""
    for length in (1, 77, 1000, 5000):
        yield from late_key_outcomes(Case(4, 2, 128, (length,)), seed)


def late_key_outcomes(case: Case, seed: int, device: str = "cuda") -> Iterator[Outcome]:
    """The same for one case, of one sequence."""
    for name, call in _late_calls(case, seed, device):
        k, length = call.arguments["k"], int(call.arguments["lengths"][0])
        expected, right = call.run().clone(), k.clone()
        workspace = _workspace_of(call)
        out = torch.empty_like(expected)
        for recent in (None, 1, 3, 64):
            late = length if recent is None else min(recent, length)
            k[0, length - late : length] = 1
            out.fill_(-1)
            new = right[0, length - late : length]
            _copy_late(new, k[0, length - late : length])
            call.run(check=False, out=out, workspace=workspace, recent=recent)
            equal = bool(torch.equal(out, expected))
            k.copy_(right)
            yield Outcome("late_keys", f"{name}, {case}, recent = {recent}", equal, {})


def _late_calls(case: Case, seed: int, device: str) -> Iterator[tuple[str, _Call]]:
    floats, codes = float_operands(case, seed, torch.bfloat16, device).on_device(), fixed_operands(case, seed)
    yield "sys", _Call(gpu.decode_sys, (), floats | {"samples": codes.design.samples})
    yield "fixed", _Call(gpu.decode_fixed, (codes.design,), codes.on_device(device))


def _workspace_of(call: _Call) -> torch.Tensor:
    given = call.arguments
    samples = given["samples"] if "samples" in given else call.leading[0].samples
    return gpu.workspace(call.method, given["q"], given["k"], samples=samples, max_length=given.get("max_length"))


def _copy_late(right: torch.Tensor, to: torch.Tensor) -> None:
    """Have a kernel copy 32-bit words while the one behind it has already begun."""
    stream = None
    if to.device.type == "cuda":
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream().cuda_stream
    library.call("santa_hw_copy_late", right.data_ptr(), to.data_ptr(), to.nbytes // 4, stream)


def unread_values(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Value rows with count 0 may hold NaN (or any code): the output does not change."""
    for name, call in _calls(seed):
        q, v = call.arguments["q"], call.arguments["v"]
        batch, heads, _ = q.shape
        counts = torch.zeros((batch, heads, v.shape[1]), dtype=torch.int32, device=q.device)
        options = {"trace": {"counts": counts}} if name == "fixed" else {"counts": counts}
        expected = call.run(**options).clone()
        read = (counts > 0).unflatten(1, (v.shape[2], -1)).any(dim=2).transpose(1, 2)
        fill = 55 if v.dtype == torch.int8 else math.nan
        v.masked_fill_(~read[..., None], fill)
        found = call.run()
        measured = {"rows overwritten": int((~read).sum())}
        yield Outcome("unread_values", name, bool(torch.equal(found, expected)), measured)


@dataclass(frozen=True)
class _Call:
    """A decode function with arguments."""

    method: Callable[..., torch.Tensor]
    leading: tuple[Any, ...]
    arguments: dict[str, Any]

    def run(self, **options: Any) -> torch.Tensor:
        return self.method(*self.leading, **self.arguments, **options)


def _calls(seed: int) -> Iterator[tuple[str, _Call]]:
    """One call of each method, on contiguous caches."""
    case = Case(4, 2, 128, (700, 1, 0, 1000))
    for name, method in (("sys", gpu.decode_sys), ("prop", gpu.decode_prop), ("flash", gpu.decode_flash)):
        arguments = float_operands(case, seed, torch.bfloat16).on_device()
        yield name, _Call(method, (), arguments | {"samples": 32})
    operands = fixed_operands(case, seed)
    yield "fixed", _Call(gpu.decode_fixed, (operands.design,), operands.on_device())


class _Watch(TorchDispatchMode):
    """Keeps the operator calls made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "santa_hw":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def operators(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Schemas and fake implementations of the operators, by torch.library.opcheck."""
    for name, call in _calls(seed):
        with _Watch() as watch:
            call.run()
        (operator, arguments), *more = watch.calls
        found = torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
        passed = not more and all(result == "SUCCESS" for result in found.values())
        yield Outcome("operators", name, passed, {key: str(value) for key, value in found.items()})


def refused(seed: int, captured: Path | None) -> Iterator[Outcome]:
    """Lengths and page numbers that lie on the device are checked before the launch, by name."""
    for name, call in _calls(seed):
        lengths = call.arguments["lengths"]
        for what, value in (("negative", -1), ("over-long", call.arguments["k"].shape[1] + 1)):
            arguments = call.arguments | {"lengths": torch.full_like(lengths, value)}
            try:
                call.method(*call.leading, **arguments)
                message = "no exception"
            except ValueError as error:
                message = str(error)
            passed = "lengths" in message and str(value) in message
            yield Outcome("refused", f"{name}, {what} lengths", passed, {"message": message})
