"""The golden model: the fixed-point attention datapath, integers in, integers out.

It imports neither torch nor a simulator. :func:`attend` takes floats, :func:`decode` takes operand codes; both can
return every named intermediate, which is what CUDA kernels and RTL are compared with.
"""

from santa_hw.datapath.counts import offset
from santa_hw.datapath.operands import Codes, Exponents, encode
from santa_hw.datapath.scores import ternary_counts, ternary_vectors
from santa_hw.datapath.step import INTERMEDIATES, Draw, Result, attend, decode
from santa_hw.datapath.weights import Weights, weights_of

__all__ = [
    "INTERMEDIATES",
    "Codes",
    "Draw",
    "Exponents",
    "Result",
    "Weights",
    "attend",
    "decode",
    "encode",
    "offset",
    "ternary_counts",
    "ternary_vectors",
    "weights_of",
]
