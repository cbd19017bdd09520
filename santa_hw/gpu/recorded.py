"""Small cases with what a GPU made of them, kept in files: where there is no GPU, the Python model is held to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from santa_hw.datapath import Codes, Draw
from santa_hw.design import Design
from santa_hw.gpu.cases import Case, FixedOperands, fixed_operands
from santa_hw.gpu.comparison import run_fixed
from santa_hw.gpu.environment import environment

RECORDED = {
    "dense": Case(4, 2, 64, (0, 1, 54, 97)),
    "half-up": Case(3, 1, 80, (65, 33), "half_up", 17),
    "mitchell": Case(1, 2, 96, (50,), "mitchell"),
    "output-format": Case(2, 1, 64, (90, 17), "output format", 16),
    "ternary": Case(7, 1, 128, (40, 64), "ternary independent"),
}
"""Small cases whose GPU output is kept, so that the Python model is compared with it where there is no GPU."""


def record(folder: Path, seed: int) -> list[Path]:
    """Write ``gpu-<name>.npz`` for each case of :data:`RECORDED`: the operands, and what the GPU made of them."""
    folder.mkdir(parents=True, exist_ok=True)
    made = environment()
    paths = []
    for name, case in RECORDED.items():
        operands = fixed_operands(case, seed)
        found = run_fixed(operands)
        codes, draw = operands.codes, operands.draw
        facts = {
            "command": f"santa-hw gpu validate --record DIR --seed {seed}",
            "environment": made,
            "design": operands.design.to_dict(),
            "seed": draw.seed,
            "layer": draw.layer,
            "lengths": list(operands.lengths),
        }
        inputs: dict[str, np.ndarray] = {"q": codes.q, "exponents": codes.exponents, "k": codes.k, "v": codes.v}
        inputs |= {"v_exponents": codes.v_exponents, "sequence": draw.sequence, "position": draw.position}
        paths.append(folder / f"gpu-{name}.npz")
        arrays: dict[str, Any] = {f"gpu_{key}": array for key, array in found.items()}
        for key, array in inputs.items():
            arrays[f"in_{key}"] = array.astype(np.int8) if key in ("q", "k", "v") else array
        np.savez_compressed(paths[-1], facts=np.array(json.dumps(facts)), **arrays)
    return paths


def read_recorded(path: Path) -> tuple[FixedOperands, dict[str, np.ndarray]]:
    """The operands of a recorded case, and what the GPU made of them."""
    with np.load(path, allow_pickle=False) as data:
        facts = json.loads(str(data["facts"]))
        given = {name.removeprefix("in_"): data[name] for name in data.files if name.startswith("in_")}
        found = {name.removeprefix("gpu_"): data[name] for name in data.files if name.startswith("gpu_")}
    codes = Codes(
        q=given["q"].astype(np.int32),
        exponents=given["exponents"],
        k=given["k"].astype(np.int16),
        v=given["v"].astype(np.int16),
        v_exponents=given["v_exponents"],
        saturations={"q": 0, "k": 0, "v": 0},
    )
    draw = Draw(facts["seed"], facts["layer"], given["sequence"], given["position"])
    return FixedOperands(Design.from_dict(facts["design"]), codes, draw, tuple(facts["lengths"])), found
