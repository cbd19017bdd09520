"""Cycles of a decode step on a parametrised accelerator, and what bounds them.

The formulas are those that the RTL is held to. One head on one engine, with N keys, S samples and L lanes:

==============  ==================================================================================================
score           N * ceil(d / L); with ternary scores N * ceil(A / L), A the mean additions a key. Maximum in passing
selection       N + I (top-k): each score is compared with the heap's root, and each of I = k * (1 + ln(N / k)) expected
                insertions (N, if N <= k) takes a cycle more; in step with the scores
mass            N / P, P = `weights_per_cycle`; top-k: of the kept scores alone, min(k, N) / P; dense adds value rows in
                the same pass
offset          R a word, bit-serial
sampler         N + S: at most one key a cycle, and a cycle for each sample; i.i.d. sorts first,
                sigma * (sigma + 1) / 2 steps of a bitonic network
value           C * ceil(d / L), C rows added (S with repeated additions, fewer set bits with shift-add)
normalise       ceil(d / L) * bits of the quotient, one a cycle (baselines); in floating point 8 for the reciprocal and
                ceil(d / L)
random words    20 a Threefry block of two words, a round a cycle; 32 a word of the LFSR. A unit of its own, beside
                the scores; the words of a head are those of its offsets and of its ternary query
memory          bits / bandwidth; rows read one by one take at least latency / `outstanding` each
==============  ==================================================================================================

A wave is one head an engine. Its phases follow each other: score, with selection, random words and key reads beside it;
mass; offset; sampler, with the gather and the value unit beside it; normalise; and the latency of two accesses. Mass,
offset and sampler share a unit, `weight`. Units of different waves overlap, so that a layer takes the phases of one
wave and, for each further wave, the busy time of the busiest unit. Layers follow each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from santa_hw.design import Design
from santa_hw.events import NUMBERS, Layout, Tally, heap_insertions, operations
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
        The busiest unit's time, if nothing ever waited: a lower bound, approached with many waves.
    stages : dict
        Cycles of each phase of all steps as the engines run them, memory beside it; they overlap, so that they do not
        add up to the total.
    busy : dict
        Busy cycles by unit: memory, score, weight, value, selection, divider, random.
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


CONTROL_CYCLES = 13
"""Cycles of an RTL step outside its phases: the step and the heads' words are taken (2); a dot product, then a score
are in their registers (2); the row's maximum is known (1); the score memory and the exponential fill, once for the
mass and once for the sampler (2 each); the mass goes to the offset, the offset to the sampler (2); drawn keys are
complete, and the first value row is requested (2)."""

EMPTY_CONTROL_CYCLES = 1
"""The same of a step without keys: it is taken."""


def step_cycles(design: Design, *, keys: float, value_terms: float, lanes: int) -> dict[str, float]:
    """Cycles of each phase of an RTL decode step if nothing idles or stalls; with ``CONTROL_CYCLES`` they are the step.

    Parameters
    ----------
    design : Design
        With systematic sampling and one exponent a query.
    keys : int
        N, masked ones among them; a mean may be broken. 0 is an empty step, whose other cycles are
        ``EMPTY_CONTROL_CYCLES``.
    value_terms : int
        Value rows added: over all keys that a head of the group draws, the sum of the largest number of terms of any
        head (the count, or its set bits with shift-add); S for one head with repeated additions. 0 if all are masked.
    lanes : int
        L, features a beat.

    Returns
    -------
    dict
        Cycles of query, score, mass, offset, sampler, value and output, whole numbers for whole arguments. Ternary
        queries and a common output format each have a register more, counted in `query` and `output`. A step that
        draws nothing clears its accumulators with one row of count 0.

    Examples
    --------
    >>> step_cycles(Design(), keys=1000, value_terms=64, lanes=16)
    {'query': 64, 'score': 4000, 'mass': 1000, 'offset': 32, 'sampler': 1064, 'value': 256, 'output': 4}
    """
    beats = -(-design.head_dim // lanes)
    ternary = design.scores == "ternary"
    passes = design.beta + 1 if ternary else 1
    return {
        "query": (design.ternary_words + 1 if ternary else design.head_dim) if keys else 0,
        "score": keys * beats * passes,
        "mass": keys,
        "offset": design.offset_words * design.rng_bits if keys else 0,
        "sampler": sampler_cycles(keys, design.samples, design.sampler) if value_terms else keys + min(1, keys),
        "value": max(1, value_terms) * beats,
        "output": beats + (design.out_bits is not None),
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
    head = _head(design, tally, active, machine, numbers) if active else dict.fromkeys(_PHASES, 0.0)
    waves = -(-parallel_heads // machine.engines)
    layers = active / parallel_heads
    # What one wave asks of the memory: a layer's traffic, spread evenly over its waves.
    share = 1.0 / (layers * waves) if layers else 0.0
    keys, values = memory["key rows"] * share, memory["value rows"] * share
    spill = (memory["score memory"] + memory["append"]) * share
    weight = head["mass"] + head["offset"] + head["sampler"]
    units = {
        "memory": keys + values + spill,
        "score": head["score"],
        "weight": weight,
        "value": head["value"],
        "selection": head["selection"],
        "divider": head["normalise"],
        "random": head["random words"],
    }
    first = max(head["score"], head["selection"], head["random words"], keys + spill)
    last = max(head["value"], values, head["mass"] if design.method == "dense" else head["sampler"])
    between = head["offset"] if design.method == "dense" else head["mass"] + head["offset"]
    latency = 2 * machine.latency_cycles if active else 0.0
    wave = first + between + last + head["normalise"] + latency
    busy = {name: cycles * waves * layers for name, cycles in units.items()}
    total = layers * (wave + (waves - 1) * max(units.values()))
    bound = max(busy, key=lambda name: busy[name])
    stages = {name: head[name] * waves * layers for name in _PHASES} | memory
    return Cycles(
        total=total,
        roofline=busy[bound],
        stages=stages,
        busy=busy,
        bound=bound if busy[bound] else "none",
        seconds=total / (machine.clock_ghz * 1e9),
    )


_PHASES = ("random words", "score", "selection", "mass", "offset", "sampler", "value", "normalise")


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
    """Cycles of the phases of one head with the tally's mean number of keys, on one engine."""
    keys, rows = tally.visible_keys / active, -(-design.head_dim // machine.lanes)
    santa, top_k = design.method == "santa", design.method == "top-k"
    terms = tally.score_terms / tally.visible_keys if design.scores == "ternary" else design.head_dim
    weighed = tally.unique_rows / active if top_k else keys
    quotient = 0 if santa else design.derived()["quotient"]
    if NUMBERS[numbers]:
        normalise = RECIPROCAL_CYCLES + rows
    else:
        normalise = rows * quotient
    words = design.ternary_words, design.offset_words
    if design.rng == "lfsr":
        random = sum(words) * LFSR_STEPS
    else:
        random = sum(-(-count // 2) for count in words) * THREEFRY_ROUNDS
    return {
        "random words": float(random),
        "score": keys * math.ceil(terms / machine.lanes),
        "selection": keys + heap_insertions(keys, design.samples) if top_k else 0.0,
        "mass": weighed / machine.weights_per_cycle,
        "offset": float(design.offset_words * design.rng_bits),
        "sampler": keys + sampler_cycles(1, design.samples, design.sampler) - 1 if santa else 0.0,
        "value": tally.value_terms / active * rows,
        "normalise": float(normalise),
    }
