"""Options for the fields of a design, and what their texts mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from santa_hw.design import DesignLike

FIELD_HELP = {
    "max_keys": "most keys a decode step may see",
    "q_bits": "bits of a query code",
    "k_bits": "bits of a key code",
    "v_bits": "bits of a value code",
    "k_exponents": "per_channel or per_head",
    "v_exponents": "per_channel or per_head",
    "e_min": "least exponent",
    "e_max": "greatest exponent",
    "score_bits": "bits of a score",
    "score_frac": "fraction bits F of a score",
    "scores": "dense (multiplies) or ternary (additions only)",
    "ternary_samples": "ternary query vectors B, a power of two",
    "ternary_draw": "stratified or iid",
    "ternary_offset": "shared by a group of heads, or independent",
    "ternary_block": "features that share an exponent, or none for all",
    "weight_bits": "bits W of a weight, or none for what max_keys asks for",
    "exp": "table or mitchell",
    "weight_rounding": "floor or half_up",
    "sampler": "systematic, stratified or iid",
    "rng": "threefry or lfsr",
    "rng_bits": "bits R of a random word",
    "gather": "repeated or shift_add",
    "out_bits": "bits of the output, or none for all",
    "out_frac": "fraction bits of the output, with out-bits",
    "guard_bits": "guard bits of top-k and dense, or none for log2 of the budget",
}
OWN_HELP = {
    "method": "santa, top-k or dense",
    "samples": "budget S of santa, or k of top-k",
    "head_dim": "head dimension",
}
TEAM_HELP = {
    "block": "consecutive keys that are grouped into teams",
    "team": "average keys of a team, a divisor of block",
    "sharing": "own, shared or reuse: what the heads of a group do",
    "weights": "inverse, tempered or clipped: what a drawn team counts",
    "exponent": "exponent of tempered weights",
    "clip": "limit of clipped weights",
    "sinks": "first keys, always read",
}
_DESIGN, _TEAMS = "Design fields", "Teams (santapp, top-teams, top-means, top-bounds)"


def with_fields(fields: Mapping[str, str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a design; their values are in the context's `params`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    str | None,
                    typer.Option(help=text, rich_help_panel=_TEAMS if name in TEAM_HELP else _DESIGN, metavar="VALUE"),
                ],
            )
            for name, text in fields.items()
        ]
        command.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
        return command

    return decorate


def base_and_axes(
    fields: Mapping[str, str | None], bits: str | None, file: Path | None
) -> tuple[DesignLike, list[list[dict[str, Any]]]]:
    """The design that a file or the defaults give, and the changes that comma lists make to it."""
    from santa_hw.design import Design, load_design

    axes = changes(fields, field_value)
    if bits is not None:
        operands = ("q_bits", "k_bits", "v_bits")
        clash = [name for name in operands if fields.get(name) is not None]
        if clash:
            raise ValueError(f"--bits and {flag(clash[0])}: one of them is allowed")
        axes.append([dict.fromkeys(operands, number) for number in numbers("bits", bits)])
    return (load_design(file) if file else Design()), axes


def changes(fields: Mapping[str, str | None], value: Callable[[str, str], Any]) -> list[list[dict[str, Any]]]:
    """The changes that each field's comma list makes."""
    return [
        [{name: value(name, part)} for part in comma_list(text)] for name, text in fields.items() if text is not None
    ]


def comma_list(text: str | None) -> list[str]:
    """The parts of a comma list, each once."""
    return [] if text is None else list(dict.fromkeys(part.strip() for part in text.split(",")))


def numbers(name: str, text: str | None) -> list[int]:
    """The whole numbers of a comma list, each once."""
    return [_number(name, part) for part in comma_list(text)]


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{flag(name)} {text!r}: a whole number is allowed") from None


def field_value(name: str, text: str) -> Any:
    """A design field's value: text as it is, or a whole number, or none."""
    from santa_hw.design import field_type

    if field_type(name) is str:
        return text
    return None if text == "none" else _number(name, text)


def team_value(name: str, text: str) -> Any:
    """A team design field's value: text as it is, a whole number or a number."""
    from santa_hw.team_design import TEAM_FIELDS

    if TEAM_FIELDS[name] is not float:
        return text if TEAM_FIELDS[name] is str else _number(name, text)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{flag(name)} {text!r}: a number is allowed") from None


def flag(name: str) -> str:
    """The option of a parameter, on the command line."""
    return "--" + name.replace("_", "-")
