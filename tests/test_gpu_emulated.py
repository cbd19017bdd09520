"""The CUDA kernels' own source on the processor (``tests/emulator``), against the golden model and a float64 reference.

What runs on a GPU is checked there (``santa-hw gpu validate``); here is what needs none: the kernels' logic, with
threads and copies in an order drawn from the test's seed.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from ctypes import CDLL

import pytest
import torch
from emulated import EmulationError, build, on_processor

from santa_hw import gpu
from santa_hw.gpu.cases import EDGE_WEIGHT_BITS, Case, FixedOperands, edge_operands, fixed_operands, float_operands
from santa_hw.gpu.comparison import compare, golden, trace_fixed
from santa_hw.gpu.validate.calls import late_key_outcomes, late_outcomes
from santa_hw.gpu.validate.systematic import counts_outcome

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++: apt-get install g++")

RAGGED = (0, 1, 54, 97, 300)
FIXED = [
    (Case(4, 2, 128, RAGGED), {}),
    (Case(4, 2, 128, RAGGED), {"split": 4}),
    (Case(1, 10, 64, (129,)), {}),
    (Case(2, 1, 128, (1000,)), {"multiprocessors": 8}),  # blocks share a query head
    (Case(7, 1, 64, RAGGED, "narrow", page_size=17), {}),
    (Case(16, 1, 64, RAGGED, "ternary"), {}),
    (Case(3, 3, 64, RAGGED, "half_up", page_size=1), {"steps": 1, "tiles_per_unit": 1}),
    (Case(5, 1, 128, (64, 65), "wide"), {"steps": 4, "tiles_per_unit": 4}),
    (Case(4, 2, 64, RAGGED, "output format"), {"split": 2}),
    (Case(8, 1, 128, RAGGED, "one sample"), {"multiprocessors": 1}),
    (Case(2, 1, 64, (33,) * 33, "mitchell"), {}),  # more sequences than a warp looks at
]
FLOATS = [
    (Case(4, 2, 128, RAGGED), {"split": 1}, torch.bfloat16, 64),
    (Case(4, 2, 128, RAGGED), {"split": 4}, torch.float16, 128),
    (Case(2, 1, 128, (1000,)), {"multiprocessors": 8}, torch.bfloat16, 128),
    (Case(7, 1, 64, RAGGED, page_size=17), {}, torch.bfloat16, 3),
    (Case(16, 1, 64, (513,)), {}, torch.float16, 1),
]

INVALIDATE = "tiles.invalidate(thread - kWindow, kThreads - kWindow);\n"
WAITS_FOR_READERS = "if (split > 1) barrier_wait(&shared.read_full, 0);\n            "
WAITS_FOR_KEYS = "barrier_wait(&shared.full[stage.index], stage.parity);\n                if (row >= 0)"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> CDLL:
    return build(tmp_path_factory.mktemp("emulator"))


def fixed_differences(emulated: CDLL, case: Case, cut: dict[str, int], seed: int) -> dict[str, int]:
    return operand_differences(emulated, fixed_operands(case, seed), cut, seed)


def operand_differences(emulated: CDLL, operands: FixedOperands, cut: dict[str, int], seed: int) -> dict[str, int]:
    with on_processor(emulated, seed), gpu.tiling(**cut):
        found = trace_fixed(operands.design, operands.on_device("cpu"), operands.codes.k.shape[2])
    return {name: count for name, count in compare(found, golden(operands)).items() if count}


@pytest.mark.parametrize("case,cut", FIXED, ids=lambda x: str(x))
def test_fixed_has_the_golden_models_bits(emulated: CDLL, case: Case, cut: dict[str, int], seed: int) -> None:
    assert fixed_differences(emulated, case, cut, seed) == {}


@pytest.mark.parametrize("weight_bits", EDGE_WEIGHT_BITS)
def test_fixed_at_the_edges_of_its_numbers(emulated: CDLL, weight_bits: int, seed: int) -> None:
    assert operand_differences(emulated, edge_operands(weight_bits, seed), {}, seed) == {}


def test_sums_that_overflow_are_found(tmp_path, seed: int) -> None:  # type: ignore[no-untyped-def]
    broken = build(tmp_path, "-DFIXED_128_ALONE", "-O0", edit={"fixed.cuh": ("weight_bits <= 26", "weight_bits <= 27")})
    found = [bits for bits in EDGE_WEIGHT_BITS if operand_differences(broken, edge_operands(bits, seed), {}, seed)]
    assert found == [27]


@pytest.mark.parametrize("case,cut,dtype,samples", FLOATS, ids=lambda x: str(x))
def test_sys_draws_the_references_counts(
    emulated: CDLL, case: Case, cut: dict[str, int], dtype: torch.dtype, samples: int, seed: int
) -> None:
    operands = float_operands(case, seed, dtype, device="cpu")
    with on_processor(emulated, seed), gpu.tiling(**cut):
        outcome = counts_outcome(operands, str(case), samples)
    assert outcome.passed, outcome.measured


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> CDLL:
    """Shared memory keeps the statistics of eight tiles at most: of longer rows they are read again and again."""
    few = {"arguments.cuh": ("kMaxEntries = 2048;", "kMaxEntries = 8;")}
    return build(tmp_path_factory.mktemp("forgetful"), edit=few)


@pytest.mark.parametrize("lengths", [(300, 1, 129, 0), (4200,)], ids=str)  # 4200: two tiles a thread
def test_rows_of_more_tiles_than_shared_memory_keeps(forgetful: CDLL, lengths: tuple[int, ...], seed: int) -> None:
    cut = {"steps": 1, "tiles_per_unit": 1}
    assert fixed_differences(forgetful, Case(4, 2, 128, lengths), cut, seed) == {}
    operands = float_operands(Case(4, 2, 64, lengths), seed, torch.bfloat16, device="cpu")
    with on_processor(forgetful, seed), gpu.tiling(**cut):
        outcome = counts_outcome(operands, "more tiles than shared memory keeps", 64)
    assert outcome.passed, outcome.measured


CALLS = [
    (RAGGED, {"multiprocessors": 2, "steps": 1, "tiles_per_unit": 1}),  # few blocks take most units by the counter
    ((300,), {"steps": 4, "tiles_per_unit": 4}),  # statistics are looked for from the beginning
    ((300,), {"split": 4}),  # blocks of a cluster read them
]


@pytest.mark.parametrize("lengths,cut", CALLS, ids=str)
def test_a_workspace_serves_call_after_call(
    emulated: CDLL, lengths: tuple[int, ...], cut: dict[str, int], seed: int
) -> None:
    assert all(calls_with_one_workspace(emulated, lengths, cut, seed))


def test_statistics_of_the_call_before_are_found(tmp_path, seed: int) -> None:  # type: ignore[no-untyped-def]
    broken = build(tmp_path, "-DFIXED_128_ALONE", "-O0", edit={"gather.cuh": (INVALIDATE, "")})
    assert not all(itertools.chain(*(calls_with_one_workspace(broken, *CALLS[1], seed + i) for i in range(5))))


def test_statistics_invalidated_too_early_are_found(tmp_path, seed: int) -> None:  # type: ignore[no-untyped-def]
    """Before the other blocks of a cluster have read them. With counts asked for they wait for each other anyway."""
    edit = {"gather.cuh": (WAITS_FOR_READERS + INVALIDATE, INVALIDATE)}
    broken = build(tmp_path, "-DFIXED_128_ALONE", "-O0", edit=edit)
    schedules = (calls_with_one_workspace(broken, *CALLS[2], seed + i) for i in range(10))
    with pytest.raises(EmulationError, match="wait for each other"):
        list(itertools.chain.from_iterable(schedules))


def calls_with_one_workspace(
    emulated: CDLL, lengths: tuple[int, ...], cut: dict[str, int], seed: int
) -> Iterator[bool]:
    """Whether each of three calls, on operands in turn, finds the workspace as the first did."""
    workspace = None
    with on_processor(emulated, seed), gpu.tiling(**cut):
        for call in range(3):
            operands = fixed_operands(Case(4, 2, 128, lengths), seed + call % 2)
            arguments = operands.on_device("cpu") | {"check": False}
            if workspace is None:
                q, k = arguments["q"], arguments["k"]
                workspace = gpu.workspace(gpu.decode_fixed, q, k, samples=operands.design.samples)
            found = gpu.decode_fixed(operands.design, **arguments, workspace=workspace)
            expected = torch.from_numpy(golden(operands)["accumulators"]).to(torch.int32)
            yield torch.equal(found.reshape(expected.shape), expected)


def test_a_workspace_serves_other_lengths_and_tiles(emulated: CDLL, seed: int) -> None:
    """What one call leaves behind must not look like another's statistics, wherever it has them."""
    found = []
    cases = [fixed_operands(Case(4, 2, 128, lengths), seed) for lengths in ((300, 97), (60, 97))]
    with on_processor(emulated, seed):
        sizes = []
        for operands in cases:
            q, k = (operands.on_device("cpu")[name] for name in ("q", "k"))
            sizes.append(gpu.workspace(gpu.decode_fixed, q, k, samples=operands.design.samples))
        workspace = max(sizes, key=len)
        for steps, operands in itertools.product((4, 1, 2), cases):
            expected = torch.from_numpy(golden(operands)["accumulators"]).to(torch.int32)
            with gpu.tiling(steps=steps):
                arguments = operands.on_device("cpu") | {"check": False, "workspace": workspace}
                out = gpu.decode_fixed(operands.design, **arguments)
            found.append(torch.equal(out.reshape(expected.shape), expected))
    assert all(found), found


LATE = [Case(4, 2, 128, RAGGED), Case(2, 1, 64, (5, 77, 1) * 11), Case(4, 2, 64, RAGGED, page_size=17)]


@pytest.mark.parametrize("case", LATE, ids=str)
def test_lengths_may_come_while_a_step_begins(emulated: CDLL, case: Case, seed: int) -> None:
    with on_processor(emulated, seed):
        wrong = [outcome for outcome in late_outcomes(case, seed, "cpu") if not outcome.passed]
    assert not wrong


def test_lengths_that_are_not_read_again_are_found(tmp_path, seed: int) -> None:  # type: ignore[no-untyped-def]
    broken = build(tmp_path, edit={"scores.cuh": ("changed = schedule_.changed(now_);", "changed = false;")})
    with on_processor(broken, seed), pytest.raises((EmulationError, AssertionError)):
        assert all(outcome.passed for outcome in late_outcomes(LATE[0], seed, "cpu"))


@pytest.mark.parametrize("length", [1, 77, 300])
def test_the_newest_keys_may_come_while_a_step_begins(emulated: CDLL, length: int, seed: int) -> None:
    with on_processor(emulated, seed):
        found = list(late_key_outcomes(Case(4, 2, 128, (length,)), seed, "cpu"))
    assert not [outcome for outcome in found if not outcome.passed]


@pytest.mark.parametrize(
    "old,new,promised",
    [
        ("left.tokens - left.step() < recent", "left.tokens < 0", True),
        ("if (recent < 0 && !ahead.waited) wait_for_launch();", "", False),
    ],
    ids=["the newest of those promised", "before the kernel ahead has ended"],
)
def test_new_keys_that_are_fetched_too_early_are_found(  # type: ignore[no-untyped-def]
    old: str, new: str, promised: bool, tmp_path, seed: int
) -> None:
    broken = build(tmp_path, edit={"scores.cuh": (old, new)})
    with on_processor(broken, seed):
        found = list(late_key_outcomes(Case(4, 2, 128, (77,)), seed, "cpu"))
    wrong = ["recent = None" in outcome.shape for outcome in found if not outcome.passed]
    assert wrong and any(wrong) == (not promised)


@pytest.mark.parametrize(
    "file,old,new",
    [
        ("fixed.cuh", "(sum >> further)", "(sum >> (further + 1))"),  # arithmetic
        ("scores.cuh", WAITS_FOR_KEYS, "if (row >= 0)"),
        ("decode.cuh", "uint32_t(units * work.p.lanes)};", "uint32_t(units * work.p.lanes + 1)};"),
        ("head_tiles.cuh", "valid &= Scheme::valid(some[e]);", ""),
    ],
    ids=[
        "a wrong shift",
        "keys used before they land",
        "a wait for more than comes",
        "statistics used before they are written",
    ],
)
def test_a_planted_fault_is_found(file: str, old: str, new: str, tmp_path, seed: int) -> None:  # type: ignore[no-untyped-def]
    broken = build(tmp_path, "-DFIXED_128_ALONE", "-O0", edit={file: (old, new)})
    found: object = {}
    # Whether a race shows is up to the schedule.
    cut = {"steps": 4, "tiles_per_unit": 4}
    for schedule, lengths in itertools.product(range(seed, seed + 5), (RAGGED, (300,))):
        try:
            found = fixed_differences(broken, Case(4, 2, 128, lengths), cut, schedule)
        except EmulationError as error:
            found = error
        if found:
            break
    print(found)
    assert found
