"""SANTA++ against KV reads: KL to dense and needle retrieval, beside S²ANTA-sys, top-k and the best teams or pages.

    python benchmarks/reproduction/santapp.py                # measure what is missing, then draw
    python benchmarks/reproduction/santapp.py --kl 4096      # only KL, at one context
    python benchmarks/reproduction/santapp.py --needle 2048  # only retrieval
    python benchmarks/reproduction/santapp.py --draw         # tables and figures of the rows there are

SmolLM2. The model's own attention reads each text into the cache once; then the method runs the decode steps alone:
the last 64 tokens of a window of *Hamlet* (so chosen that the tail is half a block on average), or the reply to a
question. Rows go to build/santapp-*.json as they come, and are not computed again; the figures are
docs/images/santapp-*.svg, one a context. Where memory is handed back to the system after each use, long contexts take
twice as long: with glibc, set MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ to 4000000000.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

from santa_hw import models, sweep
from santa_hw.design import Design
from santa_hw.evaluate.decoding import Decoding
from santa_hw.evaluate.perplexity import Perplexity, compare, windows
from santa_hw.evaluate.retrieval import needle
from santa_hw.evaluate.statistics import Estimate, proportion
from santa_hw.report import Group, summarise
from santa_hw.team_design import TeamDesign

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
CONTEXTS = (1024, 2048, 4096, 8192)
STEPS = 64
PIECE = 9
SEEDS = 2
BLOCK = TeamDesign().block
LINES = (
    "santapp reuse", "santapp shared", "santapp own", "top-teams", "top-means", "top-bounds", "float-sys",
    "float-top-k", "float-dense", "santapp own tempered", "santapp own clipped",
)  # fmt: skip
"""Curves, in the order of their colours."""


class Continuation(Perplexity):
    """Perplexity of the last `STEPS` tokens of each window: decode steps after a prompt that is read once.

    Its scores come in pieces of `PIECE` tokens, so that few windows have an interval too.
    """

    def __init__(self, loaded: models.LoadedModel, tokens: np.ndarray) -> None:
        super().__init__(loaded, tokens, "continuation", "decode")
        self.caches: dict[int, Any] = {}
        self.start = tokens.shape[1] - STEPS

    @torch.inference_mode()
    def _logits(self, hook: models.AttentionHook | None, index: int) -> torch.Tensor:
        model, tokens = self.loaded.model, torch.from_numpy(self.tokens[index : index + 1])
        if index not in self.caches:
            read = model(input_ids=tokens[:, : self.start], use_cache=True, logits_to_keep=1)
            self.caches[index] = read.past_key_values
        cache = self.caches[index]
        with models.attention(self.loaded, hook, sequence=index):
            logits = model(input_ids=tokens[:, self.start :], past_key_values=cache).logits[0, :-1]
        cache.crop(-STEPS)
        return logits

    def evaluate(self, hook: models.AttentionHook | None, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Scores of a method over all windows, `STEPS` - 1 predicted tokens each."""
        pieces = []
        for index in range(len(self.tokens)):
            (expected, best), logits = self.reference(index), self._logits(hook, index)
            targets = torch.from_numpy(self.tokens[index, self.start + 1 :])
            for at in range(0, STEPS - 1, PIECE):
                part = slice(at, at + PIECE)
                pieces.append(compare(logits[part], expected[part], best[part], targets[part])._asdict())
            tick()
        nll, kl, agreement = (float(np.mean([p[name] for p in pieces])) for name in ("nll", "kl", "agreement"))
        scores = {"perplexity": float(np.exp(nll)), "kl_to_dense": kl, "top1_agreement": agreement}
        return scores | {"per_window": pieces}

    def _storage(self, vocabulary: int) -> torch.Tensor:
        if self._store is None:
            self._store = torch.empty(len(self.tokens), STEPS - 1, vocabulary)
        return self._store


class ReadOnce:
    """A task that decodes, its prompts read once for all methods."""

    def __init__(self, task: Decoding) -> None:
        self.task, self.name, self.phases = task, task.name, task.phases
        self.token_windows, self.preparations, self.units = task.token_windows, 0, task.units
        self.caches: dict[int, tuple[Any, int]] = {}

    def prepare(self, tick: Callable[[], None]) -> None:
        """Nothing to do."""

    @torch.inference_mode()
    def reply(self, hook: models.AttentionHook | None, index: int) -> list[int]:
        """Greedy tokens, the first from the prompt's pass, as `santa_hw.evaluate.decoding.greedy` chooses them."""
        model, prompt = self.task.loaded.model, self.task.trials[index].prompt
        if index not in self.caches:
            read = model(input_ids=torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
            self.caches[index] = read.past_key_values, int(read.logits[0, -1].argmax())
        cache, first = self.caches[index]
        ends = model.generation_config.eos_token_id
        tokens = [first]
        with models.attention(self.task.loaded, hook, phases="decode", sequence=index):
            while len(tokens) < self.task.new_tokens and tokens[-1] not in (ends if isinstance(ends, list) else [ends]):
                step = model(input_ids=torch.tensor([tokens[-1:]]), past_key_values=cache)
                tokens.append(int(step.logits[0, -1].argmax()))
        if len(tokens) > 1:
            cache.crop(1 - len(tokens))
        return tokens

    def evaluate(self, hook: models.AttentionHook | None, tick: Callable[[], None]) -> dict[str, Any]:
        """Replies and their scores, as `Decoding.evaluate`."""
        results = []
        for index, trial in enumerate(self.task.trials):
            reply = self.task.loaded.tokenizer.decode(self.reply(hook, index), skip_special_tokens=True)
            results.append({"score": self.task.score(reply, trial.answers), "reply": reply})
            tick()
        return {"accuracy": sum(result["score"] for result in results) / len(results), "per_trial": results}


def points(*plans: tuple[str, Sequence[int], dict[str, Any]], seeds: int) -> list[sweep.Point]:
    """Grid points of (method, budgets, changes of the team design); seeds outermost, so that early rows show it all."""
    found = []
    for method, samples, changes in plans:
        axes = [[{name: value}] for name, value in changes.items()]
        found += sweep.grid(Design(), [], methods=[method], samples=samples or None, seeds=range(seeds), team_axes=axes)
    return sorted(found, key=lambda point: point.seed)


def kl_points(context: int) -> list[sweep.Point]:
    most = TeamDesign().teams(context)
    budgets = [m for m in (8, 16, 32, 64) if m <= most]
    return points(
        ("santapp", budgets, {"sharing": "reuse"}),
        ("santapp", budgets, {"sharing": "shared"}),
        ("santapp", budgets, {"sharing": "own"}),
        ("top-teams", budgets, {}),
        ("float-sys", [16, 64], {}),
        ("float-top-k", [16, 64], {}),
        ("top-means", budgets, {}),
        ("top-bounds", budgets, {}),
        ("santapp", [16], {"weights": "tempered"}),
        ("santapp", [16], {"weights": "clipped", "clip": 4.0}),
        seeds=SEEDS,
    )


def needle_points() -> list[sweep.Point]:
    return points(
        ("float-dense", [], {}),
        ("float-sys", [16], {}),
        ("santapp", [32], {"sharing": "reuse"}),
        ("top-means", [64], {}),
        ("santapp", [32], {"sharing": "own"}),
        ("top-teams", [32], {}),
        ("top-bounds", [64], {}),
        ("santapp", [8, 64], {"sharing": "reuse"}),
        ("santapp", [64], {"sharing": "shared"}),
        ("top-means", [16], {}),
        ("float-top-k", [16], {}),
        ("santapp", [64, 8], {"sharing": "own"}),
        ("top-teams", [8, 64], {}),
        ("top-bounds", [16], {}),
        ("santapp", [32, 8], {"sharing": "shared"}),
        ("float-sys", [64], {}),
        ("float-top-k", [64], {}),
        ("santapp", [2], {"sharing": "reuse"}),
        ("santapp", [2, 4, 16], {"sharing": "own"}),
        ("top-teams", [2], {}),
        seeds=1,
    )


def measure(loaded: models.LoadedModel, name: str, context: int, count: int) -> None:
    """Rows of one task at one context, those that are missing; `count` windows or trials."""
    text = models.load_text(models.EVALUATION_TEXT)
    shared = {"model": loaded.name, "model_identity": loaded.identity, "dtype": "float32", "phases": "decode"}
    if name == "kl":
        length = TeamDesign().sinks + context - BLOCK + (BLOCK + STEPS) // 2
        task: Any = Continuation(loaded, windows(loaded, text, count, length))
        setting = sweep.Setting(task="continuation", **shared, windows=count, window=length)
    else:
        task = ReadOnce(needle(loaded, text, context=context, trials=count))
        setting = sweep.Setting(task="needle", **shared, context=context, needles=1, trials=count)
    wanted = kl_points(context) if name == "kl" else needle_points()

    def show(row: sweep.Row, fresh: bool) -> None:
        score = row["kl_to_dense"] if name == "kl" else row["accuracy"]
        sharing = (row["teams"] or {}).get("sharing", "")
        print(
            f"{name} {context} {row['method']} {sharing} {row['samples']} seed {row['seed']}: {score:.4f} "
            f"at {row['kv_reads']:.3f} own, {row['group_kv_reads']:.3f} group ({row['seconds']:.0f} s)", flush=True
        )  # fmt: skip

    sweep.run(loaded, task, setting, wanted, sweep.Rows(file(name, context)), on_row=show)


def file(name: str, context: int) -> Path:
    """Where the rows of a task at a context are."""
    path = ROOT / "build" / f"santapp-{name}-{context}.json"
    path.parent.mkdir(exist_ok=True)
    return path


# What is shown ------------------------------------------------------------------------------------


def line(group: Group) -> str:
    """The curve that a group is on."""
    teams = group.row["teams"] or {}
    weights = teams.get("weights", "inverse")
    parts = [
        group.method,
        teams["sharing"] if group.method == "santapp" else "",
        weights if weights != "inverse" else "",
    ]
    return " ".join(part for part in parts if part)


def scored(group: Group, name: str) -> Estimate:
    """A group's score with its interval; a single needle is found or not."""
    if name == "kl":
        return group.kl_to_dense
    return proportion(round(sum(trial["score"] for trial in group.row["per_trial"])), len(group.row["per_trial"]))


def show(axis: plt.Axes, name: str, context: int) -> None:
    """One panel, and its figures in print."""
    groups = summarise(sweep.read_rows(file(name, context)))
    print(f"\n{name}, context {context}\n")
    scores = "KL to dense | 95 % | pieces" if name == "kl" else "found | 95 %"
    print(f"| method | M, S or k | KV reads, head | group | {scores} |\n|{'---|' * (7 if name == 'kl' else 6)}")
    curves: dict[str, list[Group]] = {}
    for group in groups:
        curves.setdefault(line(group), []).append(group)
    for label, members in sorted(curves.items(), key=lambda curve: LINES.index(curve[0])):
        index = LINES.index(label)
        members.sort(key=lambda group: group.group_kv_reads or 0)
        estimates = [scored(group, name) for group in members]
        for group, (mean, low, high) in zip(members, estimates, strict=True):
            pieces = group.seeds * len(group.row["per_window"] or group.row["per_trial"])
            reads = f"{100 * group.kv_reads:.1f} % | {100 * group.group_kv_reads:.1f} %"
            if name == "kl":
                score = f"{mean:.4f} | {low:.4f} to {high:.4f} | {pieces}"
            else:
                score = f"{round(mean * pieces)} of {pieces} | {low:.2f} to {high:.2f}"
            print(f"| {label} | {group.samples or '–'} | {reads} | {score} |")
        reach = np.array([(e.mean - e.low, e.high - e.mean) for e in estimates]).T
        axis.errorbar(
            [100 * group.group_kv_reads for group in members], [estimate.mean for estimate in estimates], yerr=reach,
            color=f"C{index % 10}", marker="osD^vPX*"[index % 8], markersize=4, capsize=2, linewidth=1, label=label,
        )  # fmt: skip
    axis.set(
        xlabel="KV rows read by a group (% of dense)", title=f"{'KL' if name == 'kl' else 'Needle'}, context {context}"
    )
    axis.grid(alpha=0.3)
    axis.legend(fontsize=6)
    if name == "kl":
        axis.set(yscale="log", ylabel="KL to dense (nats a token)")
    else:
        axis.set(ylabel="share of needles found", ylim=(-0.05, 1.05))


def draw(context: int) -> None:
    """The figure of one context, of the panels that there are rows for."""
    names = [name for name in ("kl", "needle") if file(name, context).exists()]
    if not names:
        return
    figure, axes = plt.subplots(1, len(names), figsize=(5.2 * len(names), 4.2), layout="constrained", squeeze=False)
    for axis, name in zip(axes.flat, names, strict=True):
        show(axis, name, context)
    path = IMAGES / f"santapp-{context}.svg"
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description="SANTA++ against KV reads")
    parser.add_argument("--kl", type=int, choices=CONTEXTS, help="measure KL alone, at this context")
    parser.add_argument("--needle", type=int, choices=CONTEXTS, help="measure retrieval alone, at this context")
    parser.add_argument("--windows", type=int, default=3, help="windows of each context (KL)")
    parser.add_argument("--trials", type=int, default=8, help="questions (retrieval)")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    wanted = [(name, context) for name in ("kl", "needle") if (context := getattr(chosen, name))]
    if not wanted and not chosen.draw:
        wanted = [(name, context) for context in CONTEXTS for name in ("kl", "needle")]
    if wanted:
        loaded = models.load()
        for name, context in wanted:
            measure(loaded, name, context, chosen.windows if name == "kl" else chosen.trials)
    if not chosen.kl and not chosen.needle:
        for context in CONTEXTS:
            draw(context)


if __name__ == "__main__":
    main()
