"""Causal language models: loading them, calibrating them, and putting other attention into them.

Attention is plugged in through transformers' own extension point, so any model that uses it works unchanged::

    from santa_hw import models
    from santa_hw.design import Design

    loaded = models.load()                                # SmolLM2-135M-Instruct, downloaded at first need
    calibration = models.calibrate(loaded, windows)       # token windows of a text that is not evaluated
    hook = models.fixed_point(loaded, Design(samples=64), calibration, seed=0)
    with models.attention(loaded, hook, phases="decode"):
        loaded.model.generate(...)
    hook.tally.mean_unique_rows
"""

from santa_hw.models.attention import AttentionHook, Call, attention, dense
from santa_hw.models.calibration import Calibration, calibrate
from santa_hw.models.capture import capture
from santa_hw.models.defaults import CALIBRATION_TEXT, DEFAULT_MODEL, EVALUATION_TEXT, TEXTS, fetch
from santa_hw.models.download import FetchError, cache_dir
from santa_hw.models.loading import LoadedModel, from_model, load
from santa_hw.models.methods import FixedPoint, FloatMethod, TeamMethod, fixed_point, float_method, team_method
from santa_hw.models.records import load_records
from santa_hw.models.texts import load_text

__all__ = [
    "CALIBRATION_TEXT",
    "DEFAULT_MODEL",
    "EVALUATION_TEXT",
    "TEXTS",
    "AttentionHook",
    "Calibration",
    "Call",
    "FetchError",
    "FixedPoint",
    "FloatMethod",
    "LoadedModel",
    "TeamMethod",
    "attention",
    "cache_dir",
    "calibrate",
    "capture",
    "dense",
    "fetch",
    "fixed_point",
    "float_method",
    "from_model",
    "load",
    "load_records",
    "load_text",
    "team_method",
]
