"""The RTL blocks against the golden model, in both simulators; planted faults are found; bad input is told."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from santa_hw import assets, rtl
from santa_hw.cli_rtl import cosim, vectors
from santa_hw.design import Design
from santa_hw.rtl import simulation
from santa_hw.rtl.blocks import LENGTHS
from santa_hw.rtl.comparison import Mismatch, binary
from santa_hw.rtl.package import FILE, constants, package
from santa_hw.rtl.rows import rows

ROOT = assets.path("rtl_models")

DESIGNS = {
    "default": Design(),
    # 4-bit scores and weights, words of 8 bits, four samples.
    "narrow": Design(score_bits=4, score_frac=2, weight_bits=4, samples=4, max_keys=1000, rng_bits=8),
    # 24-bit scores and weights, rounded, S larger than most rows.
    "wide": Design(score_bits=24, score_frac=8, weight_bits=24, samples=1024, weight_rounding="half_up"),
    "mitchell": Design(score_bits=12, score_frac=11, weight_bits=12, samples=1, exp="mitchell", max_keys=2048),
    # No fraction, one key at most, words of one bit.
    "least": Design(score_bits=5, score_frac=0, weight_bits=2, samples=2, max_keys=1, rng_bits=1),
    # The widest mass and residual: 32-bit weights, 2048 samples, 32-bit scores.
    "widest": Design(score_bits=32, score_frac=3, weight_bits=32, samples=2048, max_keys=1 << 20),
}
USES = {  # which designs make a difference to a block
    "threefry2x32": ("default",),
    "lfsr32": ("default", "narrow", "least"),
    "exp2_weight": ("default", "narrow", "wide", "mitchell", "least", "widest"),
    "mass": ("default", "narrow", "wide", "least", "widest"),
    "offset_scale": ("default", "narrow", "wide", "least", "widest"),
    "systematic_sampler": ("default", "narrow", "wide", "mitchell", "least", "widest"),
}
VERILATED = ("default", "narrow", "widest")  # a build takes its time: three show that the simulators agree
CASES = [
    (block, design, simulator)
    for block, designs in USES.items()
    for design in designs
    for simulator in rtl.SIMULATORS
    if simulator == "icarus" or design in VERILATED
]


def need(simulator: str) -> None:
    """Skip without the simulator; on CI nothing may be skipped."""
    if (reason := simulation.missing(simulator)) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)


@pytest.fixture(params=rtl.SIMULATORS)
def simulator(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return request.param


# Against the golden model


@pytest.mark.parametrize("block,design,simulator", CASES)
def test_block_equals_the_golden_model(block: str, design: str, simulator: str, seed: int) -> None:
    need(simulator)
    for pattern in ("full", "both"):
        report = rtl.cosimulate(
            block, design=DESIGNS[design], simulator=simulator, vectors=len(LENGTHS) * 3, seed=seed, pattern=pattern
        )
        assert report.mismatch is None, f"{pattern}: {report}"
        assert str(report) == "27 vectors, 0 mismatches"
        assert report.values > 0


@pytest.mark.parametrize("pattern", [name for name in rtl.PATTERNS if name not in ("full", "both")])
@pytest.mark.parametrize("block", USES)
def test_idle_and_back_pressure_change_nothing(block: str, pattern: str, seed: int) -> None:
    need("icarus")
    report = rtl.cosimulate(block, simulator="icarus", vectors=10, seed=seed, pattern=pattern)
    assert report.mismatch is None, report


@pytest.mark.parametrize("steps", [2, 8, 32])
def test_lfsr_steps_a_cycle(steps: int, simulator: str, seed: int) -> None:
    report = rtl.cosimulate(
        "lfsr32", simulator=simulator, vectors=20, seed=seed, pattern="full", parameters={"StepsPerCycle": steps}
    )
    assert report.mismatch is None, report


def test_vectors_hold_every_length_and_shape() -> None:
    made = list(rtl.load("systematic_sampler").vectors(Design(), 63, np.random.default_rng(0)))
    assert {vector.inputs["row"][0][0] for vector in made} == set(LENGTHS)
    names = " ".join(vector.name for vector in made)
    for shape in ("all masked", "equal", "one key", "word 0xffffffff", "word 0x0"):
        assert shape in names
    whole = [vector for vector in made if any(count == Design().samples for _, count, _ in vector.outputs["drawn"])]
    assert whole, "no key holds all S"
    assert all(sum(count for _, count, _ in v.outputs["drawn"]) in (0, Design().samples) for v in made)


@pytest.mark.parametrize("block", rtl.NAMES)
def test_vectors_are_drawn_as_they_are_taken(block: str) -> None:
    made = rtl.load(block).vectors(Design(), 3, np.random.default_rng(0))
    assert isinstance(made, Iterator)
    assert len(list(made)) == 3


def test_rows_as_they_are_taken_are_those_of_a_list(generator: np.random.Generator) -> None:
    """And what is drawn in between is what would be drawn after all of them."""
    other = copy.deepcopy(generator)
    listed = list(rows(Design(), 40, other))
    words = other.integers(1 << 32, size=40)
    for at, row in enumerate(rows(Design(), 40, generator)):
        assert generator.integers(1 << 32) == words[at]
        for name, value in row._asdict().items():
            assert np.array_equal(value, getattr(listed[at], name)), name


@pytest.mark.parametrize("wrong, drawn, told", [(None, [100, 200, 250], [100, 100, 50]), (130, [100, 200], [100])])
def test_a_run_draws_a_part_when_its_turn_comes(
    wrong: int | None, drawn: list[int], told: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken, seen, parts = [], [], []

    def draw(design: Design, count: int, generator: np.random.Generator) -> Iterator[rtl.Vector]:
        for i in range(count):
            taken.append(i)
            yield rtl.Vector(str(i), {"seed": [(i, 0)]}, {"word": []})

    def run(*arguments: Any, **_: Any) -> tuple[dict[str, Any], None]:
        seen.append(len(taken))
        (stream,) = arguments[4]["inputs"]
        first = int(stream["beats"][0][0], 2)
        mismatch = None
        if wrong is not None and first <= wrong < first + len(stream["beats"]):
            mismatch = dataclasses.asdict(Mismatch("lfsr32", wrong - first, 5, "word_valid_o", "1", "0"))
        return {"missing": [], "values": 1, "cycles": 2, "mismatch": mismatch}, None

    monkeypatch.setattr(simulation, "require", lambda simulator: None)
    monkeypatch.setattr(simulation, "_build", lambda *_, **__: tmp_path)
    monkeypatch.setattr(simulation, "_run", run)
    block = dataclasses.replace(rtl.load("lfsr32"), vectors=draw)
    report = rtl.cosimulate(block, vectors=250, advance=parts.append)
    assert (seen, parts) == (drawn, told)
    assert (report.vectors, report.values, report.cycles) == (250, len(drawn), 2 * len(drawn))
    assert (report.mismatch and report.mismatch.vector) == wrong


# Cycles: what a block's page states


def cycles(block: str, made: list[rtl.Vector], **options: object) -> int:
    """Cycles from the end of reset to the last transfer, when nothing waits."""
    need("icarus")
    report = rtl.cosimulate(block, simulator="icarus", vectors=made, pattern="full", **options)  # type: ignore[arg-type]
    assert report.mismatch is None, report
    return report.cycles


def test_sampler_takes_a_key_a_cycle_and_a_cycle_a_sample() -> None:
    made = list(rtl.load("systematic_sampler").vectors(Design(), 63, np.random.default_rng(1)))
    drawn = [v for v in made if v.inputs["row"][0][1] > 0]
    stated = sum(1 + v.inputs["row"][0][0] + Design().samples for v in drawn)
    assert cycles("systematic_sampler", drawn) <= stated


@pytest.mark.parametrize("block,each", [("threefry2x32", 22), ("offset_scale", 34)])
def test_iterative_blocks_take_the_stated_cycles(block: str, each: int) -> None:
    made = list(rtl.load(block).vectors(Design(), 12, np.random.default_rng(2)))
    assert cycles(block, made) == 12 * each


def test_weights_take_a_cycle_each() -> None:
    made = list(rtl.load("exp2_weight").vectors(Design(), 9, np.random.default_rng(3)))
    assert cycles("exp2_weight", made) == sum(LENGTHS) + 1


# Planted faults

FAULTS = {  # one constant of each block, flipped
    "threefry2x32": ("1BD11BDA", "1BD11BDB"),
    "lfsr32": ("A3000000", "A3000001"),
    "exp2_weight": ("score_visible_i ? shifted : '0", "score_visible_i ? shifted : WeightBits'(1)"),
    "mass": ("MassBits'(weight_weight_i)", "MassBits'(weight_weight_i ^ WeightBits'(1))"),
    "offset_scale": ("6'(RngBits)", "6'(RngBits - 1)"),
    "systematic_sampler": ("(weight_weight_i) << Sigma", "(weight_weight_i) << (Sigma - 1)"),
}


@pytest.mark.parametrize("block", FAULTS)
def test_a_flipped_constant_is_found(block: str, simulator: str, tmp_path: Path) -> None:
    text = (ROOT / block / f"{block}.sv").read_text(encoding="utf-8")
    right, wrong = FAULTS[block]
    assert text.count(right) == 1
    dut = tmp_path / "faulty.sv"
    dut.write_text(text.replace(right, wrong), encoding="utf-8")
    report = rtl.cosimulate(block, simulator=simulator, vectors=30, dut=dut)
    assert report.mismatch is not None


def test_a_flipped_table_entry_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    need("icarus")
    wrong = package(Design()).replace("5'd3: exp2_table = 16'd34968", "5'd3: exp2_table = 16'd34969")
    assert wrong != package(Design())
    monkeypatch.setattr(simulation, "package", lambda design: wrong)
    assert rtl.cosimulate("exp2_weight", simulator="icarus", vectors=30).mismatch is not None


@pytest.mark.parametrize("block", USES)
def test_a_flipped_expected_bit_is_found(block: str, simulator: str) -> None:
    made = list(rtl.load(block).vectors(Design(), 12, np.random.default_rng(5)))
    stream = rtl.load(block).streams(Design())[1][0]
    where = next(i for i in range(5, 12) if made[i].outputs[stream.name])
    beat = made[where].outputs[stream.name][0]
    made[where].outputs[stream.name][0] = (beat[0] ^ 4, *beat[1:])
    found = rtl.cosimulate(block, simulator=simulator, vectors=made).mismatch
    assert found is not None
    assert (found.block, found.vector, found.bit) == (block, where, 2)
    assert found.signal == f"{stream.name}_{stream.fields[0].name}_o"
    assert found.cycle > 0


def test_missing_and_superfluous_beats_are_found() -> None:
    need("icarus")
    made = list(rtl.load("threefry2x32").vectors(Design(), 4, np.random.default_rng(6)))
    more = [*made[:3], dataclasses.replace(made[3], outputs={"words": made[3].outputs["words"] * 2})]
    stuck = rtl.cosimulate("threefry2x32", simulator="icarus", vectors=more).mismatch
    assert stuck is not None and "nothing moved" in stuck.note
    fewer = [*made[:3], dataclasses.replace(made[3], outputs={"words": []})]
    extra = rtl.cosimulate("threefry2x32", simulator="icarus", vectors=fewer).mismatch
    assert extra is not None and "more than expected" in extra.note


@pytest.mark.parametrize(
    "right,wrong,note",
    [  # valid that waits for ready, valid that does not, data that depends on ready
        (
            "assign words_valid_o   = state_q == Done;",
            "assign words_valid_o = state_q == Done && words_ready_i;",
            "nothing moved",
        ),
        ("Done: if (words_ready_i) state_d = Idle;", "Done: state_d = Idle;", "valid fell before ready"),
        (
            "assign words_word0_o   = x0_q;",
            "assign words_word0_o = x0_q ^ {32{words_ready_i}};",
            "data changed before ready",
        ),
    ],
)
def test_stream_rules_are_checked(right: str, wrong: str, note: str, tmp_path: Path) -> None:
    need("icarus")
    text = (ROOT / "threefry2x32/threefry2x32.sv").read_text(encoding="utf-8")
    assert right in text
    (tmp_path / "rude.sv").write_text(text.replace(right, wrong), encoding="utf-8")
    report = rtl.cosimulate("threefry2x32", simulator="icarus", vectors=20, pattern="after", dut=tmp_path / "rude.sv")
    assert report.mismatch is not None and note in report.mismatch.note


# What is told


def test_mismatch_marks_the_first_differing_bit() -> None:
    lines = str(Mismatch("mass", 3, 40, "mass_mass_o", binary(12, 6), binary(8, 6), "beat 0")).splitlines()
    assert lines == [
        "block mass, vector 3, cycle 40, signal mass_mass_o (beat 0)",
        "  expected 001100",
        "  found    001000",
        "              ^ bit 2",
    ]
    assert binary(-1, 3) == "111"


def test_checked_in_package_is_fresh() -> None:
    assert (ROOT / FILE).read_text(encoding="utf-8") == package(Design()), "python -m santa_hw.rtl writes it again"


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_package_holds_the_design(design: Design) -> None:
    text, derived = package(design), design.derived()
    found = dict(re.findall(r"localparam int (\w+) = (\d+);", text))
    assert found == {name: str(value) for name, value in constants(design).items()}
    assert found["MassBits"] == str(derived["mass"]) and found["ResidualBits"] == str(derived["residual"])
    table = [int(w) for w in re.findall(r"'d\d+: exp2_table = \d+'d(\d+);", text)]
    assert table == (design.table.tolist() if design.exp == "table" else [])


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
@pytest.mark.parametrize("block", USES)
def test_lint_is_clean(block: str, design: Design, tmp_path: Path) -> None:
    need("verilator")
    (tmp_path / FILE).write_text(package(design), encoding="utf-8")
    files = simulation.sources(rtl.load(block))
    with simulation._environment(tmp_path):
        done = subprocess.run(
            ["verilator", "--lint-only", "-Wall", "--top-module", block, tmp_path / FILE, *files],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr


def test_models_take_verilators_headers_as_compiled(tmp_path: Path) -> None:
    need("verilator")
    (tmp_path / FILE).write_text(package(Design()), encoding="utf-8")
    files = [tmp_path / FILE, *simulation.sources(rtl.load("exp2_weight"))]
    simulation._compile("verilator", files, tmp_path, "exp2_weight", {}, waves=False)
    log = (tmp_path / "build.log").read_text(encoding="utf-8")
    for source in ("Vtop__ALL.cpp", "verilator.cpp"):
        command = shlex.split(next(line for line in log.splitlines() if " -c " in line and line.endswith(source)))
        command[command.index("-o") + 1] = str(tmp_path / "model.o")
        used = subprocess.run([*command, "-H"], cwd=tmp_path, capture_output=True, text=True, check=True).stderr
        assert re.search(r"^! .*model\.h\.gch$", used, re.MULTILINE), used[:2000]


@pytest.mark.parametrize("simulator", simulation.SIMULATORS)
def test_a_cached_model_outlives_the_environment_that_built_it(simulator, tmp_path: Path, monkeypatch) -> None:
    need(simulator)
    import cocotb_tools.config

    if simulator == "verilator":  # the user's, which is there
        with simulation._environment(tmp_path):
            header = simulation._header()
        monkeypatch.setattr(simulation, "_header", lambda: header)
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path / "cache"))
    (gone := tmp_path / "gone").symlink_to(cocotb_tools.config.libs_dir)
    with monkeypatch.context() as other:
        other.setattr(cocotb_tools.config, "libs_dir", gone)
        simulation._build(rtl.load("exp2_weight"), Design(), simulator, {}, None, "exp2_weight", waves=False)
    gone.unlink()
    monkeypatch.setattr(simulation, "_compile", lambda *_: pytest.fail("built anew"))
    assert rtl.cosimulate("exp2_weight", simulator=simulator, vectors=1).mismatch is None


def test_a_model_is_built_anew_for_another_simulator_or_compiler_setting(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SANTA_HW_CACHE", str(tmp_path))
    monkeypatch.setattr(simulation, "_compile", lambda *_: None)
    monkeypatch.setattr(simulation, "_versions", lambda simulator: "5.48")
    build = functools.partial(
        simulation._build, rtl.load("exp2_weight"), Design(), "verilator", {}, None, "exp2_weight", waves=False
    )
    first = build()
    assert build() == first
    monkeypatch.setitem(simulation.ARGUMENTS, "verilator", ["-O0"])
    second = build()
    monkeypatch.setattr(simulation, "OPTIMISATION", "OPT_FAST=-O3")
    third = build()
    monkeypatch.setattr(simulation, "_versions", lambda simulator: "5.50")
    assert len({first, second, third, build()}) == 4


def test_a_simulator_imports_nothing_heavy() -> None:
    code = "import sys, santa_hw.testbench; print([m for m in ('numpy', 'santa_hw.rtl') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.strip() == "[]"


# Bad input: one clear line


@pytest.mark.parametrize(
    "block,options,told",
    [
        ("masss", {}, "block 'masss' is unknown: allowed are threefry2x32"),
        ("mass", {"simulator": "vcs"}, "simulator 'vcs': allowed are verilator, icarus"),
        ("mass", {"pattern": "odd"}, "pattern 'odd'"),
        ("mass", {"vectors": 0}, "vectors = 0"),
        ("mass", {"parameters": {"Lanes": 3}}, "block mass has no parameter 'Lanes'"),
        ("lfsr32", {"parameters": {"StepsPerCycle": 3}}, "lfsr32.StepsPerCycle = 3: allowed are 1, 2, 4, 8, 16, 32"),
        ("mass", {"dut": Path("nowhere.sv")}, "--dut nowhere.sv: there is no such file"),
        ("exp2_weight", {"design": Design(score_frac=11)}, "score_frac = 11: at most 10"),
        ("systematic_sampler", {"design": Design(sampler="iid")}, "sampler = iid"),
    ],
)
def test_bad_input(block: str, options: dict, told: str) -> None:
    need("icarus")
    with pytest.raises(ValueError, match=re.escape(told)):
        rtl.cosimulate(block, **({"simulator": "icarus"} | options))


def test_a_simulator_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    need("icarus")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(rtl.SimulatorMissing, match="iverilog is not found, which icarus needs: apt-get install"):
        rtl.cosimulate("mass", simulator="icarus")


def test_a_module_without_the_ports(simulator: str, tmp_path: Path) -> None:
    text = (ROOT / "offset_scale/offset_scale.sv").read_text(encoding="utf-8")
    dut = tmp_path / "mine.sv"
    dut.write_text(text.replace("scale_word_i", "scale_random_i").replace("offset_scale", "mine"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"module mine lacks ports of block offset_scale: scale_word_i$"):
        rtl.cosimulate("offset_scale", simulator=simulator, dut=dut, top="mine", vectors=3)


def test_a_file_that_does_not_compile(simulator: str, tmp_path: Path) -> None:
    (tmp_path / "bad.sv").write_text("module mass (input logic clk_i;\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"{simulator} cannot compile module mass: .*bad.sv"):
        rtl.cosimulate("mass", simulator=simulator, dut=tmp_path / "bad.sv")


def test_a_parameter_out_of_range_stops_the_simulation(tmp_path: Path) -> None:
    need("icarus")
    text = (ROOT / "offset_scale/offset_scale.sv").read_text(encoding="utf-8")
    (tmp_path / "wide.sv").write_text(text.replace("= santa_pkg::MassBits", "= 70"), encoding="utf-8")
    with pytest.raises(RuntimeError, match="MassBits = 70"):
        rtl.cosimulate("offset_scale", simulator="icarus", dut=tmp_path / "wide.sv")


# Commands


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(cosim)
    made.command()(vectors)
    return made


def test_cosim_writes_its_results(app: typer.Typer, tmp_path: Path) -> None:
    need("icarus")
    design = tmp_path / "design.toml"
    design.write_text(Design(samples=16).to_toml(), encoding="utf-8")
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    done = CliRunner().invoke(
        app, ["cosim", "systematic_sampler", "--simulator", "icarus", "--design", str(design), "--vectors", "9", *files]
    )
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "9 vectors, 0 mismatches"
    row = json.loads((tmp_path / "r.json").read_text())[0]
    assert (row["block"], row["vectors"], row["mismatches"]) == ("systematic_sampler", 9, 0)
    assert ElementTree.parse(tmp_path / "r.xml").getroot().attrib["failures"] == "0"


def test_cosim_shows_the_first_difference(app: typer.Typer, simulator: str, tmp_path: Path) -> None:
    text = (ROOT / "offset_scale/offset_scale.sv").read_text(encoding="utf-8")
    dut = tmp_path / "mine.sv"
    dut.write_text(text.replace("sum[MassBits:1]", "(sum[MassBits:1] & ~MassBits'(8))").replace(" offset_scale", " my"))
    done = CliRunner().invoke(
        app,
        ["cosim", "offset_scale", "--simulator", simulator, "--dut", str(dut), "--top", "my", "--junit",
         str(tmp_path / "r.xml")],
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    assert "block offset_scale, vector 0, cycle" in done.output and "signal offset_offset_o" in done.output
    assert "^ bit " in done.output
    waveform = Path(re.search(r"waveform (\S+)", done.output)[1])  # type: ignore[index]
    assert waveform.stat().st_size > 0
    assert ElementTree.parse(tmp_path / "r.xml").getroot().attrib["failures"] == "1"


@pytest.mark.parametrize(
    "line,told",
    [
        ("cosim masss", "error: block 'masss' is unknown"),
        ("cosim --dut x.sv", "error: --dut, --parameter and --captured: name the block"),
        ("cosim mass --captured x.npz", "error: --captured with block mass: santa_decode is allowed"),
        ("cosim santa_decode --captured none.npz", "error: capture 'none.npz': no such file; run santa-hw capture"),
        ("cosim santa_decode --captured x --design y", "error: --design and --captured: one of them"),
        ("cosim mass --top x", "error: --top has no effect without --dut"),
        ("cosim mass --parameter x", "error: --parameter 'x': NAME=VALUE"),
        ("cosim mass --design nowhere.toml", "error: design file nowhere.toml"),
        ("vectors masss --out x", "error: block 'masss' is unknown"),
        ("vectors mass --out x --vectors 0", "error: vectors = 0"),
    ],
)
def test_commands_tell_bad_input_in_a_line(app: typer.Typer, line: str, told: str) -> None:
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2
    assert done.output.strip().startswith(told) and len(done.output.strip().splitlines()) == 1


def test_tutorial_shows_what_happens(tmp_path: Path) -> None:
    need("icarus")
    page = Path(__file__).parents[1] / "docs/tutorial/bring-your-own-rtl.md"
    text = page.read_text(encoding="utf-8")
    faulty, line = re.findall(r"```systemverilog\n(.*?)```", text, re.DOTALL)
    shown = re.findall(r"```console\n\$ santa-hw [^\n]*\n(.*?)```", text, re.DOTALL)
    fixed = re.sub(r"  assign product = .*\n", line, faulty)
    for i, (module, told) in enumerate(zip((faulty, fixed), shown, strict=True)):
        dut = tmp_path / f"{i}.sv"
        dut.write_text(module, encoding="utf-8")
        report = rtl.cosimulate("offset_scale", simulator="icarus", dut=dut, top="my_offset")
        assert told.startswith(f"offset_scale, icarus: {report.cycles} cycles, values compared: {report.values}\n")
        assert str(report) in told
