"""The whole step, score_sampler and santa_decode: bit for bit and cycle for cycle; planted faults; its netlist."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from santa_hw import assets, synth
from santa_hw.cli_rtl import cosim, vectors
from santa_hw.cycles import control_cycles, step_cycles
from santa_hw.datapath import INTERMEDIATES, Codes, Draw, decode, step
from santa_hw.design import Design
from santa_hw.rtl import SIMULATORS, Vector, cosimulate
from santa_hw.rtl.blocks import LENGTHS, load, santa_decode, score_sampler
from santa_hw.rtl.package import FILE, package
from santa_hw.rtl.simulation import _environment, missing, sources

ROOT = assets.path("rtl_models")

SMALL = Design(head_dim=16, samples=16, max_keys=33)
TERNARY = Design(head_dim=16, samples=8, max_keys=33, scores="ternary", rng_bits=16)
IID = Design(
    head_dim=8, samples=16, max_keys=33, scores="ternary", ternary_draw="iid", ternary_samples=4, gather="shift_add",
    ternary_offset="independent", q_bits=5,
)  # fmt: skip
FORMAT = Design(head_dim=8, samples=16, max_keys=33, out_bits=8, out_frac=4, gather="shift_add")
# Dot products of 51 bits and accumulators of 32, which turn negative; weights rounded.
WIDE = Design(
    head_dim=16, samples=256, max_keys=33, q_bits=24, k_bits=24, v_bits=24, score_bits=24, score_frac=8,
    weight_bits=24, weight_rounding="half_up", out_bits=20, out_frac=9, gather="shift_add",
)  # fmt: skip
# One key, one feature, one sample, words of one bit: all ones and zero.
LEAST = Design(
    head_dim=1, samples=1, max_keys=1, q_bits=2, k_bits=2, v_bits=2, score_bits=5, score_frac=0, weight_bits=2,
    rng_bits=1,
)  # fmt: skip
NARROW = Design(score_bits=4, score_frac=2, weight_bits=4, samples=4, max_keys=33, rng_bits=8)
LONG = Design(head_dim=8, samples=64, max_keys=1000, exp="mitchell")

# design, lanes, group, vectors, pattern
STEPS = {
    "dense, 1 head": (SMALL, 4, 1, 12, "both"),
    "dense, 3 heads": (SMALL, 16, 3, 12, "stall"),
    "ternary, 4 heads": (TERNARY, 4, 4, 12, "both"),
    "iid, 3 heads": (IID, 8, 3, 12, "idle"),
    "format, 7 heads": (FORMAT, 4, 7, 12, "both"),
    "wide, 1 head": (WIDE, 8, 1, 8, "full"),
    "least, 1 head": (LEAST, 1, 1, 16, "slow"),
    "long, 1 head": (LONG, 8, 1, 9, "full"),
}


def need(simulator: str) -> None:
    """Skip without the simulator; on CI nothing may be skipped."""
    if (reason := missing(simulator)) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)


@pytest.fixture(params=SIMULATORS)
def simulator(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return request.param


def one_step(
    design: Design, lanes: int, group: int, keys: int, kind: str, generator: np.random.Generator
) -> tuple[Vector, Codes, np.ndarray | None]:
    """A step of a kind, the codes it came from, and its mask."""
    codes, mask = santa_decode.operands(design, group, keys, kind, generator)
    return santa_decode.decode_vector(design, lanes, codes, draw(keys), mask=mask), codes, mask


def draw(keys: int) -> Draw:
    return Draw(seed=7, layer=1, sequence=np.array([3]), position=np.array([[keys]]))


# Against the golden model


@pytest.mark.parametrize(
    "design,pattern",
    [
        (Design(), "both"),
        (NARROW, "after"),
        (LEAST, "slow"),
    ],
    ids=["default", "narrow", "least"],
)
def test_score_sampler(design, pattern, simulator, seed):
    report = cosimulate("score_sampler", design=design, simulator=simulator, vectors=18, seed=seed, pattern=pattern)
    assert report.mismatch is None, report


@pytest.mark.parametrize(
    "name,simulator",
    [
        *((name, "icarus") for name in STEPS),
        # A build takes its time: three show that the simulators agree.
        *((name, "verilator") for name in ("dense, 3 heads", "ternary, 4 heads", "format, 7 heads")),
    ],
)
def test_santa_decode(name, simulator, seed):
    need(simulator)
    design, lanes, group, count, pattern = STEPS[name]
    report = cosimulate(
        santa_decode.block(lanes, group), design=design, simulator=simulator, vectors=count, seed=seed, pattern=pattern
    )
    assert report.mismatch is None, report


@pytest.mark.parametrize("pattern", ["full", "slow", "after"])
def test_idle_and_back_pressure_change_nothing(pattern, seed):
    need("icarus")
    report = cosimulate(
        santa_decode.block(4, 4), design=TERNARY, simulator="icarus", vectors=4, seed=seed, pattern=pattern
    )
    assert report.mismatch is None, report


def test_one_request_ahead(seed):
    need("icarus")
    report = cosimulate(
        santa_decode.block(16, 3, 1), design=SMALL, simulator="icarus", vectors=4, seed=seed, pattern="idle"
    )
    assert report.mismatch is None, report


def test_offset_words_at_their_limits(generator, monkeypatch):
    need("icarus")
    words = [0, (1 << 32) - 1]

    def limit(design, draw, sequence, position, heads):
        return np.resize(words, (1, heads, 1, 1)).astype(np.uint32)

    monkeypatch.setattr(step, "offset_words", limit)
    monkeypatch.setattr(santa_decode, "offset_words", limit)
    steps = [one_step(SMALL, 4, 3, n, "random", generator)[0] for n in (1, 2, 33)]
    assert steps[0].inputs["head"][0][1] == words[1] << 32
    report = cosimulate(santa_decode.block(4, 3), design=SMALL, simulator="icarus", vectors=steps)
    assert report.mismatch is None, report


# The vectors


def test_a_vector_holds_every_intermediate(generator):
    """The beats, taken apart again, are the golden model's arrays."""
    design, group, n, lanes = FORMAT, 3, 20, 4
    vector, codes, mask = one_step(design, lanes, group, n, "masked", generator)
    trace = decode(design, codes, draw=draw(n), mask=mask, keep=INTERMEDIATES).trace
    widths = design.derived()

    def unpack(word: int, bits: int, count: int, signed: bool = True) -> list[int]:
        found = [(word >> (i * bits)) & ((1 << bits) - 1) for i in range(count)]
        return [x - (1 << bits) if signed and x >> (bits - 1) else x for x in found]

    for name, stream, bits, signed in (
        ("scores", "score", design.score_bits, True),
        ("weights", "weight", design.W, False),
        ("mass", "mass", widths["mass"], False),
        ("offset", "offset", widths["mass"], False),
    ):
        found = [unpack(beat[0], bits, group, signed) for beat in vector.outputs[stream]]
        np.testing.assert_array_equal(np.array(found).T, trace[name][0, :, 0].reshape(group, -1))
    for name, stream, bits in (("accumulators", "accumulator", "accumulator"), ("output_codes", "output", "output")):
        beats = np.array([unpack(beat[0], widths[bits], group * lanes) for beat in vector.outputs[stream]])
        found = beats.reshape(-1, group, lanes).swapaxes(0, 1).reshape(group, -1)
        np.testing.assert_array_equal(found, trace[name][0, :, 0])
    counts = np.zeros((group, n), dtype=int)
    for key, word in vector.outputs["request"]:
        counts[:, key] = unpack(word, widths["count"], group, False)
    np.testing.assert_array_equal(counts, trace["counts"][0, :, 0])
    assert [key for key, _ in vector.outputs["request"]] == np.flatnonzero(counts.any(axis=0)).tolist()


def test_a_head_of_a_whole_layer_keeps_its_words(generator):
    design, group = SMALL, 2
    codes, _ = santa_decode.operands(design, 3 * group, 12, "random", generator)
    codes = dataclasses.replace(
        codes, k=codes.k.repeat(3, axis=1), v=codes.v.repeat(3, axis=1), v_exponents=codes.v_exponents.repeat(3, axis=0)
    )
    offsets = decode(design, codes, draw=draw(12), keep=["offset"]).trace["offset"][0, :, 0, 0]
    bits = design.derived()["mass"]
    for kv in range(3):
        word = santa_decode.decode_vector(design, 4, codes, draw(12), kv_head=kv).outputs["offset"][0][0]
        assert [word & ((1 << bits) - 1), word >> bits] == offsets[kv * group : (kv + 1) * group].tolist()


def test_vectors_hold_every_kind(generator):
    made = list(santa_decode.block(8).vectors(LONG, 64, generator))
    assert {v.inputs["step"][0][0] for v in made} == set(LENGTHS)
    assert {v.name.split(",")[0] for v in made} == set(santa_decode.KINDS)
    requests = [v.outputs["request"] for v in made]
    assert any(beats and beats[0][1] == LONG.samples and len(beats) == 1 for beats in requests), "no key holds all S"
    assert any(v.inputs["step"][0][0] > 1 and not v.outputs["request"] for v in made), "none is all masked"
    assert any(
        len(set(v.outputs.get("weight", []))) == 1 and len(v.outputs["request"]) > 1 for v in made
    ), "no step has all weights equal"  # fmt: skip


def test_the_wide_design_has_negative_accumulators_and_shifts_both_ways(generator):
    vector, codes, _ = one_step(WIDE, 8, 1, 33, "limits", generator)
    moves = WIDE.v_bits - 1 - codes.v_exponents + WIDE.sigma - WIDE.out_frac
    assert moves.min() < 0 < moves.max()
    accumulators = decode(WIDE, codes, draw=draw(33), keep=["accumulators"]).trace["accumulators"]
    assert accumulators.min() < -(1 << 30)
    assert any(beat[1] for beat in vector.outputs["output"]), "nothing is clipped"


# Cycles


@pytest.mark.parametrize(
    "design,lanes,group",
    [(SMALL, 4, 1), (SMALL, 16, 3), (TERNARY, 4, 1), (IID, 8, 3), (FORMAT, 4, 3), (LEAST, 1, 1)],
    ids=["dense", "a beat a key", "ternary", "iid", "format", "least"],
)
def test_a_step_takes_the_stated_cycles(design, lanes, group, generator):
    need("icarus")
    total, steps = 0, []
    for n, kind in ((0, "random"), (1, "random"), (33, "random"), (2, "one key"), (31, "all masked"), (32, "masked")):
        keys = min(n, design.max_keys)
        vector, _, _ = one_step(design, lanes, group, keys, kind, generator)
        terms = santa_decode.value_terms(design, vector, group)
        if group == 1 and design.gather == "repeated" and terms:
            assert terms == design.samples
        steps.append(vector)
        total += sum(step_cycles(design, keys=keys, value_terms=terms, lanes=lanes).values())
        total += control_cycles(design, keys=keys)
    report = cosimulate(
        santa_decode.block(lanes, group), design=design, simulator="icarus", vectors=steps, pattern="full"
    )
    assert report.mismatch is None, report
    assert report.cycles == total


def test_a_row_takes_the_stated_cycles(generator):
    need("icarus")
    made = [
        v for v in load("score_sampler").vectors(SMALL, 24, generator) if any(mass for (mass,) in v.outputs["mass"])
    ]
    report = cosimulate("score_sampler", design=SMALL, simulator="icarus", vectors=made, pattern="full")
    assert report.mismatch is None, report
    stated = [score_sampler.cycles(SMALL, len(v.inputs["score"]), len(v.outputs["drawn"])) for v in made]
    assert report.cycles == sum(stated)


# Planted faults

FAULTS = [
    ("score_sampler", "{score_visible_i, score_score_i}", "{1'b1, score_score_i}"),
    ("score_sampler", "if (maximum_valid) maximum_q <= maximum;", "if (maximum_valid) maximum_q <= maximum ^ 1;"),
    # A row is asked twice; not in ascending order; done flags are dropped: a head adds a beat again.
    ("santa_decode", "merge_take ? match : '0;", "(merge_take && (|drawn_last || !place[0])) ? match : '0;"),
    ("santa_decode", "drawn_keys[g*KeyBits+:KeyBits] < smallest)", "drawn_keys[g*KeyBits+:KeyBits] <= smallest - 2)"),
    ("santa_decode", "else if (beat_valid) added_q <= added_q | (wanted & gather_ready);", ""),
    ("santa_decode", "if (key_take && beat_last) sum_visible_q <= key_visible_i;", "sum_visible_q <= 1'b1;"),
    ("santa_decode", "if (head_take) shifts_q <= head_shifts_i;", "if (head_take) shifts_q <= head_shifts_i ^ 1;"),
]  # fmt: skip


@pytest.mark.parametrize("name,was,now", FAULTS)
def test_a_planted_fault_is_found(name, was, now, tmp_path, seed, generator):
    need("icarus")
    text = (ROOT / name / f"{name}.sv").read_text(encoding="utf-8")
    assert text.count(was) == 1
    (tmp_path / "faulty.sv").write_text(text.replace(was, now), encoding="utf-8")
    block, design, work = load(name), NARROW, 8
    if name == "santa_decode":
        block, design = santa_decode.block(4, 3), SMALL
        work = [one_step(design, 4, 3, 20, kind, generator)[0] for kind in ("masked", "random")]
    report = cosimulate(
        block, design=design, simulator="icarus", vectors=work, seed=seed, dut=tmp_path / "faulty.sv", top=name
    )
    assert report.mismatch is not None


@pytest.mark.parametrize("stream", ["request", "output", "score", "weight", "mass", "offset", "accumulator"])
def test_a_flipped_expected_bit_is_found(stream, generator):
    need("icarus")
    good = one_step(SMALL, 4, 3, 9, "random", generator)[0]
    beats = good.outputs[stream]
    flipped = [(beat[0] ^ (2 if i == len(beats) - 1 else 0), *beat[1:]) for i, beat in enumerate(beats)]
    bad = dataclasses.replace(good, outputs={**good.outputs, stream: flipped})
    mismatch = cosimulate(
        santa_decode.block(4, 3), design=SMALL, simulator="icarus", vectors=[good, bad], pattern="full"
    ).mismatch
    assert mismatch is not None
    assert (mismatch.vector, mismatch.bit, mismatch.signal.split("_")[0]) == (1, 1, stream)


# Hardware


@pytest.mark.parametrize(
    "design,lanes,group",
    [(TERNARY, 4, 3), (IID, 8, 4), (FORMAT, 4, 3), (LEAST, 1, 1)],
    ids=["ternary", "iid", "dense", "least"],
)
def test_only_dense_scores_multiply(design, lanes, group):
    if (reason := synth.missing()) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)
    parameters = {"Lanes": lanes, "Group": group}
    found = synth.netlist("santa_decode", design=design, parameters=parameters)
    dense = design.scores == "dense"
    assert found.multipliers == ({"$mul": group * lanes} if dense else {})
    if dense:  # as many as the dot products have: none elsewhere
        dot = synth.netlist("mac_dot", design=design, parameters={"Lanes": lanes})
        assert found.multipliers["$mul"] == group * dot.multipliers["$mul"]
    assert found.adders == synth.expected_adders("santa_decode", design, parameters)
    assert found.memory_bits == synth.expected_memory_bits("santa_decode", design, parameters)


# Lint, commands, bad input


@pytest.mark.parametrize("design", [Design(), TERNARY, FORMAT, LEAST], ids=str)
def test_lint_is_clean(design, tmp_path):
    need("verilator")
    (tmp_path / FILE).write_text(package(design), encoding="utf-8")
    for group in (1, 3):
        with _environment(tmp_path):
            done = subprocess.run(
                ["verilator", "--lint-only", "-Wall", f"-GGroup={group}", "--top-module", "santa_decode",
                 tmp_path / FILE, *sources(load("santa_decode"))],
                capture_output=True,
                text=True,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr


@pytest.fixture
def app(tmp_path: Path) -> typer.Typer:
    made = typer.Typer()
    made.command()(cosim)
    made.command()(vectors)
    (tmp_path / "design.toml").write_text(SMALL.to_toml(), encoding="utf-8")
    return made


def test_commands_take_the_group(app, tmp_path):
    need("icarus")
    options = ["--design", str(tmp_path / "design.toml"), "--vectors", "4", "--parameter", "Group=3",
               "--parameter", "Lanes=4"]  # fmt: skip
    done = CliRunner().invoke(app, ["cosim", "santa_decode", "--simulator", "icarus", *options])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "4 vectors, 0 mismatches"
    done = CliRunner().invoke(app, ["vectors", "santa_decode", "--out", str(tmp_path / "v"), *options])
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "v/manifest.json").read_text())
    streams = {s["name"]: s for s in manifest["streams"]}
    assert Counter(s["direction"] for s in manifest["streams"]) == {"input": 7, "output": 2, "monitor": 5}
    assert manifest["parameters"] == {"Group": 3, "Outstanding": 4, "Lanes": 4}
    assert [f["width"] for f in streams["query"]["fields"]] == [3 * SMALL.q_bits]
    # Signals wider than 64 bits: rows of 64-bit words, the low one first, in the archive.
    made = list(santa_decode.block(4, 3).vectors(SMALL, 4, np.random.default_rng(0)))
    found = np.load(tmp_path / "v/vectors.npz")["accumulator_accumulators"]
    width = 3 * 4 * SMALL.derived()["accumulator"]
    expected = [beat[0] & ((1 << width) - 1) for v in made for beat in v.outputs["accumulator"]]
    assert [sum(int(w) << (64 * i) for i, w in enumerate(row)) for row in found] == expected


@pytest.mark.parametrize(
    "parameters,design,told",
    [
        ({"Group": 17}, SMALL, r"santa_decode.Group = 17: allowed are 1, 2"),
        ({"Lanes": 3}, Design(head_dim=9), "Lanes = 3: a power of two is allowed in block santa_decode"),
        ({"Lanes": 32}, SMALL, "Lanes = 32: a divisor of head_dim = 16"),
        ({"Outstanding": 0}, SMALL, "santa_decode.Outstanding = 0: allowed are 1, 2"),
        ({"Heads": 3}, SMALL, "block santa_decode has no parameter 'Heads'"),
        ({}, Design(sampler="iid"), "sampler = iid: santa and systematic are allowed in block santa_decode"),
        ({}, Design(method="top-k"), "method = top-k"),
        ({}, Design(scores="ternary", ternary_block=8), r"ternary_block = 8: None \(one exponent a query\)"),
        ({}, Design(max_keys=1 << 21), "max_keys = 2097152: at most 1048576 is allowed in block santa_decode"),
    ],
)
def test_bad_input(parameters, design, told):
    need("icarus")
    with pytest.raises(ValueError, match=told):
        cosimulate("santa_decode", design=design, simulator="icarus", parameters=parameters, vectors=1)


def test_steps_that_a_vector_cannot_hold(generator):
    codes, _ = santa_decode.operands(SMALL, 2, 4, "random", generator)
    two = dataclasses.replace(codes, q=codes.q.repeat(2, axis=2), exponents=codes.exponents.repeat(2, axis=2))
    with pytest.raises(ValueError, match="one sequence and one position"):
        santa_decode.decode_vector(SMALL, 4, two, draw(4))
    with pytest.raises(ValueError, match="kv_head = 1: 0 to 0 is allowed"):
        santa_decode.decode_vector(SMALL, 4, codes, draw(4), kv_head=1)
    far = dataclasses.replace(codes, exponents=codes.exponents - 400)
    with pytest.raises(ValueError, match=r"shift reaches .*: -256 to 255 is allowed"):
        santa_decode.decode_vector(SMALL, 4, far, draw(4))
