"""Netlists: no multiplier in any block of the datapath, and exactly the adders that its formula states."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from santa_hw import assets, synth
from santa_hw.design import Design

DESIGNS = [
    Design(),
    Design(samples=16, head_dim=32, v_bits=4, q_bits=4, k_bits=4, score_bits=12, score_frac=3, rng_bits=16,
           weight_rounding="half_up", gather="shift_add", max_keys=1000, out_bits=8, out_frac=3, ternary_samples=4),
    Design(samples=1024, head_dim=128, v_bits=24, q_bits=12, k_bits=12, exp="mitchell", score_bits=24, score_frac=9,
           weight_bits=24, max_keys=1 << 17, ternary_draw="iid"),
]  # fmt: skip


LIBRARY = """library(tiny) {
  cell(BUF) { area: 4; pin(A) { direction: input; } pin(Y) { direction: output; function: "A"; } }
  cell(INV) { area: 1; pin(A) { direction: input; } pin(Y) { direction: output; function: "A'"; } }
  cell(NAND2) { area: 2; pin(A) { direction: input; } pin(B) { direction: input; }
    pin(Y) { direction: output; function: "(A*B)'"; } }
  cell(NOR2) { area: 2; pin(A) { direction: input; } pin(B) { direction: input; }
    pin(Y) { direction: output; function: "(A+B)'"; } }
  cell(DFFR) { area: 10; ff(IQ, IQN) { clocked_on: C; next_state: D; clear: "R'"; }
    pin(C) { direction: input; clock: true; } pin(D) { direction: input; } pin(R) { direction: input; }
    pin(Q) { direction: output; function: "IQ"; } }
}
"""


@pytest.fixture(autouse=True)
def _yosys() -> None:
    if (reason := synth.missing()) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory):
    """A copy of gather_accumulate that multiplies two signals in place of adding repeatedly."""

    def plant(now: str) -> Path:
        text = (assets.path("rtl_models") / "gather_accumulate" / "gather_accumulate.sv").read_text()
        was = "AccBits'($signed(in_values_i[l*VBits+:VBits]));\n    end\n  end\n"
        assert text.count(was) == 1
        file = tmp_path_factory.mktemp("planted") / "gather_accumulate.sv"
        file.write_text(text.replace(was, now + "\n    end\n  end\n"))
        return file

    return plant


@pytest.mark.parametrize("design", DESIGNS, ids=["default", "narrow", "wide"])
@pytest.mark.parametrize("block", synth.blocks())
def test_no_multiplier_and_exactly_the_stated_adders(block, design):
    found = synth.netlist(block, design=design)
    assert found.multipliers == {}
    assert found.adders == synth.expected_adders(block, design)
    assert found.rom_bits == synth.expected_rom_bits(block, design)


@pytest.mark.parametrize("lanes", [1, 4, 64])
def test_adders_grow_with_the_lanes(lanes):
    for block in ("ternary_dot", "gather_accumulate", "shift_normalise"):
        found = synth.netlist(block, parameters={"Lanes": lanes})
        assert found.adders == synth.expected_adders(block, Design(), {"Lanes": lanes})


def test_a_planted_product_is_found(planted):
    file = planted("AccBits'($signed(in_values_i[l*VBits+:VBits]) * $signed({1'b0, in_count_i}));")
    found = synth.netlist("gather_accumulate", files=[file])
    assert found.multipliers == {"$mul": 16}


def test_a_planted_product_of_shifts_and_additions_is_found(planted):
    value = "AccBits'($signed(in_values_i[l*VBits+:VBits]))"
    terms = " + ".join(f"(({value} << {b}) & {{AccBits{{in_count_i[{b}]}}}})" for b in range(7))
    found = synth.netlist("gather_accumulate", files=[planted(terms + ";")])
    assert found.multipliers == {}
    assert found.adders != synth.expected_adders("gather_accumulate", Design())
    assert found.adders[14] == 16 * 7


def test_mapping_counts_gates_and_depth():
    found = synth.netlist("offset_scale", mapped=True)
    assert found.gate_count > 200
    assert found.depth > 10
    assert found.register_bits == 2 + 6 + 32 + 28 + 28
    assert {"$add", "$sub"} & set(found.cells)


def test_registers_of_the_accumulators():
    found = synth.netlist("gather_accumulate")
    accumulators = 64 * Design().derived()["accumulator"]
    assert accumulators < found.register_bits < accumulators + 16


@pytest.mark.parametrize(
    "arguments,message",
    [
        (dict(top="offset_scal"), "block 'offset_scal' is unknown: allowed are"),
        (dict(top="offset_scale", liberty=Path("none.lib")), "liberty none.lib: there is no such file"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        synth.netlist(**arguments)


def test_yosys_own_words(tmp_path):
    (tmp_path / "broken.sv").write_text("module broken(input logic a_i; endmodule")
    with pytest.raises(ValueError, match=r"yosys refuses module broken: .*broken.sv:1: ERROR"):
        synth.netlist("broken", files=[tmp_path / "broken.sv"])


def test_report():
    found = [synth.netlist("offset_scale", mapped=True)]
    assert found[0].to_dict()["multipliers"] == {}
    assert synth.table(found).row_count == 1


def test_a_library_gives_area(tmp_path):
    (tmp_path / "tiny.lib").write_text(LIBRARY)
    found = synth.netlist("offset_scale", liberty=tmp_path / "tiny.lib")
    areas = {"BUF": 4, "INV": 1, "NAND2": 2, "NOR2": 2, "DFFR": 10}
    assert found.gates["DFFR"] >= found.register_bits  # a state machine may be recoded
    assert found.area == sum(areas[cell] * n for cell, n in found.gates.items())
    assert found.depth is None
