"""Tallies of shapes that nobody runs: a model's attention, a number of keys and a method, in closed form."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from santa_hw.design import Design
from santa_hw.events.tally import Tally

METHODS = ("dense-bf16", "dense-fp16", "dense", "top-k", "santa", "santa-ternary", "iid")
"""Methods that can be costed. The first two compute in floating point, all others in the design's fixed point."""

_UNDETERMINED = ("unique_rows", "group_rows", "value_terms", "features", "additions")


@dataclass(frozen=True)
class Shape:
    """The attention of a model: what one decode step of one sequence, times `batch`, goes through.

    Parameters
    ----------
    heads, kv_heads, head_dim : int
        Query heads, KV heads (a divisor of them), and d.
    layers : int
    batch : int
        Sequences, each with keys of its own.
    """

    heads: int
    kv_heads: int
    head_dim: int
    layers: int = 1
    batch: int = 1

    def __post_init__(self) -> None:
        for name in ("heads", "kv_heads", "head_dim", "layers", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: 1 or more is allowed")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads}: a divisor of heads = {self.heads} is allowed")

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads


SHAPES: Mapping[str, Shape] = {
    "llama-3.1-8b": Shape(32, 8, 128, 32),
    "llama-3.1-70b": Shape(64, 8, 128, 80),
    "llama-3.2-1b": Shape(32, 8, 64, 16),
    "mistral-7b": Shape(32, 8, 128, 32),
    "qwen3-8b": Shape(32, 8, 128, 36),
    "smollm2-135m": Shape(9, 3, 64, 30),
    "smollm2-360m": Shape(15, 5, 64, 32),
    "smollm2-1.7b": Shape(32, 32, 64, 24),
}
"""Attention shapes of known models, from their published configurations."""


def shape_named(name: str) -> Shape:
    """A shape of ``SHAPES`` by name; ValueError with the nearest name otherwise."""
    if name in SHAPES:
        return SHAPES[name]
    near = difflib.get_close_matches(name, SHAPES, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ValueError(f"shape = {name!r}{hint}: allowed are {', '.join(SHAPES)}")


def analytic(
    design: Design,
    shape: Shape,
    keys: int,
    *,
    unique_rows: float | None = None,
    group_rows: float | None = None,
    value_terms: float | None = None,
    features: float | None = None,
    additions: float | None = None,
) -> Tally:
    """The tally of one decode step of every layer and sequence of a shape, in closed form.

    Equal to the tally that :func:`santa_hw.datapath.attend` counts in everything that the shape determines. What
    depends on the data is given as a mean, or else takes its upper bound; :func:`bounded` says which did.

    Parameters
    ----------
    design : Design
    shape : Shape
        Its head dimension is the design's.
    keys : int
        Keys that every query head sees.
    unique_rows, group_rows : float, optional
        Distinct value rows a head step reads, and a group step, after the union over its heads. Bounds: min(S, N) or
        min(k, N) or N, and min(group * unique_rows, N).
    value_terms : float, optional
        Rows added a head step. It is S with repeated additions; with ``shift_add`` it is at most S.
    features : float, optional
        With ternary scores, features that a group step reads; at most d.
    additions : float, optional
        With ternary scores, additions a key and head, the sum of |count| over features; at most B * d.

    Raises
    ------
    ValueError
        Keys beyond ``max_keys``, another head dimension, or a mean beyond its bound.

    Examples
    --------
    >>> analytic(Design(samples=16), Shape(9, 3, 64), keys=100).value_terms
    144
    """
    if design.head_dim != shape.head_dim:
        raise ValueError(f"head_dim = {shape.head_dim}: the design's {design.head_dim} is allowed")
    if not 0 <= keys <= design.max_keys:
        raise ValueError(f"keys = {keys}: 0 to max_keys = {design.max_keys} is allowed")
    dim, budget = design.head_dim, design.samples if keys else 0
    most = {"santa": min(budget, keys), "top-k": min(budget, keys), "dense": keys}[design.method]
    ternary = design.scores == "ternary"
    per_head = _mean("unique_rows", unique_rows, most)
    per_group = _mean("group_rows", group_rows, min(shape.group * per_head, keys))
    terms = _mean("value_terms", value_terms, budget if design.method == "santa" else most)
    read = _mean("features", features if ternary else None, dim)
    score = _mean("additions", additions if ternary else None, dim * (design.ternary_samples if ternary else 1))
    heads = shape.layers * shape.batch * shape.heads
    groups = shape.layers * shape.batch * shape.kv_heads
    return Tally(
        head_steps=heads,
        group_steps=groups,
        empty_steps=0 if keys else heads,
        visible_keys=heads * keys,
        group_keys=groups * keys,
        feature_reads=round(groups * keys * read),
        key_features=groups * keys * dim,
        score_terms=round(heads * keys * score),
        unique_rows=round(heads * per_head),
        group_rows=round(groups * per_group),
        value_terms=round(heads * terms),
    )


def _mean(name: str, value: float | None, most: float) -> float:
    if value is None:
        return most
    if not 0 <= value <= most:
        raise ValueError(f"{name} = {value}: 0 to {most:g} is allowed")
    return value


def bounded(design: Design, given: Mapping[str, float | None]) -> tuple[str, ...]:
    """Which means of :func:`analytic` are upper bounds, because they depend on the data and were not given."""
    depends = {
        "unique_rows": design.method == "santa",
        "group_rows": design.method != "dense",
        "value_terms": design.method == "santa" and design.gather == "shift_add",
        "features": design.scores == "ternary",
        "additions": design.scores == "ternary",
    }
    return tuple(name for name in _UNDETERMINED if depends[name] and given.get(name) is None)


@lru_cache(maxsize=64)
def expected_ternary(design: Design, group: int, queries: int = 512, seed: int = 0) -> tuple[float, float]:
    """(features a group reads, additions a key and head) for queries of independent normal features.

    A stand-in for measured counts, which a run's tally holds: `queries` groups are drawn and their ternary counts made
    as the numeric contract says (3.1, 3.3). Real queries have outlying features, which make both numbers smaller.
    """
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((queries, group, design.blocks, design.head_dim // design.blocks))
    limit = (1 << (design.q_bits - 1)) - 1
    top = np.abs(q).max(axis=-1, keepdims=True)
    exponent = np.ceil(np.log2(top * (limit + 1) / (limit + 0.5)))
    share = np.minimum(np.rint(np.abs(q) * np.ldexp(float(limit + 1), -exponent.astype(int))), limit) / (limit + 1)
    words = group if design.ternary_offset == "independent" else 1
    if design.ternary_draw == "iid":
        drawn = rng.random((queries, words, *q.shape[2:], design.ternary_samples))
        counts = (drawn < share[..., None]).sum(axis=-1)
    else:
        counts = np.floor(share * design.ternary_samples + rng.random((queries, words, *q.shape[2:])))
    return float((counts > 0).any(axis=1).sum() / queries), float(counts.sum() / (queries * group))


@dataclass(frozen=True)
class Workload:
    """A method on a shape: what :func:`~santa_hw.events.operation` needs, and what of it is a bound.

    Attributes
    ----------
    method : str
        One of ``METHODS``.
    design : Design
    tally : Tally
    numbers : str
        Number format, ``"int"`` or that of a floating-point baseline.
    notes : tuple of str
        What was assumed rather than counted.
    """

    method: str
    design: Design
    tally: Tally
    numbers: str = "int"
    notes: tuple[str, ...] = ()


def workload(
    method: str,
    shape: Shape,
    keys: int,
    *,
    design: Design | None = None,
    samples: int = 128,
    top_k: int | None = None,
    given: Mapping[str, float | None] | None = None,
) -> Workload:
    """A method by name on a shape.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    shape : Shape
    keys : int
    design : Design, optional
        Widths and choices; method, budget and scores follow from `method`, the head dimension from the shape. The
        sampler is the design's, but for ``"iid"``, which brings its own.
    samples, top_k : int
        Budgets S and k (default: S).
    given : mapping, optional
        Means for :func:`analytic` by name, used by the methods that depend on them. Without `features` and
        `additions`, ternary scores take :func:`expected_ternary`.

    Raises
    ------
    ValueError
        An unknown method or mean, santa with a design of independent draws (that is method ``"iid"``), or what the
        design or :func:`analytic` refuses.
    """
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"method = {method!r}{hint}: allowed are {', '.join(METHODS)}")
    base = design or Design(max_keys=max(1, keys))
    if method == "santa" and base.sampler == "iid":
        raise ValueError(
            "sampler = 'iid': systematic or stratified is allowed with method santa; independent draws are method iid"
        )
    changes: dict[str, object] = {"head_dim": shape.head_dim}
    if method.startswith("dense"):
        changes |= {"method": "dense", "samples": samples, "scores": "dense"}
    elif method == "top-k":
        changes |= {"method": "top-k", "samples": samples if top_k is None else top_k, "scores": "dense"}
    else:
        changes |= {
            "method": "santa",
            "samples": samples,
            "scores": "ternary" if method == "santa-ternary" else "dense",
        }
        changes |= {"sampler": "iid"} if method == "iid" else {}
    design = base.replace(**changes)
    given = given or {}
    unknown = sorted(set(given) - set(_UNDETERMINED))
    if unknown:
        raise ValueError(f"given holds {unknown[0]!r}: allowed are {', '.join(_UNDETERMINED)}")
    used = {name: value for name, value in given.items() if name in bounded(design, {})}
    notes = []
    if design.scores == "ternary" and used.get("features") is None and used.get("additions") is None:
        used["features"], used["additions"] = expected_ternary(replace(design, max_keys=1), shape.group)
        notes.append("features and additions: expected for queries of independent normal features")
    notes += [f"{name}: upper bound" for name in bounded(design, used)]
    numbers = method.partition("-")[2] if method in ("dense-bf16", "dense-fp16") else "int"
    return Workload(method, design, analytic(design, shape, keys, **used), numbers, tuple(notes))
