"""One frozen description of a design point: every width and choice of the datapath, and the widths derived from them.

A :class:`Design` names what an architect chooses; every derived width (accumulators, residual, tables) is computed
here and nowhere else, and a design whose registers would need more than 63 bits is refused. A :class:`Schedule` gives
each layer a design of its own and is accepted wherever a design is.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MAX_REGISTER_BITS = 63
"""Widest register of the datapath: signed 64-bit arithmetic must never overflow in any implementation."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "method": ("santa", "top-k", "dense"),
    "k_exponents": ("per_channel", "per_head"),
    "v_exponents": ("per_channel", "per_head"),
    "scores": ("dense", "ternary"),
    "ternary_draw": ("stratified", "iid"),
    "ternary_offset": ("shared", "independent"),
    "exp": ("table", "mitchell"),
    "weight_rounding": ("floor", "half_up"),
    "sampler": ("systematic", "stratified", "iid"),
    "rng": ("threefry", "lfsr"),
    "gather": ("repeated", "shift_add"),
}

_RANGES: dict[str, tuple[int, int]] = {
    "samples": (1, 1 << 16),
    "head_dim": (1, 1 << 12),
    "max_keys": (1, 1 << 30),
    "q_bits": (2, 24),
    "k_bits": (2, 24),
    "v_bits": (2, 24),
    "e_min": (-64, 64),
    "e_max": (-64, 64),
    "score_bits": (2, 32),
    "score_frac": (0, 16),
    "ternary_samples": (1, 1 << 12),
    "ternary_block": (1, 1 << 12),
    "weight_bits": (2, 32),
    "rng_bits": (1, 32),
    "out_bits": (2, 63),
    "out_frac": (-64, 64),
    "guard_bits": (0, 16),
}


@dataclass(frozen=True)
class Design:
    """A design point of the fixed-point attention datapath.

    Parameters
    ----------
    method : ``"santa"``, ``"top-k"`` or ``"dense"``
        What follows the weights: sampling, or one of the multiplying baselines.
    samples : int
        Sample budget S (a power of two) for santa, k for top-k; a dense design takes only its default guard bits
        from it.
    head_dim, max_keys : int
        Head dimension d and the most keys a step may see: they size accumulators and score memory.
    q_bits, k_bits, v_bits : int
        Widths of the operand codes, sign included, symmetric range.
    k_exponents, v_exponents : ``"per_channel"`` or ``"per_head"``
        Whether a KV head has one exponent a channel or one in all.
    e_min, e_max : int
        Range of every exponent.
    score_bits, score_frac : int
        Format of a score, a base-2 logarithm.
    scores : ``"dense"`` or ``"ternary"``
        Exact products, or B = ``ternary_samples`` ternary query vectors and additions only.
    ternary_draw, ternary_offset, ternary_block : str, str, int or None
        One word a feature or B; one draw a GQA group or one a head; features sharing an exponent (None: all).
    weight_bits : int or None
        Width W of a weight; None takes max(16, ceil(log2(max_keys)) + 4).
    exp, weight_rounding : str
        Base-2 exponential by table or Mitchell's approximation, and how the shifted weight is rounded.
    sampler, rng, rng_bits : str, str, int
        How counts are drawn, from which generator, from words of how many bits (R).
    gather : ``"repeated"`` or ``"shift_add"``
        Value rows are added c times, or once for each set bit of c.
    out_bits, out_frac : int or None
        Common output format; None leaves the accumulator as it is.
    guard_bits : int or None
        Extra output bits g of the dividing baselines; None takes floor(log2(samples)), so that formats match.

    Raises
    ------
    ValueError
        Names the argument, its value and what is allowed; also if any register would need more than 63 bits.

    Examples
    --------
    >>> Design(samples=16, q_bits=6).derived()["count"]
    5
    """

    method: str = "santa"
    samples: int = 64
    head_dim: int = 64
    max_keys: int = 4096
    q_bits: int = 8
    k_bits: int = 8
    v_bits: int = 8
    k_exponents: str = "per_channel"
    v_exponents: str = "per_channel"
    e_min: int = -32
    e_max: int = 31
    score_bits: int = 16
    score_frac: int = 5
    scores: str = "dense"
    ternary_samples: int = 8
    ternary_draw: str = "stratified"
    ternary_offset: str = "shared"
    ternary_block: int | None = None
    weight_bits: int | None = None
    exp: str = "table"
    weight_rounding: str = "floor"
    sampler: str = "systematic"
    rng: Literal["threefry", "lfsr"] = "threefry"
    rng_bits: int = 32
    gather: str = "repeated"
    out_bits: int | None = None
    out_frac: int | None = None
    guard_bits: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} = {value!r}: allowed are {', '.join(allowed)}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise ValueError(f"{name} = {value!r}: an integer from {low} to {high} is allowed")
            if not low <= value <= high:
                raise ValueError(f"{name} = {value}: allowed is {low} to {high}")
            object.__setattr__(self, name, int(value))
        if self.weight_bits is None:
            object.__setattr__(self, "weight_bits", default_weight_bits(self.max_keys))
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.method == "santa" and self.samples & (self.samples - 1):
            raise ValueError(
                f"samples = {self.samples}: a power of two is allowed (the datapath normalises by a shift)"
            )
        if self.ternary_samples & (self.ternary_samples - 1):
            raise ValueError(f"ternary_samples = {self.ternary_samples}: a power of two is allowed")
        if self.e_min > self.e_max:
            raise ValueError(f"e_min = {self.e_min}: at most e_max = {self.e_max} is allowed")
        if self.score_frac >= self.score_bits:
            raise ValueError(f"score_frac = {self.score_frac}: less than score_bits = {self.score_bits} is allowed")
        if self.exp == "mitchell" and self.score_frac > self.W - 1:
            raise ValueError(
                f"score_frac = {self.score_frac}: at most weight_bits - 1 = {self.W - 1} is allowed with exp = mitchell"
            )
        if self.scores == "ternary":
            self._check_ternary()
        if (self.out_bits is None) != (self.out_frac is None):
            raise ValueError(f"out_bits = {self.out_bits}, out_frac = {self.out_frac}: give both of them, or neither")
        for register, bits in self.derived().items():
            if register not in _NOT_REGISTERS and bits > MAX_REGISTER_BITS:
                raise ValueError(
                    f"design needs {bits} bits for its {register}: at most {MAX_REGISTER_BITS} are allowed; "
                    "lower max_keys, weight_bits, samples or the operand widths"
                )

    def _check_ternary(self) -> None:
        if self.rng_bits < self.q_bits - 1:
            raise ValueError(
                f"rng_bits = {self.rng_bits}: at least q_bits - 1 = {self.q_bits - 1} is allowed with ternary scores"
            )
        if self.ternary_block is not None and self.head_dim % self.ternary_block:
            raise ValueError(
                f"ternary_block = {self.ternary_block}: a divisor of head_dim = {self.head_dim} is allowed"
            )
        if self.ternary_words > 1 << 17:
            raise ValueError(
                f"ternary_samples = {self.ternary_samples}: head_dim * ternary_samples <= 131072 is allowed with "
                "ternary_draw = iid"
            )

    # The contract's symbols ---------------------------------------------------------------------------------------

    @property
    def W(self) -> int:
        """Weight width, resolved."""
        assert self.weight_bits is not None
        return self.weight_bits

    @property
    def sigma(self) -> int:
        """log2 of the sample budget (floor, for a top-k design's k)."""
        return self.samples.bit_length() - 1

    @property
    def beta(self) -> int:
        """log2 of the ternary budget B."""
        return self.ternary_samples.bit_length() - 1

    @property
    def blocks(self) -> int:
        """Exponents of one query: ternary blocks, else one."""
        if self.scores != "ternary" or self.ternary_block is None:
            return 1
        return self.head_dim // self.ternary_block

    @property
    def block_guard(self) -> int:
        """Guard bits of a block's shifted sum: their rounding errors together stay below half a score unit."""
        return (self.blocks - 1).bit_length()

    @property
    def guard(self) -> int:
        """Guard bits g of the dividing baselines, resolved."""
        return self.sigma if self.guard_bits is None else self.guard_bits

    @property
    def query_frac(self) -> int:
        """Binary point of what multiplies the keys: q_bits - 1, or beta with ternary scores."""
        return self.beta if self.scores == "ternary" else self.q_bits - 1

    @property
    def score_limits(self) -> tuple[int, int]:
        """Least and greatest score code."""
        return -(1 << (self.score_bits - 1)), (1 << (self.score_bits - 1)) - 1

    @property
    def offset_words(self) -> int:
        """Random words of one head step's sampler."""
        if self.method != "santa":
            return 0
        return 1 if self.sampler == "systematic" else self.samples

    @property
    def ternary_words(self) -> int:
        """Random words of one ternary query."""
        if self.scores != "ternary":
            return 0
        return self.head_dim * (self.ternary_samples if self.ternary_draw == "iid" else 1)

    @property
    def table(self) -> NDArray[np.int64]:
        """Weights before the shift, one for each fraction of a score, int64 of shape (2**score_frac,)."""
        return exp2_table(self.score_frac, self.W, self.exp)

    # Widths -------------------------------------------------------------------------------------------------------

    def derived(self) -> dict[str, int]:
        """All derived widths in bits (sign included where signed) and sizes; the only place that computes them."""
        k_max, v_max = (1 << (self.k_bits - 1)) - 1, (1 << (self.v_bits - 1)) - 1
        q_max = self.ternary_samples if self.scores == "ternary" else (1 << (self.q_bits - 1)) - 1
        mass_max = self.max_keys * ((1 << self.W) - 1)
        mass = mass_max.bit_length()
        integer_part = self.score_bits - self.score_frac
        widths = {
            "query_factor": q_max.bit_length() + 1,
            "score_accumulator": (self.head_dim // self.blocks * q_max * k_max).bit_length() + 1,
            "block_score": self.score_bits + self.block_guard,
            "score_sum": self.score_bits + 2 * self.block_guard,
            "score": self.score_bits,
            "score_integer_part": integer_part,
            "weight_shift": integer_part,
            "weight": self.W,
            "mass": mass,
        }
        if self.method == "santa":
            residual_top = 2 * mass_max if self.sampler == "stratified" else mass_max
            widths |= {
                "offset": mass,
                "threshold": mass + self.sigma,
                "residual": max(residual_top.bit_length(), self.W + self.sigma) + 1,
                "count": self.samples.bit_length(),
                "accumulator": (self.samples * v_max).bit_length() + 1,
            }
        else:
            accumulator = (mass_max * v_max).bit_length() + 1
            widths |= {
                "accumulator": accumulator,
                "dividend": max(accumulator + self.guard, mass) + 2,
                "quotient": self.v_bits + self.guard + 1,
            }
        widths |= {
            "output": self.out_bits or (widths["accumulator"] if self.method == "santa" else widths["quotient"]),
            "score_memory_bits": self.max_keys * self.score_bits,
            "table_bits": 0 if self.exp == "mitchell" else (1 << self.score_frac) * self.W,
        }
        return widths

    # Files and text -----------------------------------------------------------------------------------------------

    def layer(self, index: int) -> Design:
        """The design of a layer: itself, whatever the layer (see :class:`Schedule`)."""
        return self

    def with_samples(self, budgets: Sequence[int]) -> Schedule:
        """This design in every layer, each with a budget of its own."""
        return Schedule((self,) * len(budgets)).with_samples(budgets)

    def replace(self, **changes: Any) -> Design:
        """A copy with some fields changed, validated again; a default weight width follows `max_keys`."""
        unknown = sorted(set(changes) - set(FIELDS))
        if unknown:
            raise ValueError(f"design field {unknown[0]!r} is unknown: allowed are {', '.join(FIELDS)}")
        if "max_keys" in changes and self.weight_bits == default_weight_bits(self.max_keys):
            changes = {"weight_bits": None} | changes
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, resolved."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Design:
        """The inverse of :meth:`to_dict`; missing fields take their defaults, unknown ones are a ValueError."""
        return cls().replace(**fields)

    def to_toml(self) -> str:
        """The design as a TOML document, a field a line; fields that are None are left out."""
        return "[design]\n" + "".join(
            f"{name} = {_toml_value(value)}\n" for name, value in self.to_dict().items() if value is not None
        )

    @classmethod
    def from_toml(cls, path: str | Path) -> Design:
        """Read a design from the ``[design]`` table of a TOML file.

        Raises
        ------
        ValueError
            If the file cannot be parsed, has layers (see :meth:`Schedule.from_toml`) or an unknown field.
        """
        document = _read_toml(path)
        if "layers" in document:
            raise ValueError(f"{path}: it is a schedule ([[layers]]); a single design is allowed here")
        return _table_to_design(document.get("design", {}), path)

    def __str__(self) -> str:
        head = self.method if self.method == "dense" else f"{self.method} {self.samples}"
        exponents = {"per_channel": "c", "per_head": "h"}
        text = (
            f"{head} q{self.q_bits} k{self.k_bits}{exponents[self.k_exponents]} "
            f"v{self.v_bits}{exponents[self.v_exponents]} s{self.score_bits}.{self.score_frac} W{self.W}"
        )
        if self.scores == "ternary":
            text += f" ternary {self.ternary_samples} {self.ternary_draw} {self.ternary_offset}"
            text += f" block {self.ternary_block}" if self.ternary_block else ""
        extras = [
            (self.exp != "table", self.exp),
            (self.weight_rounding != "floor", f"weights {self.weight_rounding}"),
            (self.method == "santa" and self.sampler != "systematic", self.sampler),
            ((self.rng, self.rng_bits) != ("threefry", 32), f"{self.rng}{self.rng_bits}"),
            (self.gather != "repeated", self.gather),
            (self.out_bits is not None, f"out {self.out_bits}.{self.out_frac}"),
        ]
        return " ".join([text, *(word for shown, word in extras if shown)])


@dataclass(frozen=True)
class Schedule:
    """A design for each layer, layer 0 first.

    Raises
    ------
    ValueError
        If it is empty, or a layer beyond its end is asked for.
    """

    designs: tuple[Design, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "designs", tuple(self.designs))
        if not self.designs:
            raise ValueError("designs = (): at least one layer is allowed")

    def __len__(self) -> int:
        return len(self.designs)

    def __str__(self) -> str:
        runs: list[tuple[int, int, Design]] = []
        for i, design in enumerate(self.designs):
            if runs and runs[-1][2] == design:
                runs[-1] = (runs[-1][0], i, design)
            else:
                runs.append((i, i, design))
        return "; ".join(f"layers {a}-{b}: {d}" if a != b else f"layer {a}: {d}" for a, b, d in runs)

    def layer(self, index: int) -> Design:
        """The design of layer `index`."""
        if not 0 <= index < len(self.designs):
            raise ValueError(f"layer = {index}: the schedule has layers 0 to {len(self.designs) - 1}")
        return self.designs[index]

    def replace(self, **changes: Any) -> Schedule:
        """A copy with some fields changed in every layer."""
        return Schedule(tuple(design.replace(**changes) for design in self.designs))

    def with_samples(self, budgets: Sequence[int]) -> Schedule:
        """A copy with a budget for each layer, layer 0 first."""
        if len(budgets) != len(self):
            raise ValueError(f"schedule has {len(budgets)} layers: the design's {len(self)} are allowed")
        designs = []
        for layer, (design, budget) in enumerate(zip(self.designs, budgets, strict=True)):
            try:
                designs.append(design.replace(samples=budget))
            except ValueError as error:
                raise ValueError(f"layer {layer} of the schedule: {error}") from error
        return Schedule(tuple(designs))

    def to_dict(self) -> dict[str, Any]:
        """``{"layers": [fields of layer 0, ...]}``."""
        return {"layers": [design.to_dict() for design in self.designs]}

    def to_toml(self) -> str:
        """A TOML document: the first layer's design in full, then what each run of equal layers changes."""
        base = self.designs[0].to_dict()
        text = self.designs[0].to_toml()
        for design in dict.fromkeys(self.designs):
            layers = [i for i, d in enumerate(self.designs) if d == design]
            text += f"\n[[layers]]\nlayers = {layers}\n"
            text += "".join(
                f"{name} = {_toml_value(value)}\n"
                for name, value in design.to_dict().items()
                if value != base[name] and value is not None
            )
        return text

    @classmethod
    def from_toml(cls, path: str | Path) -> Schedule:
        """Read a schedule: a ``[design]`` table with what layers share, and ``[[layers]]`` tables.

        Each ``[[layers]]`` table names its layers (``layers = [0, 1, 2]``) and the fields it changes. Every layer
        from 0 to the last one named must be named exactly once.

        Raises
        ------
        ValueError
            If a layer is missing or named twice, or a field is unknown.
        """
        document = _read_toml(path)
        base = document.get("design", {})
        by_layer: dict[int, Design] = {}
        for table in document.get("layers", []):
            table = dict(table)
            layers = table.pop("layers", None)
            if not isinstance(layers, list) or not all(type(i) is int and i >= 0 for i in layers):
                raise ValueError(f"{path}: layers = {layers!r}: a list of layer numbers is allowed")
            design = _table_to_design(base | table, path)
            for i in layers:
                if i in by_layer:
                    raise ValueError(f"{path}: layer {i} is named twice: once is allowed")
                by_layer[i] = design
        missing = next((i for i in range(max(by_layer, default=0) + 1) if i not in by_layer), None)
        if missing is not None:
            raise ValueError(f"{path}: the schedule misses layer {missing}: every layer must be named once")
        return cls(tuple(by_layer[i] for i in sorted(by_layer)))


DesignLike = Design | Schedule

FIELDS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(Design))
"""Names of all design fields, in order."""

_OPTIONAL = {"ternary_block", "weight_bits", "out_bits", "out_frac", "guard_bits"}
_NOT_REGISTERS = {"score_memory_bits", "table_bits"}


def default_weight_bits(max_keys: int) -> int:
    """Weight width that keeps a row of `max_keys` keys beside one heavy key: ceil(log2(max_keys)) + 4, 16 to 32."""
    return min(32, max(16, (max_keys - 1).bit_length() + 4))


def field_type(name: str) -> type:
    """``int`` or ``str``: the type of a design field, for command lines and files."""
    return int if name in _RANGES else str


def load_design(path: str | Path) -> DesignLike:
    """A Design, or a Schedule if the TOML file has ``[[layers]]``."""
    return Schedule.from_toml(path) if "layers" in _read_toml(path) else Design.from_toml(path)


# Budgets alone ------------------------------------------------------------------------------------------------------


def load_budgets(text: str) -> tuple[int, ...]:
    """A sample budget for each layer, layer 0 first.

    Parameters
    ----------
    text : str
        ``16x10,64x20`` (16 in each of ten layers, then 64 in twenty), or the name of a ``.toml`` file: one with
        ``samples = [16, 64, ...]`` in its ``[schedule]`` table, or a schedule of designs, whose budgets are taken.

    Raises
    ------
    ValueError
        If the text or file cannot be read, is empty, or has a budget or a number of layers below 1.

    Examples
    --------
    >>> load_budgets("16x2,64")
    (16, 16, 64)
    """
    if not text.endswith(".toml"):
        return _parse_budgets(text)
    document = _parse_toml(text)
    if "schedule" not in document:
        return tuple(design.samples for design in Schedule.from_toml(text).designs)
    if set(document) != {"schedule"} or not isinstance(document["schedule"], dict):
        raise ValueError(f"{text}: [schedule] alone, or [design] and [[layers]] are allowed")
    budgets = document["schedule"].get("samples")
    if set(document["schedule"]) != {"samples"} or not isinstance(budgets, list) or not budgets:
        raise ValueError(f"{text}: [schedule] holds {document['schedule']}: samples = [budgets] is allowed")
    for budget in budgets:
        if type(budget) is not int or budget < 1:
            raise ValueError(f"{text}: samples has {budget!r}: whole numbers from 1 up are allowed")
    return tuple(budgets)


def _parse_budgets(text: str) -> tuple[int, ...]:
    budgets: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([1-9][0-9]{0,8})(?:x([1-9][0-9]{0,3}))?\s*", part, re.ASCII)
        if found is None:
            raise ValueError(f"schedule {text!r}: {part!r} is no budget; 16x10,64x20 or a .toml file is allowed")
        budgets += [int(found[1])] * int(found[2] or 1)
    return tuple(budgets)


def budgets_text(budgets: Sequence[int]) -> str:
    """The inverse of :func:`load_budgets`: ``16x10,64x20``."""
    runs = [(budget, len(list(run))) for budget, run in itertools.groupby(budgets)]
    return ",".join(f"{budget}x{count}" if count > 1 else str(budget) for budget, count in runs)


def budgets_toml(budgets: Sequence[int]) -> str:
    """The budgets as a TOML document that :func:`load_budgets` takes."""
    return f"[schedule]\nsamples = {list(budgets)}\n"


@lru_cache(maxsize=256)
def exp2_table(score_frac: int, weight_bits: int, exp: str = "table") -> NDArray[np.int64]:
    """Weights before the shift: min(round(2**(W - 1 + f / 2**F)), 2**W - 1) for f = 0 ... 2**F - 1.

    Correctly rounded: the powers are irrational but for f = 0, so a 60-digit decimal settles every rounding.
    ``exp = "mitchell"`` is 2**(W - 1) * (1 + f / 2**F) instead, after Mitchell (1962).

    Returns
    -------
    numpy.ndarray
        int64, shape (2**score_frac,), read only.
    """
    steps, top = 1 << score_frac, (1 << weight_bits) - 1
    if exp == "mitchell":
        entries = [(steps + f) << (weight_bits - 1 - score_frac) for f in range(steps)]
    else:
        with localcontext() as context:
            context.prec = 60
            ln2 = Decimal(2).ln()
            scale = Decimal(1 << (weight_bits - 1))
            entries = [min(int((scale * (ln2 * f / steps).exp()).to_integral_value()), top) for f in range(steps)]
    table = np.array(entries, dtype=np.int64)
    table.setflags(write=False)
    return table


def _toml_value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _read_toml(path: str | Path) -> dict[str, Any]:
    """A design file: a ``[design]`` table, ``[[layers]]`` tables, nothing else."""
    document = _parse_toml(path)
    for name, value in document.items():
        if name not in ("design", "layers"):
            hints = {"schedule": " (--schedule takes it)"} | dict.fromkeys(FIELDS, " (fields go into [design])")
            where = hints.get(name, "")
            raise ValueError(f"{path}: {name!r} is unknown here: [design] and [[layers]] are allowed{where}")
        tables = [value] if name == "design" else value
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ValueError(
                f"{path}: {name} = {value!r}: {'[design]' if name == 'design' else '[[layers]]'} is allowed"
            )
    if not document:
        raise ValueError(f"{path}: the file is empty: [design] and [[layers]] are allowed")
    return document


def _parse_toml(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"design file {path}: {error}") from error


def _table_to_design(fields: Mapping[str, Any], path: str | Path) -> Design:
    try:
        return Design.from_dict(fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
