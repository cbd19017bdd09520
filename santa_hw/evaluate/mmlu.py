"""MMLU: questions with four choices, the stated letter compared with the true one (arXiv 2009.03300)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from santa_hw.evaluate.decoding import Decoding, Trial, chat, check_reply, first_records
from santa_hw.evaluate.replies import clauses, joined

if TYPE_CHECKING:
    from santa_hw.models import LoadedModel

LETTERS = "ABCD"
# The zero-shot form of the prompt that Llama 3's published evaluations use.
PROMPT = (
    "Given the following question and four candidate answers (A, B, C and D), choose the best answer.\n"
    "Question: {question}\n{choices}\n"
    'Your response should end with "The best answer is [the_answer_letter]" where the [the_answer_letter] is one of '
    "A, B, C or D.\n"
)
FIELDS = ("question", "choices", "answer")
NEW_TOKENS = 256

_LETTER = re.compile(r"(?<![A-Za-z'’])([A-D])(?![A-Za-z'’])")
_SMALL = re.compile(r"\(([a-d])\)|^\W*([a-d])\W*$")
_OPENING = re.compile(r"[\s*(\[\"']*[A-D](?:[)\].:*\"',]|\s*$)")
_ARTICLE = re.compile(r"\bA(?=\s+(?!and\b|or\b|is\b)[a-z])")


def mmlu(
    loaded: LoadedModel, records: Sequence[dict[str, Any]], *, trials: int = 12, phases: str = "decode"
) -> Decoding:
    """
    The task `mmlu` on the first `trials` records.

    Parameters
    ----------
    records : sequence of dict
        As published: `question`, four `choices`, and the `answer` as an index from 0 to 3 (or a letter).

    Raises
    ------
    ValueError
        Too few records, a record of another form, or a prompt too long for the model.
    """
    built = []
    for index, record in enumerate(first_records(records, trials, FIELDS)):
        choices = record["choices"]
        if not isinstance(choices, list) or len(choices) != len(LETTERS):
            raise ValueError(f"record {index}: choices is {choices!r}; allowed: a list of four")
        listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
        prompt = chat(loaded.tokenizer, PROMPT.format(question=record["question"], choices=listed))
        built.append(Trial(tuple(prompt), (true_letter(record["answer"], index),)))
    check_reply(loaded, built, NEW_TOKENS)
    return Decoding(loaded, "mmlu", built, score, NEW_TOKENS, phases)


def true_letter(answer: Any, index: int = 0) -> str:
    """A record's answer, an index or a letter, as a letter."""
    if type(answer) is int and 0 <= answer < len(LETTERS):
        return LETTERS[answer]
    if isinstance(answer, str) and answer in tuple(LETTERS):
        return answer
    raise ValueError(f"record {index}: answer is {answer!r}; allowed: 0 to 3, or A to D")


def score(reply: str, answers: Sequence[str]) -> float:
    """
    1 if the reply states the true letter, else 0.

    Examples
    --------
    >>> score("The best answer is (B).", ["B"])
    1.0
    """
    return float(stated(reply) == answers[0])


def stated(reply: str) -> str | None:
    """
    The letter that a reply gives as its answer.

    It is the letter after the last marker of an answer (see :func:`~santa_hw.evaluate.replies.clauses`) that has
    one; else the one that the reply opens with ("B. Paris") or is ("b"); else the only one it names. None if there
    is none, or two at once ("A or B").
    """
    for clause in clauses(reply):
        if re.match(r"not\b", clause):
            continue
        if found := list(_LETTER.finditer(clause)):
            return _single(clause, found)
        if small := _SMALL.search(clause):
            return (small[1] or small[2]).upper()
    opening = reply.strip().partition("\n")[0]
    if _OPENING.match(opening):
        return _single(opening, list(_LETTER.finditer(opening)))
    if alone := re.fullmatch(r"\W*([a-d])\W*", reply):
        return alone[1].upper()
    named = {match[1] for match in _LETTER.finditer(_ARTICLE.sub("", reply))}
    return named.pop() if len(named) == 1 else None


def _single(clause: str, found: list[re.Match[str]]) -> str | None:
    """The first letter found, unless it is one of two."""
    if len(found) > 1 and joined(clause[found[0].end() : found[1].start()]):
        return None
    return found[0][1]
