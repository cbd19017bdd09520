"""The SystemVerilog package of a design: every field and derived width that the RTL uses, and the exponential's table.

``python -m santa_hw.rtl`` writes the checked-in package again, that of the default design.
"""

from __future__ import annotations

from santa_hw.design import Design

FILE = "santa_pkg.sv"
MAX_TABLE_FRAC = 10
"""Largest `score_frac` whose table is written out: 2**10 entries."""

_INTEGERS = (
    "samples", "head_dim", "max_keys", "q_bits", "k_bits", "v_bits", "score_bits", "score_frac", "ternary_samples",
    "rng_bits",
)  # fmt: skip
_WIDTHS = (
    "query_factor", "score_accumulator", "score_integer_part", "weight", "mass", "offset", "residual", "count",
    "accumulator", "output",
)  # fmt: skip


def camel(name: str) -> str:
    """``score_frac`` becomes ``ScoreFrac``."""
    return "".join(part.capitalize() for part in name.split("_"))


def key_bits(design: Design) -> int:
    """Bits of a key's index, 0 to max_keys - 1."""
    return max(1, (design.max_keys - 1).bit_length())


def keys_bits(design: Design) -> int:
    """Bits of a number of keys, 0 to max_keys."""
    return design.max_keys.bit_length()


def constants(design: Design) -> dict[str, int]:
    """The package's integer constants by their SystemVerilog names."""
    derived = design.derived()
    found = {camel(name): int(getattr(design, name)) for name in _INTEGERS}
    found |= {"Sigma": design.sigma, "Beta": design.beta}
    found |= {f"{camel(name)}Bits": derived[name] for name in _WIDTHS if name in derived}
    found |= {"KeyBits": key_bits(design), "KeysBits": keys_bits(design)}
    found |= {
        "Mitchell": int(design.exp == "mitchell"),
        "WeightHalfUp": int(design.weight_rounding == "half_up"),
        "Ternary": int(design.scores == "ternary"),
        "TernaryIid": int(design.ternary_draw == "iid"),
        "ShiftAdd": int(design.gather == "shift_add"),
        "CommonOutput": int(design.out_bits is not None),
    }
    return found


def package(design: Design) -> str:
    """The text of ``santa_pkg.sv`` for a design.

    Raises
    ------
    ValueError
        If the exponential's table would have more than 2**10 entries.

    Examples
    --------
    >>> print(package(Design()).splitlines()[1])
    // Design: santa 64 q8 k8c v8c s16.5 W16
    """
    lines = [
        "// Generated from a design point by santa_hw.rtl.package: do not edit.",
        f"// Design: {design}",
        "// Widths in bits; derived widths are those of santa_hw.design.Design.derived().",
        "",
        "package santa_pkg;",
        "",
        "  /* verilator lint_off UNUSEDPARAM */",
    ]
    lines += [f"  localparam int {name} = {value};" for name, value in constants(design).items()]
    lines += ["  /* verilator lint_on UNUSEDPARAM */", "", *_table(design), "", "endpackage : santa_pkg", ""]
    return "\n".join(lines)


def _table(design: Design) -> list[str]:
    """A function, not an array: Icarus 11 knows no array parameters, and a case is a ROM to a synthesiser."""
    frac, bits = design.score_frac, design.W
    index = max(1, frac)
    entries = []
    if design.exp == "table":
        if frac > MAX_TABLE_FRAC:
            raise ValueError(f"score_frac = {frac}: at most {MAX_TABLE_FRAC} is allowed in RTL with exp = table")
        entries = [f"      {index}'d{f}: exp2_table = {bits}'d{int(w)};" for f, w in enumerate(design.table)]
    return [
        "  // Weight before the shift: min(round(2^(WeightBits - 1 + f / 2^ScoreFrac)), 2^WeightBits - 1).",
        "  /* verilator lint_off UNUSEDSIGNAL */",
        f"  function automatic logic [{bits - 1}:0] exp2_table(input logic [{index - 1}:0] f);",
        "    case (f)",
        *entries,
        f"      default: exp2_table = {bits}'d0;",
        "    endcase",
        "  endfunction",
        "  /* verilator lint_on UNUSEDSIGNAL */",
    ]
