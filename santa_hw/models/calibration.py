"""Static exponents of K and V: the largest magnitudes that a model shows on a text, channel by channel."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from santa_hw.datapath import Exponents
from santa_hw.formats import exponent
from santa_hw.models.attention import Call, attention, dense
from santa_hw.models.download import track
from santa_hw.models.loading import LoadedModel

if TYPE_CHECKING:
    from santa_hw.design import Design, DesignLike

SPAN = 32
"""Tokens of a span; a text that shares 2 * SPAN - 1 tokens in a row with the calibration is found out."""
MIN_WINDOW = 8
"""Shortest window: shorter ones recur by chance."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FORMAT = "santa-hw calibration 1"
# RuntimeError: what zipfile takes for another version, method or encryption.
_UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error
)  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """What calibration found, and on what. L layers, KV heads, d head dimension.

    Parameters
    ----------
    identity : str
        Of the model.
    text_sha256 : str
        Of the token ids (little-endian int64, the windows one after another, each behind its length).
    tokens, windows : int
        How many there were.
    k_max, v_max : numpy.ndarray
        float64 (L, KV, d): largest |K| (after position embedding, as attention receives it) and |V| of each
        channel.
    span_lengths, span_hashes : numpy.ndarray
        int64 and uint64: spans of the text, for :meth:`require_disjoint`.
    """

    identity: str
    text_sha256: str
    tokens: int
    windows: int
    k_max: NDArray[np.float64]
    v_max: NDArray[np.float64]
    span_lengths: NDArray[np.int64]
    span_hashes: NDArray[np.uint64]

    @property
    def sha256(self) -> str:
        """Of the text and of the magnitudes: calibrations with the same one give the same results on the same model."""
        digest = hashlib.sha256(self.text_sha256.encode())
        for maxima in (self.k_max, self.v_max):
            digest.update(np.ascontiguousarray(maxima, dtype="<f8").tobytes())
        return digest.hexdigest()

    def exponents(self, design: DesignLike) -> list[Exponents]:
        """The exponents that each layer's design asks for: one a channel or one a KV head (contract 3.1)."""
        return [self._layer(index, design.layer(index)) for index in range(len(self.k_max))]

    def _layer(self, index: int, design: Design) -> Exponents:
        def fit(maximum: NDArray[np.float64], grouping: str, bits: int) -> NDArray[np.int64]:
            if grouping == "per_head":
                maximum = maximum.max(axis=-1, keepdims=True)
            return exponent(maximum, bits, design.e_min, design.e_max)

        return Exponents(
            k=fit(self.k_max[index], design.k_exponents, design.k_bits),
            v=fit(self.v_max[index], design.v_exponents, design.v_bits),
        )

    def widened(self, bits: float) -> Calibration:
        """A copy with room for values 2**bits times those seen: fewer saturations, coarser codes."""
        return replace(self, k_max=self.k_max * 2.0**bits, v_max=self.v_max * 2.0**bits)

    def require(self, identity: str) -> None:
        """Raise ValueError unless this is the calibration of the model with this identity."""
        if identity != self.identity:
            raise ValueError(f"calibration is of model {self.identity}, the model is {identity}: the same is allowed")

    def require_disjoint(self, token_windows: Sequence[ArrayLike] | NDArray[Any]) -> None:
        """Raise ValueError if these windows share text with the calibration (numeric contract 3.1)."""
        _refuse_overlap(token_windows, self.span_lengths, self.span_hashes)

    def require_shape(self, layers: int, kv_heads: int, head_dim: int) -> None:
        """Raise ValueError unless there is a maximum for each layer, KV head and channel of such a model."""
        for name in ("k_max", "v_max"):
            shape = getattr(self, name).shape
            if shape != (layers, kv_heads, head_dim):
                raise ValueError(
                    f"calibration has {name} of shape {shape}: the model's {(layers, kv_heads, head_dim)} is allowed"
                )

    def save(self, path: str | Path) -> None:
        """Write one ``.npz`` file, whole or not at all."""
        path = Path(path)
        facts = {name: value for name, value in asdict(self).items() if not isinstance(value, np.ndarray)}
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in facts}
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with part.open("wb") as file:
                np.savez(file, facts=np.array(json.dumps({"format": _FORMAT, **facts})), **arrays)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, identity: str | None = None) -> Calibration:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : path
        identity : str, optional
            Of the model it is meant for.

        Raises
        ------
        ValueError
            If the file is no calibration, or another model's: the message names both.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                facts: dict[str, Any] = json.loads(str(data["facts"]))
                if facts.pop("format") != _FORMAT:
                    raise KeyError("format")
                calibration = cls(**facts, **{name: data[name] for name in data.files if name != "facts"})
        except FileNotFoundError as error:
            raise ValueError(f"calibration {str(path)!r}: no such file; run santa-hw calibrate") from error
        except _UNREADABLE as error:
            raise ValueError(f"calibration {str(path)!r} is not what santa-hw calibrate writes") from error
        if identity is not None:
            calibration.require(identity)
        return calibration


def calibrate(
    loaded: LoadedModel,
    token_windows: Sequence[ArrayLike] | NDArray[Any],
    *,
    disjoint_from: Sequence[ArrayLike] | NDArray[Any] | None = None,
) -> Calibration:
    """Run the float model over windows of a text and keep the largest |K| and |V| of every channel.

    Parameters
    ----------
    loaded : LoadedModel
    token_windows : (windows, length) integers, or a sequence of integer vectors
        Token ids, at least 8 a window, from a text disjoint from the evaluated one.
    disjoint_from : like `token_windows`, optional
        The evaluated windows: an overlap is refused before the model runs.

    Raises
    ------
    ValueError
        For windows that are none, too short or hold ids that the model does not know, and for a model whose K
        or V overflow.

    Source: numeric contract 3.1; the exponents are fixed before the first key is stored.
    """
    windows = _windows(token_windows, minimum=MIN_WINDOW)
    vocabulary = loaded.model.get_input_embeddings().num_embeddings
    for number, window in enumerate(windows):
        if window.min() < 0 or window.max() >= vocabulary:
            raise ValueError(f"token_windows: window {number} holds ids outside 0 to {vocabulary - 1}")
    lengths, hashes = _spans(windows)
    if disjoint_from is not None:
        _refuse_overlap(disjoint_from, lengths, hashes)
    maxima = torch.zeros(2, loaded.layers, loaded.kv_heads, loaded.head_dim, dtype=torch.float64)

    def observe(call: Call) -> torch.Tensor:
        for kept, seen in zip(maxima[:, call.layer], (call.k, call.v), strict=True):
            torch.maximum(kept, seen.abs().amax(dim=(0, 2)).to("cpu", torch.float64), out=kept)
        return dense(call)

    with torch.inference_mode(), attention(loaded, observe):
        for window in track(windows, "Calibrating"):
            tokens = torch.from_numpy(window)[None].to(loaded.model.device)
            # The inner model: logits are not needed, and cost as much as several layers.
            loaded.model.base_model(input_ids=tokens, use_cache=False)
    if not bool(maxima.isfinite().all()):
        layer = int((~maxima.isfinite()).flatten(2).any(-1).any(0).int().argmax())
        raise ValueError(f"layer {layer} of {loaded.name} gives K or V that are not finite")
    return Calibration(
        identity=loaded.identity,
        text_sha256=_text_sha256(windows),
        tokens=sum(map(len, windows)),
        windows=len(windows),
        k_max=maxima[0].numpy(),
        v_max=maxima[1].numpy(),
        span_lengths=lengths,
        span_hashes=hashes,
    )


def _refuse_overlap(
    token_windows: Sequence[ArrayLike] | NDArray[Any], lengths: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> None:
    """Raise ValueError if a window holds one of the spans, at any place."""
    for number, window in enumerate(_windows(token_windows, minimum=1)):
        for length in np.unique(lengths):
            starts = np.arange(max(0, len(window) - length + 1))
            hit = np.isin(_span_hashes(window, starts, int(length)), hashes[lengths == length])
            if hit.any():
                raise ValueError(
                    f"window {number} shares {length} tokens from token {int(hit.argmax())} on with the "
                    "calibration text: a text disjoint from it is allowed"
                )


def _windows(token_windows: Sequence[ArrayLike] | NDArray[Any], minimum: int) -> list[NDArray[np.int64]]:
    windows = [np.asarray(window) for window in token_windows]
    if not windows:
        raise ValueError("token_windows is empty: at least one window is allowed")
    for number, window in enumerate(windows):
        if window.ndim != 1 or not np.issubdtype(window.dtype, np.integer):
            raise ValueError(
                f"token_windows: window {number} is {window.dtype} {window.shape}: integers (T,) are allowed"
            )
        if len(window) < minimum:
            raise ValueError(f"token_windows: window {number} has {len(window)} tokens: {minimum} or more are allowed")
    return [window.astype(np.int64) for window in windows]


def _text_sha256(windows: list[NDArray[np.int64]]) -> str:
    digest = hashlib.sha256()
    for window in windows:
        digest.update(len(window).to_bytes(8, "little") + window.astype("<i8").tobytes())
    return digest.hexdigest()


def _spans(windows: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Lengths and hashes of spans that cover the windows: each 32 tokens and the last, or a short whole."""
    lengths, hashes = [], []
    for window in windows:
        length = min(SPAN, len(window))
        starts = np.unique(np.append(np.arange(0, len(window) - length + 1, SPAN), len(window) - length))
        hashes.append(_span_hashes(window, starts, length))
        lengths.append(np.full(len(starts), length, dtype=np.int64))
    return np.concatenate(lengths), np.concatenate(hashes)


def _span_hashes(window: NDArray[np.int64], starts: NDArray[np.int64], length: int) -> NDArray[np.uint64]:
    """A 64-bit hash of the `length` tokens from each start."""
    hashes = np.zeros(len(starts), dtype=np.uint64)
    for offset in range(length):
        hashes = (hashes + window[starts + offset].astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes
