"""Scores against closed forms, tasks against what they promise to put before the model."""

import math
from collections import Counter

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from santa_hw import models
from santa_hw.design import Design
from santa_hw.evaluate import decoding, perplexity, retrieval, words
from santa_hw.evaluate.decoding import Decoding, Trial, chat, greedy
from santa_hw.evaluate.perplexity import Perplexity, WindowScore, compare, opening_tokens, windows
from santa_hw.evaluate.retrieval import needle, split_sentences
from santa_hw.evaluate.statistics import Estimate, bootstrap, proportion
from santa_hw.evaluate.words import fwe

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.fixture(scope="module")
def loaded():
    return tiny.loaded()


@pytest.fixture(scope="module")
def text():
    return tiny.prose(1, 600)


# Statistics -------------------------------------------------------------------------------------


@given(st.lists(FINITE, min_size=2, max_size=30))
def test_interval_holds_the_mean_and_stays_within_the_values(values):
    estimate = bootstrap(values, resamples=200)
    assert estimate.low <= estimate.mean <= estimate.high
    slack = 1e-9 * max(map(abs, values)) + 1e-300
    assert min(values) - slack <= estimate.low
    assert estimate.high <= max(values) + slack
    assert estimate.mean == pytest.approx(math.fsum(values) / len(values), rel=1e-9, abs=slack)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=20), st.integers(1, 8), st.integers(-100, 100))
def test_interval_moves_and_scales_with_the_values(values, factor, shift):
    plain = bootstrap(values, resamples=100)
    moved = bootstrap([factor * value + shift for value in values], resamples=100)
    assert moved == pytest.approx([factor * end + shift for end in plain])


@given(FINITE)
def test_one_value_has_no_interval(value):
    assert bootstrap([value]) == Estimate(value, None, None)


def test_same_seed_same_interval_and_another_seed_another():
    values = np.arange(9.0) ** 2
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)


def test_interval_covers_the_mean_about_as_often_as_it_says(generator):
    hits = 0
    for _ in range(400):
        estimate = bootstrap(generator.normal(size=40), resamples=400)
        hits += estimate.low <= 0 <= estimate.high
    # 95 % wanted; the percentile bootstrap of 40 values gives 94 %; 3.5 standard deviations either way.
    assert 0.90 <= hits / 400 <= 0.98


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_mean_of_nothing_or_of_nan(values):
    with pytest.raises(ValueError, match="values"):
        bootstrap(values)


def test_level_must_lie_between_0_and_1():
    with pytest.raises(ValueError, match="level is 95"):
        bootstrap([1.0, 2.0], level=95)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_share_is_just_as_far_from_its_ends_as_chance_would_take_it(counts):
    successes, trials = counts
    share, low, high = proportion(successes, trials)
    assert 0 <= low <= share <= high <= 1
    assert low < high
    for end in (low, high):
        # The score test, turned round: an end is a rate that 1.96 standard errors, its own, separate from the share.
        if end not in (0, 1):
            assert abs(share - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / trials), rel=1e-5, abs=1e-9)
    other = proportion(trials - successes, trials)
    assert (other.low, other.high) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trials": 0}, "trials is 0; allowed: 1 or more"),
        ({"successes": 9}, "successes is 9; allowed: 0 to the 8 trials"),
        ({"successes": -1}, "successes is -1; allowed: 0 to the 8 trials"),
        ({"level": 95}, "level is 95; allowed: between 0 and 1"),
    ],
)
def test_a_share_of_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        proportion(**{"successes": 0, "trials": 8, **arguments})


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


# Decoding ---------------------------------------------------------------------------------------


def naive(model, prompt, new_tokens):
    """Greedy decoding without a cache."""
    tokens = list(prompt)
    for _ in range(new_tokens):
        with torch.inference_mode():
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] == 2:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("start", [5, 90, 200])
def test_greedy_decoding_is_the_most_probable_token_each_time(loaded, start):
    prompt = [1, *range(start, start + 12)]
    assert greedy(loaded.model, prompt, 20) == naive(loaded.model, prompt, 20)


def test_decoding_stops_at_an_end_token(loaded, monkeypatch):
    prompt = [1, 50, 60, 70]
    first = naive(loaded.model, prompt, 3)
    monkeypatch.setattr(loaded.model.generation_config, "eos_token_id", [2, first[1]])
    assert greedy(loaded.model, prompt, 10) == first[: first.index(first[1]) + 1]


def test_a_models_own_generation_settings_do_not_matter(loaded, monkeypatch):
    prompt = [1, 50, 60, 70]
    expected = naive(loaded.model, prompt, 15)
    for name, value in {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1, "do_sample": True}.items():
        monkeypatch.setattr(loaded.model.generation_config, name, value)
    assert greedy(loaded.model, prompt, 15) == expected


@pytest.mark.parametrize("phases, expected", [("decode", {1}), ("prefill", {30}), ("both", {1, 30})])
def test_phases_and_sequences(loaded, phases, expected):
    trials = [Trial(tuple(range(10, 40)), ("x",)), Trial(tuple(range(20, 50)), ("x",))]
    seen, sequences = set(), []

    def spy(call):
        seen.add(call.q.shape[2])
        sequences.append(int(call.sequence[0]))
        return models.dense(call)

    ticks = []
    work = Decoding(loaded, "needle", trials, retrieval.score, 5, phases)
    result = work.evaluate(spy, lambda: ticks.append(1))
    assert seen == expected
    assert list(dict.fromkeys(sequences)) == [0, 1]
    assert len(ticks) == work.units == 2
    assert [trial["prompt_tokens"] for trial in result["per_trial"]] == [30, 30]


def test_accuracy_is_the_mean_of_the_trials(loaded, monkeypatch):
    replies = iter(["it is 1234567", "no idea", "7654321 and 1111111"])
    monkeypatch.setattr(decoding, "greedy", lambda *_: loaded.tokenizer(next(replies))["input_ids"])
    trials = [Trial((5, 6), answers) for answers in [("1234567",), ("1234567",), ("7654321", "2222222")]]
    result = Decoding(loaded, "needle", trials, retrieval.score, 5).evaluate(None)
    assert [trial["score"] for trial in result["per_trial"]] == [1.0, 0.0, 0.5]
    assert result["accuracy"] == pytest.approx(0.5)
    assert result["per_trial"][2]["reply"] == "7654321 and 1111111"


def test_chat_template_or_bare_text(loaded):
    assert loaded.tokenizer.decode(chat(loaded.tokenizer, "hi")) == "<s>hi<end><s>"
    bare = tiny.tokenizer(chat=False)
    assert bare.decode(chat(bare, "hi")) == "hi"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"context": 5000}, "context is 5000; allowed: at most the model's 4096"),
        ({"context": 30}, "context is 30; allowed: more than"),
        ({"context": 300, "trials": 0}, "trials is 0"),
    ],
)
def test_contexts_that_cannot_be(loaded, text, options, message):
    with pytest.raises(ValueError, match=message):
        needle(loaded, text, **options)
    with pytest.raises(ValueError, match=message):
        fwe(loaded, **({"context": 80} | options if options["context"] == 300 else options))


# Needles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply, expected",
    [
        ("The special magic number for Paris is 1234567.", 1.0),
        ("1234567", 1.0),
        ("1,234,567", 1.0),
        ("**1234567**\n\n", 1.0),
        ("Paris:1234567,London:7654321", 1.0),
        ("1234567, 7654321", 1.0),
        ("7654321,1234567", 1.0),
        ("I think it is 12345678", 0.0),
        ("91234567", 0.0),
        ("0001234567", 0.0),
        ("123 4567", 0.0),
        ("123456.7", 0.0),
        ("12,34,567", 0.0),
        ("1,234,5678", 0.0),
        ("1,234,567,890", 0.0),
        ("one million two hundred thousand", 0.0),
        ("", 0.0),
        ("１２３４５６７", 0.0),
    ],
)  # fmt: skip
def test_numbers_count_digit_for_digit(reply, expected):
    assert retrieval.score(reply, ["1234567"]) == expected


def test_partial_credit_and_no_credit_for_repeats():
    answers = ["1111111", "2222222", "3333333"]
    assert retrieval.score("1111111 1111111 1111111", answers) == pytest.approx(1 / 3)
    assert retrieval.score("3333333, 2,222,222", answers) == pytest.approx(2 / 3)


@given(
    st.lists(st.integers(10**6, 10**7 - 1), min_size=1, max_size=6, unique=True),
    st.sampled_from([", ", " and ", "\n", "; "]),
)
def test_a_reply_with_all_numbers_scores_1(numbers, joint):
    answers = [str(number) for number in numbers]
    assert retrieval.score("They are " + joint.join(answers) + ".", answers) == 1.0
    assert retrieval.score(joint.join(f"{number:,}" for number in numbers), answers) == 1.0
    assert retrieval.score(joint.join(answer + "0" for answer in answers), answers) == 0.0


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("context", [700, 1500])
def test_prompts_hide_their_needles_at_their_depths(loaded, text, count, context):
    work = needle(loaded, text, context=context, needles=count, trials=6)
    room = context - work.new_tokens
    sentences = set(split_sentences(text))
    firsts = []
    for trial in work.trials:
        message = loaded.tokenizer.decode(trial.prompt)
        assert room - 8 <= len(trial.prompt) <= room
        assert message.endswith("mentioned in the provided text?<end><s>")
        assert len(set(trial.answers)) == count
        body = message.split("afterwards.\n\n")[1].split("\n\nWhat ")[0]
        question = message.split("\n\nWhat ")[1]
        filler = body
        for number, depth in zip(trial.answers, trial.depths, strict=True):
            place = body.index(number) / len(body)
            # Within a sentence or two, and the needles' own length.
            assert abs(place - depth) < 200 / len(body) + 0.1
            city = body[: body.index(number)].rsplit(" numbers for ", 1)[1].split(" is: ")[0]
            assert city in question
            filler = filler.replace(f"One of the special magic numbers for {city} is: {number}.", "")
        pieces = [piece.strip() + "." for piece in filler.split(".") if piece.strip()]
        # The last one is cut off.
        assert all(piece in sentences for piece in pieces[:-1])
        firsts.append(pieces[0])
    assert len(set(firsts)) > 1
    assert sorted({round(trial.depths[0], 3) for trial in work.trials}) == pytest.approx(
        [(i + 0.5) / 6 for i in range(6)], abs=1e-3
    )


def test_trials_are_the_same_each_time_and_differ_by_seed(loaded, text):
    first, second = (needle(loaded, text, context=400, trials=3).trials for _ in range(2))
    assert first == second
    other = needle(loaded, text, context=400, trials=3, seed=1).trials
    assert {trial.answers for trial in first}.isdisjoint({trial.answers for trial in other})


def test_filler_wraps_around_the_end_of_the_text(loaded):
    short = "Alpha beta gamma delta. Red green blue white. " * 6
    work = needle(loaded, short, context=500, trials=4)
    assert all(len(trial.prompt) <= 500 - work.new_tokens for trial in work.trials)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"needles": 0}, "needles is 0"),
        ({"needles": 99}, "needles is 99"),
        ({"context": 200}, "context is too short by"),
        ({"context": 4000}, "text has .* tokens of filler; allowed: at least"),
    ],
)
def test_needles_that_cannot_be_hidden(loaded, options, message):
    with pytest.raises(ValueError, match=message):
        needle(loaded, tiny.prose(2, 20), **({"context": 700} | options))


def test_sentences():
    text = "ACT I\n\nSCENE\n\nWho's there,\nmy lord? Nay, answer me: stand.  Long live the king!"
    assert split_sentences(text) == ["Who's there, my lord?", "Nay, answer me: stand.", "Long live the king!"]


# Frequent words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [1200, 3000])
def test_the_answers_are_the_most_frequent_words(loaded, context):
    work = fwe(loaded, context=context, trials=3)
    for trial in work.trials:
        message = loaded.tokenizer.decode(trial.prompt)
        assert len(trial.prompt) <= context - work.new_tokens
        coded = message.split("coded words. ")[1].split("\nQuestion")[0].split(" ")
        ranking = Counter(coded)
        assert ranking.pop(words.NOISE) == max(Counter(coded).values())
        top = ranking.most_common(4)
        assert tuple(word for word, _ in top[:3]) == trial.answers
        assert top[2][1] > top[3][1]
    assert len({trial.answers for trial in work.trials}) == 3
    assert fwe(loaded, context=context, trials=3).trials == work.trials


def test_prompts_of_frequent_words_are_as_long_as_fits(loaded):
    for trial in fwe(loaded, context=2000, trials=2).trials:
        assert len(trial.prompt) > 2000 - words.NEW_TOKENS - 60


@given(st.integers(0, 100_000))
def test_word_counts_fall_with_the_rank_and_stay_below_the_total(total):
    found = words.counts(total)
    assert (np.diff(found) <= 0).all()
    assert total - words.VOCABULARY <= found.sum() <= total
    # Zipf with exponent 2: the first is four times the second, to the rounding.
    assert abs(found[0] - 4 * found[1]) <= 4


@pytest.mark.parametrize(
    "reply, expected",
    [
        ("1. abcdef\n2. ghijkl\n3. mnopqr", 1.0),
        ("mnopqr, GHIJKL, Abcdef", 1.0),
        ("abcdef abcdef abcdef", 1 / 3),
        ("abcdef, ghijkl and zzzzzz", 2 / 3),
        ("abc def", 0.0),
        ("", 0.0),
    ],
)
def test_frequent_words_earn_partial_credit(reply, expected):
    assert words.score(reply, ["abcdef", "ghijkl", "mnopqr"]) == pytest.approx(expected)


def test_a_context_too_short_to_tell_words_apart(loaded):
    with pytest.raises(ValueError, match="context has room for"):
        fwe(loaded, context=420)


# The real model ---------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.slow
def test_the_dense_float_model_finds_needles():
    """Four of the default run's twelve trials; docs/how-to/choose-a-design-point.md has all of them."""
    real = models.load()
    result = needle(real, models.load_text(models.EVALUATION_TEXT), trials=4).evaluate(None)
    assert result["accuracy"] == 1.0, [trial["reply"] for trial in result["per_trial"]]


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
