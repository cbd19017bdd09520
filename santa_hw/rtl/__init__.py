"""The door to ``rtl_models/``: SystemVerilog blocks, run in a simulator and compared with the golden model.

>>> from santa_hw.design import Design
>>> "localparam int Samples = 64;" in package(Design())
True
"""

from santa_hw.rtl.blocks import NAMES, Block, Field, Stream, Vector, load
from santa_hw.rtl.comparison import Mismatch
from santa_hw.rtl.package import package
from santa_hw.rtl.simulation import PATTERNS, SIMULATORS, Report, SimulatorMissing, cosimulate

__all__ = [
    "NAMES",
    "PATTERNS",
    "SIMULATORS",
    "Block",
    "Field",
    "Mismatch",
    "Report",
    "SimulatorMissing",
    "Stream",
    "Vector",
    "cosimulate",
    "load",
    "package",
]
