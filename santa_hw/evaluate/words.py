"""Frequent-word extraction: the three most frequent of many coded words, as in RULER (arXiv 2404.06654)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from santa_hw.evaluate.decoding import Decoding, Trial, chat, check_context

if TYPE_CHECKING:
    from santa_hw.models import LoadedModel

ALPHA = 2.0
VOCABULARY = 2000
LETTERS = 6
NOISE = "..."
INTRODUCTION = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
QUESTION = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
NEW_TOKENS = 64


def fwe(
    loaded: LoadedModel, *, context: int = 1024, trials: int = 12, phases: str = "decode", seed: int = 0
) -> Decoding:
    """
    The task `fwe`.

    Words of six random letters are repeated in proportion to rank**-2 (a Zipf distribution; the first rank is
    a row of dots, noise to be ignored) and shuffled. The score is RULER's: the fraction of the three words that
    the reply holds, letters' case aside.

    Raises
    ------
    ValueError
        Sizes out of range.
    """
    check_context(loaded, context, NEW_TOKENS, trials)
    built = [_trial(loaded, context - NEW_TOKENS, trial, seed) for trial in range(trials)]
    return Decoding(loaded, "fwe", built, score, NEW_TOKENS, phases)


def score(reply: str, answers: Sequence[str]) -> float:
    """
    Fraction of the words that the reply holds.

    Examples
    --------
    >>> score("1. Abcdef 2. ghijkl", ["abcdef", "ghijkl", "mnopqr"]) == 2 / 3
    True
    """
    return sum(answer.lower() in reply.lower() for answer in answers) / len(answers)


def counts(total: int) -> np.ndarray:
    """Appearances of each rank among `total` words, int64: floor(total * rank**-2 / sum of rank**-2)."""
    mass = np.arange(1, VOCABULARY + 1, dtype=np.float64) ** -ALPHA
    return np.floor(total * mass / mass.sum()).astype(np.int64)


def _trial(loaded: LoadedModel, room: int, trial: int, seed: int) -> Trial:
    generator = np.random.default_rng((seed, trial))
    letters = np.array(list(string.ascii_lowercase))
    coded = list(dict.fromkeys("".join(row) for row in letters[generator.integers(0, 26, (2 * VOCABULARY, LETTERS))]))
    ranked = [NOISE, *coded[: VOCABULARY - 1]]
    order_seed = int(generator.integers(2**32))

    def prompt(total: int) -> list[int]:
        words = np.repeat(np.array(ranked), counts(total))
        np.random.default_rng(order_seed).shuffle(words)
        return chat(loaded.tokenizer, INTRODUCTION + " ".join(words) + QUESTION)

    # The longest prompt that fits; its length grows with the number of words.
    low, high = 0, room
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(prompt(middle)) <= room else (low, middle - 1)
    appearances = counts(low)
    if appearances[3] == appearances[4]:
        raise ValueError(f"context has room for {low} coded words; allowed: enough to tell the third from the fourth")
    return Trial(tuple(prompt(low)), tuple(ranked[1:4]))
