"""Cycles of a decode step on a parametrised accelerator, and what bounds them.

The formulas are those of the RTL. One head on one engine, with N keys, S samples, d features and L lanes:

==============  ==================================================================================================
query           d; i.i.d. ternary draws take a word a cycle, d * 2**beta
score           N * ceil(d / L); with ternary scores N * ceil(d / L) * (beta + 1), a pass for each bit plane of the
                counts. Maximum in passing
selection       N + min(k, N) (top-k): a score a cycle into a sorted register file, in step with the scores; what was
                kept leaves at one key a cycle, in step with its value rows
mass            N / P, P = `weights_per_cycle` (1 in the RTL); the baselines weigh and add value rows in one pass, top-k
                those of the kept scores alone, min(k, N) / P
offset          R a word, bit-serial
sampler         N + S: at most one key a cycle, and a cycle for each sample; i.i.d. sorts first,
                sigma * (sigma + 1) / 2 steps of a bitonic network (not in the RTL)
value           C * ceil(d / L), C rows added (S with repeated additions, fewer set bits with shift-add)
output          ceil(d / L)
normalise       ceil(d / L) * (bits of the quotient + 2), one a cycle, one to load and one to leave (baselines, in place
                of the output); in floating point 8 for the reciprocal and ceil(d / L)
random words    20 a Threefry block of two words, a round a cycle; 32 a word of the LFSR. A unit of its own, beside
                query and scores; the words of a head are those of its offsets and of its ternary query
memory          bits / bandwidth; rows read one by one take at least latency / `outstanding` each
==============  ==================================================================================================

An engine runs one head at a time, and its phases follow each other: query and score, with selection, random words and
key reads beside them; mass; offset; sampler; values, with the value reads beside them; output or normalise; and the
latency of two accesses. :func:`step_cycles` is what the RTL is held to, but for a few cycles of control.

A wave is one head an engine. Engines need not keep step, so that one reads keys while another walks its scores: a layer
takes the phases of one wave and, for each further wave, the busy time of what is busiest, the memory, an engine, or its
generator of random words. Layers follow each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from santa_hw.design import Design
from santa_hw.events import NUMBERS, Layout, Tally, operations
from santa_hw.rng import LFSR_STEPS, THREEFRY_ROUNDS

RECIPROCAL_CYCLES = 8
"""Two Newton steps of a floating-point baseline."""


@dataclass(frozen=True)
class Machine:
    """An accelerator.

    Parameters
    ----------
    engines : int
        Heads that are computed at once.
    lanes : int
        Terms that the score unit and the value unit of an engine each take in a cycle.
    weights_per_cycle : int
        Exponentials that an engine makes in a cycle in the mass pass. The sampler takes one key a cycle whatever this
        is: its residual depends on the key before.
    clock_ghz : float
    bandwidth_gb_s : float
        Of the off-chip memory, gigabytes (10**9) a second.
    latency_ns : float
        Of one access to it.
    outstanding : int
        Value rows that may be under way at once.
    """

    engines: int = 32
    lanes: int = 128
    weights_per_cycle: int = 1
    clock_ghz: float = 1.0
    bandwidth_gb_s: float = 256.0
    latency_ns: float = 100.0
    outstanding: int = 64

    def __post_init__(self) -> None:
        for name in ("engines", "lanes", "weights_per_cycle", "outstanding"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: 1 or more is allowed")
        for name in ("clock_ghz", "bandwidth_gb_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: a number above zero is allowed")
        if not 0 <= self.latency_ns < math.inf:
            raise ValueError(f"latency_ns = {self.latency_ns}: zero or more is allowed")

    @property
    def bits_per_cycle(self) -> float:
        """Bits that the memory moves in a cycle."""
        return 8.0 * self.bandwidth_gb_s / self.clock_ghz

    @property
    def latency_cycles(self) -> float:
        """Cycles of one access."""
        return self.latency_ns * self.clock_ghz


@dataclass(frozen=True)
class Cycles:
    """Cycles of the steps that a tally holds, one after another.

    Attributes
    ----------
    total : float
        With each layer's phases in sequence and waves overlapped.
    roofline : float
        The busiest unit's time, if it never waited: a lower bound, approached with many waves.
    stages : dict
        Cycles of each phase of all steps as the engines run them, memory beside it; they overlap, so that they do not
        add up to the total.
    busy : dict
        Busy cycles by unit: memory, engine (all its phases, one after the other), random.
    bound : str
        The busiest unit; "none" if nothing is busy.
    seconds : float
        At the machine's clock.
    """

    total: float
    roofline: float
    stages: dict[str, float]
    busy: dict[str, float]
    bound: str
    seconds: float


def sampler_cycles(keys: float, samples: int, sampler: str = "systematic") -> float:
    """Cycles of one head's sampler: at most one key a cycle and one sample a cycle, and the sort of i.i.d. thresholds.

    Examples
    --------
    >>> sampler_cycles(100, 16)
    116
    """
    if not keys:
        return 0
    sigma = samples.bit_length() - 1
    return keys + samples + (sigma * (sigma + 1) // 2 if sampler == "iid" else 0)


def control_cycles(design: Design, *, keys: int) -> int:
    """Cycles of an RTL step outside its phases (see :func:`step_cycles`) if nothing idles or stalls.

    They are registers: the step and the heads' words are taken (2); a dot product, then a score are in their registers
    (2); the row's maximum is known (1); the score memory and the exponential fill, once for the mass and once for the
    sampler (2 each); the mass goes to the offset, the offset to the sampler (2); drawn keys are complete, and the first
    value row is requested (2). A ternary query and a common output format have one more each. An empty step is taken
    (1) and may have the format's.
    """
    formatted = int(design.out_bits is not None)
    return 13 + int(design.scores == "ternary") + formatted if keys else 1 + formatted


def step_cycles(design: Design, *, keys: float, value_terms: float, lanes: int) -> dict[str, float]:
    """Cycles of one sampled step by phase, in the order in which the RTL runs them, one after the other.

    Parameters
    ----------
    design : Design
    keys : int
        Keys of the step, masked ones among them; a mean may be broken.
    value_terms : int
        Rows added: the sum over drawn keys of their counts, or of their counts' set bits with ``gather = shift_add``.
        Of query heads in lockstep, the sum of the largest among the heads. 0 if nothing is drawn.
    lanes : int
        Features of a key or a value row that are taken in a cycle.

    Returns
    -------
    dict
        Phases query, score, mass, offset, sampler, value and output; whole numbers for whole arguments. What starts
        and ends the phases is not in it: see :func:`control_cycles`. A step that draws nothing, all masked or without
        keys, clears its accumulators with one row of count 0.

    Examples
    --------
    >>> step_cycles(Design(head_dim=64, samples=16), keys=100, value_terms=16, lanes=16)
    {'query': 64, 'score': 400, 'mass': 100, 'offset': 32, 'sampler': 116, 'value': 64, 'output': 4}
    """
    beats, ternary = -(-design.head_dim // lanes), design.scores == "ternary"
    return {
        "query": (design.ternary_words if ternary else design.head_dim) if keys else 0,
        "score": keys * beats * (design.beta + 1 if ternary else 1),
        "mass": keys,
        "offset": design.offset_words * design.rng_bits if keys else 0,
        "sampler": sampler_cycles(keys, design.samples, design.sampler) if value_terms else keys + min(1, keys),
        "value": max(1, value_terms) * beats,
        "output": beats,
    }


def cycles(
    design: Design,
    tally: Tally,
    layout: Layout | None = None,
    machine: Machine | None = None,
    *,
    parallel_heads: int,
    numbers: str = "int",
) -> Cycles:
    """Cycles of the steps of a tally on a machine.

    Parameters
    ----------
    design : Design
    tally : Tally
        Counted or analytic; where steps differ in length, their mean is taken for each.
    layout : Layout, optional
    machine : Machine, optional
    parallel_heads : int
        Query heads that are there to be computed at once: heads times batch. Steps and layers beyond them follow one
        another.
    numbers : str
        As in :func:`~santa_hw.events.operation`.

    Raises
    ------
    ValueError
        If `parallel_heads` is below 1, or what `operations` refuses.
    """
    if parallel_heads < 1:
        raise ValueError(f"parallel_heads = {parallel_heads}: 1 or more is allowed")
    machine, layout = machine or Machine(), layout or Layout()
    memory = _memory(design, tally, layout, machine, numbers)
    active = tally.head_steps - tally.empty_steps
    head = _head(design, tally, active, machine, numbers) if active else dict.fromkeys(_HEAD, 0.0)
    waves = -(-parallel_heads // machine.engines)
    layers = active / parallel_heads
    # What one wave asks of the memory: a layer's traffic, spread evenly over its waves.
    share = 1.0 / (layers * waves) if layers else 0.0
    keys, values = memory["key rows"] * share, memory["value rows"] * share
    spill = (memory["score memory"] + memory["append"]) * share
    scored = max(head["query"] + head["score"], head["scored"])
    if design.method == "santa":
        between, weighed, last = head["mass"] + head["offset"] + head["sampler"], head["value"], head["output"]
    else:
        between, weighed, last = 0.0, max(head["value"], head["mass"], head["kept"]), head["normalise"]
    units = {
        "memory": keys + values + spill,
        "engine": scored + between + weighed + last,
        "random": head["random words"],
    }
    latency = 2 * machine.latency_cycles if active else 0.0
    wave = max(scored, head["random words"], keys + spill) + between + max(weighed, values) + last + latency
    busy = {name: cycles * waves * layers for name, cycles in units.items()}
    total = layers * (wave + (waves - 1) * max(units.values()))
    bound = max(busy, key=lambda name: busy[name])
    head["selection"] = head["scored"] + head["kept"]
    stages = {name: head[name] * waves * layers for name in _PHASES} | memory
    return Cycles(
        total=total,
        roofline=busy[bound],
        stages=stages,
        busy=busy,
        bound=bound if busy[bound] else "none",
        seconds=total / (machine.clock_ghz * 1e9),
    )


_PHASES = (
    "random words", "query", "score", "selection", "mass", "offset", "sampler", "value", "output", "normalise",
)  # fmt: skip
_HEAD = (*_PHASES, "scored", "kept")


def _memory(design: Design, tally: Tally, layout: Layout, machine: Machine, numbers: str) -> dict[str, float]:
    """Cycles of the off-chip memory by stage."""
    stages = dict.fromkeys(("key rows", "score memory", "value rows", "append"), 0.0)
    for operation in operations(design, tally, layout, numbers=numbers):
        if operation.kind.startswith("dram"):
            stages[operation.stage] += operation.count * operation.bits[0] / machine.bits_per_cycle
    if design.method != "dense":
        waiting = tally.group_rows * machine.latency_cycles / machine.outstanding
        stages["value rows"] = max(stages["value rows"], waiting)
    return stages


def _head(design: Design, tally: Tally, active: int, machine: Machine, numbers: str) -> dict[str, float]:
    """Cycles of the phases of one head with the tally's mean number of keys, on one engine.

    Beside the phases: `scored` and `kept`, the two parts of the selection.
    """
    keys, beats = tally.visible_keys / active, -(-design.head_dim // machine.lanes)
    head = step_cycles(design, keys=keys, value_terms=tally.value_terms / active, lanes=machine.lanes)
    words = design.ternary_words, design.offset_words
    if design.rng == "lfsr":
        random = sum(words) * LFSR_STEPS
    else:
        random = sum(-(-count // 2) for count in words) * THREEFRY_ROUNDS
    head |= {"random words": random, "scored": 0, "kept": 0, "normalise": 0}
    if design.method != "santa":
        quotient = beats * (design.derived()["quotient"] + 2)
        head |= {"sampler": 0, "output": 0, "normalise": RECIPROCAL_CYCLES + beats if NUMBERS[numbers] else quotient}
    if design.method == "top-k":
        kept = tally.unique_rows / active
        head |= {"mass": kept, "scored": keys, "kept": kept}
    head["mass"] /= machine.weights_per_cycle
    return head
