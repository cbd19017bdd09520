"""Tables and plots of rows, as a run or a file gives them."""

import io
import math
import re
from contextlib import suppress

import numpy as np
import pytest
from rich.console import Console

from santa_hw import report
from santa_hw.accuracy_rows import check_shown
from santa_hw.design import Design
from santa_hw.evaluate.statistics import bootstrap
from santa_hw.report import label, plot, summarise, table, varying
from santa_hw.sweep import Setting, grid
from santa_hw.team_design import TeamDesign

MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


def rows_of(points, kl=lambda point: 0.5 / (point.samples or 100), **setting):
    """Rows as a perplexity run writes them, the divergence made up."""
    shared = vars(Setting(**{"task": "perplexity", "model": "m", "model_identity": "m-1", "dtype": "float32",
                             "phases": "both", "windows": 2, "window": 64} | setting))  # fmt: skip
    rows = []
    for point in points:
        pieces = [{"nll": 2.0 + w, "kl": kl(point) * (1 + w + point.seed), "agreement": 0.9} for w in range(2)]
        rows.append(
            {
                "method": point.method, "samples": point.samples, "seed": point.seed,
                "schedule": point.schedule and list(point.schedule),
                "design": point.design and point.design.to_dict(), **shared, "calibration_sha256": None,
                "perplexity": math.exp(2.5), "kl_to_dense": kl(point) * (1.5 + point.seed), "top1_agreement": 0.9,
                "accuracy": None, "unique_rows": 10.0 + point.seed, "saturations": 3, "lost_mass": 1e-4,
                "seconds": 1.5, "per_window": pieces, "per_trial": None,
            }
        )  # fmt: skip
    return rows


def trials_of(points, scores):
    rows = rows_of(points, task="needle", windows=None, window=None, context=512, trials=len(scores), needles=1)
    for row in rows:
        row |= dict.fromkeys(("perplexity", "kl_to_dense", "top1_agreement", "per_window"))
        row |= {"accuracy": sum(scores) / len(scores), "per_trial": [{"score": score} for score in scores]}
    return rows


DEFAULT = grid(Design(), [], methods=["santa", "top-k", "dense"], samples=[16, 64, 256], seeds=range(3))
BITS = [{"q_bits": b, "k_bits": b, "v_bits": b} for b in (3, 4, 6)]


def text_of(rows):
    stream = io.StringIO()
    Console(file=stream, width=160).print(table(rows))
    return stream.getvalue()


@pytest.mark.parametrize("method", ["float-sys", "santa"])
def test_schedules_are_told_apart_from_each_other_and_from_one_budget(method, tmp_path):
    plain = grid(Design(), [], methods=[method], samples=[16, 64], seeds=range(2))
    first, second = (grid(Design(), [], methods=[method], schedule=s, seeds=range(2)) for s in ((4, 64), (64, 4)))
    assert "schedule" not in varying(summarise(rows_of(plain)))
    for points in (plain + first, plain + first + second):
        groups = summarise(rows_of(points))
        names = varying(groups)
        assert "schedule" in names
        assert {group.seeds for group in groups} == {2}
        labels = [label(group, names) for group in groups]
        assert labels[:2] == [method] * 2
        assert len(set(labels[2:])) == len(groups) - 2
        assert all("schedule" in text for text in labels[2:])
        assert "schedule" in text_of(rows_of(points))
    plot(rows_of(plain + first + second), tmp_path / "plot.svg")


def test_seeds_come_together_and_nothing_else_does():
    groups = summarise(rows_of(DEFAULT))
    assert [(g.method, g.samples, g.seeds) for g in groups] == [
        *(("santa", s, 3) for s in (16, 64, 256)), *(("top-k", k, 1) for k in (16, 64, 256)), ("dense", None, 1)
    ]  # fmt: skip
    floats = summarise(rows_of(grid(Design(), [], methods=["float-sys"], samples=[4, 12], seeds=range(2))))
    assert [(g.samples, g.seeds) for g in floats] == [(4, 2), (12, 2)]
    other = rows_of(DEFAULT[:3], windows=7)
    assert len(summarise([*rows_of(DEFAULT), *other])) == 8


def test_means_and_intervals_are_over_windows_and_seeds():
    group = summarise(rows_of(DEFAULT))[0]
    pieces = [0.5 / 16 * (1 + w + seed) for seed in range(3) for w in range(2)]
    assert group.kl_to_dense == bootstrap(pieces)
    assert group.perplexity == pytest.approx(np.exp(bootstrap([2.0, 3.0] * 3)))
    assert group.unique_rows == pytest.approx(11.0)
    assert group.accuracy is None


def test_trials_give_an_accuracy_with_its_interval():
    group = summarise(trials_of(DEFAULT[:2], [1.0, 0.0, 1.0, 1.0]))[0]
    assert group.accuracy == bootstrap([1.0, 0.0, 1.0, 1.0] * 2)
    assert group.accuracy.mean == 0.75
    assert group.kl_to_dense is None


def test_rows_without_their_pieces_use_their_columns():
    rows = [row | {"per_window": None} for row in rows_of(DEFAULT[:3])]
    assert summarise(rows)[0].kl_to_dense == bootstrap([row["kl_to_dense"] for row in rows])


def test_rows_that_are_something_else_are_skipped():
    assert summarise([{"something": "else"}, *rows_of(DEFAULT[:1])])[0].method == "santa"
    assert summarise([]) == []


DAMAGED = [
    ({"method": None}, "method = None: allowed are santa"),
    ({"method": ["santa"]}, "method = ['santa']: allowed are santa"),
    ({"seed": None}, "column seed is missing"),
    ({"task": None}, "column task is missing"),
    ({"seed": "0"}, "seed = '0': an integer from zero is allowed"),
    ({"samples": "16"}, "samples = '16': 1 or more, or null, is allowed"),
    ({"samples": None}, "samples = None: 1 or more is allowed with method santa"),
    ({"window": [64]}, "window = [64]: 1 or more, or null, is allowed"),
    ({"model": {}}, "model = {}: a text, or null, is allowed"),
    ({"calibration_sha256": 5}, "calibration_sha256 = 5: a text, or null, is allowed"),
    ({"schedule": "16x2"}, "schedule = '16x2': budgets, or null, is allowed"),
    ({"design": "santa 64"}, "design = 'santa 64': a table of fields, or null, is allowed"),
    ({"design": {"q_bits": "8"}}, "design: q_bits = '8': a finite number is allowed"),
    ({"design": {"sampler": 1}}, "design: sampler = 1: a text is allowed"),
    ({"teams": [8]}, "teams = [8]: a table of fields, or null, is allowed"),
    ({"unique_rows": "10"}, "unique_rows = '10': a finite number, or null, is allowed"),
    ({"seconds": math.nan}, "seconds = nan: a finite number, or null, is allowed"),
    ({"per_window": {"kl": 1.0}}, "per_window = {'kl': 1.0}: a list of tables with nll, or null, is allowed"),
    ({"per_window": [5]}, "per_window = [5]: a list of tables with nll, or null, is allowed"),
    ({"per_window": [{"nll": 2.0, "kl": 1.0}]}, "per_window: agreement = None: a finite number is allowed"),
    ({"per_window": [{"nll": 2.0, "kl": "1"}]}, "per_window: kl = '1': a finite number is allowed"),
    ({"per_trial": [{}]}, "per_trial: score = None: a finite number is allowed"),
    ({"perplexity": None, "kl_to_dense": None, "top1_agreement": None, "per_window": None}, "a row of method 'santa' "
     "holds none of perplexity, kl_to_dense, top1_agreement, accuracy"),
    ({"total_pj": 5.0}, "it holds a cost, as santa-hw energy writes it: rows of santa-hw accuracy are allowed"),
]  # fmt: skip


@pytest.mark.parametrize("changes, message", DAMAGED, ids=[m for _, m in DAMAGED])
def test_damaged_rows_name_file_row_and_column(changes, message):
    first, second, *_ = rows_of(DEFAULT)
    with pytest.raises(ValueError, match=f"^{re.escape(f'r.json, row 2: {message}')}") as caught:
        check_shown([first, second | changes], "r.json")
    assert "\n" not in str(caught.value)
    if all(value is None for value in changes.values()):
        lacking = {name: value for name, value in second.items() if name not in changes}
        with pytest.raises(ValueError, match=f"^{re.escape(f'row 2: {message}')}"):
            check_shown([first, lacking])


WRONG = (None, True, -1, 0.5, math.inf, "x", [], [5], {}, {"x": []})


def damage(fields):
    """Copies of a dict, each of its values in turn taken away and replaced by values of all types."""
    for name in fields:
        rest = {key: value for key, value in fields.items() if key != name}
        yield from ((name, rest | change) for change in (*({name: value} for value in WRONG), {}))


def test_rows_that_pass_are_shown_whatever_was_done_to_them(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "bootstrap", lambda values: bootstrap(values, resamples=5))
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    fixed, trials = rows_of(DEFAULT[:1])[0], trials_of(DEFAULT[:1], [1.0, 0.0])[0]
    teams = fixed | {"method": "santapp", "design": None, "teams": TeamDesign().to_dict()}
    cases = [(row, changed, None) for row in (fixed, trials, teams) for _, changed in damage(row)]
    for row, column in ((fixed, "design"), (teams, "teams")):
        cases += [(row, row | {column: fields}, name) for name, fields in damage(row[column])]
    for row, column in ((fixed, "per_window"), (trials, "per_trial")):
        cases += [(row, row | {column: [piece]}, None) for _, piece in damage(row[column][0])]
    refused = 0
    for whole, changed, x in cases:
        check_shown([whole])
        try:
            check_shown([changed])
        except ValueError:
            refused += 1
            continue
        table([whole, changed])
        if x is not None:
            with suppress(ValueError):  # a field that has no place on an axis
                plot([whole, changed], tmp_path / "plot.svg", x=x)
    assert len(cases) > 1000
    assert 0.5 < refused / len(cases) < 0.9


def test_rows_of_other_versions_are_shown():
    row = rows_of(DEFAULT[:1])[0]
    lacking = ("device", "phases", "kv_reads", "teams", "calibration_sha256", "seconds", "schedule")
    old = {name: value for name, value in row.items() if name not in lacking}
    check_shown([old | {"design": {"q_bits": 8, "a_field_of_old": [1]}}])


def test_no_rows_are_told():
    with pytest.raises(ValueError, match=r"^r\.json: there is no row; a file with rows of santa-hw accuracy"):
        check_shown([], "r.json")


def test_what_tells_designs_apart():
    assert varying(summarise(rows_of(DEFAULT))) == []
    points = grid(Design(), [BITS, [{"score_frac": 3}, {"score_frac": 5}]], methods=["dense"])
    names = varying(summarise(rows_of(points)))
    assert names == ["bits", "score_frac"]
    assert label(summarise(rows_of(points))[0], names) == "dense, bits 3, score frac 3"
    apart = grid(Design(), [[{"q_bits": 4}, {"q_bits": 8}]], methods=["dense", "float-sys"], samples=[4])
    assert varying(summarise(rows_of(apart))) == ["q_bits"]
    assert varying(summarise([*rows_of(apart[:1]), *rows_of(apart[:1], windows=9)])) == ["windows"]


def test_the_table_shows_what_was_measured():
    text = text_of(rows_of(grid(Design(), [BITS], methods=["santa", "dense"], samples=[16], seeds=range(2))))
    for word in ("Method", "S,k", "bits", "dense", "Perplexity", "Top-1", "Unique", "Saturated"):
        assert word in text
    assert "Accuracy" not in text
    assert "2 seeds" in text
    # The mean of 0.5 / 16 * (1, 2, 2, 3), and its interval below it.
    assert re.search(r"santa\s+16\s+3\s.*0\.0625 ", text)
    assert re.search(r"0\.0391 to .*\n.* 0\.0859 ", text)
    assert "Accuracy" in text_of(trials_of(DEFAULT[:1], [1.0, 0.5]))


def test_nothing_is_cut_off_in_a_narrow_terminal():
    stream = io.StringIO()
    Console(file=stream, width=80).print(table(rows_of(DEFAULT)))
    text = stream.getvalue()
    assert "…" not in text
    assert "Perplexity" in text
    assert "Saturated" in text


def test_an_empty_table():
    assert "Method" in text_of([])


@pytest.mark.parametrize("suffix", report.SUFFIXES)
def test_a_plot_is_the_kind_of_file_its_name_says(tmp_path, suffix):
    path = tmp_path / f"plot{suffix}"
    plot(rows_of(DEFAULT), path)
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert path.stat().st_size > 5000


def drawn(monkeypatch, rows, **options):
    """The axes of a plot, instead of its file."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: figures.append(self))
    plot(rows, "x.png", **options)
    return figures[0].axes[0]


def curves(axes):
    """Label -> (x, y) of the lines with error bars, and label -> y of the horizontal ones."""
    bars = {c.get_label(): tuple(map(list, c.lines[0].get_data())) for c in axes.containers}
    flat = {line.get_label(): line.get_ydata()[0] for line in axes.lines if not line.get_label().startswith("_")}
    return bars, flat


def test_divergence_against_samples_on_log_axes(monkeypatch):
    axes = drawn(monkeypatch, rows_of(DEFAULT))
    bars, flat = curves(axes)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert "samples" in axes.get_xlabel()
    assert bars["top-k"] == ([16, 64, 256], pytest.approx([0.75 / k for k in (16, 64, 256)]))
    assert bars["santa"] == ([16, 64, 256], pytest.approx([1.25 / s for s in (16, 64, 256)]))
    assert flat == {"dense": pytest.approx(0.0075)}
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["16", "64", "256"]


def test_divergence_against_kv_reads_a_line_for_each_design(monkeypatch):
    axes = [[{"sharing": "own"}, {"sharing": "reuse"}]]
    points = grid(Design(), [], methods=["santapp", "float-sys"], samples=[8, 16], team_axes=axes)
    rows = rows_of(points)
    for row, point in zip(rows, points, strict=True):
        row |= {"teams": point.teams and point.teams.to_dict(), "kv_reads": point.samples / 100}
        row["group_kv_reads"] = 2 * row["kv_reads"] if point.teams else None
    bars, flat = curves(axes := drawn(monkeypatch, rows, x="group_kv_reads"))
    assert bars == {
        "santapp, sharing own": ([0.16, 0.32], pytest.approx([0.75 / 8, 0.75 / 16])),
        "santapp, sharing reuse": ([0.16, 0.32], pytest.approx([0.75 / 8, 0.75 / 16])),
    }
    assert set(flat) == {"float-sys"} and "share of dense" in axes.get_xlabel()
    assert curves(drawn(monkeypatch, rows, x="kv_reads"))[0]["float-sys"][0] == [0.08, 0.16]
    text = text_of(rows)
    assert all(word in text for word in ("S,k,M", "KV", "Group", "sharing"))
    assert "Group" not in text_of(rows_of(DEFAULT))


def test_divergence_against_bits_a_line_for_each_budget(monkeypatch):
    points = grid(Design(), [BITS], methods=["santa", "dense"], samples=[16])
    axes = drawn(monkeypatch, rows_of(points, kl=lambda p: 1 / p.design.q_bits))
    bars, flat = curves(axes)
    assert set(bars) == {"santa", "dense"}
    assert bars["dense"][0] == [3, 4, 6]
    assert flat == {}
    assert axes.get_xlabel() == "q, k and v bits"
    two = rows_of(grid(Design(), [BITS], methods=["santa"], samples=[16, 64]))
    assert set(curves(drawn(monkeypatch, two))[0]) == {f"santa, bits {b}" for b in (3, 4, 6)}
    assert set(curves(drawn(monkeypatch, two, x="bits"))[0]) == {"santa, samples 16", "santa, samples 64"}


def test_error_bars_span_the_interval(monkeypatch):
    axes = drawn(monkeypatch, rows_of(DEFAULT[:3]))
    estimate = summarise(rows_of(DEFAULT[:3]))[0].kl_to_dense
    (segment,) = axes.containers[0].lines[2][0].get_segments()
    assert segment[:, 1] == pytest.approx([estimate.low, estimate.high])


def test_accuracy_where_there_is_no_divergence(monkeypatch):
    axes = drawn(monkeypatch, trials_of(DEFAULT, [0.0, 0.0]))
    assert axes.get_ylabel() == "accuracy"
    assert axes.get_yscale() == "linear"
    assert curves(axes)[0]["santa"][1] == [0.0, 0.0, 0.0]


def test_the_float_model_itself_is_not_on_the_log_axis(monkeypatch):
    floats = grid(Design(), [], methods=["float-dense"])
    rows = [*rows_of(DEFAULT), *rows_of(floats, kl=lambda _: 0.0)]
    assert "float-dense" not in curves(drawn(monkeypatch, rows))[1]
    with pytest.raises(ValueError, match="nothing to plot"):
        plot(rows_of(floats, kl=lambda _: 0.0), "x.png")


def test_plots_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match=r"x\.jpg.*\.png, \.svg, \.pdf"):
        plot(rows_of(DEFAULT), tmp_path / "x.jpg")
    with pytest.raises(ValueError, match="nothing to plot"):
        plot([], tmp_path / "x.png")
    with pytest.raises(ValueError, match="x = 'banana'"):
        plot(rows_of(DEFAULT), tmp_path / "x.png", x="banana")
    assert list(tmp_path.iterdir()) == []
