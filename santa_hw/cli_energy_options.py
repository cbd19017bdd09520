"""Options of `santa-hw energy`: which were given, which have an effect, and what they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from santa_hw.cli_fields import comma_list, flag
from santa_hw.console import check_files

if TYPE_CHECKING:
    from santa_hw.design import Design
    from santa_hw.energy import Memory, Table
    from santa_hw.events import Shape

ALL = "all"
# What makes no sense beside a file, whose rows say it themselves, and what makes none without one.
_WITHOUT_FROM = (
    "keys", "head_dim", "batch", "samples", "top_k", "methods", "design", "bits",
    "ternary_samples", "unique_rows", "group_rows", "features", "additions",
)  # fmt: skip
_WITH_FROM = ("target",)
_ROWS_SHAPE = ("heads", "kv_heads", "layers")
_SAMPLING = ("santa", "santa-ternary", "iid")
_FIXED_POINT = ("dense", "top-k", *_SAMPLING)
# The methods that an option has an effect with, where it is not all of them.
_METHOD_OPTIONS: dict[str, tuple[str, ...]] = {
    # Dense takes its guard bits from the budget.
    "samples": ("dense", *_SAMPLING),
    "top_k": ("top-k",),
    "ternary_samples": ("santa-ternary",),
    "bits": _FIXED_POINT,
    "design": _FIXED_POINT,
    "unique_rows": _SAMPLING,
    "group_rows": ("top-k", *_SAMPLING),
    "features": ("santa-ternary",),
    "additions": ("santa-ternary",),
    "score_memory": ("dense", *_SAMPLING),
}
# What the library calls an option's argument, where it is not the option's own name.
_ARGUMENTS = {
    "method": "methods", "burst_bytes": "burst", "interleave_bytes": "interleave",
    "score_memory_bytes": "score_memory", "clock_ghz": "clock", "bandwidth_gb_s": "bandwidth",
    "latency_ns": "latency", "q_bits": "bits", "k_bits": "bits", "v_bits": "bits",
}  # fmt: skip


def _given(ctx: typer.Context) -> set[str]:
    """Names of the options on the command line."""
    return {name for name in ctx.params if ctx.get_parameter_source(name).name == "COMMANDLINE"}  # type: ignore[union-attr]


def _option(name: str) -> str:
    return {"from_file": "--from", "json_file": "--json"}.get(name) or flag(name)


@contextmanager
def naming_options(ctx: typer.Context, **also: str) -> Iterator[None]:
    """Errors about an argument name the option that it came from; `also`: options for arguments that have several."""
    try:
        yield
    except ValueError as error:
        found = re.match(r"(\w+) = ([^:;,]*)", str(error))
        name = None if found is None else also.get(found[1]) or _ARGUMENTS.get(found[1], found[1])
        if found is None or name not in ctx.params or (name == "bits" and ctx.params["bits"] is None):
            from santa_hw.design import FIELDS

            if found is None or found[1] not in FIELDS or ctx.params["design"] is None:
                raise
            raise ValueError(f"{ctx.params['design']}: {error}") from error
        default = "" if name in _given(ctx) else " (its default)"
        if name == "samples" and default and ctx.params["design"] is not None:
            default = f" (of {ctx.params['design']})"
        rest = str(error)[found.end() :]
        raise ValueError(f"{_option(name)} {found[2].rstrip()}{default}{rest}") from error


def check_given(ctx: typer.Context, from_file: Path | None) -> None:
    """Refuse options that have no effect with, or without, a file of accuracy, and two that name the same."""
    given = _given(ctx)
    idle = _WITHOUT_FROM if from_file is not None else _WITH_FROM
    for name in idle:
        if name in given:
            how = "with --from, whose rows say it" if from_file is not None else "without --from"
            raise ValueError(f"{_option(name)} has no effect {how}: leave it out")
    if from_file is not None and given & set(_ROWS_SHAPE) and not set(_ROWS_SHAPE) <= given:
        raise ValueError("--heads, --kv-heads and --layers with --from: all of them are allowed, or none")
    for name in ("heads", "kv_heads", "head_dim", *(("layers",) if from_file is not None else ())):
        if name in given and "shape" in given:
            raise ValueError(f"--shape and {_option(name)}: one of them is allowed")


def check_methods(ctx: typer.Context, methods: Sequence[str]) -> None:
    """Refuse options that none of the methods uses."""
    given = _given(ctx)
    for name, users in _METHOD_OPTIONS.items():
        if name == "samples" and "top_k" not in given:
            users = (*users, "top-k")
        if name in given and not set(users) & set(methods):
            raise ValueError(
                f"{_option(name)} has no effect with --methods {','.join(methods)}: leave it out, "
                f"or choose {', '.join(users)}"
            )


def check_own_files(plot: Path | None, json_file: Path | None, from_file: Path | None, design: Path | None) -> None:
    """Refuse files that cannot be read, written or replaced, before anything is computed."""
    if plot is not None:
        from santa_hw.report import check_suffix

        check_suffix(plot)
    if from_file is not None and from_file.is_dir():
        raise ValueError(f"--from {from_file}: it is a folder; a file is allowed")
    check_files({"--plot": plot, "--json": json_file}, {"--from": from_file, "--design": design})
    if json_file is not None and json_file.exists():
        _check_replaceable(json_file)


def _check_replaceable(file: Path) -> None:
    """A file is replaced only by its like: what accuracy computed in hours is not."""
    allowed = "a new name, or a file that santa-hw energy wrote, is allowed"
    try:
        rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except ValueError:
        rows = None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "total_pj" in row for row in rows):
        raise ValueError(f"--json {file}: it is there already and holds no rows of cost; {allowed}")


def _parts(option: str, text: str, everything: Sequence[str]) -> list[str]:
    parts = [part for part in comma_list(text) if part]
    if not parts:
        raise ValueError(f"--{option} {text!r}: one name at least is allowed")
    return list(everything) if parts == [ALL] else parts


def tables_of(text: str) -> list[Table]:
    """The energy tables that a comma list names."""
    from santa_hw.energy import load_table, names

    return [load_table(name) for name in _parts("table", text, names("logic"))]


def memories_of(text: str) -> list[Memory]:
    """The memories that a comma list names."""
    from santa_hw.energy import load_memory, names

    return [load_memory(name) for name in _parts("memory", text, names("memory"))]


def methods_of(text: str) -> list[str]:
    """The methods that a comma list names."""
    from santa_hw.events import METHODS as KNOWN

    return _parts("methods", text, KNOWN)


def shape_of(
    name: str | None, heads: int | None, kv_heads: int | None, head_dim: int | None, layers: int | None, batch: int
) -> Shape:
    """The known shape of that name, or one of the given numbers."""
    from dataclasses import replace

    from santa_hw.events import Shape, shape_named

    if name is not None:
        known = shape_named(name)
        return replace(known, batch=batch, layers=known.layers if layers is None else layers)
    heads = 32 if heads is None else heads
    return Shape(
        heads,
        min(8, heads) if kv_heads is None else kv_heads,
        128 if head_dim is None else head_dim,
        1 if layers is None else layers,
        batch,
    )


def design_of(file: Path | None, keys: int, bits: int | None, ternary_samples: int | None) -> Design:
    """The file's design, or the default one, with what the other options change and room for the keys."""
    from santa_hw.design import Design

    base = Design() if file is None else Design.from_toml(file)
    changes: dict[str, Any] = {}
    if keys > base.max_keys or file is None:
        changes["max_keys"] = max(1, keys)
    if bits is not None:
        changes |= dict.fromkeys(("q_bits", "k_bits", "v_bits"), bits)
    if ternary_samples is not None:
        changes["ternary_samples"] = ternary_samples
    return base.replace(**changes)


def stated_fields(file: Path | None) -> dict[str, Any]:
    """The fields that a design file gives, defaults left out."""
    if file is None:
        return {}
    import tomllib

    from santa_hw.design import Design

    design = Design.from_toml(file)
    return {
        name: getattr(design, name) for name in tomllib.loads(file.read_text(encoding="utf-8-sig")).get("design", {})
    }
