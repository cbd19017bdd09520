"""Rewards: any task of `evaluate`, under a method whose budgets are a schedule's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from santa_hw import sweep
from santa_hw.design import Design, Schedule

if TYPE_CHECKING:
    from santa_hw.evaluate.decoding import Decoding
    from santa_hw.evaluate.perplexity import Perplexity
    from santa_hw.models import AttentionHook, Calibration, LoadedModel

METHODS = tuple(name for name in sweep.METHODS + sweep.FLOAT_METHODS if not name.endswith("dense"))
"""Methods that have a budget."""


@dataclass(frozen=True)
class TaskReward:
    """
    A task and a method, by names and numbers alone, so that a worker anywhere can open them.

    Attributes
    ----------
    model, device, dtype : str
        As `models.load` takes them.
    task : str
        With its `options`, as `sweep.open_task` takes them.
    method : str
        One of `METHODS`.
    design : Design
        Of the fixed-point methods: all but method and budget.
    calibration, calibration_text, calibration_windows, calibration_window :
        Of the fixed-point methods, as `sweep.open_calibration` takes them. The text may be the task's: both belong
        to what is learned, and neither may be what the schedule is judged by.
    """

    model: str
    task: str
    options: Mapping[str, Any]
    method: str
    design: Design = field(default_factory=Design)
    device: str = "cpu"
    dtype: str = "float32"
    calibration: Path | None = None
    calibration_text: str = "shakespeare-calibration"
    calibration_windows: int = 4
    calibration_window: int = 1024

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method = {self.method!r}: allowed are {', '.join(METHODS)}")

    @property
    def fixed_point(self) -> bool:
        """Whether the method is the datapath's, and so needs a design and a calibration."""
        return self.method in sweep.METHODS

    @property
    def powers(self) -> bool:
        """Whether budgets are powers of two."""
        return self.method == "santa"

    def schedule(self, samples: Sequence[int]) -> Schedule:
        """The design of each layer, for a fixed-point method."""
        # Method and a budget that all methods take together: the design's own may be a k that santa refuses.
        return self.design.replace(method=self.method, samples=1).with_samples(samples)

    def open(self, threads: int | None = None, loaded: LoadedModel | None = None) -> OpenReward:
        """Load the model, unless it is given, the task and the calibration; None leaves the threads as they are."""
        import numba
        import torch

        from santa_hw import models

        if threads is not None:
            torch.set_num_threads(threads)
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        if loaded is None:
            loaded = models.load(self.model, device=self.device, dtype=self.dtype)
        task, setting = sweep.open_task(loaded, self.task, **self.options)
        calibration = None
        if self.fixed_point:
            calibration = sweep.open_calibration(
                loaded,
                file=self.calibration,
                text=self.calibration_text,
                windows=self.calibration_windows,
                window=self.calibration_window,
            )
        return OpenReward(self, loaded, task, setting, calibration)


@dataclass(frozen=True)
class OpenReward:
    """A task with its model in memory: ``reward(samples, seed)``."""

    source: TaskReward
    loaded: LoadedModel
    task: Perplexity | Decoding
    setting: sweep.Setting
    calibration: Calibration | None

    def __call__(self, samples: Sequence[int], seed: int) -> float:
        """Minus the divergence from the dense model in nats a token, or the accuracy of a task that decodes."""
        scores = self.task.evaluate(self.hook(samples, seed))
        return -float(scores["kl_to_dense"]) if self.task.name == "perplexity" else float(scores["accuracy"])

    def about(self) -> dict[str, Any]:
        """Everything that decides a reward but schedule and seed, as JSON values."""
        row = sweep.identify(self.setting, sweep.Point(self.source.method, None, None, 0), None)
        design = self.source.schedule([1]).designs[0].to_dict() if self.calibration is not None else None
        calibration = None if self.calibration is None else self.calibration.sha256
        identity = {name: row[name] for name in sweep.IDENTITY if name not in ("samples", "schedule", "seed")}
        return identity | {"design": design, "calibration_sha256": calibration}

    def hook(self, samples: Sequence[int], seed: int) -> AttentionHook:
        """The attention of a schedule."""
        from santa_hw import models

        if self.calibration is None:
            return models.float_method(self.source.method, samples, seed)
        return models.fixed_point(self.loaded, self.source.schedule(samples), self.calibration, seed=seed)
