"""Bench of exp2_weight: every stream that santa_hw.rtl.blocks.exp2_weight names, driven and compared."""

import cocotb

from santa_hw.testbench import Bench


@cocotb.test()
async def against_the_golden_model(dut):
    await Bench(dut).run()
