"""The door to ``gpu/``: CUDA decode kernels, built at first use."""

from santa_hw.gpu.checks import DeviceDraw, check_design
from santa_hw.gpu.fixed import decode_fixed
from santa_hw.gpu.operators import error_flags, persist_l2, read_floor, tiling, workspace
from santa_hw.gpu.systematic import decode_sys
from santa_hw.gpu.tiles import decode_flash, decode_prop

__all__ = [
    "DeviceDraw",
    "check_design",
    "decode_fixed",
    "decode_flash",
    "decode_prop",
    "decode_sys",
    "error_flags",
    "persist_l2",
    "read_floor",
    "tiling",
    "workspace",
]
