"""Tasks that are solved by real decoding: prompts with known answers, greedy tokens, a score a trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import GenerationConfig

from santa_hw import models
from santa_hw.evaluate.perplexity import check_positions

if TYPE_CHECKING:
    from santa_hw.models import AttentionHook, LoadedModel


@dataclass(frozen=True)
class Trial:
    """One prompt (token ids, chat template applied) and the answers that a perfect reply holds."""

    prompt: tuple[int, ...]
    answers: tuple[str, ...]
    depths: tuple[float, ...] = ()


@dataclass(frozen=True)
class Decoding:
    """
    A task whose score is the mean over trials of the fraction of answers found in the model's greedy reply.

    Attributes
    ----------
    name : str
        `needle`, `niah-multivalue`, `fwe`, `qa`, `gsm8k` or `mmlu`.
    trials : sequence of Trial
        Trial i decodes as sequence i, so no two trials share a random word.
    score : (reply, answers) -> float
        Partial credit between 0 and 1.
    new_tokens : int
        Longest reply.
    phases : "both" or "decode"
        Where the method replaces attention; with "decode" the prompt is read by the library's attention.
    """

    loaded: LoadedModel
    name: str
    trials: Sequence[Trial]
    score: Callable[[str, Sequence[str]], float]
    new_tokens: int
    phases: str = "decode"

    @property
    def token_windows(self) -> list[np.ndarray]:
        """What calibration may not have seen."""
        return [np.asarray(trial.prompt, dtype=np.int64) for trial in self.trials]

    @property
    def keys(self) -> int:
        """Most keys that a decode step may see: the longest prompt and its reply."""
        return max(len(trial.prompt) for trial in self.trials) + self.new_tokens

    @property
    def preparations(self) -> int:
        """How many times `prepare` calls its `tick`."""
        return 0

    @property
    def units(self) -> int:
        """How many times `evaluate` calls its `tick`."""
        return len(self.trials)

    def prepare(self, tick: Callable[[], None] = lambda: None) -> None:
        """Nothing to do: the prompts are made already."""

    def evaluate(self, hook: AttentionHook | None, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Decode every trial with a method (None: the library's own attention) and score it."""
        results = []
        for index, trial in enumerate(self.trials):
            with models.attention(self.loaded, hook, phases=self.phases, sequence=index):
                tokens = greedy(self.loaded.model, trial.prompt, self.new_tokens)
            reply = self.loaded.tokenizer.decode(tokens, skip_special_tokens=True)
            results.append(
                {
                    "score": self.score(reply, trial.answers),
                    "answers": list(trial.answers),
                    "reply": reply,
                    "prompt_tokens": len(trial.prompt),
                    "depths": list(trial.depths),
                }
            )
            tick()
        return {"accuracy": sum(result["score"] for result in results) / len(results), "per_trial": results}


def greedy(model: Any, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """
    The most probable token after each step, with a KV cache, until an end token or `new_tokens`.

    Returns
    -------
    list of int
        New tokens only; an end token, if one was reached, is the last of them.
    """
    # Set whatever a model's own generation file may change about a greedy choice.
    plain = GenerationConfig(
        max_new_tokens=new_tokens,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=0,
    )
    tokens = torch.tensor([list(prompt)], device=model.device)
    mask = torch.ones_like(tokens)
    output = model.generate(tokens, attention_mask=mask, generation_config=plain)
    return [int(token) for token in output[0, len(prompt) :]]


def chat(tokenizer: Any, message: str) -> list[int]:
    """Token ids of one user message under the model's chat template, or as it is where it has none."""
    if getattr(tokenizer, "chat_template", None):
        conversation = [{"role": "user", "content": message}]
        encoded = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])
    return list(tokenizer(message)["input_ids"])


def check_context(loaded: LoadedModel, context: int, new_tokens: int, trials: int) -> None:
    """Refuse a context (prompt and reply together) that the model or the task cannot hold."""
    check_positions(loaded, "context", context)
    if context <= new_tokens:
        raise ValueError(f"context is {context}; allowed: more than the {new_tokens} tokens kept for the reply")
    check_trials(trials)


def check_trials(trials: int) -> None:
    """Refuse a task of no prompts."""
    if trials < 1:
        raise ValueError(f"trials is {trials}; allowed: 1 or more")


def first_records(records: Sequence[dict[str, Any]], trials: int, fields: Sequence[str]) -> Sequence[dict[str, Any]]:
    """The first `trials` records, each of which must have these fields."""
    check_trials(trials)
    if trials > len(records):
        raise ValueError(f"trials is {trials}; allowed: at most the data's {len(records)} records")
    for index, record in enumerate(records[:trials]):
        for field in fields:
            if field not in record:
                raise ValueError(f"record {index}: {field!r} is missing; allowed: records with {', '.join(fields)}")
    return records[:trials]


def check_reply(loaded: LoadedModel, trials: Sequence[Trial], new_tokens: int) -> None:
    """Refuse prompts that leave no room for the reply."""
    for index, trial in enumerate(trials):
        check_positions(loaded, f"prompt and reply of record {index}", len(trial.prompt) + new_tokens)
