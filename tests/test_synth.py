"""Netlists: no multiplier in any block of the datapath, and exactly the adders that its formula states."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from santa_hw import assets, fpga, synth
from santa_hw.cli import app
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


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """A module with a memory and a product."""
    file = tmp_path / "both.sv"
    file.write_text(
        "module both(input logic clk_i, input logic we_i, input logic [9:0] at_i, input logic [15:0] a_i, b_i,\n"
        "            output logic [15:0] read_o, product_o);\nlogic [15:0] memory [1024];\n"
        "always_ff @(posedge clk_i) begin\n  if (we_i) memory[at_i] <= a_i;\n  read_o <= memory[at_i];\n"
        "  product_o <= a_i * b_i;\nend\nendmodule\n"
    )
    return file


@pytest.mark.parametrize("design", DESIGNS, ids=["default", "narrow", "wide"])
@pytest.mark.parametrize("block", synth.blocks())
def test_no_multiplier_and_exactly_the_stated_adders(block, design):
    found = synth.netlist(block, design=design)
    assert found.multipliers == synth.expected_multipliers(block, design)
    assert found.adders == synth.expected_adders(block, design)
    assert found.rom_bits == synth.expected_rom_bits(block, design)
    assert found.memory_bits == synth.expected_memory_bits(block, design)


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


def test_a_memory_is_neither_table_nor_gates(both):
    found = synth.netlist("softmax_attention", parameters={"Lanes": 1})
    assert found.memory_bits == 4096 * (16 + 1)
    assert found.rom_bits == synth.expected_rom_bits("exp2_weight", Design())
    found = synth.netlist("both", files=[both], mapped=True)
    assert found.memory_bits == 1024 * 16
    assert sum(n for cell, n in found.gates.items() if "DFF" in cell) == 32  # what was read, and the product


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


# On an FPGA


@pytest.fixture
def _nextpnr() -> None:
    if (reason := fpga.missing("ecp5")) is not None:
        (pytest.fail if "CI" in os.environ else pytest.skip)(reason)


@pytest.mark.usefixtures("_nextpnr")
def test_a_block_is_placed_without_what_it_stands_between(tmp_path):
    """A small module with known hardware: a register, an adder before it; its ports' registers are not counted."""
    (tmp_path / "sum.sv").write_text(
        "module sum(input logic clk_i, rst_ni, input logic [7:0] a_i, b_i, output logic [7:0] sum_o);\n"
        "always_ff @(posedge clk_i or negedge rst_ni) if (!rst_ni) sum_o <= '0; else sum_o <= a_i + b_i;\nendmodule\n"
    )
    found = fpga.place("sum", files=[tmp_path / "sum.sv"])
    assert (found.flip_flops, found.multipliers, found.block_rams) == (8, 0, 0)
    assert 8 <= found.luts <= 20  # the carry chain, in pairs of LUTs, and its ends
    assert 100 < found.fmax_mhz < 800


@pytest.mark.usefixtures("_nextpnr")
def test_a_memory_and_a_product_become_hard_blocks(both):
    found = fpga.place("both", files=[both])
    assert found.multipliers == 1 and found.block_rams == 1


def test_fpga_bad_input(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="fpga = 'virtex': allowed are ecp5"):
        fpga.place("mass", "virtex")
    monkeypatch.setitem(fpga.FAMILIES, "ecp5", ("no_such_nextpnr", *fpga.FAMILIES["ecp5"][1:]))
    with pytest.raises(ValueError, match=r"nextpnr is not installed: pip install 'santa-hw\[fpga\]'"):
        fpga.place("mass")
    done = CliRunner().invoke(app, ["synth", "mass", "--fpga", "ecp5", "--liberty", "x.lib"])
    assert done.exit_code == 2 and "--liberty has no effect with --fpga: leave it out" in done.output


@pytest.mark.usefixtures("_nextpnr")
def test_the_command_places_a_block(tmp_path):
    file = tmp_path / "placed.json"
    done = CliRunner().invoke(app, ["synth", "ternary_query", "--fpga", "ecp5", "--json", str(file)])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(file.read_text())["blocks"]
    assert (row["block"], row["family"], row["flip_flops"], row["multipliers"]) == ("ternary_query", "ecp5", 6, 0)
    assert f"{row['fmax_mhz']:.0f}" in done.output
