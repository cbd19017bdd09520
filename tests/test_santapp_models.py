"""SANTA++ in a model and in a sweep."""

import pytest
import tiny
import torch
from team_oracle import SMALL

from santa_hw import models, reference, sweep
from santa_hw.design import Design
from santa_hw.events import Tally, TeamTally, total
from santa_hw.reference import TeamDesign, form_teams
from santa_hw.sweep import check_keys, grid


def decoded(hook, tokens, prompt):
    """Logits of a tiny model that reads a prompt at once and then one token after another."""
    loaded = tiny.loaded()
    with torch.inference_mode(), models.attention(loaded, hook, phases="both"):
        first = loaded.model(input_ids=tokens[:, :prompt], use_cache=True)
        logits, cache = [first.logits], first.past_key_values
        for at in range(prompt, tokens.shape[1]):
            step = loaded.model(input_ids=tokens[:, at : at + 1], past_key_values=cache, use_cache=True)
            logits.append(step.logits)
    return torch.cat(logits, dim=1)


def test_decode_steps_form_each_block_once_and_equal_the_window(rng, monkeypatch):
    tokens = torch.randint(3, 250, (1, 45), generator=rng)
    formed = []

    def counted(k, block, representatives):
        formed.append(k.shape[-2])
        return form_teams(k, block, representatives)

    monkeypatch.setattr("santa_hw.models.methods.form_teams", counted)
    hook = models.team_method("top-teams", 3, SMALL)
    window = decoded(hook, tokens, 45)
    once = hook.tally
    hook = models.team_method("top-teams", 3, SMALL)
    formed.clear()
    steps = decoded(hook, tokens, 20)
    torch.testing.assert_close(steps, window, rtol=1e-4, atol=1e-4)
    assert hook.tally == once
    # Two layers: two blocks of the prompt at once, then three as they fill.
    assert sum(formed) == 2 * 5 * 8 and formed.count(16) == 2 and formed.count(8) == 2 * 3
    assert once.kv_reads < once.group_kv_reads < 1
    assert 0 < once.mean_unique_rows < 23


def test_a_team_method_draws_again_after_a_reset(rng):
    tokens = torch.randint(3, 250, (1, 45), generator=rng)
    hook = models.team_method("santapp", 3, SMALL, seed=4)
    first, second = decoded(hook, tokens, 45), decoded(hook, tokens, 45)
    hook.reset()
    assert torch.equal(decoded(hook, tokens, 45), first) and not torch.equal(first, second)
    other = decoded(models.team_method("santapp", 3, SMALL, seed=5), tokens, 45)
    assert not torch.equal(other, first)


def test_kv_reads_of_tallies():
    # SANTA reads every key: 50 % and its values. Tallies of teams add their own key rows.
    tally = Tally(head_steps=4, visible_keys=100, group_keys=50, unique_rows=10, group_rows=10)
    assert (tally.kv_reads, tally.group_kv_reads) == (0.55, 0.6)
    teams = TeamTally(visible_keys=100, group_keys=50, unique_rows=10, group_rows=8, key_rows=20, group_key_rows=12)
    assert ((teams + teams).kv_reads, teams.group_kv_reads) == (0.15, 0.2)
    assert isinstance(teams + teams, TeamTally) and total([tally, tally]).unique_rows == 20


def test_names_are_the_references():
    assert tuple(reference.TEAM_METHODS) == sweep.TEAM_METHODS
    assert not set(sweep.TEAM_METHODS) & {*sweep.METHODS, *sweep.FLOAT_METHODS}


def axis(name, *values):
    return [{name: value} for value in values]


def test_a_grid_of_team_designs():
    axes = [axis("sharing", "own", "reuse"), axis("weights", "inverse", "tempered"), axis("exponent", 0.25, 0.75)]
    points = grid(Design(), [], methods=["santapp", "top-teams"], samples=[8, 16], seeds=range(3), team_axes=axes)
    # Inverse weights have no exponent; a baseline has no weights, and draws nothing.
    assert len(points) == len(set(points)) == 2 * (1 + 2) * 2 * 3 + 2 * 2
    assert {p.seed for p in points if p.method == "top-teams"} == {0}
    assert str(points[0]) == "santapp 8 blocks of 128, teams of 8"
    with pytest.raises(ValueError, match="weights has no effect with method top-means"):
        grid(Design(), [], methods=["top-means"], samples=[8], team_axes=[axis("weights", "clipped")])
    with pytest.raises(ValueError, match="block has no effect with method float-sys"):
        grid(Design(), [], methods=["float-sys"], samples=[8], team_axes=[axis("block", 64)])
    with pytest.raises(ValueError, match="samples = 0: 1 or more is allowed with santapp"):
        grid(Design(), [], methods=["santapp"], samples=[0])


def test_more_teams_than_there_are_is_refused():
    points = grid(Design(), [], methods=["santapp"], samples=[112])
    check_keys(points, 1024)
    with pytest.raises(ValueError, match=r"samples = 113: at most 112, the teams of the task's 1024 keys .* santapp"):
        check_keys(grid(Design(), [], methods=["santapp"], samples=[113]), 1024)
    with pytest.raises(ValueError, match="samples = 1: at most 0, the teams of the task's 100 keys"):
        check_keys(grid(Design(), [], methods=["top-bounds"], samples=[1]), 100)


def test_rows_say_what_was_read(tmp_path):
    loaded = tiny.loaded()
    task, setting = sweep.open_task(loaded, "perplexity", text=tiny_text(tmp_path), windows=1, window=64)
    axes = [axis("block", 8), axis("team", 2)]
    points = grid(Design(), [], methods=[*sweep.TEAM_METHODS, "float-sys", "float-dense"], samples=[4], team_axes=axes)
    points += grid(Design(), [], methods=["santapp"], samples=[28], team_axes=axes)
    rows = sweep.run(loaded, task, setting, points, sweep.Rows(tmp_path / "rows.json"))
    by_method = {row["method"]: row for row in rows[:-1]}
    assert by_method["santapp"]["teams"] == TeamDesign(block=8, team=2).to_dict()
    assert by_method["float-dense"]["kv_reads"] == by_method["float-dense"]["group_kv_reads"] == 1.0
    for name in sweep.TEAM_METHODS:
        assert 0.2 < by_method[name]["kv_reads"] < by_method[name]["group_kv_reads"] < 1
        assert by_method[name]["tally"] is None and by_method[name]["design"] is None
    assert 0.5 < by_method["float-sys"]["kv_reads"] < by_method["float-sys"]["group_kv_reads"] < 1
    assert rows[-1]["kl_to_dense"] < 1e-6 and rows[-1]["kv_reads"] == 1.0
    again = []
    sweep.run(
        loaded, task, setting, points, sweep.Rows(tmp_path / "rows.json"), on_row=lambda _, new: again.append(new)
    )
    assert not any(again)


def tiny_text(folder):
    path = folder / "text.txt"
    path.write_text(tiny.prose(1))
    return str(path)
