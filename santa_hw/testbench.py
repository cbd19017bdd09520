"""Drives a block inside a simulator: imported by the benches in ``rtl_models/``, nowhere else.

The bench owns the clock: inputs change while it is low, outputs are read just before it rises, so no simulator's
order of events can matter. What to drive and expect comes from the file that ``SANTA_BENCH`` names; what was found
goes into the file beside it. Nothing else of the package is imported: NumPy alone would double a simulator's start.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from cocotb.triggers import Timer

RESET_CYCLES, QUIET_CYCLES = 3, 40
_GAPS = {"none": 0.0, "some": 0.3, "most": 0.8, "after": 1.0}


class _Port:
    """One stream at the simulator's pins; a monitor has no ready, and every beat of it is taken."""

    def __init__(self, dut: Any, work: dict[str, Any], *, driven: bool) -> None:
        self.name, self.driven, self.monitor = work["name"], driven, work["monitor"]
        self.beats, self.vectors = work["beats"], work["vectors"]
        data, back = ("i", "o") if driven else ("o", "i")
        self.names = [f"{self.name}_valid_{data}", f"{self.name}_ready_{back}"]
        self.names += [f"{self.name}_{name}_{data}" for name in work["fields"]]
        self.handles: list[Any] = [getattr(dut, name, None) for name in self.names]
        self.at = 0
        self.held: list[str] | None = None
        self.high = self.monitor  # what this side last said: valid to an input, ready to an output

    def say(self, high: bool) -> None:
        """Valid or ready; a pin that stays as it is costs no call into the simulator."""
        if high != self.high:
            self.high = high
            self.handles[1 - self.driven].value = int(high)

    def missing(self) -> list[str]:
        lacking = [name for name, handle in zip(self.names, self.handles, strict=True) if handle is None]
        return [name for name in lacking if not (self.monitor and name == self.names[1])]


class Bench:
    """One simulation of one block."""

    def __init__(self, dut: Any) -> None:
        self.file = Path(os.environ["SANTA_BENCH"])
        self.work = json.loads(self.file.read_text(encoding="utf-8"))
        self.dut = dut
        self.clock: Any = getattr(dut, "clk_i", None)
        self.half = Timer(1, "ns")
        self.random = random.Random(self.work["seed"])
        self.sources = [_Port(dut, s, driven=True) for s in self.work["inputs"]]
        self.sinks = [_Port(dut, s, driven=False) for s in self.work["outputs"]]
        self.cycle, self.busy, self.values = -RESET_CYCLES, 0, 0
        self.mismatch: dict[str, Any] | None = None
        self.gaps = _GAPS[self.work["idle"]], _GAPS[self.work["stall"]]
        self.after = self.work["stall"] == "after"

    async def run(self) -> None:
        """Drive everything, compare everything, write the result."""
        missing = [name for name in ("clk_i", "rst_ni") if getattr(self.dut, name, None) is None]
        missing += [name for port in (*self.sources, *self.sinks) for name in port.missing()]
        if not missing:
            await self._simulate()
        found = {
            "missing": missing,
            "cycles": self.busy,
            "values": self.values,
            "mismatch": self.mismatch,
        }
        self.file.with_suffix(".found.json").write_text(json.dumps(found), encoding="utf-8")

    async def _simulate(self) -> None:
        self.dut.rst_ni.value = 0
        for port in self.sources:
            for handle in (port.handles[0], *port.handles[2:]):
                handle.value = 0
        for port in self.sinks:
            if not port.monitor:
                port.handles[1].value = 0
        for _ in range(RESET_CYCLES):
            await self._low()
            await self._high()
        self.dut.rst_ni.value = 1
        quiet, waiting = 0, 0
        active: list[bool] = [False] * len(self.sources)
        while self.mismatch is None and quiet < QUIET_CYCLES:
            self._drive(active)
            await self._low()
            moved = self._sample(active)
            await self._high()
            waiting = 0 if moved else waiting + 1
            self.busy = self.cycle if moved else self.busy
            done = all(p.at == len(p.beats) for p in (*self.sources, *self.sinks))
            quiet = quiet + 1 if done else 0
            if waiting > self.work["patience"] and not done:
                self._stuck()

    async def _low(self) -> None:
        self.clock.value = 0
        await self.half

    async def _high(self) -> None:
        self.clock.value = 1
        await self.half
        self.cycle += 1

    def _drive(self, active: list[bool]) -> None:
        """Offer beats and room; an offer stands until it is taken."""
        idle, stall = self.gaps
        for i, port in enumerate(self.sources):
            if active[i] or port.at == len(port.beats) or self.random.random() < idle:
                if not active[i]:
                    port.say(False)
                continue
            active[i] = True
            port.say(True)
            for handle, value in zip(port.handles[2:], port.beats[port.at], strict=True):
                handle.value = int(value, 2)
        for port in self.sinks:
            if not port.monitor:
                port.say(self.random.random() >= stall or (self.after and port.held is not None))

    def _sample(self, active: list[bool]) -> bool:
        """What will happen at the coming edge; returns whether anything moves."""
        moved = False
        for i, port in enumerate(self.sources):
            ready = self._bit(port, 1)
            if active[i] and ready:
                active[i], moved = False, True
                port.at += 1
        for port in self.sinks:
            valid, ready = self._bit(port, 0), port.high
            if port.held is not None and not valid:
                self._differ(port, port.names[0], "1", "0", "valid fell before ready")
            if not valid:
                continue
            found = [str(handle.value) for handle in port.handles[2:]]
            if port.held is not None and found != port.held:
                name, was, now = next(x for x in zip(port.names[2:], port.held, found, strict=True) if x[1] != x[2])
                self._differ(port, name, was, now, "data changed before ready")
            port.held = None if ready else found
            if ready:
                moved = True
                self._compare(port, found)
        return moved

    def _compare(self, port: _Port, found: list[str]) -> None:
        if port.at == len(port.beats):
            self._differ(port, port.names[0], "0", "1", f"beat {port.at}: more than expected")
            return
        for name, expected, text in zip(port.names[2:], port.beats[port.at], found, strict=True):
            self.values += 1
            if text.lower() != expected:
                first = port.vectors.index(port.vectors[port.at])
                self._differ(port, name, expected, text.lower(), f"beat {port.at - first} of the vector")
                break
        port.at += 1

    def _bit(self, port: _Port, which: int) -> bool:
        text = str(port.handles[which].value)
        if text not in "01":
            self._differ(port, port.names[which], "0", text.lower(), "unknown after reset")
        return text == "1"

    def _stuck(self) -> None:
        for port in (*self.sinks, *self.sources):
            if port.at < len(port.beats):
                which = 1 if port.driven else 0
                self._differ(port, port.names[which], "1", "0", f"nothing moved for {self.work['patience']} cycles")
                return

    def _differ(self, port: _Port, signal: str, expected: str, found: str, note: str) -> None:
        if self.mismatch is None:
            vector = port.vectors[min(port.at, len(port.vectors) - 1)] if port.vectors else 0
            self.mismatch = {
                "block": self.work["block"], "vector": vector, "cycle": self.cycle, "signal": signal,
                "expected": expected, "found": found, "note": note,
            }  # fmt: skip
