"""Grids, the file that grows and resumes, and runs that are killed."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from santa_hw import assets, models, reference, sweep
from santa_hw.datapath import Draw, Exponents, attend
from santa_hw.design import FIELDS, Design, Schedule
from santa_hw.sweep import Point, Rows, Setting, check_keys, grid, is_random, read_rows, row_key, used_fields

SETTING = Setting("perplexity", "tiny", "tiny-1", "float32", "both", windows=1, window=8)


def axis(name, *values):
    return [{name: value} for value in values]


# Grids ------------------------------------------------------------------------------------------


def test_the_default_grid():
    points = grid(Design(), [], methods=["santa", "top-k", "dense"], samples=[16, 64, 256], seeds=range(4))
    assert [(p.method, p.samples, p.seed) for p in points] == [
        *(("santa", s, seed) for s in (16, 64, 256) for seed in range(4)),
        *(("top-k", k, 0) for k in (16, 64, 256)),
        ("dense", None, 0),
    ]
    for point in points[:-1]:
        assert (point.design.method, point.design.samples) == (point.method, point.samples)


@given(
    q=st.lists(st.integers(3, 8), min_size=1, max_size=3, unique=True),
    weight=st.lists(st.integers(8, 20), min_size=1, max_size=3, unique=True),
    samples=st.lists(st.sampled_from([1, 2, 16, 64]), min_size=1, max_size=3, unique=True),
    seeds=st.integers(1, 3),
)
def test_a_grid_has_every_combination_once(q, weight, samples, seeds):
    points = grid(
        Design(),
        [axis("q_bits", *q), axis("weight_bits", *weight)],
        methods=["santa", "dense"],
        samples=samples,
        seeds=range(seeds),
    )
    designs = len(q) * len(weight)
    assert len(points) == len(set(points)) == designs * (len(samples) * seeds + 1)
    assert {(p.design.q_bits, p.design.weight_bits) for p in points} == {(a, b) for a in q for b in weight}


def test_points_with_equal_results_are_one_point():
    ternary = [axis("scores", "dense", "ternary"), axis("ternary_samples", 8, 16)]
    points = grid(Design(), ternary, methods=["dense"], seeds=range(3))
    # Dense scores: one. Ternary scores draw words, and so depend on the seed: two budgets, three seeds.
    assert len(points) == 1 + 2 * 3
    rounded = [axis("sampler", "systematic", "iid")]
    assert len(grid(Design(), rounded, methods=["santa", "dense", "top-k"], samples=[4])) == 2 + 1 + 1


def test_an_axis_may_move_several_fields():
    bits = [{"q_bits": b, "k_bits": b, "v_bits": b} for b in (4, 6)]
    points = grid(Design(), [bits], methods=["dense"])
    assert [(p.design.q_bits, p.design.k_bits, p.design.v_bits) for p in points] == [(4,) * 3, (6,) * 3]


def test_float_methods_have_no_design_and_their_names_are_the_references():
    points = grid(Design(), [], methods=list(sweep.FLOAT_METHODS), samples=[4, 12], seeds=range(2))
    assert {p.design for p in points} == {None}
    assert [(p.samples, p.seed) for p in points if p.method == "float-dense"] == [(None, 0)]
    assert [(p.samples, p.seed) for p in points if p.method == "float-top-k"] == [(4, 0), (12, 0)]
    assert len(points) == 1 + 2 + 5 * 2 * 2
    assert set(sweep.FLOAT_METHODS) == set(reference.METHODS)
    for method in sweep.METHODS:
        assert Design(method=method).method == method


def test_without_methods_or_samples_the_base_stays_as_it_is():
    assert grid(Design(method="top-k", samples=12), []) == [Point("top-k", 12, Design(method="top-k", samples=12), 0)]


def test_a_schedule_is_a_base_like_any_other():
    first, second = Design(q_bits=4), Design(q_bits=8)
    (point,) = grid(Schedule((first, second)), [])
    assert (point.method, point.samples, point.design) == ("santa", 64, Schedule((first, second)))
    changed = grid(Schedule((first, second)), [axis("v_bits", 6)], methods=["top-k"], samples=[8])
    assert [layer.q_bits for layer in changed[0].design.designs] == [4, 8]
    assert {(layer.method, layer.samples, layer.v_bits) for layer in changed[0].design.designs} == {("top-k", 8, 6)}
    mixed = Schedule((Design(method="dense"), Design(samples=16)))
    (point,) = grid(mixed, [])
    assert (point.method, point.samples) == ("schedule", None)
    assert is_random(point.method, point.design)


def test_a_schedule_of_budgets():
    (fixed, free, dense) = grid(Design(v_bits=6), [], methods=["santa", "float-sys", "dense"], schedule=(4, 16))
    assert (fixed.method, fixed.samples, fixed.schedule) == ("santa", None, None)
    assert [(layer.samples, layer.v_bits) for layer in fixed.design.designs] == [(4, 6), (16, 6)]
    assert free == Point("float-sys", None, None, 0, (4, 16))
    assert str(free) == "float-sys 4,16"
    assert (dense.method, dense.design.samples) == ("dense", 64)
    (any_number,) = grid(Design(), [], methods=["float-santa"], schedule=(12, 12))
    assert (any_number.samples, any_number.schedule) == (12, (12, 12))
    # A base whose layers differ in their budgets hands them on.
    base = Schedule((Design(samples=4), Design(samples=16)))
    assert grid(base, [], methods=["float-sys"]) == [free]
    assert grid(base, [], methods=["float-sys"], samples=[8]) == [Point("float-sys", 8, None, 0)]


@pytest.mark.parametrize(
    "axes, options, message",
    [
        ([], {"methods": ["santa"], "schedule": [16, 12]}, "layer 1 of the schedule: samples = 12: a power of two"),
        ([], {"methods": ["float-sys"], "schedule": [4, 0]}, "samples = 0: 1 or more"),
        ([], {"methods": ["dense", "float-dense"], "schedule": [4]}, "schedule has no effect with method dense"),
        ([], {"methods": ["float-sys"], "schedule": [4], "samples": [4]}, "samples and schedule: one of them"),
        ([], {"methods": ["santa"], "samples": [12]}, "samples = 12: a power of two"),
        ([], {"methods": ["float-sys"], "samples": [0]}, "samples = 0: 1 or more"),
        ([], {"methods": ["banana"]}, "method = 'banana': allowed are santa, top-k, dense, float-dense"),
        ([], {"methods": ["dense"], "samples": [4]}, "samples has no effect with method dense"),
        ([], {"methods": ["dense", "float-dense"], "samples": [4]}, "samples has no effect"),
        ([axis("q_bits", 8)], {"methods": ["float-sys"]}, "q_bits has no effect with method float-sys"),
        ([axis("sampler", "iid")], {"methods": ["top-k", "dense"]}, "sampler has no effect"),
        ([axis("ternary_samples", 4)], {"methods": ["santa"]}, "ternary_samples has no effect.*dense scores"),
        ([axis("guard_bits", 4)], {"methods": ["santa"]}, "guard_bits has no effect"),
        ([axis("q_bits", 99)], {"methods": ["santa"]}, "q_bits = 99"),
    ],
)
def test_contradictions_are_refused(axes, options, message):
    with pytest.raises(ValueError, match=message):
        grid(Design(), axes, **options)


def test_a_field_that_some_point_uses_is_fine():
    assert len(grid(Design(), [axis("sampler", "iid")], methods=["dense", "santa"])) == 2


def test_too_few_keys_for_the_task():
    points = grid(Design(max_keys=1000), [], methods=["dense"])
    check_keys(points, 1000)
    with pytest.raises(ValueError, match="max_keys = 1000: at least the task's 1001"):
        check_keys(points, 1001)
    check_keys(grid(Design(), [], methods=["float-sys"]), 10**9)


OTHERS = {
    "samples": 32, "sampler": "stratified", "gather": "shift_add", "rng": "lfsr", "rng_bits": 7, "guard_bits": 1,
    "ternary_samples": 4, "ternary_draw": "iid", "ternary_offset": "independent", "ternary_block": 4,
}  # fmt: skip
BASES = [
    Design(method=method, scores=scores, head_dim=8, max_keys=64, samples=8, guard_bits=guard)
    for method in ("santa", "top-k", "dense")
    for scores in ("dense", "ternary")
    for guard in (None, 5)
]


@pytest.mark.parametrize("base", BASES, ids=lambda d: f"{d.method}-{d.scores}-{d.guard_bits}")
def test_unused_fields_change_nothing_and_used_ones_something(base, seed):
    generator = np.random.default_rng(seed)
    q, k, v = (generator.normal(size=(1, heads, 40, 8)) * 2 for heads in (4, 2, 2))
    zero = np.ones((2, 8), dtype=np.int64) * 3
    draw = Draw(1, 0, np.array([0]), np.arange(40)[None])

    def output(design):
        return attend(design, q, k, v, exponents=Exponents(zero, zero), draw=draw).output

    plain = output(base)
    used = used_fields(base)
    assert used >= set(FIELDS) - set(OTHERS)
    for name, value in OTHERS.items():
        same = bool((output(base.replace(**{name: value})) == plain).all())
        if name not in used:
            assert same, name
        elif name != "gather" and (name != "rng_bits" or base.method == "santa"):
            # Gathering costs differently, but the sum is the same. A ternary draw looks at the first q_bits - 1
            # bits of a word, which every width has.
            assert not same, name


# The file ---------------------------------------------------------------------------------------


def row(method="dense", seed=0, **more):
    return {"method": method, "samples": None, "design": None, "seed": seed, "kl_to_dense": 0.1} | more


def test_a_file_is_made_with_the_first_row_and_each_row_is_on_disk_at_once(tmp_path):
    path = tmp_path / "rows.json"
    rows = Rows(path)
    assert list(tmp_path.iterdir()) == []
    for count in (1, 2, 3):
        rows.add(row(seed=count))
        assert [r["seed"] for r in json.loads(path.read_text())] == list(range(1, count + 1))
    assert list(tmp_path.iterdir()) == [path]


def test_two_runs_that_add_at_once_lose_no_row(tmp_path):
    path = tmp_path / "rows.json"

    def add(first: int) -> None:
        rows = Rows(path)
        for seed in range(first, first + 10):
            rows.add(row(seed=seed))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, (0, 100, 200, 300)))
    assert len(json.loads(path.read_text())) == 40


def test_rows_of_another_setting_are_kept(tmp_path):
    path = tmp_path / "rows.json"
    foreign = [{"something": "else"}, row(task="needle", seed=9)]
    path.write_text(json.dumps(foreign))
    Rows(path).add(row())
    assert read_rows(path) == [*foreign, row()]


def test_rows_that_another_run_adds_meanwhile_are_kept(tmp_path):
    path = tmp_path / "rows.json"
    first, second = Rows(path), Rows(path)
    first.add(row(seed=1))
    second.add(row(seed=2))
    first.add(row(seed=3))
    assert sorted(r["seed"] for r in read_rows(path)) == [1, 2, 3]
    path.unlink()
    first.add(row(seed=4))
    assert sorted(r["seed"] for r in read_rows(path)) == [1, 2, 3, 4]


@pytest.mark.parametrize("content", ["", "{", '{"a": 1}', "[1, 2]", "[", b"\xff\xfe"])
def test_a_file_that_is_no_list_of_rows_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "rows.json"
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.json"):
        Rows(path)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match="cannot be written"):
        Rows(tmp_path / "nowhere" / "rows.json")
    with pytest.raises(ValueError, match="cannot be"):
        Rows(tmp_path)


def test_a_link_stays_a_link(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("[]")
    link.symlink_to(real)
    Rows(link).add(row())
    assert link.is_symlink()
    assert read_rows(real) == [row()]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    rows = Rows(path)
    rows.add(row(seed=1))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        rows.add(row(seed=2))
    assert [r["seed"] for r in read_rows(path)] == [1]


COLUMNS = {
    "task", "model_identity", "dtype", "device", "text_sha256", "calibration_sha256", "windows", "window", "context",
    "needles", "trials", "phases", "method", "samples", "schedule", "design", "teams", "seed", "version",
}  # fmt: skip


@given(st.sampled_from(sorted(COLUMNS)), st.integers(1, 5))
def test_every_column_of_the_identity_tells_rows_apart(name, value):
    assert row_key(row()) != row_key(row() | {name: value})
    assert row_key(row()) == row_key(row() | {"seconds": value, "lost_mass": value})
    assert set(sweep.IDENTITY) == COLUMNS
    assert row_key(row(), without=[name]) == row_key(row() | {name: value}, without=[name])


# Runs -------------------------------------------------------------------------------------------


class Fake:
    """A task that says what it was asked."""

    name, phases, units, preparations = "perplexity", "both", 2, 1
    token_windows = ()

    def __init__(self, fail_at=None):
        self.hooks, self.prepared, self.fail_at = [], 0, fail_at

    def prepare(self, tick):
        self.prepared += 1
        tick()

    def evaluate(self, hook, tick):
        if self.fail_at == len(self.hooks):
            raise RuntimeError("planted")
        self.hooks.append(hook)
        tick()
        tick()
        return {"perplexity": 2.0 + len(self.hooks), "kl_to_dense": math.nan, "top1_agreement": 1.0}


FLOATS = grid(Design(), [], methods=["float-dense", "float-sys"], samples=[4], seeds=range(3))


def test_a_second_run_measures_nothing_and_returns_the_same(tmp_path, loaded):
    task, ticks, seen = Fake(), [], []
    first = sweep.run(
        loaded, task, SETTING, FLOATS, Rows(tmp_path / "r.json"), tick=lambda: ticks.append(1),
        on_row=lambda row, fresh: seen.append((row["seed"], fresh)),
    )  # fmt: skip
    assert len(task.hooks) == 4
    assert len(ticks) == 1 + 4 * 2
    assert seen == [(0, True), (0, True), (1, True), (2, True)]
    again = Fake()
    seen.clear()
    second = sweep.run(
        loaded, again, SETTING, FLOATS, Rows(tmp_path / "r.json"), on_row=lambda row, fresh: seen.append(fresh)
    )
    assert second == first
    assert (again.hooks, again.prepared, seen) == ([], 0, [False] * 4)


def test_a_failure_keeps_what_came_before_and_the_next_run_does_the_rest(tmp_path, loaded):
    path = tmp_path / "r.json"
    with pytest.raises(RuntimeError, match="planted"):
        sweep.run(loaded, Fake(fail_at=2), SETTING, FLOATS, Rows(path))
    assert len(read_rows(path)) == 2
    task = Fake()
    assert len(sweep.run(loaded, task, SETTING, FLOATS, Rows(path))) == 4
    assert len(task.hooks) == 2


def test_a_limit_counts_new_rows(tmp_path, loaded):
    path = tmp_path / "r.json"
    assert len(sweep.run(loaded, Fake(), SETTING, FLOATS, Rows(path), limit=1)) == 1
    assert len(sweep.run(loaded, Fake(), SETTING, FLOATS, Rows(path), limit=2)) == 3


def test_another_setting_is_measured_again(tmp_path, loaded):
    path = tmp_path / "r.json"
    sweep.run(loaded, Fake(), SETTING, FLOATS[:1], Rows(path))
    other = Setting("perplexity", "tiny", "tiny-1", "float32", "both", windows=1, window=9)
    task = Fake()
    sweep.run(loaded, task, other, FLOATS[:1], Rows(path))
    assert len(task.hooks) == 1
    assert [r["window"] for r in read_rows(path)] == [8, 9]


@pytest.mark.parametrize("method", ["float-sys", "top-k"])
def test_a_schedule_that_does_not_fit_the_model(tmp_path, loaded, method):
    task = Fake()
    for schedule, message in [
        ((4,), "1 layers: it misses layer 1; the model's 2"),
        ((4,) * 3, "3 layers: the model's"),
    ]:
        points = grid(Design(), [], methods=[method], schedule=schedule)
        with pytest.raises(ValueError, match=f"schedule has {message}"):
            sweep.run(loaded, task, SETTING, points, Rows(tmp_path / "r.json"))
    assert (task.hooks, task.prepared) == ([], 0)


def test_rows_of_schedules_resume_and_are_told_apart(tmp_path, loaded):
    text, rows = tmp_path / "text.txt", Rows(tmp_path / "r.json")
    text.write_text(tiny.prose(3))
    task, setting = sweep.open_task(loaded, "perplexity", text=str(text), windows=1, window=40)

    def kls(**options):
        points = grid(Design(), [], methods=["float-sys"], **options)
        return [row["kl_to_dense"] for row in sweep.run(loaded, task, setting, points, rows)]

    (low,), (high,), (plain,) = kls(schedule=(2, 32)), kls(schedule=(32, 2)), kls(samples=[32])
    assert plain < min(low, high)
    assert low != high
    assert kls(schedule=(2, 32)) == [low]
    # The same budget everywhere: another row, the same result.
    assert kls(schedule=(32, 32)) == [plain]
    assert [(row["samples"], row["schedule"]) for row in read_rows(tmp_path / "r.json")] == [
        (None, [2, 32]), (None, [32, 2]), (32, None), (32, [32, 32]),
    ]  # fmt: skip


def test_rows_of_another_calibration_are_measured_again(tmp_path, loaded):
    """A text says too little: maxima of the same one may be widened, or come from another number type."""
    calibration, path = models.calibrate(loaded, np.arange(10, 90).reshape(2, 40)), tmp_path / "r.json"
    points = grid(Design(), [], methods=["dense", "float-dense"])

    def fresh(used):
        task = Fake()
        task.token_windows = [np.arange(100, 140)]
        sweep.run(loaded, task, SETTING, points, Rows(path), calibration=used)
        return len(task.hooks)

    calibration.save(tmp_path / "c.npz")
    assert fresh(calibration) == 2
    assert fresh(models.Calibration.load(tmp_path / "c.npz")) == 0
    # Floating point has no exponents.
    assert [fresh(calibration.widened(bits)) for bits in (1, 0.01, 0)] == [1, 1, 0]


def test_rows_of_every_kind_of_method(tmp_path, loaded):
    calibration = models.calibrate(loaded, np.arange(10, 90).reshape(2, 40))
    text = tmp_path / "text.txt"
    text.write_text(tiny.prose(3))
    task, setting = sweep.open_task(loaded, "perplexity", text=str(text), windows=2, window=32)
    points = grid(Design(), [], methods=[*sweep.METHODS, *sweep.FLOAT_METHODS], samples=[4])
    rows = sweep.run(loaded, task, setting, points, Rows(tmp_path / "r.json"), calibration=calibration)
    by_method = {row["method"]: row for row in rows}
    assert list(by_method) == [*sweep.METHODS, *sweep.FLOAT_METHODS]
    for method, found in by_method.items():
        assert found["perplexity"] > 1
        assert found["accuracy"] is None
        assert found["seconds"] > 0
        assert len(found["per_window"]) == 2
        fixed = method in sweep.METHODS
        assert (found["design"] is not None) == fixed
        assert (found["saturations"] is not None) == fixed
        assert (found["lost_mass"] is not None) == fixed
        assert (found["calibration_sha256"] == calibration.sha256) == fixed
        assert (found["samples"] is None) == ("dense" in method)
        if fixed:
            assert set(found["design"]) == set(FIELDS)
            assert found["design"]["head_dim"] == loaded.head_dim
    assert by_method["dense"]["unique_rows"] == pytest.approx(16.5)  # 1 to 32 keys
    assert by_method["float-top-k"]["unique_rows"] == pytest.approx((1 + 2 + 3 + 29 * 4) / 32)
    assert by_method["float-dense"]["kl_to_dense"] == 0.0
    assert by_method["dense"]["kl_to_dense"] < by_method["santa"]["kl_to_dense"]
    assert by_method["santa"]["unique_rows"] <= 4


def test_the_text_of_the_calibration_may_not_be_evaluated(tmp_path, loaded):
    text = tmp_path / "text.txt"
    text.write_text(tiny.prose(3))
    task, setting = sweep.open_task(loaded, "perplexity", text=str(text), windows=1, window=64)
    calibration = sweep.open_calibration(loaded, text=str(text), windows=2, window=64)
    with pytest.raises(ValueError, match="calibration"):
        sweep.run(loaded, task, setting, FLOATS, Rows(tmp_path / "r.json"), calibration=calibration)


def test_fixed_point_needs_a_calibration(tmp_path, loaded):
    with pytest.raises(ValueError, match="calibration is None"):
        sweep.run(loaded, Fake(), SETTING, grid(Design(), []), Rows(tmp_path / "r.json"))


@pytest.mark.parametrize("name", ["needle", "fwe"])
def test_settings_of_the_decoding_tasks(tmp_path, loaded, name):
    text = tmp_path / "text.txt"
    text.write_text(tiny.prose(3))
    task, setting = sweep.open_task(loaded, name, text=str(text), context=1000, trials=2, phases="both")
    rows = sweep.run(loaded, task, setting, FLOATS[:1], Rows(tmp_path / "r.json"))
    assert (setting.context, setting.trials, setting.phases, setting.windows) == (1000, 2, "both", None)
    assert setting.needles == (1 if name == "needle" else None)
    assert rows[0]["perplexity"] is None
    assert 0 <= rows[0]["accuracy"] <= 1
    assert len(rows[0]["per_trial"]) == 2


def test_an_unknown_task(tmp_path, loaded):
    text = tmp_path / "text.txt"
    text.write_text("words")
    with pytest.raises(ValueError, match="task = 'chess'"):
        sweep.open_task(loaded, "chess", text=str(text))


# A killed run -----------------------------------------------------------------------------------


def test_a_run_killed_midway_leaves_a_valid_file_and_resumes(tmp_path):
    folder = tiny.folder(tmp_path / "model")
    for name, number in (("text", 1), ("other", 2)):
        (tmp_path / f"{name}.txt").write_text(tiny.prose(number))
    path, seeds = tmp_path / "rows.json", 60
    command = [
        sys.executable, "-m", "santa_hw", "accuracy", "--model", str(folder), "--text", str(tmp_path / "text.txt"),
        "--calibration-text", str(tmp_path / "other.txt"), "--windows", "2", "--window", "96", "--method", "santa",
        "--samples", "8", "--seeds", str(seeds), "--json", str(path),
    ]  # fmt: skip
    root = Path(__file__).parents[1]
    compiled = {"NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR") or str(assets.cache() / "numba")}
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "SANTA_HW_CACHE": str(tmp_path)}
    environment |= compiled
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        # Every look at the file, whenever it comes, must find a whole list.
        while len(before := read_rows(path) if path.exists() else []) < 3:
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    kept = read_rows(path)
    assert before == kept[: len(before)]
    assert 3 <= len(kept) < seeds
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    after = read_rows(path)
    assert after[: len(kept)] == kept
    assert [row["seed"] for row in after] == list(range(seeds))
    # One line for each row that was measured now, none for those that were there.
    assert result.stderr.count(", seed ") == seeds - len(kept)
    assert f"{seeds} of {seeds} rows" in result.stderr
