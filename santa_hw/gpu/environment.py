"""The machine that results come from."""

from __future__ import annotations

import platform
from typing import Any

import torch

from santa_hw import __version__


def environment() -> dict[str, Any]:
    """What the results were got with."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "santa_hw": __version__,
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }


def require_gpu() -> None:
    """Raise ValueError on a machine without a GPU."""
    if not torch.cuda.is_available():
        raise ValueError("this machine has no CUDA GPU, or torch is a build without CUDA: one is needed here")
