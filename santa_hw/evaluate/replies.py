"""Where a free reply states its answer: after ``####``, in ``\\boxed{}``, or after "the answer is"."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HASHES = re.compile(r"####[^\S\n]*")
_BOX = re.compile(r"\\boxed\s*\{")
_PHRASE = re.compile(
    r"\b(?:answer|option|choice)s?\b(?:\s+to\s+(?:the|this|your)\s+\w+)?[\s*_]*(?:is|are|was|:|=)[\s:*_=]*",
    re.IGNORECASE,
)
# A full stop inside a number is none.
_END = re.compile(r"\n|[.;!?](?=\s|$)")
_JOINT = re.compile(r"[\s$€£%()*]*(?:,|;|/|\bor\b|\band\b)[\s$€£()*]*", re.IGNORECASE)


def clauses(reply: str) -> Iterator[str]:
    """
    The words that each marker of an answer points at, the last marker's first.

    A box ends at its own closing brace, whatever braces it holds; a box that was cut off is none. After ``####`` and
    the phrases, the clause ends with the line or the sentence.

    Examples
    --------
    >>> list(clauses(r"The answer is 5. No: \\boxed{\\frac{1}{2}}"))
    ['\\\\frac{1}{2}', '5']
    """
    found = [(match.start(), _sentence(reply, match.end())) for match in _HASHES.finditer(reply)]
    found += [(match.start(), _sentence(reply, match.end())) for match in _PHRASE.finditer(reply)]
    for match in _BOX.finditer(reply):
        content = _braced(reply, match.end())
        found += [] if content is None else [(match.start(), content)]
    for _, clause in sorted(found, reverse=True):
        yield clause


def joined(between: str) -> bool:
    """Whether two answers with these words between them are two at once: "5 or 7", "A, B"."""
    return _JOINT.fullmatch(between) is not None


def _sentence(reply: str, start: int) -> str:
    end = _END.search(reply, start)
    return reply[start : end.start() if end else None]


def _braced(reply: str, start: int) -> str | None:
    """What stands between an opening brace that ends at `start` and its closing one."""
    depth = 1
    for place in range(start, len(reply)):
        depth += {"{": 1, "}": -1}.get(reply[place], 0)
        if not depth:
            return reply[start:place]
    return None
