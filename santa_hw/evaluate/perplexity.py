"""Teacher-forced scores over windows of a text: perplexity, divergence from the float model, agreement."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from santa_hw import models

if TYPE_CHECKING:
    from santa_hw.models import AttentionHook, LoadedModel

# Positions whose log-probabilities are made at a time: 64 rows of 49152 float32 are 12 MiB.
CHUNK = 64
# Reference log-probabilities beyond this many bytes go to a temporary file instead of memory.
MEMORY_LIMIT = 4 << 30


class WindowScore(NamedTuple):
    """Means over the positions of one window that predict a token of it; nats per token."""

    nll: float
    kl: float
    agreement: float


def windows(loaded: LoadedModel, text: str, count: int, length: int) -> np.ndarray:
    """
    The first `count` consecutive windows of `length` tokens of a text.

    A tokenizer that opens a text with a special token (BOS) opens every window with it: the model never saw a
    text without.

    Returns
    -------
    (count, length) int64

    Raises
    ------
    ValueError
        A size below its minimum, or a text too short.
    """
    if count < 1:
        raise ValueError(f"windows is {count}; allowed: 1 or more")
    if length < 2:
        raise ValueError(f"window is {length}; allowed: 2 tokens or more, the first predicts the second")
    check_positions(loaded, "window", length)
    opening = opening_tokens(loaded.tokenizer)
    body = length - len(opening)
    # No token stands for more than a few characters, so a long text's tail need not be tokenised.
    tokens = loaded.tokenizer(text[: 32 * count * length], add_special_tokens=False)["input_ids"]
    if len(tokens) < count * body and len(text) > 32 * count * length:
        tokens = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(tokens) < count * body:
        raise ValueError(
            f"text has {len(tokens)} tokens; allowed: at least {count * body} for {count} windows of {length}"
        )
    rows = np.asarray(tokens[: count * body], dtype=np.int64).reshape(count, body)
    return np.concatenate([np.tile(np.asarray(opening, dtype=np.int64), (count, 1)), rows], axis=1)


def check_positions(loaded: LoadedModel, name: str, length: int) -> None:
    """Refuse a length that the model has no positions for."""
    longest = getattr(loaded.model.config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise ValueError(f"{name} is {length}; allowed: at most the model's {longest} positions")


def opening_tokens(tokenizer: Any) -> list[int]:
    """Special tokens that the tokenizer puts before a text: [] or [BOS], as a rule."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    return list(full[: full.index(bare[0])]) if bare and bare[0] in full else []


def compare(logits: torch.Tensor, reference: torch.Tensor, best: torch.Tensor, targets: torch.Tensor) -> WindowScore:
    """
    Score one window's logits against the reference's log-probabilities, in one pass.

    Parameters
    ----------
    logits : (positions, vocabulary)
    reference : (positions, vocabulary) float32
        Log-probabilities of the float model: KL(reference || logits) is the mean over positions.
    best : (positions,) int64
        The reference's most probable token.
    targets : (positions,) int64
        The tokens that followed.
    """
    nll = kl = agreement = 0.0
    for start in range(0, len(targets), CHUNK):
        part = slice(start, start + CHUNK)
        expected = reference[part].to(logits.device)
        scores = logits[part].float()
        # Among equally probable tokens the reference's counts; and this costs a tenth of an argmax.
        chosen = scores.gather(-1, best[part, None].to(logits.device))[:, 0]
        agreement += float((chosen == scores.amax(-1)).sum())
        scores = torch.log_softmax(scores, dim=-1)
        nll -= float(scores.gather(-1, targets[part, None].to(logits.device)).double().sum())
        difference = torch.sub(expected, scores, out=scores)
        rows = torch.exp(expected).mul_(difference).sum(-1)
        if rows.isnan().any():
            # A token of probability zero adds nothing, though its logarithm is -inf.
            difference.masked_fill_(expected == -math.inf, 0.0)
            rows = torch.exp(expected).mul_(difference).sum(-1)
        kl += float(rows.double().sum())
    return WindowScore(nll / len(targets), kl / len(targets), agreement / len(targets))


@dataclass
class Perplexity:
    """
    The task `perplexity`: every position of a window is a decode step of its own.

    Attributes
    ----------
    loaded : LoadedModel
    tokens : (windows, window) int64
        From `windows`. The reference pass (the unquantised float model with the library's attention) runs
        once a window, at first need, and serves every later call.
    """

    loaded: LoadedModel
    tokens: np.ndarray
    name: str = "perplexity"
    phases: str = "both"
    _references: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _store: torch.Tensor | None = None

    @property
    def token_windows(self) -> np.ndarray:
        """What calibration may not have seen."""
        return self.tokens

    @property
    def keys(self) -> int:
        """Most keys that a decode step sees: the window."""
        return int(self.tokens.shape[1])

    @property
    def preparations(self) -> int:
        """How many times `prepare` calls its `tick`."""
        return len(self.tokens)

    @property
    def units(self) -> int:
        """How many times `evaluate` calls its `tick`."""
        return len(self.tokens)

    def prepare(self, tick: Callable[[], None] = lambda: None) -> None:
        """Run the reference passes now, so that no method's time includes them."""
        for index in range(len(self.tokens)):
            self.reference(index)
            tick()

    def evaluate(self, hook: AttentionHook | None, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Scores of a method over all windows; hook None runs the float model with its own attention."""
        scores = []
        for index in range(len(self.tokens)):
            scores.append(self._window(hook, index))
            tick()
        nll, kl, agreement = (math.fsum(column) / len(scores) for column in zip(*scores, strict=True))
        return {
            "perplexity": math.exp(nll) if nll < 700 else None,
            "kl_to_dense": kl,
            "top1_agreement": agreement,
            "per_window": [score._asdict() for score in scores],
        }

    def reference(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities (window - 1, vocabulary) float32 and most probable tokens of a window."""
        if index not in self._references:
            logits = self._logits(None, index)
            store = self._storage(logits.shape[-1])[index]
            for start in range(0, len(logits), CHUNK):
                part = slice(start, start + CHUNK)
                store[part] = torch.log_softmax(logits[part].float(), dim=-1)
            self._references[index] = store, logits.argmax(-1).cpu()
        return self._references[index]

    def _window(self, hook: AttentionHook | None, index: int) -> WindowScore:
        expected, best = self.reference(index)
        targets = torch.from_numpy(self.tokens[index, 1:])
        return compare(self._logits(hook, index), expected, best, targets)

    @torch.inference_mode()
    def _logits(self, hook: AttentionHook | None, index: int) -> torch.Tensor:
        model = self.loaded.model
        tokens = torch.from_numpy(self.tokens[index : index + 1]).to(model.device)
        with models.attention(self.loaded, hook, phases="both", sequence=index):
            return model(input_ids=tokens, use_cache=False).logits[0, :-1]

    def _storage(self, vocabulary: int) -> torch.Tensor:
        if self._store is None:
            shape = (len(self.tokens), self.tokens.shape[1] - 1, vocabulary)
            if 4 * math.prod(shape) <= MEMORY_LIMIT:
                self._store = torch.empty(shape, dtype=torch.float32)
            else:
                # The file is unlinked at once; the mapping keeps it until this object goes.
                with tempfile.TemporaryFile(prefix="santa-hw-") as file:
                    self._store = torch.from_numpy(np.memmap(file, np.float32, "w+", shape=shape))
        return self._store
