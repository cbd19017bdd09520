"""Rows of cost, and the numbers that the documentation prints: they must be those that the program computes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from santa_hw.cost import baseline_of, cost_row, counted, moved_bytes, pairs
from santa_hw.cycles import Machine
from santa_hw.energy import load_memory, load_table
from santa_hw.events import SHAPES, Operation, Shape, operations, workload
from santa_hw.report_cost import energy_text

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "explanation/energy.md").read_text(encoding="utf-8")


def made(method: str, table: str = "horowitz-45nm", memory: str = "hbm2", *, shape=SHAPES["llama-3.1-8b"], keys=32768,
         samples=128, **options):  # fmt: skip
    work = workload(method, shape, keys, samples=samples)
    machine = Machine(**options)
    heads = shape.heads * shape.batch
    return cost_row(work, load_table(table), load_memory(memory), machine=machine, parallel_heads=heads)


def test_a_row_adds_up_and_counts_what_was_done():
    shape, memory = Shape(4, 2, 16), load_memory("hbm2")
    row = made("santa", shape=shape, keys=300, samples=16)
    work = workload("santa", shape, 300, samples=16)
    found = operations(work.design, work.tally, memory.layout())
    assert sum(count for stage in row["events"].values() for count in stage.values()) == sum(o.count for o in found)
    assert row["bytes"] == sum(o.count * 32 for o in found if o.kind in ("dram-read", "dram-write"))
    # Keys stream; each drawn row of 16 bytes takes a burst; two KV heads append two rows of a burst.
    assert row["bytes"] == 2 * 300 * 16 + 2 * 32 * 32 + 2 * 2 * 32
    assert row["key_share"] == pytest.approx(row["stages"]["key rows"] / row["total_pj"])
    assert row["samples"] == 16 and made("dense", shape=shape, keys=300)["samples"] is None
    assert made("dense-bf16", shape=shape, keys=300)["design"] is None


def test_operations_of_one_name_are_counted_together():
    twice = [Operation("mass", "add", (8,), 2), Operation("mass", "add", (8,), 3), Operation("score", "add", (8,), 1)]
    assert counted(twice) == {"mass": {"add int8": 5}, "score": {"add int8": 1}}
    assert moved_bytes([*twice, Operation("append", "dram-write", (256,), 2)]) == 64


def test_baseline_is_int8_dense_before_floating_point():
    rows = [{"method": m, "table": "t", "memory": "m"} for m in ("santa", "dense-bf16", "dense")]
    assert baseline_of(rows)["method"] == "dense" and baseline_of(rows[:2])["method"] == "dense-bf16"
    assert baseline_of(rows[:1]) is None and list(pairs(rows)) == [("t", "m")]


# The documentation ----------------------------------------------------------------------------------------------------


def table_after(heading: str) -> list[list[str]]:
    """Cells of the first table after a heading, its head left out."""
    lines = PAGE.partition(f"## {heading}\n")[2].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_short_version_is_what_the_program_says():
    methods = ("dense-bf16", "dense", "top-k", "santa", "santa-ternary", "iid")
    rows = table_after("The short version")
    assert len(rows) == len(methods)
    dense = made("dense")["total_pj"]
    for method, (_, energy, share, ratio) in zip(methods, rows, strict=True):
        row = made(method)
        assert energy == energy_text(row["total_pj"])
        assert share == f"{row['key_share'] * 100:.0f} %"
        assert float(ratio) == float(f"{row['total_pj'] / dense:.3g}")


def test_the_sensitivity_table_is_what_the_program_says():
    tables = {"45 nm": "horowitz-45nm", "7 nm": "jouppi-7nm"}
    memories = {"DDR3": "ddr3", "DRAM (Horowitz)": "dram-45nm", "GDDR6": "gddr6", "HBM2": "hbm2", "HBM2E": "hbm2e",
                "LPDDR4": "lpddr4"}  # fmt: skip
    rows = table_after("Which conclusions survive")
    assert len(rows) == len(tables) * len(memories)
    for table, memory, energy, *ratios in rows:
        dense = made("dense", tables[table], memories[memory])["total_pj"]
        assert energy == energy_text(dense)
        for method, ratio in zip(("dense-bf16", "top-k", "santa", "santa-ternary"), ratios, strict=True):
            assert ratio == f"{made(method, tables[table], memories[memory])['total_pj'] / dense:.3f}"


def test_the_lengths_are_what_the_program_says():
    for keys, dense, santa, ratio, share in table_after("Length and budget"):
        a, b = (made(method, keys=int(keys.replace(" ", ""))) for method in ("dense", "santa"))
        for shown, row in ((dense, a), (santa, b)):
            assert float(shown.removesuffix(" mJ")) == pytest.approx(row["total_pj"] / 1e9, rel=0.01)
        assert float(ratio) == pytest.approx(b["total_pj"] / a["total_pj"], abs=0.005)
        assert share == f"{b['key_share'] * 100:.0f} %"


def test_the_cycles_are_what_the_program_says():
    text = PAGE.partition("## Cycles")[2]
    dense, santa, top = (made(method, engines=32) for method in ("dense", "santa", "top-k"))
    for row, shown in ((dense, "262 k"), (santa, "203 k"), (top, "138 k")):
        assert f"{row['cycles'] / 32 / 1000:.0f} k" == shown and shown in text
    assert f"{dense['roofline_cycles'] / santa['roofline_cycles']:.2f}" == "1.91" and "speed-up of 1.91" in text
    assert f"{dense['cycles'] / santa['cycles']:.2f}" == "1.29" and "**1.29**" in text
    few = made("dense", engines=8)["cycles"] / made("santa", engines=8)["cycles"]
    assert f"({few:.2f})" in text
    wide = made("dense")["cycles"] / made("santa", weights_per_cycle=4)["cycles"]
    assert re.search(rf"{wide:.2f} with four", text)
    many = replace(SHAPES["llama-3.1-8b"], batch=16)
    batch = made("dense", shape=many)["cycles"] / made("santa", shape=many)["cycles"]
    assert f"key reads: {batch:.2f}." in text
    assert f"{dense['cycles'] / top['cycles']:.2f}" == "1.91" and "(138 k cycles, 1.91)" in text
    ternary = made("santa-ternary")
    roofline, one = (dense[name] / ternary[name] for name in ("roofline_cycles", "cycles"))
    assert f"from 1.91 to {roofline:.2f} (one sequence: {one:.2f})" in text


def test_the_reference_pages_examples_are_tables(tmp_path):
    text = (DOCS / "reference/energy-tables.md").read_text(encoding="utf-8")
    logic, memory = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "logic.toml").write_text(logic)
    (tmp_path / "memory.toml").write_text(memory)
    assert load_table(tmp_path / "logic.toml").entries[0].energy == pytest.approx(0.007)
    assert load_memory(tmp_path / "memory.toml").activation.energy == 1500
