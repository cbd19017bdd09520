"""Cost beside accuracy: rows with curves that are known, so that what equal accuracy costs is known too."""

from __future__ import annotations

import dataclasses
import io
import re

import numpy as np
import pytest
from rich.console import Console

from santa_hw import report_cost
from santa_hw.cost import cost_row
from santa_hw.cycles import Machine
from santa_hw.datapath import Draw, Exponents, attend
from santa_hw.design import Design
from santa_hw.energy import load_memory, load_table
from santa_hw.events import SHAPES, Shape, Workload, analytic, total
from santa_hw.pareto import (
    SETTING,
    Interval,
    check_rows,
    differing,
    equal_accuracy,
    floating_reference,
    method_of,
    price,
    shape_of,
    tally_of,
)
from santa_hw.sweep import IDENTITY

SHAPE = Shape(4, 2, 64, layers=2)
KEYS = 1000
TABLE, MEMORY = load_table("horowitz-45nm"), load_memory("hbm2")
BUDGETS = (8, 32, 128, 512)


def row(design: Design, score: list[float], *, seed: int = 0, **changes) -> dict:
    """A row of one token with KEYS keys, as `santa-hw accuracy` writes it, its divergence made up."""
    tally = analytic(design, SHAPE, KEYS)
    return {
        "method": design.method, "samples": None if design.method == "dense" else design.samples, "seed": seed,
        "design": design.to_dict(), "task": "perplexity", "model": "made-up", "model_identity": "m-1",
        "text_sha256": "t", "window": KEYS, "windows": len(score), "context": None,
        "kl_to_dense": float(np.mean(score)), "per_window": [{"kl": value} for value in score], "accuracy": None,
        "per_trial": None, "unique_rows": 3.0, "tally": dataclasses.asdict(tally),
        "layers": SHAPE.layers, "heads": SHAPE.heads, "kv_heads": SHAPE.kv_heads,
    } | changes  # fmt: skip


def curve(base: Design, factor: float, seeds: int = 3, spread: float = 0.0, noise: int = 0) -> list[dict]:
    """Rows with a divergence of factor / S: a straight line in log S."""
    rng = np.random.default_rng(noise)
    return [
        row(base.replace(samples=s), [factor / s * (1 + spread * rng.normal()) for _ in range(2)], seed=seed)
        for s in BUDGETS
        for seed in range(seeds)
    ]


SANTA, TOP_K = Design(), Design(method="top-k")
DENSE, DENSE_6 = Design(method="dense"), Design(method="dense", q_bits=6, k_bits=6, v_bits=6)
ROWS = [*curve(SANTA, 4.0), *curve(TOP_K, 16.0), row(DENSE, [0.003, 0.003]), row(DENSE_6, [0.06, 0.06])]


def priced(rows, **options):
    return price(rows, TABLE, MEMORY, **options)


def pj(design: Design) -> float:
    """Cost of one token by itself."""
    work = Workload(design.method, design, analytic(design, SHAPE, KEYS))
    return cost_row(work, TABLE, MEMORY, machine=Machine(), parallel_heads=4)["total_pj"]


def test_costs_are_those_of_the_rows_own_tally():
    points = priced(ROWS)
    assert [(p.method, p.samples) for p in points] == [
        *(("santa", s) for s in BUDGETS), *(("top-k", s) for s in BUDGETS), ("dense", None), ("dense", None)
    ]  # fmt: skip
    for point in points:
        design = Design.from_dict(point.row["design"])
        assert point.pj == pytest.approx(pj(design), rel=1e-12)
        assert point.cost["tokens"] == (3 if point.samples and point.method != "dense" else 1)
        assert sum(point.cost["stages"].values()) == pytest.approx(point.pj)
        assert point.cost["compute_pj"] + point.cost["memory_pj"] == pytest.approx(point.pj)
        assert point.score.shape == ((3, 2) if point.samples else (1, 2))


def test_equal_accuracy_is_exact_on_straight_lines():
    """Divergence 4 / S meets 0.05 at S = 80, and 16 / S at 320; cost is linear in S between budgets."""
    found = {equal.method: equal for equal in equal_accuracy(priced(ROWS), 0.05, resamples=50)}
    assert found["santa"].samples.value == pytest.approx(80) and found["santa"].status == "interpolated"
    assert found["top-k"].samples.value == pytest.approx(320)
    for method, base, low, high, at in (("santa", SANTA, 32, 128, 80), ("top-k", TOP_K, 128, 512, 320)):
        a, b = pj(base.replace(samples=low)), pj(base.replace(samples=high))
        expected = a + (at - low) / (high - low) * (b - a)
        assert found[method].pj.value == pytest.approx(expected, rel=1e-12)
        assert found[method].ratio.value == pytest.approx(expected / pj(DENSE), rel=1e-12)
        # Nothing varies, so that the intervals have no width.
        assert found[method].pj.low == pytest.approx(found[method].pj.high)
        assert found[method].reached == 1
    assert found["dense"].status == "measured" and found["dense"].ratio == Interval(1.0, 1.0, 1.0)
    # A looser target lets six bits do, and they are cheaper.
    loose = {equal.method: equal for equal in equal_accuracy(priced(ROWS), 0.1, resamples=5)}
    assert loose["dense"].pj.value == pytest.approx(pj(DENSE_6)) and pj(DENSE_6) < pj(DENSE)


def test_intervals_hold_the_truth_and_grow_with_the_spread():
    held, widths = 0, {0.05: [], 0.2: []}
    for spread, found in widths.items():
        for trial in range(12):
            rows = [*curve(SANTA, 4.0, seeds=8, spread=spread, noise=trial), row(DENSE, [0.003, 0.003])]
            equal = next(e for e in equal_accuracy(priced(rows), 0.05, resamples=100) if e.method == "santa")
            assert equal.pj.low <= equal.pj.value <= equal.pj.high and equal.ratio.low < equal.ratio.high
            held += equal.samples.low < 80 < equal.samples.high
            found.append(equal.samples.high - equal.samples.low)
    # 95 % is aimed at; two windows make it less.
    assert held >= 0.7 * 24
    assert np.mean(widths[0.05]) < np.mean(widths[0.2])


def test_windows_are_drawn_alike_for_all_designs():
    """A hard window is hard for everybody: the ratio does not vary with it."""
    hard = [0.01, 1.0]
    rows = [row(SANTA.replace(samples=s), [h * 8 / s for h in hard]) for s in BUDGETS]
    rows += [row(TOP_K.replace(samples=s), [h * 8 / s for h in hard]) for s in BUDGETS]
    rows += [row(DENSE, [0.0001, 0.0001])]
    santa, top = (e for e in equal_accuracy(priced(rows), 0.05, resamples=200) if e.method != "dense")
    assert santa.samples.low == pytest.approx(top.samples.low) and santa.samples.high == pytest.approx(top.samples.high)


def test_targets_out_of_reach_and_met_by_the_smallest_budget():
    points = priced(ROWS)
    far = {equal.method: equal for equal in equal_accuracy(points, 0.001, resamples=20)}
    assert {equal.status for equal in far.values()} == {"not reached"}
    assert all(e.pj is None and e.ratio is None and e.reached == 0 for e in far.values())
    near = {equal.method: equal for equal in equal_accuracy(points, 5.0, resamples=20)}
    assert near["santa"].status == "measured" and near["santa"].samples.value == 8
    # Out of reach when the worse seed is drawn twice: the upper end is not known, nor is a ratio without dense.
    rows = [*curve(SANTA, 4.0, seeds=2)]
    rows = [r for r in rows if r["samples"] < 512]
    rows += [row(SANTA.replace(samples=512), [kl], seed=seed, windows=2) for seed, kl in enumerate((0.004, 0.02))]
    for r in rows[-2:]:
        r["per_window"] *= 2
    edge = equal_accuracy(priced(rows), 0.0125, resamples=200)[0]
    assert edge.status == "interpolated" and 0.6 < edge.reached < 0.9
    assert edge.pj.low is not None and edge.pj.high is None and edge.samples.high is None and edge.ratio is None


def test_accuracy_rows_are_compared_by_accuracy():
    def scored(base, levels):
        made = []
        for s, level in zip(BUDGETS, levels, strict=True):
            trials = [{"score": float(i < level * 10)} for i in range(10)]
            scores = {"kl_to_dense": None, "per_window": None, "accuracy": level, "per_trial": trials}
            made.append(row(base.replace(samples=s), [0.0], **scores))
        return made

    points = priced(scored(SANTA, (0.2, 0.4, 0.8, 1.0)))
    found = equal_accuracy(points, 0.6, resamples=20)[0]
    assert found.samples.value == pytest.approx(64)  # half way from 32 to 128 in log S
    with pytest.raises(ValueError, match=r"target = 1.5: a number above 0, at most 1, is allowed"):
        equal_accuracy(points, 1.5)
    with pytest.raises(ValueError, match="rows of one task"):
        equal_accuracy([*points, *priced(ROWS)], 0.5)
    with pytest.raises(ValueError, match=r"target = 0: a number above zero is allowed"):
        equal_accuracy(priced(ROWS), 0)


def test_methods_of_rows():
    assert method_of(row(SANTA, [1.0])) == "santa" and method_of(row(DENSE, [1.0])) == "dense"
    assert method_of(row(SANTA.replace(scores="ternary", sampler="iid"), [1.0])) == "santa-ternary"
    assert method_of(row(SANTA.replace(sampler="iid"), [1.0])) == "iid"
    assert method_of({"method": "float-sys", "design": None}) is None
    assert method_of({"method": "santa", "design": {"layers": []}}) is None
    with pytest.raises(ValueError, match="rows of method santa, top-k or dense are allowed"):
        priced([{"method": "float-sys", "design": None}])


def test_shapes_of_rows():
    r = row(SANTA, [1.0])
    assert shape_of(r) == SHAPE and shape_of(r, SHAPES["smollm2-135m"]) == SHAPES["smollm2-135m"]
    del r["heads"]
    with pytest.raises(ValueError, match=r"model = 'made-up': no shape of that name is known; give --shape"):
        shape_of(r)
    assert shape_of(r | {"model": "HuggingFaceTB/SmolLM2-135M-Instruct"}) == SHAPES["smollm2-135m"]
    with pytest.raises(ValueError, match=r"shape has head_dim = 128: the rows' 64 is allowed"):
        priced([r], shape=SHAPES["llama-3.1-8b"])


@pytest.mark.parametrize("fields", [{}, {"method": "top-k"}, {"method": "dense"}, {"sampler": "iid"}])
def test_a_row_without_a_tally_is_rebuilt_from_its_window(fields):
    design = Design(head_dim=64, samples=8, **fields)
    rng = np.random.default_rng(0)
    t = 20
    q, k, v = (rng.normal(size=(3, h, t, 64)) for h in (4, 2, 2))
    e = Exponents(np.full((2, 64), 2), np.full((2, 64), 2))
    draw = Draw(0, 0, np.arange(3), np.tile(np.arange(t), (3, 1)))
    counted = attend(design, q, k, v, exponents=e, draw=draw).tally
    one = dataclasses.replace(SHAPE, layers=1)
    r = row(design, [1.0], window=t, windows=3, unique_rows=counted.mean_unique_rows, tally=None)
    rebuilt, notes = tally_of(r, one)
    known = dataclasses.replace(
        counted, group_rows=0, lost_mass=0.0, saturated_k=0, saturated_v=0, saturated_q=0, saturated_score=0
    )
    assert dataclasses.replace(rebuilt, group_rows=0) == known
    if design.method == "dense":
        assert rebuilt.group_rows == counted.group_rows and notes == ()
    else:
        assert counted.group_rows <= rebuilt.group_rows <= rebuilt.unique_rows and notes
    # With its tally, the row is the run.
    assert tally_of(r | {"tally": dataclasses.asdict(counted)}, one) == (counted, ())


def test_a_counted_window_costs_what_its_steps_cost():
    """A tally over positions of different lengths against one bill a position."""
    design = Design(head_dim=64, samples=8, method="dense")
    one = dataclasses.replace(SHAPE, layers=1)
    steps = [analytic(design, one, keys) for keys in range(1, 65)]
    r = row(design, [1.0], tally=dataclasses.asdict(total(steps)), layers=1)
    work = [Workload("dense", design, step) for step in steps]
    apart = [cost_row(item, TABLE, MEMORY, machine=Machine(), parallel_heads=4) for item in work]
    together = priced([r])[0].cost
    assert together["tokens"] == 64
    for stage, value in together["stages"].items():
        # Streams are counted on the sum: each step is at most a burst and an opening dearer by itself.
        slack = 2 * 2 * (909 + 256 * (2.7 + 2 * 10 / 64)) if stage.endswith("rows") else 1e-6
        assert 0 <= sum(a["stages"][stage] for a in apart) / 64 - value + 1e-9 <= slack, stage


TALLY = dataclasses.asdict(analytic(SANTA, SHAPE, KEYS))
BAD = [
    (r"tally holds 'head_stepz': allowed are empty_steps", {"tally": {"head_stepz": 1}}),
    (r"tally has 7 head steps and 1 group steps: whole steps of 2", {"tally": TALLY | {"head_steps": 7,
                                                                                       "group_steps": 1}}),
    (r"holds no tally: run santa-hw accuracy again, or give rows of", {"tally": None, "window": None}),
    (r"holds no tally: run santa-hw accuracy again, or give rows of", {"tally": None, "unique_rows": None}),
    (r"a row with ternary scores holds no tally", {"tally": None, "design": Design(scores="ternary").to_dict()}),
    (r"holds neither kl_to_dense nor accuracy", {"kl_to_dense": None}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "changes"), BAD, ids=[m for m, _ in BAD])
def test_bad_rows_are_named(message, changes):
    with pytest.raises(ValueError, match=message):
        priced([row(SANTA, [1.0]) | changes])


DAMAGED = [
    ({"method": "snata"}, "method = 'snata': allowed are santa, top-k, dense, schedule, float-dense"),
    ({"method": None}, "method = None: allowed are santa"),
    ({"method": ["santa"]}, "method = ['santa']: allowed are santa"),
    ({"design": None}, "design = None: a table of design fields is allowed with method santa"),
    ({"design": {}}, "design = {}: a table with the field method is allowed"),
    ({"design": {"method": "santa"}}, "design = {'method': 'santa'}: a table with the field samples is allowed"),
    ({"design": SANTA.to_dict() | {"q_bits": "8"}}, "design: q_bits = '8': an integer from 2 to 24 is allowed"),
    ({"design": SANTA.to_dict() | {"colour": 1}}, "design: design field 'colour' is unknown"),
    ({"design": DENSE.to_dict()}, "design: method = 'dense': the row's 'santa' is allowed"),
    ({"samples": None}, "samples = None: the design's 64 is allowed"),
    ({"samples": 32}, "samples = 32: the design's 64 is allowed"),
    ({"window": "x"}, "window = 'x': 1 or more, or null, is allowed"),
    ({"windows": 0}, "windows = 0: 1 or more, or null, is allowed"),
    ({"heads": True}, "heads = True: 1 or more, or null, is allowed"),
    ({"model": 5}, "model = 5: a name, or null, is allowed"),
    ({"unique_rows": -1}, "unique_rows = -1: a number from zero, or null, is allowed"),
    ({"tally": 5}, "tally = 5: a table of counts, or null, is allowed"),
    ({"tally": TALLY | {"unique_rows": "3"}}, "tally: unique_rows = '3': an integer from zero is allowed"),
    ({"tally": TALLY | {"value_terms": -1}}, "tally: value_terms = -1: an integer from zero is allowed"),
    ({"tally": TALLY | {"head_steps": 0}}, "tally: head_steps = 0: 1 or more is allowed"),
    ({"tally": TALLY | {"lost_mass": float("nan")}}, "tally: lost_mass = nan: a number from zero is allowed"),
    ({"tally": TALLY | {"empty_steps": 99}}, "tally: empty_steps = 99: at most head_steps = 8 is allowed"),
    ({"tally": TALLY | {"visible_keys": 0}}, "tally: visible_keys = 0: a key at least for each of 8 head steps"),
    ({"tally": {"head_steps": 8}}, "tally = {'head_steps': 8}: a table with group_steps is allowed"),
    ({"kl_to_dense": "0.1"}, "kl_to_dense = '0.1': a number from zero, or null, is allowed"),
    ({"kl_to_dense": float("nan")}, "kl_to_dense = nan: a number from zero, or null, is allowed"),
    ({"kl_to_dense": -0.1}, "kl_to_dense = -0.1: a number from zero, or null, is allowed"),
    ({"kl_to_dense": None, "accuracy": 1.5}, "accuracy = 1.5: a number from 0 to 1, or null, is allowed"),
    ({"kl_to_dense": None, "accuracy": 1.0, "per_trial": [{"score": None}]}, "per_trial: score = None: a number from"),
    ({"per_window": 5}, "per_window = 5: a list of tables with kl, or null, is allowed"),
    ({"per_window": [{}]}, "per_window: kl = None: a number from zero is allowed"),
    ({"per_window": [{"kl": "a"}]}, "per_window: kl = 'a': a number from zero is allowed"),
]


@pytest.mark.parametrize(("changes", "message"), DAMAGED, ids=[m for _, m in DAMAGED])
def test_damaged_rows_name_file_row_and_column(changes, message):
    """A row of another program, or one that was edited, is told by where it is and what is wrong with it."""
    rows = [row(DENSE, [0.003]), row(SANTA, [1.0]) | changes]
    with pytest.raises(ValueError, match=f"^{re.escape(f'r.json, row 2: {message}')}") as caught:
        check_rows(rows, "r.json")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    with pytest.raises(ValueError, match=f"^{re.escape(f'row 2: {message}')}"):
        priced(rows)


def test_rows_that_are_not_priced_are_not_looked_into():
    check_rows([{"method": "float-sys", "design": None}, {"method": "schedule", "design": {"layers": []}},
                {"method": "santa", "design": {"layers": []}}])  # fmt: skip


OTHERS = {
    "task": "needle", "model_identity": "m-2", "dtype": "bfloat16", "device": "cuda", "text_sha256": "u",
    "calibration_sha256": "c", "windows": 3, "window": 2 * KEYS, "context": 5, "needles": 2, "trials": 7,
    "phases": "both",
}  # fmt: skip


@pytest.mark.parametrize("column", SETTING)
def test_rows_of_another_setting_do_not_compete(column):
    """Each is a family of its own; a target over both is refused, by the column's name; no reference is theirs."""
    changed = {column: OTHERS.get(column, "other")}
    points = priced([*curve(SANTA, 4.0), *(r | changed for r in curve(SANTA, 0.4)), row(DENSE, [0.003, 0.003])])
    assert len({point.family for point in points if point.method == "santa"}) == 2 and len(points) == 9
    assert differing(points) == (column,)
    with pytest.raises(ValueError, match=rf"^rows differ in {column} \({column} = .* and .*\): rows of one setting"):
        equal_accuracy(points, 0.05)
    assert floating_reference(points, TABLE, MEMORY) is None
    assert floating_reference(points[:4], TABLE, MEMORY) is not None


def test_the_setting_is_the_identity_of_a_row_without_its_design():
    assert {*SETTING, "method", "samples", "schedule", "design", "teams", "seed"} == set(IDENTITY)


def test_no_points_have_no_equal_accuracy():
    with pytest.raises(ValueError, match="points is empty"):
        equal_accuracy([], 0.05)


def test_what_was_measured_has_its_cost_beside():
    points = priced(ROWS)
    found = {equal.method: equal for equal in equal_accuracy(points, 0.05, resamples=5)}
    assert found["dense"].cost is not None and found["dense"].cost["total_pj"] == found["dense"].pj.value
    assert found["santa"].cost is None


def test_unequal_windows_are_refused():
    rows = [row(SANTA, [1.0, 2.0]), row(SANTA, [1.0], seed=1) | {"windows": 2}]
    with pytest.raises(ValueError, match="different numbers of windows or trials"):
        priced(rows)


def test_floating_reference_is_dense_in_bf16():
    points = priced(ROWS)
    work = Workload("dense-bf16", DENSE, analytic(DENSE, SHAPE, KEYS), "bf16")
    expected = cost_row(work, TABLE, MEMORY, machine=Machine(), parallel_heads=4)["total_pj"]
    # From rows of any method, since all of them saw the same keys.
    assert floating_reference(points, TABLE, MEMORY) == pytest.approx(expected)
    assert floating_reference(points[-1:], TABLE, MEMORY) == pytest.approx(expected)
    assert floating_reference([], TABLE, MEMORY) is None


def text(table) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160).print(table)
    return stream.getvalue()


def test_tables_and_plots(tmp_path):
    points = priced(ROWS)
    found = equal_accuracy(points, 0.05, resamples=20)
    shown = text(report_cost.priced_table(points))
    assert "KL to dense" in shown and "not modelled" in shown and "µJ" in shown
    shown = text(report_cost.equal_table(found, 0.05, "KL to dense"))
    assert "KL to dense at most 0.05" in shown and "interpolated" in shown and "1.000" in shown
    assert "not reached" in text(
        report_cost.equal_table(equal_accuracy(points, 1e-4, resamples=5), 1e-4, "KL to dense")
    )
    for suffix in (".png", ".svg"):
        path = tmp_path / f"pareto{suffix}"
        report_cost.plot_pareto(points, path, target=0.05, found=found, reference=1e6)
        assert path.stat().st_size > 1000
    with pytest.raises(ValueError, match=r"pareto\.gif: a name that ends in \.png"):
        report_cost.plot_pareto(points, tmp_path / "pareto.gif")
    with pytest.raises(ValueError, match="nothing to plot"):
        report_cost.plot_pareto(priced([row(DENSE, [0.0])]), tmp_path / "pareto.png")
