"""Operand codes of a model's decode steps, as attention receives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from santa_hw.capture import Capture
from santa_hw.datapath import Codes, encode
from santa_hw.design import Design
from santa_hw.models.attention import Call, attention, dense
from santa_hw.models.calibration import Calibration
from santa_hw.models.loading import LoadedModel
from santa_hw.models.methods import as_array


def capture(
    loaded: LoadedModel,
    design: Design,
    calibration: Calibration,
    tokens: NDArray[np.int64],
    *,
    layers: Sequence[int],
    positions: Sequence[int],
    seed: int = 0,
    sequence: int = 0,
) -> Capture:
    """Run the float model over a text and keep the codes of q, K and V in some layers.

    Parameters
    ----------
    loaded : LoadedModel
    design : Design
        Its head dimension becomes the model's.
    calibration : Calibration
        Of this model, on another text.
    tokens : numpy.ndarray
        int64 (T,).
    layers, positions : sequence of int
        Which to keep: each layer and each position once, in ascending order.
    seed, sequence : int
        Of the random words that the steps will draw.

    Raises
    ------
    ValueError
        For layers or positions that are not there, another model's calibration, a text that is the calibration's, or
        more tokens than the design's `max_keys`.
    """
    calibration.require(loaded.identity)
    calibration.require_disjoint([tokens])
    _check("layers", layers, loaded.layers)
    _check("positions", positions, len(tokens))
    if len(tokens) > design.max_keys:
        raise ValueError(f"text has {len(tokens)} tokens: at most max_keys = {design.max_keys} are allowed")
    design = design.replace(head_dim=loaded.head_dim)
    exponents = calibration.exponents(design)
    found: dict[int, Codes] = {}

    def observe(call: Call) -> torch.Tensor:
        if call.layer in layers:
            q, k, v = as_array(call.q[:, :, list(positions)]), as_array(call.k), as_array(call.v)
            found[call.layer] = encode(design, q, k, v, exponents[call.layer], call.scale)
        return dense(call)

    with torch.inference_mode(), attention(loaded, observe):
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64))[None].to(loaded.model.device)
        loaded.model.base_model(input_ids=ids, use_cache=False)
    codes = [found[layer] for layer in layers]
    stored = [np.min_scalar_type(-(1 << (bits - 1))) for bits in (design.q_bits, design.k_bits, design.v_bits)]
    return Capture(
        identity=loaded.identity,
        design=design,
        seed=seed,
        sequence=sequence,
        layers=np.asarray(layers, dtype=np.int64),
        positions=np.asarray(positions, dtype=np.int64),
        q=np.stack([c.q[0] for c in codes]).astype(stored[0]),
        exponents=np.stack([c.exponents[0] for c in codes]),
        k=np.stack([c.k[0] for c in codes]).astype(stored[1]),
        v=np.stack([c.v[0] for c in codes]).astype(stored[2]),
        v_exponents=np.stack([c.v_exponents for c in codes]),
    )


def _check(name: str, given: Sequence[int], count: int) -> None:
    if not given or list(given) != sorted(set(given)) or given[0] < 0 or given[-1] >= count:
        raise ValueError(f"{name} = {', '.join(map(str, given)) or 'none'}: 0 to {count - 1}, ascending, is allowed")
