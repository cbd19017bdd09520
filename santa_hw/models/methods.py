"""Hooks that compute attention: the fixed-point datapath, the float64 reference methods, and SANTA++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from santa_hw.datapath import Draw, attend
from santa_hw.design import Design, DesignLike, Schedule
from santa_hw.events import Tally, TeamTally, total
from santa_hw.models.attention import Call
from santa_hw.models.calibration import Calibration
from santa_hw.models.loading import LoadedModel
from santa_hw.reference import METHODS, TEAM_METHODS, Teams, form_teams
from santa_hw.rng import STREAM_BITS
from santa_hw.team_design import TeamDesign


class FixedPoint:
    """Attention hook: the bit-accurate datapath. Made by :func:`fixed_point`.

    It counts what its calls did, a layer at a time; a prefill call of T queries counts as T decode steps.
    """

    def __init__(self, loaded: LoadedModel, design: DesignLike, calibration: Calibration, *, seed: int = 0) -> None:
        calibration.require(loaded.identity)
        calibration.require_shape(loaded.layers, loaded.kv_heads, loaded.head_dim)
        if loaded.layers * loaded.heads > 1 << STREAM_BITS:
            raise ValueError(
                f"model has {loaded.layers} layers of {loaded.heads} heads: "
                f"{1 << STREAM_BITS} random streams are allowed (numeric contract 3.9)"
            )
        if isinstance(design, Schedule) and len(design) != loaded.layers:
            raise ValueError(f"schedule has {len(design)} layers: the model's {loaded.layers} are allowed")
        self.seed = seed
        self._designs = [_fit(design.layer(layer), loaded, layer) for layer in range(loaded.layers)]
        self._exponents = calibration.exponents(design)
        if loaded.model.device.type == "cuda":
            from santa_hw.gpu import check_design

            for own in self._designs:
                check_design(own)
        self.reset()

    def __call__(self, call: Call) -> torch.Tensor:
        if call.q.device.type == "cuda":
            return self._on_gpu(call)
        draw = Draw(self.seed, call.layer, as_array(call.sequence), as_array(call.position))
        result = attend(
            self._designs[call.layer],
            as_array(call.q),
            as_array(call.k),
            as_array(call.v),
            exponents=self._exponents[call.layer],
            draw=draw,
            scale=call.scale,
            lengths=as_array(call.lengths),
            mask=None if call.mask is None else as_array(call.mask),
        )
        self._tallies[call.layer] += result.tally
        return torch.from_numpy(result.output)

    def _on_gpu(self, call: Call) -> torch.Tensor:
        """The same through the `fixed` kernels: equal codes give equal bits."""
        from santa_hw.gpu.attention import attend as attend_on_gpu

        if call.mask is not None:
            raise ValueError(
                f"layer {call.layer} has an attention mask (padding, a sliding window): keys [0, length) are allowed "
                f"on device {call.q.device}; the CPU takes masks"
            )
        output, tally = attend_on_gpu(
            self._designs[call.layer],
            call.q,
            call.k,
            call.v,
            exponents=self._exponents[call.layer],
            seed=self.seed,
            layer=call.layer,
            sequence=call.sequence,
            position=call.position,
            lengths=call.lengths,
            scale=call.scale,
        )
        self._tallies[call.layer] += tally
        return output

    @property
    def tally(self) -> Tally:
        """Of all calls since the last reset, all layers."""
        return total(self._tallies)

    @property
    def layer_tallies(self) -> tuple[Tally, ...]:
        """The same, by layer."""
        return tuple(self._tallies)

    def reset(self) -> None:
        """Count from zero again."""
        self._tallies = [Tally() for _ in self._designs]


def fixed_point(loaded: LoadedModel, design: DesignLike, calibration: Calibration, *, seed: int = 0) -> FixedPoint:
    """A hook that runs a model's attention through the fixed-point datapath.

    A model on a CUDA device stays there: the `fixed` kernels of :mod:`santa_hw.gpu` give the same bits for the same
    codes. A design that they do not build is refused, never run elsewhere.

    Parameters
    ----------
    loaded : LoadedModel
    design : Design or Schedule
        The head dimension is the model's, whatever the design says.
    calibration : Calibration
        Of this very model, from :func:`~santa_hw.models.calibrate`.
    seed : int
        Of the random words; with it, a token's output depends on its sequence's number and its position
        alone.

    Raises
    ------
    ValueError
        If the calibration is another model's, or the design cannot serve the model.
    """
    return FixedPoint(loaded, design, calibration, seed=seed)


def _fit(design: Design, loaded: LoadedModel, layer: int) -> Design:
    try:
        return design.replace(head_dim=loaded.head_dim)
    except ValueError as error:
        raise ValueError(f"layer {layer} with the model's head_dim = {loaded.head_dim}: {error}") from error


class FloatMethod:
    """Attention hook: a float64 reference method. Made by :func:`float_method`."""

    def __init__(self, name: str, samples: int | Sequence[int], seed: int = 0) -> None:
        if name not in METHODS:
            raise ValueError(f"method {name!r}: {', '.join(METHODS)} are allowed")
        self.name = name
        self.samples = samples
        self.seed = seed
        self._method = METHODS[name]
        self.reset()

    def __call__(self, call: Call) -> torch.Tensor:
        visible = call.visible().cpu()
        output, counts = self._method(
            *(x.to("cpu", torch.float64) for x in (call.q, call.k, call.v)),
            scale=call.scale,
            mask=visible[:, None],
            samples=self._budget(call.layer),
            generator=self._generator,
        )
        read = visible[:, None].expand(*output.shape[:3], -1) if counts is None else counts > 0
        self._tally += _row_tally(visible, read, call.k.shape[1])
        return output

    def _budget(self, layer: int) -> int:
        if isinstance(self.samples, int):
            return self.samples
        if layer >= len(self.samples):
            raise ValueError(f"schedule has {len(self.samples)} layers: it misses layer {layer}")
        return self.samples[layer]

    @property
    def tally(self) -> Tally:
        """Steps, visible keys and rows read since the last reset; a float method counts nothing else."""
        return self._tally

    def reset(self) -> None:
        """Count from zero again, and draw the same random numbers again."""
        self._tally = Tally()
        self._generator = torch.Generator().manual_seed(self.seed)


def float_method(name: str, samples: int | Sequence[int], seed: int = 0) -> FloatMethod:
    """A hook that runs a model's attention through a method of :data:`santa_hw.reference.METHODS`.

    `samples` is one budget, or one for each layer. Random numbers come from one generator in the order of the calls,
    not from the contract's counters: equal calls in equal order give equal outputs.
    """
    return FloatMethod(name, samples, seed)


class TeamMethod:
    """Attention hook: SANTA++ or a baseline beside it, in float64. Made by :func:`team_method`.

    Teams are formed once: a call whose keys begin with those of the layer's last call keeps the teams of the blocks
    that were full, and forms those of the blocks that have filled since.
    """

    def __init__(self, name: str, samples: int, design: TeamDesign | None = None, seed: int = 0) -> None:
        if name not in TEAM_METHODS:
            raise ValueError(f"method {name!r}: {', '.join(TEAM_METHODS)} are allowed")
        self.name = name
        self.samples = samples
        self.design = TeamDesign() if design is None else design
        self.seed = seed
        self._method = TEAM_METHODS[name]
        self._blocks: dict[int, tuple[torch.Tensor, Teams]] = {}
        self.reset()

    def __call__(self, call: Call) -> torch.Tensor:
        visible = call.visible().cpu()
        q, k, v = (x.to("cpu", torch.float64) for x in (call.q, call.k, call.v))
        output, reads = self._method(
            q, k, v,
            scale=call.scale,
            mask=visible[:, None],
            samples=self.samples,
            generator=self._generator,
            design=self.design,
            teams=self._teams(call.layer, k),
        )  # fmt: skip
        batch, heads, rows, _ = q.shape
        self._tally += TeamTally(
            head_steps=batch * heads * rows,
            group_steps=batch * k.shape[1] * rows,
            empty_steps=heads * int((~visible.any(-1)).sum()),
            visible_keys=heads * int(visible.sum()),
            group_keys=k.shape[1] * int(visible.sum()),
            unique_rows=int(reads.values.sum()),
            group_rows=int(reads.group_values.sum()),
            key_rows=int(reads.keys.sum()),
            group_key_rows=int(reads.group_keys.sum()),
        )
        return output

    def _teams(self, layer: int, k: torch.Tensor) -> Teams:
        """The teams of a layer's full blocks: the last call's, where its keys are still there, and new ones."""
        design = self.design
        grouped = k[:, :, design.sinks : design.sinks + design.blocks(k.shape[2]) * design.block]
        known, teams = self._blocks.get(layer, (grouped[:, :, :0], None))
        kept = min(known.shape[2], grouped.shape[2])
        if teams is None or not torch.equal(known[:, :, :kept], grouped[:, :, :kept]):
            teams = form_teams(grouped, design.block, design.representatives)
        else:
            teams = teams.first(kept // design.block)
            if kept < grouped.shape[2]:
                teams = teams.followed_by(form_teams(grouped[:, :, kept:], design.block, design.representatives))
        self._blocks[layer] = grouped, teams
        return teams

    @property
    def tally(self) -> TeamTally:
        """Steps, visible keys, key and value rows read since the last reset."""
        return self._tally

    def reset(self) -> None:
        """Count from zero again, and draw the same random numbers again."""
        self._tally = TeamTally()
        self._generator = torch.Generator().manual_seed(self.seed)


def team_method(name: str, samples: int, design: TeamDesign | None = None, seed: int = 0) -> TeamMethod:
    """A hook that runs a model's attention through a method of :data:`santa_hw.reference.TEAM_METHODS`.

    Parameters
    ----------
    name : str
    samples : int
        M, teams that are drawn.
    design : TeamDesign, optional
    seed : int
        Of one generator, used in the order of the calls.
    """
    return TeamMethod(name, samples, design, seed)


def _row_tally(visible: torch.Tensor, read: torch.Tensor, kv_heads: int) -> Tally:
    """What `visible` (B, T, N) and `read` (B, H, T, N) say about rows."""
    batch, heads, rows, keys = read.shape
    group = read.reshape(batch, kv_heads, heads // kv_heads, rows, keys).any(dim=2)
    return Tally(
        head_steps=batch * heads * rows,
        group_steps=batch * kv_heads * rows,
        empty_steps=heads * int((~visible.any(-1)).sum()),
        visible_keys=heads * int(visible.sum()),
        group_keys=kv_heads * int(visible.sum()),
        unique_rows=int(read.sum()),
        group_rows=int(group.sum()),
    )


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's memory as an array where numpy can read it there; half precision is widened, exactly."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    array: NDArray[Any] = np.asarray(tensor)
    return array
