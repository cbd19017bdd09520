"""Every kernel once on small shapes: what compute-sanitizer is run on.

Usage: compute-sanitizer --tool memcheck --error-exitcode 1 python benchmarks/gpu/sanitize.py
"""

from __future__ import annotations

import torch

from santa_hw import gpu
from santa_hw.gpu.cases import Case, fixed_operands, float_operands

LENGTHS = (0, 1, 54, 97, 300)
CASES = (
    Case(4, 2, 128, LENGTHS),
    Case(7, 1, 80, LENGTHS, page_size=17),
    Case(16, 1, 64, LENGTHS, page_size=1),
    Case(3, 3, 96, LENGTHS, "ternary"),
    Case(4, 8, 256, (200, 33), "half_up"),
)


def main() -> None:
    for case in CASES:
        for cut in ({"split": 1}, {"split": 4}, {"multiprocessors": 3}):
            operands = float_operands(case, 0, torch.bfloat16)
            counts = torch.zeros((*operands.q.shape[:2], max(case.lengths)), dtype=torch.int32, device="cuda")
            with gpu.tiling(**cut):
                gpu.decode_sys(**operands.on_device(), samples=64, counts=counts)
                fixed = fixed_operands(case, 0)
                gpu.decode_fixed(fixed.design, **fixed.on_device())
        for decode in (gpu.decode_prop, gpu.decode_flash):
            decode(**operands.on_device(), samples=64, counts=counts)
        torch.cuda.synchronize()
        print(case)


if __name__ == "__main__":
    main()
