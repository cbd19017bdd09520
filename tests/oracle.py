"""The numeric contract once more, in exact Python integers and fractions: slow, plain, and independent of santa_hw.

It takes operand codes and random words and follows docs/reference/numeric-contract line by line: closed forms and
exhaustive counting where the product walks a residual register, fractions where it shifts.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import floor, isqrt


def half_up(x: Fraction) -> int:
    return floor(x + Fraction(1, 2))


def clamp(x: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, x))


def scaled(x: int, shift: int) -> Fraction:
    """x * 2**-shift."""
    return Fraction(x) / Fraction(2) ** shift


@cache
def table(frac: int, bits: int, exp: str) -> list[int]:
    if exp == "mitchell":
        return [int(Fraction(2) ** (bits - 1) * (1 + Fraction(f, 1 << frac))) for f in range(1 << frac)]
    entries = []
    for f in range(1 << frac):
        twice = 1 << (bits * (1 << frac) + f)  # (2 * 2**(W - 1 + f / 2**F)) ** (2**F)
        for _ in range(frac):
            twice = isqrt(twice)
        entries.append(min((twice + 1) // 2, (1 << bits) - 1))
    return entries


def ternary_counts(design, q, words) -> list[int]:
    """Signed counts; `words` holds one word a feature, or a list of B a feature for the i.i.d. draw."""
    f, counts = design.q_bits - 1, []
    for code, word in zip(q, words, strict=True):
        p = Fraction(abs(code), 1 << f)
        if design.ternary_draw == "stratified":
            u = Fraction(word, 1 << design.rng_bits)
            count = sum(1 for b in range(design.ternary_samples) if b + 1 <= p * design.ternary_samples + u)
        else:
            count = sum(1 for r in word if Fraction(r, 1 << design.rng_bits) < p)
        counts.append(count if code > 0 else -count if code < 0 else 0)
    return counts


def score(design, factors, k, exponents) -> tuple[int, int]:
    """(score code, how many clips: of the score, and of block sums) of one key."""
    width = len(factors) // len(exponents)
    guard = (len(exponents) - 1).bit_length()
    frac = (
        (design.ternary_samples.bit_length() - 1 if design.scores == "ternary" else design.q_bits - 1)
        + design.k_bits
        - 1
    )
    total = clips = 0
    for block, e in enumerate(exponents):
        part = slice(block * width, (block + 1) * width)
        dot = sum(a * b for a, b in zip(factors[part], k[part], strict=True))
        shifted = half_up(scaled(dot, frac - design.score_frac - guard - e))
        clipped = clamp(shifted, design.score_bits + guard) if len(exponents) > 1 else shifted
        clips += clipped != shifted
        total += clipped
    result = half_up(scaled(total, guard)) if len(exponents) > 1 else total
    return clamp(result, design.score_bits), clips + (clamp(result, design.score_bits) != result)


def weights(design, scores, visible, bits=None) -> list[int]:
    bits = bits or design.weight_bits
    lut = table(design.score_frac, bits, design.exp)
    seen = [s for s, ok in zip(scores, visible, strict=True) if ok]
    if not seen:
        return [0] * len(scores)
    top = max(s >> design.score_frac for s in seen)
    result = []
    for s, ok in zip(scores, visible, strict=True):
        shift = top - (s >> design.score_frac)
        exact = scaled(lut[s & ((1 << design.score_frac) - 1)], shift)
        if design.weight_rounding == "floor":
            w = floor(exact) if shift < bits else 0
        else:
            w = half_up(exact) if shift <= bits else 0
        result.append(w if ok else 0)
    return result


def thresholds(design, mass, words) -> tuple[list[int], list[Fraction]]:
    """(offsets U, thresholds in units of mass / S) of a row."""
    offsets = [floor(Fraction(r * mass, 1 << design.rng_bits)) for r in words]
    if design.sampler == "systematic":
        return offsets, [Fraction(offsets[0] + j * mass) for j in range(design.samples)]
    if design.sampler == "stratified":
        return offsets, [Fraction(u + j * mass) for j, u in enumerate(offsets)]
    return offsets, [Fraction(u * design.samples) for u in offsets]


def counts(design, w, words) -> tuple[list[int], list[int]]:
    """(counts, offsets): c_n = thresholds in [S * C_(n-1), S * C_n), counted one by one."""
    mass, running, result = sum(w), 0, []
    if mass == 0:
        return [0] * len(w), [0] * len(words)
    offsets, points = thresholds(design, mass, words)
    for weight in w:
        low, running = design.samples * running, running + weight
        result.append(sum(1 for t in points if low <= t < design.samples * running))
    return result, offsets


def head_step(design, q, exponents, k, v, v_exponents, visible, offset_words, ternary_words=None):
    """Every intermediate of one head step, as a dict; k and v are lists of code rows."""
    factors = ternary_counts(design, q, ternary_words) if design.scores == "ternary" else list(q)
    scored = [score(design, factors, row, exponents) for row in k]
    s = [x for x, _ in scored]
    w = weights(design, s, visible)
    step = {"scores": s, "weights": w, "factors": factors, "saturated_score": sum(clips for _, clips in scored)}
    if design.method == "top-k":
        order = sorted((n for n in range(len(s)) if visible[n]), key=lambda n: (-s[n], n))[: design.samples]
        w = [w[n] if n in order else 0 for n in range(len(w))]
    mass = sum(w)
    if design.method == "santa":
        c, offsets = counts(design, w, offset_words)
        frac = design.samples.bit_length() - 1
        step |= {"counts": c, "offset": offsets}
    else:
        c, frac = w, design.samples.bit_length() - 1 if design.guard_bits is None else design.guard_bits
    sums = [sum(count * row[i] for count, row in zip(c, v, strict=True)) for i in range(len(q))]
    out = sums
    if design.method != "santa" and mass:
        out = [half_up(Fraction(a << frac, mass)) for a in sums]
    lane_frac = [frac + design.v_bits - 1 - e for e in v_exponents]
    if design.out_bits is not None:
        out = [
            clamp(half_up(scaled(o, f - design.out_frac)), design.out_bits) for o, f in zip(out, lane_frac, strict=True)
        ]
        lane_frac = [design.out_frac] * len(q)
    step |= {"mass": mass, "accumulators": sums, "output_codes": out}
    step["output"] = [float(scaled(o, f)) for o, f in zip(out, lane_frac, strict=True)]
    return step
