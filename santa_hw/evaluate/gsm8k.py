"""GSM8K: grade-school word problems, the stated number compared with the true one (arXiv 2110.14168)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from santa_hw.evaluate.decoding import Decoding, Trial, chat, check_reply, first_records
from santa_hw.evaluate.replies import clauses, joined

if TYPE_CHECKING:
    from santa_hw.models import LoadedModel

# The zero-shot form of the prompt that Llama 3's published evaluations use.
PROMPT = (
    "Given the following problem, reason and give a final answer to the problem.\nProblem: {question}\n"
    'Your response should end with "The final answer is [answer]" where [answer] is the response to the problem.\n'
)
FIELDS = ("question", "answer")
NEW_TOKENS = 512

_DIGITS = r"(?:[0-9]{1,3}(?:[,\u00a0\u2009\u202f][0-9]{3})+(?![0-9])|[0-9]++)"
_NUMBER = re.compile(
    rf"""
    (?P<sign>(?<![0-9A-Za-z_)\]}}%])[-+])? [$€£¥]?
    (?:
        (?<![0-9A-Za-z_.])(?P<whole>[0-9]+)\s+(?P<part>[0-9]+)/(?P<parts>[0-9]+)(?!\.?[0-9]|/)   # 3 1/2
      | (?<![0-9A-Za-z_/])(?P<top>{_DIGITS})\s*/\s*(?P<bottom>{_DIGITS})(?!\.?[0-9]|/)     # 1/2
      | (?:(?<![0-9A-Za-z_]){_DIGITS}(?:\.[0-9]++)?+|(?<![0-9A-Za-z_.])\.[0-9]++)
        (?:[eE][-+]?[0-9]{{1,2}}(?![0-9A-Za-z]))?(?!(?:st|nd|rd|th)\b)                              # 1,234.5
    )
    """,
    re.VERBOSE,
)


def gsm8k(
    loaded: LoadedModel, records: Sequence[dict[str, Any]], *, trials: int = 12, phases: str = "decode"
) -> Decoding:
    """
    The task `gsm8k` on the first `trials` records.

    Parameters
    ----------
    records : sequence of dict
        As published: `question`, and an `answer` that ends in ``#### number`` (or is a number).

    Raises
    ------
    ValueError
        Too few records, an answer without a number, or a prompt too long for the model.
    """
    built = []
    for index, record in enumerate(first_records(records, trials, FIELDS)):
        prompt = chat(loaded.tokenizer, PROMPT.format(question=record["question"]))
        built.append(Trial(tuple(prompt), (true_answer(record["answer"], index),)))
    check_reply(loaded, built, NEW_TOKENS)
    return Decoding(loaded, "gsm8k", built, score, NEW_TOKENS, phases)


def true_answer(answer: Any, index: int = 0) -> str:
    """The number at the end of a record's answer, as it is written there."""
    text = str(answer).rpartition("####")[2].strip()
    if len(numbers(text)) != 1:
        raise ValueError(f"record {index}: answer ends in {text[-40:]!r}; allowed: one number, after #### if any")
    return text


def score(reply: str, answers: Sequence[str]) -> float:
    """
    1 if the number that the reply states equals the true one exactly, else 0.

    Examples
    --------
    >>> score("She pays 3 * $24 = $72. The final answer is $72.00.", ["72"])
    1.0
    """
    return float(stated(reply) == numbers(answers[0])[0])


def stated(reply: str) -> Fraction | None:
    """
    The number that a reply gives as its answer.

    It is the number after the last marker of an answer (see :func:`~santa_hw.evaluate.replies.clauses`) that has
    one: the first after its last equals sign. Without such a marker it is the reply's last number. None if there
    is no number, or two at once ("5 or 7").
    """
    for clause in clauses(reply):
        tidied = _tidy(clause).rpartition("=")[2]
        found = list(_matches(tidied))
        if found:
            (first, value), rest = found[0], found[1:]
            return None if rest and joined(tidied[first.end() : rest[0][0].start()]) else value
    found = list(_matches(_tidy(reply)))
    return found[-1][1] if found else None


def numbers(text: str) -> list[Fraction]:
    """
    All numbers of a text, exactly. Units, currencies and percent signs are ignored, ordinals are no numbers.

    Examples
    --------
    >>> [str(number) for number in numbers(r"-$1,234.50, \\frac{3}{4} or 2 1/2 of the 3rd 50%")]
    ['-2469/2', '3/4', '5/2', '50']
    """
    return [value for _, value in _matches(_tidy(text))]


def _matches(text: str) -> list[tuple[re.Match[str], Fraction]]:
    found = []
    for match in _NUMBER.finditer(text):
        value = _value(match)
        found += [] if value is None else [(match, value)]
    return found


def _value(match: re.Match[str]) -> Fraction | None:
    sign = -1 if match["sign"] == "-" else 1
    if match["whole"]:
        whole, part, parts = (int(match[name]) for name in ("whole", "part", "parts"))
        return sign * (whole + Fraction(part, parts)) if parts else None
    if match["top"]:
        top, bottom = (int(_plain(match[name])) for name in ("top", "bottom"))
        return sign * Fraction(top, bottom) if bottom else None
    return sign * Fraction(_plain(match[0]).lstrip("-+$€£¥"))


def _plain(digits: str) -> str:
    return re.sub(r"[,\u00a0\u2009\u202f]", "", digits)


def _tidy(text: str) -> str:
    """The text with minus signs, vulgar fractions and LaTeX in plain characters."""
    text = re.sub("[\u2010-\u2013\u2212\ufe63\uff0d]", "-", text)
    text = re.sub("[¼-¾⅐-⅞]", lambda match: " " + unicodedata.normalize("NFKC", match[0]).replace("⁄", "/"), text)
    text = text.replace("{,}", ",").replace(r"\$", "$").replace(r"\%", "%")
    text = re.sub(r"\\[,!;: ]", "\u2009", text)
    text = re.sub(r"(?<=[0-9])(?=\\[dt]?frac)", " ", text)
    text = re.sub(r"\\[dt]?frac\s*([0-9])\s*([0-9])", r"\1/\2", text)
    before = None
    while before != text:
        before = text
        text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox|boldsymbol)\s*\{([^{}]*)\}", r" \1 ", text)
        text = re.sub(r"\\[dt]?frac\s*\{\s*([^{}]*?)\s*\}\s*\{\s*([^{}]*?)\s*\}", r"\1/\2", text)
    return text
