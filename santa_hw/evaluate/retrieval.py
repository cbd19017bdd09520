"""Magic-number retrieval: facts hidden at varied depths of a long text, asked for at its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from santa_hw.evaluate.decoding import Decoding, Trial, chat, check_context

if TYPE_CHECKING:
    from santa_hw.models import LoadedModel

CITIES = (
    "Paris", "London", "Tokyo", "Madrid", "Berlin", "Cairo", "Lisbon", "Vienna", "Dublin", "Athens",
    "Boston", "Chicago", "Sydney", "Toronto", "Moscow", "Delhi", "Lima", "Oslo", "Warsaw", "Prague",
)  # fmt: skip
DIGITS = 7
INTRODUCTION = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize them. "
    "I will quiz you about the numbers afterwards.\n\n"
)
NEEDLE = "One of the special magic numbers for {city} is: {number}."
VALUES = 4
QUESTION = "\n\nWhat {verb} the special magic number{plural} for {cities} mentioned in the provided text?"


def needle(
    loaded: LoadedModel,
    text: str,
    *,
    context: int = 1024,
    needles: int = 1,
    trials: int = 12,
    phases: str = "decode",
    seed: int = 0,
    one_key: bool = False,
) -> Decoding:
    """
    The task `needle`; with `one_key`, RULER's `niah-multivalue`: all numbers are one city's.

    Parameters
    ----------
    text : str
        Filler; every trial starts at a sentence of its own.
    context : int
        Tokens of prompt and reply together; the prompt fills what the reply leaves.
    needles : int
        Facts hidden in each prompt, all asked for.
    trials, seed : int
        Number of prompts and the seed that draws them; the prompts do not depend on the method under test.

    Raises
    ------
    ValueError
        Sizes out of range, or a filler text too short for the context.
    """
    if not 1 <= needles <= len(CITIES):
        raise ValueError(f"needles is {needles}; allowed: 1 to {len(CITIES)}")
    new_tokens = 24 + 16 * needles
    check_context(loaded, context, new_tokens, trials)
    sentences = split_sentences(text)
    # With the space that joins a sentence to the one before.
    spaced = [" " + sentence for sentence in sentences]
    tokens = loaded.tokenizer(spaced, add_special_tokens=False)["input_ids"] if spaced else []
    built = []
    for trial in range(trials):
        generator = np.random.default_rng((seed, trial))
        # Trials sweep the depth evenly; several needles of a trial lie evenly apart.
        depths = [((trial + 0.5) / trials + place / needles) % 1 for place in range(needles)]
        facts = _facts(generator, needles, one_key)
        room = context - new_tokens - len(chat(loaded.tokenizer, message([], facts, depths)))
        filler = _filler(loaded.tokenizer, sentences, tokens, room, generator)
        prompt = chat(loaded.tokenizer, message(filler, facts, depths))
        while len(prompt) > context - new_tokens:
            # Joined text may split into a token more than its parts did.
            filler = [*filler[:-1], *filter(None, [filler[-1].rpartition(" ")[0]])]
            prompt = chat(loaded.tokenizer, message(filler, facts, depths))
        built.append(Trial(tuple(prompt), tuple(number for _, number in facts), tuple(depths)))
    return Decoding(loaded, "niah-multivalue" if one_key else "needle", built, score, new_tokens, phases)


def score(reply: str, answers: Sequence[str]) -> float:
    """
    Fraction of the numbers that the reply states, digit for digit.

    A number counts only as a whole run of digits: 1234567 is not found in 12345678. Commas between
    thousands are allowed.

    Examples
    --------
    >>> score("It is 1,234,567.", ["1234567", "7654321"])
    0.5
    """
    grouped = re.sub(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,]*\d)", lambda match: match[0].replace(",", ""), reply)
    stated = set(re.findall(r"[0-9]+", reply)) | set(re.findall(r"[0-9]+", grouped))
    return sum(answer in stated for answer in answers) / len(answers)


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, white space tidied; headings and scraps of fewer than four words are left out."""
    parts = re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
    return [" ".join(part.split()) for part in parts if len(part.split()) >= 4]


def message(sentences: Sequence[str], facts: Sequence[tuple[str, str]], depths: Sequence[float]) -> str:
    """The user's message: filler, each (city, number) at its depth among the sentences, the question."""
    places = sorted(
        zip((round(depth * len(sentences)) for depth in depths), facts, strict=True),
        key=lambda place: place[0],
    )
    lines: list[str] = []
    start = 0
    for place, (city, number) in places:
        lines += [*sentences[start:place], NEEDLE.format(city=city, number=number)]
        start = place
    lines += sentences[start:]
    cities = list(dict.fromkeys(city for city, _ in facts))
    names = cities[0] if len(cities) == 1 else ", ".join(cities[:-1]) + " and " + cities[-1]
    several = len(facts) > 1
    verb = "are all" if len(cities) < len(facts) else "are" if several else "is"
    question = QUESTION.format(verb=verb, plural="s" if several else "", cities=names)
    return INTRODUCTION + " ".join(lines) + question


def _facts(generator: np.random.Generator, needles: int, one_key: bool) -> list[tuple[str, str]]:
    cities = generator.choice(CITIES, size=needles, replace=False)
    if one_key:
        cities[:] = cities[0]
    numbers: list[str] = []
    while len(numbers) < needles:
        number = str(generator.integers(10 ** (DIGITS - 1), 10**DIGITS))
        numbers += [number] if number not in numbers else []
    return list(zip(map(str, cities), numbers, strict=True))


def _filler(
    tokenizer: Any, sentences: list[str], tokens: list[list[int]], room: int, generator: np.random.Generator
) -> list[str]:
    """Consecutive sentences from a random one on that fill `room` tokens, the last cut off."""
    if room < 0:
        raise ValueError(f"context is too short by {-room} tokens for its needles and the reply")
    available = sum(map(len, tokens))
    if available < room:
        raise ValueError(f"text has {available} tokens of filler; allowed: at least {room}")
    start = int(generator.integers(len(sentences))) if sentences else 0
    filler: list[str] = []
    for index in range(start, start + len(sentences)):
        ids = tokens[index % len(sentences)]
        room -= len(ids)
        if room < 0:
            rest = tokenizer.decode(ids[:room]).strip()
            filler += [rest] if rest else []
            break
        filler.append(sentences[index % len(sentences)])
    return filler
