"""Bench of systematic_sampler: every stream that santa_hw.rtl.blocks.systematic_sampler names, driven and compared."""

import cocotb

from santa_hw.testbench import Bench


@cocotb.test()
async def against_the_golden_model(dut):
    await Bench(dut).run()
