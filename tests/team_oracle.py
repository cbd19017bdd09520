"""SANTA++ once more, in plain loops: one decode step of one group of heads at a time."""

import itertools
import math

import numpy as np
import torch
from draws import normal, uniform

from santa_hw.reference import TeamDesign, santapp, top_teams

SHARING = ("own", "shared", "reuse")
SMALL = TeamDesign(block=8, team=2, sinks=2)


def causal(queries, keys):
    return torch.ones(keys, keys, dtype=torch.bool).tril()[keys - queries :]


def oracle_teams(keys, representatives):
    """(representatives, team of each key) of one block, an array (block, d)."""
    mean = keys.mean(axis=0)
    chosen = [min(range(len(keys)), key=lambda n: (((keys[n] - mean) ** 2).sum(), n))]

    def reach(n):
        return min(((keys[n] - keys[c]) ** 2).sum() for c in chosen)

    while len(chosen) < representatives:
        chosen.append(max((n for n in range(len(keys)) if n not in chosen), key=lambda n: (reach(n), -n)))
    member = [
        chosen.index(n)
        if n in chosen
        else min(range(representatives), key=lambda j: (((keys[n] - keys[chosen[j]]) ** 2).sum(), j))
        for n in range(len(keys))
    ]
    return chosen, member


def oracle_pi(mass, samples):
    """The c heaviest are certain, c as small as it may be; the others share the rest in proportion."""
    order = sorted(range(len(mass)), key=lambda g: -mass[g])
    for certain in range(min(samples, len(mass)) + 1):
        rest = sum(mass[g] for g in order[certain:])
        if certain == len(mass) or (samples - certain) * mass[order[certain]] < rest * (1 - 1e-9):
            break
    return [1.0 if g in order[:certain] else rest and (samples - certain) * mass[g] / rest for g in range(len(mass))]


def oracle_draw(pi, u):
    """Teams whose stretch of the running sum holds one of u, u + 1, ...; certain teams stand apart."""
    drawn, at = {g for g, p in enumerate(pi) if p == 1.0}, 0.0
    for g, p in enumerate(pi):
        if g not in drawn:
            if math.ceil(at - u) < math.ceil(at + p - u):
                drawn.add(g)
            at += p
    return drawn


def oracle_step(q, k, v, visible, scale, design, samples, offsets, best=None):
    """q (g, d), k and v (N, d): outputs (g, d_v), the keys and values read by each head, and by the group."""
    heads, count = len(q), len(k)
    scores = scale * q @ k.T
    teams, stand, free = [], [], set(np.flatnonzero(visible))
    for start in range(design.sinks, count - design.block + 1, design.block):
        block = range(start, start + design.block)
        if all(visible[n] for n in block):
            chosen, member = oracle_teams(k[start : start + design.block], design.representatives)
            stand += [start + c for c in chosen]
            teams += [[n for n in block if member[n - start] == j] for j in range(len(chosen))]
            free -= set(block)
    mass = np.array([[len(t) * math.exp(scores[h, r] - scores[h].max()) for t, r in zip(teams, stand, strict=True)]
                     for h in range(heads)])  # fmt: skip
    if teams:
        mass /= mass.sum(axis=1, keepdims=True)
    if design.sharing == "shared":
        mass = np.repeat(mass.sum(axis=0, keepdims=True), heads, axis=0)
    if best:
        drawn = [set(sorted(range(len(teams)), key=lambda g, h=h: (-mass[h, g], g))[:samples]) for h in range(heads)]
        pi = np.ones_like(mass)
    else:
        pi = np.array([oracle_pi(list(mass[h]), min(samples, len(teams))) for h in range(heads)])
        drawn = [oracle_draw(pi[h], offsets[0 if design.sharing == "shared" else h]) for h in range(heads)]
    if design.sharing == "reuse" and teams:
        drawn = [set.union(*drawn)] * heads
        pi = np.repeat(1 - (1 - pi).prod(axis=0, keepdims=True), heads, axis=0)
    outputs, keys, values = [], [], []
    for h in range(heads):
        weight = dict.fromkeys(free, 1.0)
        for g in drawn[h]:
            factor = {"inverse": 1 / pi[h, g], "tempered": pi[h, g] ** -design.exponent,
                      "clipped": min(1 / pi[h, g], design.clip)}[design.weights]  # fmt: skip
            weight |= dict.fromkeys(teams[g], factor)
        weight = {n: w * math.exp(scores[h, n] - scores[h].max()) for n, w in weight.items()}
        whole = sum(weight.values())
        outputs.append(sum(w * v[n] for n, w in weight.items()) / whole if weight else np.zeros(v.shape[1]))
        values.append(set(weight))
        keys.append(set(weight) | set(stand))
    return np.array(outputs), keys, values


def oracle(q, k, v, mask, scale, design, samples, offsets, best=None):
    """q (H, T, d), k, v (KV, N, d), mask (T, N), offsets (H or KV, T): output, and the four counts of `Reads`."""
    heads, steps, _ = q.shape
    group, output, counts = heads // len(k), np.zeros((heads, steps, v.shape[-1])), [{}, {}, {}, {}]
    for kv, t in itertools.product(range(len(k)), range(steps)):
        own = range(kv * group, (kv + 1) * group)
        u = [offsets[kv][t]] if design.sharing == "shared" else [offsets[h][t] for h in own]
        result, keys, values = oracle_step(q[list(own), t], k[kv], v[kv], mask[t], scale, design, samples, u, best=best)
        for i, h in enumerate(own):
            output[h, t] = result[i]
            counts[0][h, t], counts[1][h, t] = len(keys[i]), len(values[i])
        counts[2][kv, t], counts[3][kv, t] = len(set.union(*keys)), len(set.union(*values))
    return output, counts


def check_against_oracle(rng, design, samples, *, best=None, mask=None, faulty=None):
    """Raise AssertionError unless `santapp` (or `top_teams`) and the loops agree on a small window."""
    steps, keys = 30, 41
    q, k, v = 3 * normal(rng, 6, steps, 4), normal(rng, 2, keys, 4), normal(rng, 2, keys, 3)
    mask = causal(steps, keys) if mask is None else mask
    offsets = uniform(rng, 2 if design.sharing == "shared" else 6, steps)
    options = {"scale": 0.4, "mask": mask, "samples": samples, "design": design}
    if best:
        output, reads = top_teams(q, k, v, **options)
    else:
        output, reads = santapp(q, k, v, **options, uniforms=offsets)
    expected, counts = oracle(*(x.numpy() for x in (q, k, v, mask)), 0.4, design, samples, offsets.numpy(), best)
    torch.testing.assert_close(output, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
    for name, found, wanted in zip(reads._fields, reads, counts, strict=True):
        assert {at: int(found[at]) for at in wanted} == wanted, name


def intervals(pi):
    """(midpoints, lengths) of the stretches of the offset on which the draw is one and the same."""
    free = pi[pi < 1].cumsum(0)
    ends = torch.cat([torch.tensor([0.0, 1.0], dtype=torch.float64), free - free.floor()]).unique()
    kept = ends.diff() > 1e-12
    return ((ends[1:] + ends[:-1]) / 2)[kept], ends.diff()[kept]
