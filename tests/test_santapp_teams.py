"""Teams, inclusion probabilities and the draw of SANTA++, against plain loops and exact enumeration."""

import dataclasses
import itertools
import math

import pytest
import torch
from draws import LAST, normal
from hypothesis import given
from hypothesis import strategies as st
from team_oracle import intervals, oracle_pi, oracle_teams

from santa_hw import reference
from santa_hw.reference import TeamDesign, draw_teams, form_teams, inclusion_probabilities

# Teams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [1, 2, 100], ids=lambda s: f"spread={s}")
@pytest.mark.parametrize("block, representatives", [(8, 1), (8, 3), (16, 4), (8, 8), (1, 1)])
def test_teams_against_loops(generator, block, representatives, spread):
    # Small whole numbers make ties and equal keys; block being a power of two, means and distances are exact.
    keys = generator.integers(-spread, spread + 1, size=(2, 5 * block, 3)).astype(float)
    teams = form_teams(torch.from_numpy(keys), block, representatives)
    for head, b in itertools.product(range(2), range(5)):
        chosen, member = oracle_teams(keys[head, b * block : (b + 1) * block], representatives)
        assert teams.representative[head, b].tolist() == chosen
        assert teams.member[head, b].tolist() == member
        assert teams.size[head, b].tolist() == [member.count(j) for j in range(representatives)]
        assert min(teams.size[head, b]) >= 1


def test_equal_keys_make_teams_of_distinct_representatives():
    teams = form_teams(torch.ones(2, 16, 4), 8, 8)
    assert teams.representative.sort(dim=-1).values.tolist() == [[list(range(8))] * 2] * 2
    assert teams.size.eq(1).all()
    assert form_teams(torch.ones(8, 4), 8, 3).size.tolist() == [[6, 1, 1]]


def test_blocks_that_fill_later_join_the_teams_that_are_there(rng):
    keys = normal(rng, 2, 3, 40, 4)
    whole, first = form_teams(keys, 8, 4), form_teams(keys[..., :24, :], 8, 4)
    joined = first.followed_by(form_teams(keys[..., 24:, :], 8, 4))
    for field in dataclasses.fields(whole):
        assert torch.equal(getattr(whole, field.name), getattr(joined, field.name))
        assert torch.equal(getattr(whole.first(3), field.name), getattr(first, field.name))
    assert form_teams(keys[..., :0, :], 8, 4).blocks == 0
    assert whole.blocks == 5


# Inclusion probabilities and the draw ----------------------------------------------------------------

masses = st.lists(st.one_of(st.integers(0, 5), st.integers(1, 10**6), st.floats(1e-12, 1.0)), min_size=1, max_size=12)


@given(masses.filter(any), st.integers(1, 12))
def test_inclusion_probabilities_are_capped_and_sum_to_m(mass, samples):
    samples = min(samples, len(mass))
    pi = inclusion_probabilities(torch.tensor(mass, dtype=torch.float64), samples)
    assert pi.sum().item() == pytest.approx(samples, abs=1e-8)
    assert (pi >= 0).all() and (pi <= 1).all()
    positive = sum(m > 0 for m in mass)
    if samples <= positive:
        assert pi.tolist() == pytest.approx(oracle_pi(mass, samples), rel=1e-7, abs=1e-12)
    free = [(p, m) for p, m in zip(pi.tolist(), mass, strict=True) if p < 1 and m > 1e-9 * max(mass)]
    assert len({round(math.log(p / m), 6) for p, m in free}) <= 1


def test_capping_goes_on_until_none_exceeds_one():
    # M = 3: 90 is capped, which leaves 2 for 8 + 1 + 1 and caps 8, which leaves 1 for the two.
    pi = inclusion_probabilities(torch.tensor([1.0, 90.0, 8.0, 1.0]), 3)
    assert pi.tolist() == [0.5, 1.0, 1.0, 0.5]
    assert (3 * torch.tensor([1.0, 90.0, 8.0, 1.0]) / 100)[2] < 1  # a single pass would not have capped it


def test_as_many_teams_as_samples_are_certain():
    live = torch.tensor([[True, True, False, False], [True, True, True, False]])
    pi = inclusion_probabilities(torch.tensor([0.9, 0.0, 0.1, 0.0]).expand(2, 4), 2, live)
    assert pi[0].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert pi[1].tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0], abs=1e-8)


@given(masses.filter(any), st.integers(1, 12), st.floats(0, LAST))
def test_every_draw_has_exactly_m_distinct_teams(mass, samples, u):
    samples = min(samples, len(mass))
    pi = inclusion_probabilities(torch.tensor(mass, dtype=torch.float64), samples)
    for offset in (u, 0.0, LAST):
        drawn = draw_teams(pi, torch.tensor(offset, dtype=torch.float64))
        assert drawn.sum() == samples
        assert set(drawn.nonzero().flatten().tolist()) >= {g for g, p in enumerate(pi) if p == 1}


@given(masses.filter(any), st.integers(1, 12))
def test_each_team_is_drawn_with_its_own_probability(mass, samples):
    pi = inclusion_probabilities(torch.tensor(mass, dtype=torch.float64), min(samples, len(mass)))
    middle, length = intervals(pi)
    drawn = draw_teams(pi.expand(len(middle), -1), middle).double()
    torch.testing.assert_close(length @ drawn, pi, rtol=0, atol=1e-8)


def test_the_published_example():
    """π = 0.7 for one team of mass 40 and 0.105 for sixty of mass 1, M = 7: 114.3 or 66.7, 100 on average."""
    pi = torch.tensor([0.7] + [0.105] * 60, dtype=torch.float64)
    mass = torch.tensor([40.0] + [1.0] * 60, dtype=torch.float64)
    middle, length = intervals(pi)
    drawn = draw_teams(pi.expand(len(middle), -1), middle)
    assert drawn.sum(dim=-1).eq(7).all()
    estimate = reference.team_weights(pi, drawn, TeamDesign()) @ mass
    heavy = drawn[:, 0]
    assert estimate[heavy].unique().tolist() == pytest.approx([40 / 0.7 + 6 / 0.105] * len(estimate[heavy].unique()))
    assert estimate[heavy].mean().item() == pytest.approx(114.3, abs=0.05)
    assert estimate[~heavy].mean().item() == pytest.approx(66.7, abs=0.05)
    assert (length @ estimate).item() == pytest.approx(100, rel=1e-12)


# Bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        ({"block": 0}, "block = 0: an integer of at least 1"),
        ({"block": 128.0}, "block = 128.0: an integer"),
        ({"team": 3}, "team = 3: a divisor of block = 128"),
        ({"team": 256}, "team = 256: a divisor of block = 128"),
        ({"sinks": -1}, "sinks = -1: an integer of at least 0"),
        ({"sharing": "both"}, "sharing = 'both': own, shared, reuse is allowed"),
        ({"weights": "none"}, "weights = 'none': inverse, tempered, clipped is allowed"),
        ({"exponent": 1.5}, "exponent = 1.5: 0 to 1"),
        ({"exponent": math.nan}, "exponent = nan: 0 to 1"),
        ({"clip": 0.5}, "clip = 0.5: a finite number of at least 1"),
        ({"clip": math.inf}, "clip = inf: a finite number"),
    ],
)
def test_a_bad_design_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        TeamDesign(**change)
