"""Ternary scores of the golden model: the draw, the vectors, and what a group reads."""

from __future__ import annotations

import numpy as np
import pytest
from operands import draw_for, floats, random_codes

from santa_hw.datapath import Exponents, attend, decode, ternary_counts, ternary_vectors
from santa_hw.design import Design


@pytest.mark.parametrize("beta_extra", [0, 2])
@pytest.mark.parametrize("block", [None, 4])
def test_ternary_budget_of_f_bits_equals_dense(beta_extra, block):
    """beta >= q_bits - 1: every count is exact, so all that follows equals dense scores bit for bit."""
    fields = dict(head_dim=8, q_bits=6, score_frac=5)
    codes = random_codes(Design(**fields), np.random.default_rng(8), rows=4, keys=40)
    dense = decode(Design(**fields), codes, draw=draw_for(1, 4), keep=["scores", "counts"])
    ternary_design = Design(**fields, scores="ternary", ternary_samples=1 << (5 + beta_extra))
    ternary = decode(ternary_design, codes, draw=draw_for(1, 4), keep=["scores", "counts"])
    assert (ternary.trace["scores"] == dense.trace["scores"]).all()
    assert (ternary.output == dense.output).all()
    assert ternary.tally.feature_reads == dense.tally.feature_reads or (codes.q == 0).any()


@pytest.mark.parametrize("samples", [1, 4, 16])
def test_stratified_ternary_draw_is_stochastic_rounding(samples):
    """Over all words of R bits, the counts of |q| average to B*|q|/2^f exactly, and take only the two neighbours."""
    design = Design(head_dim=1, q_bits=6, scores="ternary", ternary_samples=samples, rng_bits=8)
    everything = np.arange(256, dtype=np.uint32)[:, None]
    for code in range(-31, 32):
        counts = ternary_counts(design, np.full((256, 1), code, dtype=np.int32), everything)
        assert int(counts.sum()) * 32 == 256 * samples * code
        low = abs(code) * samples // 32
        assert set(np.abs(counts).ravel().tolist()) <= {low, low + 1}


@pytest.mark.parametrize("kind", ["stratified", "iid"])
def test_ternary_vectors_sum_to_the_counts(kind):
    design = Design(head_dim=16, scores="ternary", ternary_samples=8, ternary_draw=kind)
    rng = np.random.default_rng(9)
    q = rng.integers(-127, 128, (2, 3, 16)).astype(np.int32)
    shape = (2, 3, 16, 8) if kind == "iid" else (2, 3, 16)
    drawn = rng.integers(0, 2**32, shape, dtype=np.uint32)
    vectors = ternary_vectors(design, q, drawn)
    assert vectors.shape == (8, 2, 3, 16) and set(np.unique(vectors)) <= {-1, 0, 1}
    assert (vectors.sum(axis=0) == ternary_counts(design, q, drawn)).all()


def test_shared_ternary_draw_reads_fewer_features():
    q, k, v = floats(10, 1, 6, 2, 8, 32, 32)
    e = Exponents(np.full((2, 32), 2), np.full((2, 32), 2))
    reads = {}
    for offset in ("shared", "independent"):
        design = Design(head_dim=32, scores="ternary", ternary_samples=4, ternary_offset=offset)
        result = attend(design, q, k, v, exponents=e, draw=draw_for(1, 8), keep=["ternary_counts"])
        union = (result.trace["ternary_counts"].reshape(1, 2, 3, 8, 32) != 0).any(axis=2).sum(axis=-1)
        lengths = np.arange(25, 33)
        assert result.tally.feature_reads == (union * lengths).sum()
        reads[offset] = result.tally.features_read
    assert reads["shared"] < reads["independent"] < 1
