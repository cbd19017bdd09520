"""Greedy decoding, and the tasks that decode against what they promise to put before the model."""

from collections import Counter

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from santa_hw import models
from santa_hw.evaluate import decoding, retrieval, words
from santa_hw.evaluate.decoding import Decoding, Trial, chat, greedy
from santa_hw.evaluate.retrieval import needle, split_sentences
from santa_hw.evaluate.words import fwe

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
