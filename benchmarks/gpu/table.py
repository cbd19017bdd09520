"""The tables of docs/reference/gpu.md, from what `santa-hw gpu bench --json` and `validate --json` wrote.

Usage: python benchmarks/gpu/table.py bench.json [--eager]
       python benchmarks/gpu/table.py --bias validate.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from santa_hw.gpu.bench import OURS


def speed(document: dict[str, Any], eager: bool) -> str:
    """Microseconds of each method and shape, with the speed over the best dense backend where it is a sampled one."""
    rows = document["measurements"]
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    found = {(row["method"], row["shape"]): row for row in rows}
    lines = [_line(["method", *shapes]), _line(["---"] * (len(shapes) + 1))]
    for method in methods:
        cells = []
        for shape in shapes:
            row = found[method, shape]
            time = row["eager_us" if eager else "graph_us"]
            over = f" ({row['over_dense']:.2f})" if not eager and method in OURS and row["over_dense"] else ""
            cells.append("–" if time is None else f"{time:.1f}{over}")
        lines.append(_line([method, *cells]))
    if not eager:
        for method in (method for method in OURS if method in methods):
            cells = [_percent(found[method, shape]["floor_share"]) for shape in shapes]
            lines.append(_line([f"{method}, share of its floor", *cells]))
            cells = [_terabytes(found[method, shape]["bytes_per_second"]) for shape in shapes]
            lines.append(_line([f"{method}, TB/s", *cells]))
        for method in (method for method in methods if method in OURS and method.startswith("fixed")):
            if any(row["over_fp8"] for row in rows):
                cells = [_number(found[method, shape]["over_fp8"]) for shape in shapes]
                lines.append(_line([f"{method} over flashinfer-fp8", *cells]))
    environment = ", ".join(f"{name} {value}" for name, value in document["environment"].items())
    notes = dict.fromkeys(f"{row['method']}: {row['note']}" for row in rows if row["note"])
    return "\n".join([*lines, "", f"({environment}; {'; '.join(notes)})"])


def bias(document: dict[str, Any]) -> str:
    """Relative error of the mean over M seeds, of `sys` and `prop`."""
    checks = [check for check in document["checks"] if check["name"] == "sys_is_unbiased"]
    seeds = checks[0]["measured"]["seeds"]
    lines = [_line(["shape", "method", *(f"M = {m}" for m in seeds), "slope"]), _line(["---"] * (len(seeds) + 3))]
    for check in checks:
        measured = check["measured"]
        for method, errors in measured["relative error of the mean"].items():
            slope = measured["slope"][method]
            lines.append(_line([check["shape"], method, *(f"{error:.3g}" for error in errors), f"{slope:.2f}"]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:.2f}"


def _percent(x: float | None) -> str:
    return "–" if x is None else f"{100 * x:.0f} %"


def _terabytes(x: float | None) -> str:
    return "–" if x is None else f"{x / 1e12:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="JSON of bench, or of validate with --bias")
    parser.add_argument("--bias", action="store_true", help="table of the mean's error over seeds")
    parser.add_argument("--eager", action="store_true", help="times with a cold L2, without a graph")
    options = parser.parse_args()
    document = json.loads(options.file.read_text(encoding="utf-8"))
    print(bias(document) if options.bias else speed(document, options.eager))


if __name__ == "__main__":
    main()
