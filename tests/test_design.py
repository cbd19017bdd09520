"""Design points: derived widths against brute force, the weight table against exact roots, files, and refusals."""

from __future__ import annotations

import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from santa_hw.design import (
    FIELDS,
    Design,
    Schedule,
    budgets_text,
    budgets_toml,
    exp2_table,
    field_type,
    load_budgets,
    load_design,
)


@pytest.mark.parametrize("frac", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("bits", [2, 6, 16, 20, 32])
def test_table_is_correctly_rounded(frac, bits):
    assert exp2_table(frac, bits).tolist() == oracle.table(frac, bits, "table")


@pytest.mark.parametrize("frac", [0, 1, 5])
def test_mitchell_entries(frac):
    assert exp2_table(frac, 8, "mitchell").tolist() == oracle.table(frac, 8, "mitchell")


def test_float32_would_get_the_table_wrong():
    """Why the table is computed once, exactly: a planted float32 exp2 differs."""
    import numpy as np

    naive = np.rint(np.exp2(np.float32(31) + np.arange(256, dtype=np.float32) / np.float32(256)))
    assert (naive.astype(np.int64) != exp2_table(8, 32)).any()


def signed(low: int, high: int) -> int:
    """Two's complement bits for [low, high]."""
    return next(b for b in range(1, 80) if -(1 << (b - 1)) <= low and high < 1 << (b - 1))


@given(
    q=st.integers(2, 12), k=st.integers(2, 12), v=st.integers(2, 12), w=st.integers(2, 24), sigma=st.integers(0, 8),
    d=st.sampled_from([1, 16, 80]), keys=st.sampled_from([1, 100, 4096]),
    sampler=st.sampled_from(["systematic", "stratified"]),
)  # fmt: skip
def test_derived_widths_hold_the_extremes_and_no_more(q, k, v, w, sigma, d, keys, sampler):
    fields = dict(q_bits=q, k_bits=k, v_bits=v, weight_bits=w, head_dim=d, max_keys=keys, samples=1 << sigma)
    widths = Design(**fields, sampler=sampler).derived()
    score = d * ((1 << (q - 1)) - 1) * ((1 << (k - 1)) - 1)
    mass = keys * ((1 << w) - 1)
    assert widths["score_accumulator"] == signed(-score, score)
    assert widths["mass"] == mass.bit_length()
    top = 2 * mass - 1 if sampler == "stratified" else mass - 1
    assert widths["residual"] in (
        signed(-(((1 << w) - 1) << sigma), top),
        signed(-(((1 << w) - 1) << sigma), top) + 1,
    )
    total = (1 << sigma) * ((1 << (v - 1)) - 1)
    assert widths["accumulator"] == signed(-total, total)
    assert widths["count"] == (1 << sigma).bit_length()
    assert widths["score_memory_bits"] == keys * 16


def test_defaults():
    design = Design()
    assert (design.W, design.sigma, design.score_bits, design.score_frac) == (16, 6, 16, 5)
    assert Design(max_keys=131072).W == Design().replace(max_keys=131072).W == 21, "log2(max_keys) + 4"
    assert Design().replace(max_keys=131072, weight_bits=16).W == Design(weight_bits=16, max_keys=131072).W == 16
    assert design.layer(29) is design
    assert str(design) == "santa 64 q8 k8c v8c s16.5 W16"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(samples=48), "samples = 48: a power of two"),
        (dict(samples=0), "samples = 0: allowed is 1 to"),
        (dict(method="topk"), "method = 'topk': allowed are santa, top-k, dense"),
        (dict(q_bits=1), "q_bits = 1: allowed is 2 to 24"),
        (dict(q_bits=8.0), "q_bits = 8.0: an integer"),
        (dict(q_bits=True), "q_bits = True: an integer"),
        (dict(score_frac=16), "score_frac = 16: less than score_bits = 16"),
        (dict(exp="mitchell", weight_bits=5), "at most weight_bits - 1 = 4"),
        (dict(e_min=5, e_max=4), "e_min = 5: at most e_max = 4"),
        (dict(scores="ternary", ternary_samples=6), "ternary_samples = 6: a power of two"),
        (dict(scores="ternary", rng_bits=6), "rng_bits = 6: at least q_bits - 1 = 7"),
        (dict(scores="ternary", ternary_block=24), "ternary_block = 24: a divisor of head_dim = 64"),
        (
            dict(scores="ternary", ternary_draw="iid", ternary_samples=4096),
            r"head_dim \* ternary_samples <= 131072",
        ),
        (dict(out_bits=8), "give both of them"),
        (
            dict(weight_bits=32, max_keys=1 << 30, samples=64),
            "design needs 68 bits for its threshold: at most 63",
        ),
        (
            dict(method="dense", weight_bits=32, v_bits=24, max_keys=4096),
            "design needs 68 bits for its accumulator",
        ),
    ],
)
def test_a_wrong_design_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        Design(**fields)


def test_unknown_field_is_refused():
    with pytest.raises(ValueError, match="'bits' is unknown: allowed are method"):
        Design().replace(bits=3)


DESIGNS = [
    Design(),
    Design(method="top-k", samples=100, out_bits=12, out_frac=6),
    Design(scores="ternary", ternary_block=8),
]


@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_files_and_dicts_round_trip(design, tmp_path):
    path = tmp_path / "design.toml"
    path.write_text(design.to_toml())
    assert Design.from_toml(path) == design == load_design(path) == Design.from_dict(design.to_dict())
    assert set(design.to_dict()) == set(FIELDS)


def test_schedule_round_trips_and_names_what_is_missing(tmp_path):
    path = tmp_path / "schedule.toml"
    base = Design(samples=16)
    schedule = Schedule((base, base.replace(samples=64), base, base.replace(q_bits=6)))
    path.write_text(schedule.to_toml())
    assert load_design(path) == schedule
    assert schedule.layer(3).q_bits == 6
    assert str(schedule).startswith("layer 0: santa 16")
    with pytest.raises(ValueError, match="layer = 4: the schedule has layers 0 to 3"):
        schedule.layer(4)
    with pytest.raises(ValueError, match=r"it is a schedule"):
        Design.from_toml(path)
    path.write_text("[[layers]]\nlayers = [0, 2]\nsamples = 4\n")
    with pytest.raises(ValueError, match="misses layer 1"):
        load_design(path)
    path.write_text("[[layers]]\nlayers = [0, 0]\n")
    with pytest.raises(ValueError, match="layer 0 is named twice"):
        load_design(path)
    path.write_text("[[layers]]\nlayers = 3\n")
    with pytest.raises(ValueError, match="layers = 3: a list of layer numbers"):
        load_design(path)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_budgets_round_trip_as_text_and_as_files(tmp_path_factory, budgets):
    assert load_budgets(budgets_text(budgets)) == tuple(budgets)
    path = tmp_path_factory.mktemp("budgets") / "budgets.toml"
    path.write_text(budgets_toml(budgets))
    assert load_budgets(str(path)) == tuple(budgets)
    top_k = Design(method="top-k", q_bits=6).with_samples(budgets)
    assert [design.samples for design in top_k.designs] == budgets
    assert {design.q_bits for design in top_k.designs} == {6}
    path.write_text(top_k.to_toml())
    assert load_design(path) == top_k
    assert load_budgets(str(path)) == tuple(budgets)


def test_budgets_as_text():
    assert load_budgets("16x10, 64x20") == (16,) * 10 + (64,) * 20
    assert load_budgets("4") == (4,)
    assert budgets_text([4, 4, 4, 8, 4]) == "4x3,8,4"


@pytest.mark.parametrize(
    "text", ["", "16x", "x3", "16x0", "0x3", "-1", "1.5", "16x10,", "1e3", "16*10", "１６", "4x99999999999"]
)
def test_text_that_is_no_schedule(text):
    with pytest.raises(ValueError, match=r"schedule .* is no budget; 16x10,64x20 or a \.toml file"):
        load_budgets(text)


@pytest.mark.parametrize(
    "text",
    [
        "[schedule]\n", "[schedule]\nsamples = 4\n", "[schedule]\nsamples = []\n", "[schedule]\nsamples = [0]\n",
        "[schedule]\nsamples = [true]\n", "[schedule]\nsamples = [4]\nbits = 3\n", "schedule = 3\n", "[design]\n",
        "[schedule]\nsamples = [4]\n[design]\n", "[[layers]]\nlayers = [0, 2]\n", "samples = [",
    ],
)  # fmt: skip
def test_files_that_are_no_schedule(text, tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.toml"):
        load_budgets(str(path))


def test_budgets_that_do_not_fit_a_design():
    with pytest.raises(ValueError, match="layer 1 of the schedule: samples = 12: a power of two"):
        Design().with_samples([16, 12])
    with pytest.raises(ValueError, match="schedule has 1 layers: the design's 2 are allowed"):
        Schedule((Design(), Design())).with_samples([4])


def test_budgets_alone_are_no_design(tmp_path):
    path = tmp_path / "budgets.toml"
    path.write_text(budgets_toml([4, 8]))
    with pytest.raises(ValueError, match=r"'schedule' is unknown here.*--schedule takes it"):
        load_design(path)


@pytest.mark.parametrize(
    "text",
    [
        "samples = ", "[design]\nsample = 3\n", "[design]\nsamples = 3\n", "", "q_bits = 4\n",
        "[[layer]]\nlayers = [0]\n", "design = 5\n", "layers = 5\n", "layers = [5]\n", "[[layers]]\nlayers = [true]\n",
    ],
)  # fmt: skip
def test_a_broken_file_is_named(text, tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.toml"):
        load_design(path)
    with pytest.raises(ValueError, match=r"absent\.toml"):
        load_design(tmp_path / "absent.toml")


def test_field_types():
    assert field_type("samples") is int
    assert field_type("weight_bits") is int
    assert field_type("method") is str
