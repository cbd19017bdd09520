"""Divergence against closed forms, windows, and the perplexity task."""

import math

import numpy as np
import pytest
import tiny
import torch

from santa_hw import models
from santa_hw.design import Design
from santa_hw.evaluate import perplexity
from santa_hw.evaluate.perplexity import Perplexity, WindowScore, compare, opening_tokens, windows

# Divergence -------------------------------------------------------------------------------------


def score_of(logits: torch.Tensor, reference: torch.Tensor, targets: torch.Tensor) -> WindowScore:
    return compare(logits, torch.log_softmax(reference.float(), -1), reference.argmax(-1), targets)


def test_identical_logits_have_no_divergence(seed):
    torch.manual_seed(seed)
    # More positions than a chunk, so that the seams are seen.
    logits, targets = torch.randn(150, 300) * 5, torch.randint(0, 300, (150,))
    score = score_of(logits, logits, targets)
    assert score.kl == 0.0
    assert score.agreement == 1.0
    assert score.nll == pytest.approx(float(torch.nn.functional.cross_entropy(logits.double(), targets)), rel=1e-6)


@pytest.mark.parametrize("p", [0.5, 0.9, 1e-3])
@pytest.mark.parametrize("q", [0.5, 0.2, 1e-4])
def test_divergence_of_two_tokens_in_closed_form(p, q):
    reference = torch.tensor([[math.log(p), math.log(1 - p)]])
    logits = torch.tensor([[math.log(q), math.log(1 - q)]]) + 7
    score = score_of(logits, reference, torch.tensor([0]))
    assert score.kl == pytest.approx(p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)), rel=1e-4, abs=1e-6)
    assert score.nll == pytest.approx(-math.log(q), rel=1e-5)


def test_divergence_is_from_the_reference_and_not_to_it():
    """The two directions differ by a third here: a swap cannot hide."""
    p, q = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])
    forward = float((p * (p / q).log()).sum())
    backward = float((q * (q / p).log()).sum())
    measured = score_of(q.log(), p.log(), torch.tensor([0])).kl
    assert measured == pytest.approx(forward, rel=1e-6)
    assert abs(measured - backward) > 0.1


def test_scores_against_float64(seed):
    generator = np.random.default_rng(seed)
    reference, logits = generator.normal(size=(2, 97, 83)) * 4
    targets = generator.integers(0, 83, 97)

    def logs(x):
        top = x.max(-1, keepdims=True)
        return x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))

    p, q = logs(reference), logs(logits)
    score = score_of(*(torch.from_numpy(x) for x in (logits, reference, targets)))
    assert score.kl == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-5)
    assert score.nll == pytest.approx(-q[np.arange(97), targets].mean(), rel=1e-5)
    assert score.agreement == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())


def test_of_equally_probable_tokens_the_references_counts():
    logits = torch.tensor([[1.0, 3.0, 3.0], [3.0, 1.0, 2.0]])
    reference = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 1.0]])
    assert score_of(logits, reference, torch.tensor([0, 0])).agreement == 0.5


def test_tokens_that_cannot_occur_add_nothing():
    reference = torch.tensor([[0.0, 0.0, -math.inf]])
    score = score_of(torch.tensor([[0.0, 0.0, -math.inf]]), reference, torch.tensor([1]))
    assert score.kl == 0.0
    assert score_of(torch.zeros(1, 3), reference, torch.tensor([1])).kl == pytest.approx(math.log(1.5), rel=1e-6)


# Windows and perplexity -------------------------------------------------------------------------


def test_windows_follow_one_another(loaded, text):
    found = windows(loaded, text, 3, 50)
    assert found.shape == (3, 50)
    assert found.dtype == np.int64
    assert loaded.tokenizer.decode(found.ravel()) == text[:150]


def test_windows_of_a_long_text_are_those_of_its_beginning(loaded):
    blank = " " * 40  # one token a space: the shortcut's bet on short tokens holds
    assert (windows(loaded, "abcd" * 1000, 2, 8) == windows(loaded, "abcd" * 4, 2, 8)).all()
    assert len(windows(loaded, blank, 1, 40)) == 1


def test_windows_when_tokens_are_longer_than_the_shortcut_assumes(loaded, monkeypatch):
    full = loaded.tokenizer

    class Wide:
        """A hundred characters a token."""

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": full(text[::100], add_special_tokens=add_special_tokens)["input_ids"]}

    wide = models.LoadedModel(**{**vars(loaded), "tokenizer": Wide()})
    assert windows(wide, "x" * 10_000, 2, 10).shape == (2, 10)


def test_every_window_opens_as_the_tokenizer_opens_a_text(loaded, text):
    from tokenizers.processors import TemplateProcessing

    assert opening_tokens(loaded.tokenizer) == []
    opening = tiny.tokenizer()
    opening.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    other = models.LoadedModel(**{**vars(loaded), "tokenizer": opening})
    found = windows(other, text, 2, 20)
    assert found[:, 0].tolist() == [1, 1]
    assert loaded.tokenizer.decode(found[:, 1:].ravel()) == text[:38]


@pytest.mark.parametrize(
    "count, length, message",
    [
        (3, 100, "text has 200 tokens; allowed: at least 300"),
        (0, 10, "windows is 0"),
        (1, 1, "window is 1"),
        (1, 5000, "window is 5000; allowed: at most the model's 4096"),
    ],
)
def test_windows_that_cannot_be_had(loaded, count, length, message):
    with pytest.raises(ValueError, match=message):
        windows(loaded, "x" * 200, count, length)


@pytest.fixture
def task(loaded, text):
    return Perplexity(loaded, windows(loaded, text, 2, 40))


def test_the_float_model_has_its_own_loss_and_no_divergence(loaded, task):
    scores = task.evaluate(None)
    with torch.inference_mode():
        losses = [
            float(loaded.model(input_ids=row[None], labels=row[None]).loss) for row in torch.from_numpy(task.tokens)
        ]
    assert scores["perplexity"] == pytest.approx(math.exp(sum(losses) / 2), rel=1e-5)
    assert scores["kl_to_dense"] == 0.0
    assert scores["top1_agreement"] == 1.0
    assert [piece["nll"] for piece in scores["per_window"]] == pytest.approx(losses, rel=1e-5)


def test_other_attention_diverges_and_equal_attention_does_not(task):
    assert task.evaluate(models.dense)["kl_to_dense"] < 1e-8
    assert task.evaluate(lambda call: torch.zeros_like(call.q))["kl_to_dense"] > 1e-3


def test_the_reference_runs_once_and_each_window_is_a_sequence(loaded, task):
    passes, sequences = [], []
    handle = loaded.model.register_forward_pre_hook(lambda *_: passes.append(1))

    def spy(call):
        sequences.append((call.layer, int(call.sequence[0])))
        return models.dense(call)

    ticks = []
    try:
        task.prepare(lambda: ticks.append("prepare"))
        task.evaluate(spy, lambda: ticks.append("evaluate"))
        task.evaluate(spy)
    finally:
        handle.remove()
    assert len(passes) == 2 + 2 * 2
    assert sequences == [(layer, sequence) for sequence in (0, 1) for layer in (0, 1)] * 2
    assert ticks == ["prepare"] * task.preparations + ["evaluate"] * task.units


def test_references_in_a_file_are_those_in_memory(loaded, task, monkeypatch):
    def other(call):
        return models.dense(call) * 0.9

    expected = task.evaluate(other)
    monkeypatch.setattr(perplexity, "MEMORY_LIMIT", 0)
    assert Perplexity(loaded, task.tokens).evaluate(other) == expected


def test_infinite_perplexity_is_none(loaded, task, monkeypatch):
    monkeypatch.setattr(perplexity, "compare", lambda *_: WindowScore(1000.0, 1.0, 0.0))
    assert task.evaluate(None)["perplexity"] is None


# The real model ---------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.slow
def test_fixed_point_sampling_costs_what_sampling_and_rounding_cost():
    """KL of 8-bit sampling <= 1.2 * (KL of float64 systematic sampling + KL of 8-bit dense), one short window."""
    real = models.load()
    tokens = windows(real, models.load_text(models.EVALUATION_TEXT), 1, 512)
    calibration = models.calibrate(real, windows(real, models.load_text(models.CALIBRATION_TEXT), 2, 512))
    task = Perplexity(real, tokens)

    def kl(hook):
        return task.evaluate(hook)["kl_to_dense"]

    dense = kl(models.fixed_point(real, Design(method="dense"), calibration))
    sampled = kl(models.fixed_point(real, Design(samples=64), calibration))
    reference = kl(models.float_method("float-sys", 64))
    assert dense <= 0.005
    assert sampled <= 1.2 * (reference + dense)
    assert kl(models.fixed_point(real, Design(samples=4), calibration)) > 3 * sampled, "the measure can tell"
