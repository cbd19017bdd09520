"""Attention hooks: any function in place of a model's attention, by transformers' own extension point.

``AttentionInterface`` and ``AttentionMaskInterface`` know santa-hw's functions by the name ``santa_hw``;
:func:`attention` makes a model use them for a while. What the library hands over, in whichever form, is
turned into a :class:`Call`: which keys each query sees, and the query's absolute position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface

from santa_hw.models.loading import LoadedModel

IMPLEMENTATION = "santa_hw"
PHASES = ("both", "prefill", "decode")
_ALLOWED = "allowed is softmax attention over one key-value cache, with masks, nothing added to the scores"


@dataclass(frozen=True)
class Call:
    """One layer's attention. B batch, H heads, KV heads, T queries, N keys, d head dimension.

    Parameters
    ----------
    layer : int
    q : torch.Tensor
        (B, H, T, d), after position embedding.
    k, v : torch.Tensor
        (B, KV, N, d): all keys so far, the queries' own included; cache slots that no query sees are cut off.
    scale : float
        The model's own softmax scale.
    lengths : torch.Tensor
        int64 (B, T): keys [0, length) are visible. A padding token makes no decode step: its length is 0.
    mask : torch.Tensor or None
        bool (B, T, N), True where visible, to be combined with `lengths`; None if `lengths` says it all.
    position : torch.Tensor
        int64 (B, T): each query's absolute position in its sequence, see :func:`attention`.
    sequence : torch.Tensor
        int64 (B,): the number of each row's sequence.
    """

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    lengths: torch.Tensor
    mask: torch.Tensor | None
    position: torch.Tensor
    sequence: torch.Tensor

    def visible(self) -> torch.Tensor:
        """`lengths` and `mask` in one: bool (B, T, N)."""
        seen = torch.arange(self.k.shape[2], device=self.q.device) < self.lengths[..., None]
        return seen if self.mask is None else seen & self.mask


AttentionHook = Callable[[Call], torch.Tensor]
"""Takes a call, returns the output (B, H, T, d) of any float dtype on any device."""


def dense(call: Call) -> torch.Tensor:
    """The hook that changes nothing: softmax attention in the model's own precision."""
    return torch.nn.functional.scaled_dot_product_attention(
        call.q, call.k, call.v, attn_mask=call.visible()[:, None], scale=call.scale, enable_gqa=True
    )


@contextmanager
def attention(
    loaded: LoadedModel,
    hook: AttentionHook | None,
    *,
    phases: str = "both",
    sequence: int | Sequence[int] = 0,
) -> Iterator[None]:
    """Inside, the model's attention is `hook`; on exit, and on any exception, the model is as before.

    The absolute position of a query counts the real (unmasked) tokens of its row before it, so a sequence has
    the same positions in prefill and in decode, alone and in a padded batch, with a growing, a sliding and a
    static cache. Only under a ready-made four-dimensional mask, which hides where padding is, the position is
    the ``position_ids`` that the model hands on, or else its place N − T + t among the keys.

    Parameters
    ----------
    loaded : LoadedModel
    hook : callable or None
        None leaves the model with its own attention.
    phases : ``"both"``, ``"prefill"`` or ``"decode"``
        Decode is a call with one query (T = 1), prefill is any other; the phase not named is left to the
        library's ``sdpa``.
    sequence : int or sequence of int
        Number of the first row's sequence, the others count on from it; or one number for each row. With
        `position` it says which random words a decode step uses.

    Raises
    ------
    ValueError
        For a model feature that a hook cannot see (soft-capping, learned sinks, position bias,
        cross-attention, latent attention, dropout): here if the configuration tells, else at the call.

    Examples
    --------
    >>> import torch
    >>> from santa_hw import models
    >>> loaded = models.load()                                                      # doctest: +SKIP
    >>> with models.attention(loaded, models.dense):                                # doctest: +SKIP
    ...     logits = loaded.model(torch.tensor([[1, 2, 3]])).logits
    """
    if phases not in PHASES:
        raise ValueError(f"phases = {phases!r}: {', '.join(PHASES)} are allowed")
    if hook is None:
        yield
        return
    refuse_unsupported(loaded.model)
    session = _Session(loaded, hook, phases, sequence)
    with _implementation(loaded.model), _active(session, _configs(loaded.model)):
        yield


def refuse_unsupported(model: Any) -> None:
    """Raise ValueError, by the feature's name, if the configuration tells of what a hook cannot see."""
    config = model.config.get_text_config()
    cap, value_dim = getattr(config, "attn_logit_softcapping", None), getattr(config, "v_head_dim", None)
    crossed = getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False)
    latent = value_dim is not None and getattr(config, "kv_lora_rank", None) is not None
    sinks = any(name.endswith("sinks") for name, _ in model.named_parameters())
    features = [
        (cap is not None, f"soft-capping (attn_logit_softcapping = {cap})"),
        (sinks, "learned attention sinks"),
        (latent, f"latent attention with values of another head dimension (v_head_dim = {value_dim})"),
        (crossed, "an encoder-decoder's cross-attention"),
        (getattr(config, "alibi", False), "a position bias (alibi)"),
        (not getattr(config, "is_causal", True), "bidirectional attention (is_causal = False)"),
        (model.training and getattr(config, "attention_dropout", 0), "attention dropout, in training mode"),
        (not _can_set(model), "attention that does not go through transformers' AttentionInterface"),
    ]
    for present, feature in features:
        if present:
            raise ValueError(f"model type {config.model_type} uses {feature}: {_ALLOWED}")


def _can_set(model: Any) -> bool:
    """Whether a foreign attention implementation takes effect, as transformers itself judges it."""
    check = getattr(model, "_can_set_attn_implementation", None)
    return check is None or bool(check())


class _View(NamedTuple):
    """What a mask says: `lengths` (B, T), `mask` (B, T, keys) or None, `position` (B, T), keys in sight."""

    lengths: torch.Tensor
    mask: torch.Tensor | None
    position: torch.Tensor
    keys: int


class _Session:
    """One use of :func:`attention`: the hook, and what it takes to make calls for it."""

    def __init__(self, loaded: LoadedModel, hook: AttentionHook, phases: str, sequence: int | Sequence[int]) -> None:
        self.loaded = loaded
        self.hook = hook
        self.phases = phases
        self.sequence = sequence
        # The library makes a mask once a forward pass and hands the same tensor to every layer.
        self.views: Any = WeakIdKeyDictionary()

    def selects(self, queries: int) -> bool:
        return self.phases == "both" or (self.phases == "decode") == (queries == 1)

    def call(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, view: _View
    ) -> torch.Tensor:
        k, v = k[:, :, : view.keys], v[:, :, : view.keys]
        # A model may be spread over devices, and its masks made on the first.
        lengths, position = view.lengths.to(q.device), view.position.to(q.device)
        mask = None if view.mask is None else view.mask.to(q.device)
        sequence = self._sequence(q.shape[0]).to(q.device)
        output = self.hook(Call(layer, q, k, v, scale, lengths, mask, position, sequence))
        if output.shape != q.shape:
            raise ValueError(f"hook returned shape {tuple(output.shape)}: {tuple(q.shape)} is allowed")
        return output.to(device=q.device, dtype=q.dtype)

    def _sequence(self, batch: int) -> torch.Tensor:
        if isinstance(self.sequence, int):
            return self.sequence + torch.arange(batch)
        numbers = torch.as_tensor(self.sequence, dtype=torch.int64)
        if numbers.shape != (batch,):
            raise ValueError(f"sequence has {tuple(numbers.shape)} numbers: one for each of {batch} rows")
        return numbers


_sessions: dict[int, _Session] = {}
"""Session of each configuration object in use, by id: attention layers and mask makers know theirs."""


def _session(config: Any) -> _Session:
    try:
        return _sessions[id(config)]
    except KeyError:
        raise ValueError(
            f"attention implementation {IMPLEMENTATION!r} is used outside santa_hw.models.attention(...)"
        ) from None


def _attention_function(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What AttentionInterface calls; (B, T, H, d) goes back."""
    session = _session(module.config)
    _refuse_call(session.loaded, module, query, key, value, dropout, is_causal, kwargs)
    if not session.selects(query.shape[2]):
        given = {"scaling": scaling, "dropout": dropout, "is_causal": is_causal, **kwargs}
        output, _ = AttentionInterface()["sdpa"](module, query, key, value, attention_mask, **given)
        return output, None
    view = None if attention_mask is None else session.views.get(attention_mask)
    if view is None:
        view = _view_of(attention_mask, query, key, kwargs.get("position_ids"))
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    output = session.call(module.layer_idx, query, key, value, scale, view)
    return output.transpose(1, 2).contiguous(), None


def _mask_function(*, config: Any, **arguments: Any) -> torch.Tensor | None:
    """What AttentionMaskInterface calls, once a forward pass and kind of mask: sdpa's mask, taken note of."""
    session = _session(config)
    sdpa_mask = AttentionMaskInterface()["sdpa"]
    if not session.selects(arguments["q_length"]):
        return sdpa_mask(config=config, **arguments)
    # sdpa may skip a plain causal mask, but then the mask could not say where its queries are.
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask = sdpa_mask(config=config, **arguments | skips)
    session.views[mask] = _view_made(
        mask, arguments.get("attention_mask"), int(arguments.get("q_offset", 0)), arguments["q_length"]
    )
    return mask


def _view_made(mask: torch.Tensor, padding: torch.Tensor | None, offset: int, queries: int) -> _View:
    """The view of a mask (B, 1, T, N), its queries from `offset` on; `padding` (B, tokens), True if real."""
    visible = mask[:, 0]
    if padding is None:
        position = torch.arange(offset, offset + queries, device=mask.device).expand(mask.shape[0], -1)
        return _view(visible, position)
    missing = max(0, offset + queries - padding.shape[1])
    real = torch.nn.functional.pad(padding.to(torch.bool), (0, missing))
    own = slice(offset, offset + queries)
    position = (real.cumsum(-1)[:, own] - 1).clamp_min(0)
    return _view(visible & real[:, own, None], position)


def _view_of(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, position_ids: torch.Tensor | None
) -> _View:
    """The view of a mask that somebody else made, or of none."""
    batch, _, queries, _ = query.shape
    keys = key.shape[2]
    if mask is None:
        # As sdpa: one query sees everything, several are causal and aligned at the start.
        first = 0 if queries > 1 else keys - 1
        full = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        visible = full.tril(first).expand(batch, -1, -1)
    else:
        visible = _visible(mask, keys).expand(batch, queries, keys)
    if position_ids is not None and position_ids.shape in {(batch, queries), (1, queries)}:
        position = position_ids.to(torch.int64).expand(batch, -1)
    else:
        position = torch.arange(keys - queries, keys, device=query.device).expand(batch, -1)
    return _view(visible, position)


def _visible(mask: torch.Tensor, keys: int) -> torch.Tensor:
    """Bool (B, T, keys) from a four-dimensional mask, bool or additive."""
    if mask.ndim != 4 or mask.shape[1] != 1:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}: (B, 1, T, N) is allowed")
    mask = mask[:, 0, :, :keys]
    if mask.dtype == torch.bool:
        return mask
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if bool(((mask != 0) & ~hidden).any()):
        raise ValueError(f"attention_mask holds a position bias (values other than 0 and -inf): {_ALLOWED}")
    return ~hidden


def _view(visible: torch.Tensor, position: torch.Tensor) -> _View:
    """Split a bool (B, T, N) into lengths and what they leave to say."""
    ends = torch.arange(1, visible.shape[-1] + 1, device=visible.device, dtype=torch.int32)
    lengths = (visible * ends).amax(-1).to(torch.int64)
    keys = max(1, int(lengths.max()))  # a hook need not know about N = 0
    gaps = bool((visible.sum(-1) != lengths).any())
    return _View(lengths, visible[..., :keys] if gaps else None, position, keys)


_HARMLESS = {"position_ids", "cache_position", "position_embeddings"}
"""Tensors that models hand on to the attention function and that attention does not depend on."""

_REFUSED = {
    "softcap": "soft-capping",
    "s_aux": "learned attention sinks",
    "sinks": "learned attention sinks",
    "position_bias": "a position bias",
    "head_mask": "a head mask",
    "indices": "sparse attention with key indices",
}


def _refuse_call(
    loaded: LoadedModel,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    is_causal: bool | None,
    kwargs: dict[str, Any],
) -> None:
    """Raise ValueError for anything that a hook would not see."""
    where = f"layer {getattr(module, 'layer_idx', '?')} ({type(module).__name__})"
    for name, given in kwargs.items():
        if given is not None and name in _REFUSED:
            raise ValueError(f"{where} uses {_REFUSED[name]} ({name}): {_ALLOWED}")
        if isinstance(given, torch.Tensor) and name not in _HARMLESS:
            raise ValueError(f"{where} hands attention an unknown tensor {name!r}: {_ALLOWED}")
    if dropout:
        raise ValueError(f"{where} uses dropout = {dropout}: 0 is allowed, call model.eval()")
    if (getattr(module, "is_causal", True) if is_causal is None else is_causal) is False:
        raise ValueError(f"{where} is not causal (bidirectional or cross-attention): {_ALLOWED}")
    if value.shape != key.shape:
        raise ValueError(f"{where} has keys {tuple(key.shape)} and values {tuple(value.shape)}: {_ALLOWED}")
    found = query.shape[1], key.shape[1], key.shape[3]
    expected = loaded.heads, loaded.kv_heads, loaded.head_dim
    if found != expected:
        raise ValueError(
            f"{where} has (heads, KV heads, head dimension) {found}: {expected}, as configured, is allowed"
        )


def _configs(model: Any) -> list[Any]:
    """Every configuration object that the model's modules hold."""
    found = {id(model.config): model.config}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            found.setdefault(id(config), config)
    return list(found.values())


@contextmanager
def _implementation(model: Any) -> Iterator[None]:
    """Switch the model to santa-hw's functions, and back to what each of its configurations named before."""
    before = [(config, config._attn_implementation) for config in _configs(model)]
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        yield
    finally:
        model.set_attn_implementation(before[0][1])
        for config, name in before:
            if config._attn_implementation != name:
                config._attn_implementation = name


@contextmanager
def _active(session: _Session, configs: list[Any]) -> Iterator[None]:
    """Make `session` the one that these configurations find; nests."""
    before = {id(config): _sessions.get(id(config)) for config in configs}
    _sessions.update(dict.fromkeys(before, session))
    try:
        yield
    finally:
        for key, outer in before.items():
            if outer is None:
                _sessions.pop(key, None)
            else:
                _sessions[key] = outer


AttentionInterface.register(IMPLEMENTATION, _attention_function)
AttentionMaskInterface.register(IMPLEMENTATION, _mask_function)
