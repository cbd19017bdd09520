"""The CUDA kernels as far as a machine without a GPU can tell, and the Python model against what a GPU recorded."""

from __future__ import annotations

import dataclasses
import io
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from rich.console import Console
from torch._subclasses import FakeTensorMode
from typer.testing import CliRunner

from santa_hw import gpu, models
from santa_hw.cli_gpu import gpu as command
from santa_hw.datapath import Codes, Draw, Exponents, decode
from santa_hw.datapath import attend as attend_on_cpu
from santa_hw.design import Design
from santa_hw.formats import exponent
from santa_hw.gpu import attention, bench, checks, comparison, fixed, operators, recorded, tiles, validate
from santa_hw.gpu import build as building

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
DATA = Path(__file__).parent / "data"
RECORDED = sorted(DATA.glob("gpu-*.npz"))


# Compilation


@pytest.fixture(scope="module")
def library() -> Path:
    """All kernels for all architectures; skipped without nvcc, but on CI nothing may be skipped."""
    try:
        building.compiler()
    except building.CompilerMissing as missing:
        (pytest.fail if "CI" in os.environ else pytest.skip)(str(missing))
    return building.build(building.ARCHITECTURES)


def test_every_kernel_compiles_without_spills(library: Path) -> None:
    assert building.spills(library) == []
    log = (library.parent / "build.log").read_text()
    for architecture in building.ARCHITECTURES:
        # Head dimensions and element types of the tile kernels alone make forty.
        assert log.count(f"for '{architecture}'") > 40


def test_spills_are_found(tmp_path: Path) -> None:
    (tmp_path / "build.log").write_text(
        "ptxas info    : Compiling entry function '_Z4fastv' for 'sm_90'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Compiling entry function '_Z4slowv' for 'sm_80'\n"
        "    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
    )
    assert building.spills(tmp_path / "libsanta_hw.so") == [building.Spill("_Z4slowv", "sm_80", 4, 8)]


# The golden model against what a GPU recorded


def test_recorded_vectors_are_there() -> None:
    assert {path.stem.removeprefix("gpu-") for path in RECORDED} == set(recorded.RECORDED)
    assert sum(path.stat().st_size for path in RECORDED) < 300_000


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_model_equals_the_recorded_gpu(path: Path) -> None:
    operands, found = recorded.read_recorded(path)
    differing = comparison.compare(found, comparison.golden(operands))
    assert set(differing) >= {"scores", "weights", "mass", "offset", "counts", "accumulators", "output_codes"}
    assert not any(differing.values()), differing


@pytest.mark.parametrize("name", ["q", "k", "v", "exponents"])
def test_a_flipped_operand_differs_from_the_recorded_gpu(name: str) -> None:
    operands, found = recorded.read_recorded(RECORDED[0])
    flipped = getattr(operands.codes, name).copy()
    # The longest sequence's first key, feature or exponent: every later stage sees it.
    row = int(np.argmax(operands.lengths))
    drawn = found["counts"][row].sum(axis=0).argmax()
    if name in "kv":
        flipped[row, 0, drawn, 0] ^= 64
    else:
        flipped[row, 0, 0, 0] ^= 2
    changed = dataclasses.replace(operands, codes=dataclasses.replace(operands.codes, **{name: flipped}))
    assert any(comparison.compare(found, comparison.golden(changed)).values())


# A model's attention: codes and events equal the CPU's


def stand_in(design: Design, q, k, v, *, shift, lengths, draw, output_shift=None, trace=None):
    """`decode_fixed` by the golden model, on tensors of the CPU."""
    total = design.query_frac + design.k_bits - 1 - design.score_frac
    frac = design.v_bits - 1 + design.sigma
    v_exponents = np.zeros(v.shape[2:], dtype=np.int64)
    if output_shift is not None:
        assert design.out_frac is not None
        v_exponents = frac - design.out_frac - output_shift.numpy().astype(np.int64)
    codes = Codes(
        q=q.numpy().astype(np.int32)[:, :, None],
        exponents=(total - shift.numpy())[:, :, None, None].astype(np.int32),
        k=np.ascontiguousarray(k.transpose(1, 2).numpy().astype(np.int16)),
        v=np.ascontiguousarray(v.transpose(1, 2).numpy().astype(np.int16)),
        v_exponents=v_exponents,
        saturations={"q": 0, "k": 0, "v": 0},
    )
    words = Draw(draw.seed, draw.layer, draw.sequence.numpy(), draw.position.numpy()[:, None])
    keep = ["output_codes", *trace]
    result = decode(design, codes, draw=words, lengths=lengths.numpy()[:, None].astype(np.int64), keep=keep)
    for name, tensor in trace.items():
        tensor.copy_(torch.from_numpy(result.trace[name][:, :, 0]))
    return torch.from_numpy(result.trace["output_codes"][:, :, 0])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        dict(k_exponents="per_head", v_exponents="per_head", q_bits=6),
        dict(weight_rounding="half_up", weight_bits=12, gather="shift_add"),
        dict(scores="ternary", ternary_samples=16),
        dict(scores="ternary", ternary_samples=2, ternary_offset="independent", score_bits=9),
        dict(out_bits=7, out_frac=4, score_bits=8),
    ],
)
def test_a_models_attention_has_the_cpus_codes_and_events(
    fields: dict, generator: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "decode_fixed", stand_in)
    monkeypatch.setattr(attention, "_TRACE_ELEMENTS", 300)  # some positions at a time
    design = Design(**dict(head_dim=16, samples=32, max_keys=64) | fields)
    q = generator.normal(size=(2, 6, 9, 16)).astype(np.float32) * 3
    k, v = generator.normal(size=(2, 2, 2, 40, 16)).astype(np.float32)
    channels = {name: 16 if getattr(design, f"{name}_exponents") == "per_channel" else 1 for name in "kv"}
    # Small enough that some codes saturate.
    exponents = Exponents(*(generator.integers(0, 3, size=(2, channels[name])) for name in "kv"))
    lengths = generator.integers(0, 41, size=(2, 9))
    lengths[0, :2] = 0, 40
    sequence, position = generator.integers(1 << 32, size=2), generator.integers(1 << 32, size=(2, 9))
    expected = attend_on_cpu(
        design, q, k, v, exponents=exponents, draw=Draw(7, 3, sequence, position), scale=0.3, lengths=lengths
    )
    output, tally = attention.attend(
        design,
        *(torch.from_numpy(x) for x in (q, k, v)),
        exponents=exponents,
        seed=7,
        layer=3,
        sequence=torch.from_numpy(sequence),
        position=torch.from_numpy(position),
        lengths=torch.from_numpy(lengths),
        scale=0.3,
    )
    np.testing.assert_array_equal(output.numpy(), expected.output)
    assert dataclasses.replace(tally, lost_mass=0.0) == dataclasses.replace(expected.tally, lost_mass=0.0)
    assert tally.lost_mass == pytest.approx(expected.tally.lost_mass, rel=1e-12)
    assert tally.total_saturations > 0


def test_exponents_at_powers_of_two() -> None:
    """Magnitudes just below, at and above where a code would round up to the limit."""
    magnitudes = [m * 2.0**e for e in (-40, -3, 0, 5, 40) for m in (0.5, 1 - 2.0**-8, 1 - 2.0**-8 - 2.0**-40, 0.75)]
    x = np.array([0.0, *magnitudes])
    found = attention._smallest_exponents(torch.from_numpy(x), Design())
    np.testing.assert_array_equal(found.numpy(), exponent(x, 8, -32, 31))


def test_nan_is_refused() -> None:
    q, k = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 4, 64)
    zeros = Exponents(np.zeros((1, 64), dtype=np.int64), np.zeros((1, 64), dtype=np.int64))
    with pytest.raises(ValueError, match="v holds NaN or infinity"):
        attention.encode(Design(), q, k, torch.full_like(k, torch.nan), zeros, 1.0)


def test_a_mask_is_refused_on_the_gpu_not_run_elsewhere() -> None:
    loaded = tiny.loaded()
    calibration = models.calibrate(loaded, np.arange(16)[None])
    hook = models.fixed_point(loaded, Design(max_keys=64), calibration)
    with FakeTensorMode():
        q, k = (torch.empty(1, heads, 1, 8, device="cuda") for heads in (4, 2))
        numbers = torch.empty(1, 1, dtype=torch.int64, device="cuda")
        mask = torch.empty(1, 1, 1, dtype=torch.bool, device="cuda")
        call = models.Call(1, q, k, k, 1.0, numbers, mask, numbers, numbers.new_empty(1))
    with pytest.raises(ValueError, match=r"layer 1 has an attention mask.*device cuda"):
        hook(call)


@pytest.mark.parametrize("method", ["top-k", "dense"])
def test_a_design_that_the_kernels_do_not_build_is_refused_not_run_elsewhere(method: str) -> None:
    loaded = tiny.loaded()
    calibration = models.calibrate(loaded, np.arange(16)[None])
    wide = Design(method=method, max_keys=64)
    models.fixed_point(loaded, wide, calibration)
    there = dataclasses.replace(loaded, model=SimpleNamespace(device=torch.device("cuda")))
    with pytest.raises(ValueError, match=f"method = '{method}': on the GPU allowed are 'santa'"):
        models.fixed_point(there, wide, calibration)
    with pytest.raises(ValueError, match="head_dim = 8: on the GPU allowed are 64"):
        models.fixed_point(there, Design(max_keys=64), calibration)


# Arguments, on tensors that say they are on a GPU and hold nothing


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors of a CUDA device without data; what needs the compiled library is replaced."""
    for name in operators._WORKSPACE_BYTES:
        monkeypatch.setitem(operators._WORKSPACE_BYTES, name, lambda arguments: 1000)
    with warnings.catch_warnings(), FakeTensorMode():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        yield
    fixed._table.cache_clear()  # what it holds belongs to this mode


def made(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def arguments(method: str, **changes: Any) -> dict[str, Any]:
    """Arguments that are allowed: two sequences, eight heads on two KV heads, ten keys."""
    dtype = torch.int8 if method == "fixed" else torch.bfloat16
    given = dict(
        q=made(2, 8, 64, dtype=dtype),
        k=made(2, 10, 2, 64, dtype=dtype),
        v=made(2, 10, 2, 64, dtype=dtype),
        lengths=made(2, dtype=torch.int32),
        draw=gpu.DeviceDraw(0, 0, made(2, dtype=torch.int64), made(2, dtype=torch.int64)),
        out=made(2, 8, 64, dtype=torch.int32 if method == "fixed" else dtype),
        workspace=made(1000, dtype=torch.uint8),
        check=False,
    )
    if method == "fixed":
        given |= dict(design=Design(), shift=made(2, 8, dtype=torch.int32))
    else:
        given |= dict(samples=128)
    return given | changes


DECODE = {"sys": gpu.decode_sys, "fixed": gpu.decode_fixed, "prop": gpu.decode_prop, "flash": gpu.decode_flash}


@pytest.mark.parametrize("method", DECODE)
def test_allowed_arguments_reach_the_operator(method: str, fake: None) -> None:
    given = arguments(method)
    assert DECODE[method](**given) is given["out"]
    pool = dict(k=given["k"].new_empty(7, 3, 2, 64), v=given["k"].new_empty(7, 3, 2, 64))
    DECODE[method](**given | pool, page_table=made(2, 4, dtype=torch.int32), max_length=12)
    shared = dict.fromkeys(("k", "v"), given["k"].new_empty(1, 10, 2, 64).expand(2, -1, -1, -1))
    DECODE[method](**given | shared)


WRONG: list[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = [
    (r"q lies on cpu.*CUDA", lambda a: {"q": a["q"].new_empty(2, 8, 64, device="cpu")}),
    (r"q has shape \(2, 8, 72\).*64, 80, 96, 128, 256", lambda a: {"q": a["q"].new_empty(2, 8, 72)}),
    (r"q has dtype torch.float32", lambda a: {"q": made(2, 8, 64, dtype=torch.float32)}),
    (r"q has 9 heads: 1 to 16 for each of the 2", lambda a: {"q": a["q"].new_empty(2, 9, 64)}),
    (r"q has 34 heads: 1 to 16 for each of the 2", lambda a: {"q": a["q"].new_empty(2, 34, 64)}),
    (r"q has strides.*contiguous", lambda a: {"q": a["q"].new_empty(8, 2, 64).transpose(0, 1)}),
    (r"k has shape \(3, 10, 2, 64\)", lambda a: {"k": a["k"].new_empty(3, 10, 2, 64)}),
    (r"k has dtype torch.float16: q's", lambda a: {"k": made(2, 10, 2, 64, dtype=torch.float16)}),
    (r"k lies on cpu: q's device", lambda a: {"k": a["k"].new_empty(2, 10, 2, 64, device="cpu")}),
    (r"k has strides.*dense", lambda a: {"k": a["k"].new_empty(2, 2, 10, 64).transpose(1, 2)}),
    (r"v has shape \(2, 11, 2, 64\): k's", lambda a: {"v": a["k"].new_empty(2, 11, 2, 64)}),
    (r"lengths has dtype torch.int64.*int32", lambda a: {"lengths": made(2, dtype=torch.int64)}),
    (r"lengths has shape \(3,\)", lambda a: {"lengths": made(3, dtype=torch.int32)}),
    (r"page_table has shape \(3, 4\)", lambda a: {"page_table": made(3, 4, dtype=torch.int32), "max_length": 9}),
    (r"max_length = None.*page table", lambda a: {"page_table": made(2, 4, dtype=torch.int32)}),
    (r"max_length = 41: 0 to the 40 keys that the page table", lambda a: {
        "page_table": made(2, 4, dtype=torch.int32), "max_length": 41}),
    (r"max_length = 11: 0 to the 10 keys that the cache", lambda a: {"max_length": 11}),
    (r"max_length = -1", lambda a: {"max_length": -1}),
    (r"draw.position has dtype torch.int32", lambda a: {
        "draw": dataclasses.replace(a["draw"], position=made(2, dtype=torch.int32))}),
    (r"draw.seed = 4294967296", lambda a: {"draw": dataclasses.replace(a["draw"], seed=1 << 32)}),
    (r"draw.layer = 2048: 0 to 2047", lambda a: {"draw": dataclasses.replace(a["draw"], layer=2048)}),
    (r"out has shape \(2, 8, 80\)", lambda a: {"out": a["out"].new_empty(2, 8, 80)}),
    (r"workspace has shape \(999,\): \(1000,\) or more", lambda a: {"workspace": made(999, dtype=torch.uint8)}),
]  # fmt: skip


@pytest.mark.parametrize("message,change", WRONG, ids=[message for message, _ in WRONG])
@pytest.mark.parametrize("method", DECODE)
def test_wrong_arguments_are_named(
    method: str, message: str, change: Callable[[dict[str, Any]], dict[str, Any]], fake: None
) -> None:
    given = arguments(method)
    with pytest.raises(ValueError, match=message):
        DECODE[method](**given | change(given))


@pytest.mark.parametrize("method", DECODE)
def test_a_workspace_stays_with_the_calls_it_was_used_for(method: str, fake: None) -> None:
    given = arguments(method)
    DECODE[method](**given)
    longer = dict.fromkeys(("k", "v"), given["k"].new_empty(2, 40, 2, 64))
    DECODE[method](**given | longer)
    fewer = dict(q=given["q"].new_empty(2, 4, 64), out=given["out"].new_empty(2, 4, 64))
    if method == "fixed":
        fewer["shift"] = given["shift"].new_empty(2, 4)
    with pytest.raises(
        ValueError, match=f"workspace serves decode_{method} of 2 sequences and 8 query heads: .* 4 query"
    ):
        DECODE[method](**given | fewer)
    other = "prop" if method == "sys" else "sys"
    with pytest.raises(ValueError, match=f"workspace serves decode_{method} of .* allowed for decode_{other} of"):
        DECODE[other](**arguments(other, workspace=given["workspace"]))


@pytest.mark.parametrize("method", ["sys", "fixed"])
def test_recent_is_checked(method: str, fake: None) -> None:
    for allowed in (None, 0, 1, (1 << 31) - 1):
        DECODE[method](**arguments(method, recent=allowed))
    for recent in (-1, 1 << 31, 1.0, True):
        with pytest.raises(ValueError, match=f"recent = {recent}: None or 0 to"):
            DECODE[method](**arguments(method, recent=recent))


@pytest.mark.parametrize("method", ["sys", "prop", "flash"])
def test_wrong_arguments_of_float_methods_are_named(method: str, fake: None) -> None:
    for samples in (0, -3, (1 << 16) + 1, 2.0):
        with pytest.raises(ValueError, match=f"samples = {samples}: 1 to 65536"):
            DECODE[method](**arguments(method, samples=samples))
    with pytest.raises(ValueError, match=r"scale = 0\.0: a positive finite"):
        DECODE[method](**arguments(method, scale=0.0))
    with pytest.raises(ValueError, match=r"counts has shape \(2, 8, 9\)"):
        DECODE[method](**arguments(method, counts=made(2, 8, 9, dtype=torch.int32)))
    with pytest.raises(ValueError, match="unique is given without counts"):
        DECODE[method](**arguments(method, unique=made(2, 2, dtype=torch.int32)))


def test_tile_methods_refuse_more_keys_than_words(fake: None) -> None:
    keys = tiles.MAX_KEYS + 1
    wide = dict.fromkeys(("k", "v"), made(1, keys, 2, 64).expand(2, -1, -1, -1))
    with pytest.raises(ValueError, match=f"max_length = {keys}: at most {tiles.MAX_KEYS}"):
        gpu.decode_prop(**arguments("prop", **wide))
    gpu.decode_sys(**arguments("sys", **wide))


def test_wrong_arguments_of_fixed_are_named(fake: None) -> None:
    output = Design(out_bits=8, out_frac=4)
    wrong: list[tuple[str, dict[str, Any]]] = [
        (r"shift has dtype torch.int64", dict(shift=made(2, 8, dtype=torch.int64))),
        (r"q has head dimension 64: the design's, 80", dict(design=Design(head_dim=80))),
        (r"max_length = 10: at most the design's max_keys = 9", dict(design=Design(max_keys=9))),
        (r"output_shift is missing.*8", dict(design=output)),
        (r"output_shift is given.*None", dict(output_shift=made(2, 64, dtype=torch.int32))),
        (r"out has dtype torch.int32: torch.int64", dict(design=output, output_shift=made(2, 64, dtype=torch.int32))),
        (r"trace holds 'score'", dict(trace={"score": made(2, 8, 10, dtype=torch.int32)})),
        (r"trace\['mass'\] has shape \(2, 7\)", dict(trace={"mass": made(2, 7, dtype=torch.int64)})),
        (r"trace holds 'ternary_counts'", dict(trace={"ternary_counts": made(2, 8, 64, dtype=torch.int32)})),
    ]
    for message, changes in wrong:
        with pytest.raises(ValueError, match=message):
            gpu.decode_fixed(**arguments("fixed", **changes))


@pytest.mark.parametrize(
    "message,fields",
    [
        ("method = 'top-k'.*'santa'", dict(method="top-k")),
        ("sampler = 'stratified'.*'systematic'", dict(sampler="stratified")),
        ("rng = 'lfsr'.*'threefry'", dict(rng="lfsr")),
        ("q_bits = 9.*2 to 8", dict(q_bits=9)),
        ("k_bits = 12.*2 to 8", dict(k_bits=12)),
        ("score_bits = 20.*2 to 16", dict(score_bits=20)),
        ("ternary_samples = 128.*1 to 64", dict(scores="ternary", ternary_samples=128)),
        ("ternary_draw = 'iid'.*'stratified'", dict(scores="ternary", ternary_draw="iid")),
        ("ternary_block = 8.*None", dict(scores="ternary", ternary_block=8)),
        ("head_dim = 72.*64, 80, 96, 128, 256", dict(head_dim=72)),
    ],
)
def test_designs_that_the_kernels_do_not_build_are_refused(message: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        gpu.check_design(Design(**fields))


def test_designs_with_idle_ternary_fields_pass() -> None:
    gpu.check_design(Design(ternary_samples=4096, ternary_draw="iid", ternary_block=8))


def test_values_on_the_device_are_checked() -> None:
    draw = gpu.DeviceDraw(0, 0, torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
    k, table = torch.zeros(5, 4, 1, 64), torch.tensor([[0, 4, 99], [3, -1, 5]], dtype=torch.int32)

    def check(lengths: list[int], table: torch.Tensor | None = None, draw: gpu.DeviceDraw = draw) -> None:
        checks._check_values(torch.tensor(lengths, dtype=torch.int32), draw, table, k, 12)

    check([0, 12])
    with pytest.raises(ValueError, match="lengths reach -1 to 3: 0 to max_length = 12"):
        check([-1, 3])
    with pytest.raises(ValueError, match="lengths reach 3 to 13"):
        check([3, 13])
    check([8, 4], table)  # the wrong page numbers are not needed
    with pytest.raises(ValueError, match="page_table reaches -1 to 4: 0 to 4"):
        check([8, 5], table)
    late = dataclasses.replace(draw, position=torch.tensor([0, 1 << 32]))
    with pytest.raises(ValueError, match=r"draw.position reach.* 4294967296"):
        check([1, 1], draw=late)


def test_tilings_are_checked() -> None:
    for name, value in (("steps", 3), ("tiles_per_unit", 0), ("tile", 64)):
        with pytest.raises(ValueError, match=name), gpu.tiling(**{name: value}):
            pass


# Commands, and what they show


def measurement(method: str, graph_us: float | None, shape: str = "1x4k") -> bench.Measurement:
    return bench.Measurement(method, shape, graph_us, graph_us and 2 * graph_us, 8 << 20)


def test_measurements_are_compared_within_a_shape() -> None:
    times = {"read K, bf16": 4.0, "read K and V, bf16": 8.0, "cudnn": 12.0, "torch-flash": 20.0, "flashinfer": None}
    times |= {"sys": 5.0, "read K, int8": 2.0, "flashinfer-fp8": 9.0, "fixed": 3.0, "prop": None}
    found = {row.method: row for row in bench.compared([measurement(name, time) for name, time in times.items()])}
    assert found["sys"].over_dense == pytest.approx(12 / 5)  # the best of the dense ones, not the first
    assert found["sys"].floor_us == 4.0 and found["sys"].floor_share == pytest.approx(0.8)
    assert found["fixed"].floor_us == 2.0 and found["fixed"].over_fp8 == pytest.approx(3.0)
    assert found["cudnn"].floor_us == 8.0 and found["cudnn"].over_dense == 1.0
    assert found["prop"].over_dense is None and found["prop"].floor_share is None
    assert found["sys"].bytes_per_second == pytest.approx((8 << 20) / 5e-6)


def test_tables_and_plot_show_what_was_not_measured(tmp_path: Path) -> None:
    rows = [dataclasses.replace(measurement("sys", 5.0), over_dense=2.4), measurement("cudnn", 12.0)]
    rows += [dataclasses.replace(measurement("flashinfer", None), note="not measured: No module named 'flashinfer'")]
    rows += [measurement("sys", 7.0, "4x32k")]
    console = Console(width=160, record=True, file=io.StringIO())
    for table in bench.tables(rows):
        console.print(table)
    text = console.export_text()
    assert "1x4k" in text and "4x32k" in text and "2.40" in text and "not measured: No module" in text
    bench.plot(rows, tmp_path / "plot.svg")
    assert "4x32k" in (tmp_path / "plot.svg").read_text()


@pytest.mark.parametrize("text", ["", "4k", "0x4k", "1x0", "1x4m", "1x4kk"])
def test_wrong_shapes_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"shape '{text}'.*BATCHxKEYS"):
        bench.parse_shape(text)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["bench", "--methods", "nope"], "method 'nope'"),
        (["bench", "--plot", "plot.txt"], "plot.txt"),
        (["validate", "--only", "nope"], "check 'nope'"),
        (["build", "--arch", "90"], "arch = '90'"),
        pytest.param(["validate"], "no CUDA GPU", marks=NO_GPU),
        pytest.param(["bench"], "no CUDA GPU", marks=NO_GPU),
        pytest.param(["build"], "no CUDA GPU", marks=NO_GPU),
    ],
)
def test_commands_refuse_in_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.startswith("error: ")


def test_a_check_that_raises_has_failed() -> None:
    def broken(seed: int, captured: Path | None) -> Iterator[validate.Outcome]:
        yield validate.Outcome("broken", "first", True, {})
        raise RuntimeError("out of luck")

    first, second = validate.run(broken, 0)
    assert first.passed and not second.passed
    assert "out of luck" in second.measured["error"]
