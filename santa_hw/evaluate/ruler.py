"""RULER's tasks on records in its own format: `input`, `outputs` (arXiv 2404.06654)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from santa_hw.evaluate import retrieval, words
from santa_hw.evaluate.decoding import Decoding, Trial, chat, check_reply, first_records

if TYPE_CHECKING:
    from santa_hw.models import LoadedModel

FIELDS = ("input", "outputs")


def qa_score(reply: str, answers: Sequence[str]) -> float:
    """
    1 if the reply holds one of the answers, letters' case aside, else 0: any of them is right.

    Examples
    --------
    >>> qa_score("It was in paris, France.", ["Paris", "the city of Paris"])
    1.0
    """
    return float(any(answer.lower() in reply.lower() for answer in answers))


class Grader(NamedTuple):
    """How a task of RULER is scored, and the longest reply that it allows."""

    score: Callable[[str, Sequence[str]], float]
    new_tokens: int


GRADERS = {
    "niah-multivalue": Grader(retrieval.score, 128),
    "fwe": Grader(words.score, 50),
    "qa": Grader(qa_score, 32),
}


def ruler(
    loaded: LoadedModel, name: str, records: Sequence[dict[str, Any]], *, trials: int = 12, phases: str = "decode"
) -> Decoding:
    """
    A task of `GRADERS` on the first `trials` records.

    Parameters
    ----------
    records : sequence of dict
        As RULER writes them: `input`, a user's message, to which the model's chat template is applied unless it
        holds one of the tokenizer's special tokens already; `outputs`, the answers; `answer_prefix`, if there is one,
        opens the reply. `index` and `length` are not needed.

    Raises
    ------
    ValueError
        Too few records, a record of another form, or a prompt too long for the model.
    """
    grader = GRADERS[name]
    built = []
    for index, record in enumerate(first_records(records, trials, FIELDS)):
        outputs = record["outputs"]
        if not isinstance(outputs, list) or not outputs or not all(isinstance(output, str) for output in outputs):
            raise ValueError(f"record {index}: outputs is {outputs!r}; allowed: a list of texts")
        if name == "niah-multivalue" and not all(output.isdecimal() for output in outputs):
            raise ValueError(f"record {index}: outputs is {outputs!r}; allowed with {name}: whole numbers")
        built.append(Trial(tuple(_prompt(loaded.tokenizer, record)), tuple(outputs)))
    check_reply(loaded, built, grader.new_tokens)
    return Decoding(loaded, name, built, grader.score, grader.new_tokens, phases)


def _prompt(tokenizer: Any, record: dict[str, Any]) -> list[int]:
    text, prefix = str(record["input"]), str(record.get("answer_prefix") or "")
    if any(token in text for token in tokenizer.all_special_tokens):
        return list(tokenizer(text + prefix, add_special_tokens=False)["input_ids"])
    opened = list(tokenizer(prefix, add_special_tokens=False)["input_ids"]) if prefix else []
    return chat(tokenizer, text) + opened
