"""Operands of the golden model: exponents and codes, and the input that is refused."""

from __future__ import annotations

import numpy as np
import pytest
from operands import draw_for, floats, random_codes

from santa_hw.datapath import Exponents, attend, decode, encode
from santa_hw.design import Design


def test_query_exponent_and_codes():
    design = Design(head_dim=2, q_bits=8, k_exponents="per_head", v_exponents="per_head")
    q = np.array([[[[0.0, 0.0], [1.0, -0.5], [127 / 128, 0.25], [3e-12, 0]]]])
    codes = encode(design, q, q, q, Exponents(np.array([[1]]), np.array([[2]])), scale=1 / np.log2(np.e))
    # e = the query's exponent + the keys' 1; zeros take e_min; 1.0 needs e = 1 (128 does not fit), 127/128 fits e = 0.
    assert codes.exponents[0, 0, :, 0].tolist() == [-31, 2, 1, -31]
    assert codes.q[0, 0, :3].tolist() == [[0, 0], [64, -32], [127, 32]]
    assert codes.k[0, 0].tolist() == [[0, 0], [64, -32], [64, 16], [0, 0]]  # 63.5 rounds half to even


def test_k_channel_exponents_fold_into_the_query():
    """Per channel, q*2^e_i against k/2^e_i: exponents that differ by channel leave the exact score unchanged."""
    q, k, v = floats(5, 1, 1, 1, 1, 16, 8)
    spread = np.ldexp(1.0, np.arange(8) - 4)
    e = Exponents((np.arange(8) - 4 + 2)[None], np.full((1, 8), 2))
    design = Design(head_dim=8, q_bits=12, k_bits=12, score_bits=20, score_frac=8)
    plain = attend(
        design,
        q,
        k,
        v,
        exponents=Exponents(np.full((1, 8), 2), np.full((1, 8), 2)),
        draw=draw_for(1, 1),
        keep=["scores"],
    )
    folded = attend(design, q / spread, k * spread, v, exponents=e, draw=draw_for(1, 1), keep=["scores", "k_codes"])
    assert (folded.trace["scores"] == plain.trace["scores"]).all()


def test_static_exponents_never_rewrite_a_stored_code_and_count_saturations():
    design = Design(head_dim=4)
    q, k, v = floats(6, 1, 1, 1, 1, 10, 4)
    e = Exponents(np.full((1, 4), 2), np.full((1, 4), 2))
    first = encode(design, q, k, v, e)
    assert first.saturations["k"] == 0
    longer = np.concatenate([k, np.full((1, 1, 1, 4), 100.0)], axis=2)
    second = encode(design, q, longer, np.concatenate([v, v[:, :, :1]], axis=2), e)
    assert (second.k[:, :, :10] == first.k).all()
    assert second.saturations["k"] - first.saturations["k"] == 4
    assert second.k[0, 0, 10].tolist() == [127] * 4
    third = encode(design, q, np.concatenate([longer, k[:, :, :1]], axis=2), np.zeros((1, 1, 12, 4)), e)
    assert third.saturations["k"] == 0, "the clipped row was counted when it was the newest"


BAD = [
    ("q holds NaN", lambda a: a["q"].__setitem__((0, 0, 0, 0), np.nan)),
    ("k holds NaN", lambda a: a["k"].__setitem__((0, 0, 3, 1), np.inf)),
    ("v holds NaN", lambda a: a["v"].__setitem__((0, 0, 3, 1), -np.inf)),
    (r"q has shape", lambda a: a.update(q=a["q"][..., :3])),
    (r"equal shapes", lambda a: a.update(v=a["v"][:, :, :3])),
    (r"multiple of the 2 KV heads", lambda a: a.update(q=a["q"][:, :3])),
    (r"dtype int64", lambda a: a.update(k=a["k"].astype(int))),
    (
        r"exponents.k: int64 \(2, 1\)",
        lambda a: a.update(exponents=Exponents(np.zeros((2, 1), int), np.zeros((2, 4), int))),
    ),
    (
        r"exponents.v reach 0 to 99",
        lambda a: a.update(exponents=Exponents(np.zeros((2, 4), int), np.eye(2, 4, dtype=int) * 99)),
    ),
    (r"lengths reach", lambda a: a.update(lengths=np.array([[1, 9]]))),
    (r"lengths has shape", lambda a: a.update(lengths=np.array([1]))),
    (r"mask is int64", lambda a: a.update(mask=np.ones((1, 2, 5), dtype=int))),
    (r"draw.position has shape", lambda a: a.update(draw=draw_for(1, 3))),
    (r"scale = -1", lambda a: a.update(scale=-1.0)),
    (r"keep holds 'score'", lambda a: a.update(keep=["score"])),
    (r"at most max_keys = 4", lambda a: a.update(design=Design(head_dim=4, max_keys=4))),
]


@pytest.mark.parametrize(("message", "spoil"), BAD, ids=[m for m, _ in BAD])
def test_bad_input_names_the_argument(message, spoil):
    q, k, v = floats(13, 1, 4, 2, 2, 5, 4)
    arguments = dict(
        design=Design(head_dim=4), q=q, k=k, v=v, draw=draw_for(1, 2),
        exponents=Exponents(np.zeros((2, 4), int), np.zeros((2, 4), int)),
    )  # fmt: skip
    attend(**arguments)
    spoil(arguments)
    with pytest.raises(ValueError, match=message):
        attend(**arguments)


def test_code_out_of_range_is_refused():
    design = Design(head_dim=4)
    codes = random_codes(design, np.random.default_rng(0))
    codes.k[0, 0, 0, 0] = -128
    with pytest.raises(ValueError, match=r"codes\.k reach -128 to \d+: -127 to 127 is allowed"):
        decode(design, codes, draw=draw_for(1, 3))
