"""What decode steps did: counts taken from a run of the datapath, summed over heads, positions, layers and windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Tally:
    """Counts of one or many decode steps; tallies add.

    A *head step* is one query head at one position; a *group step* one KV head at one position, shared by the query
    heads of its group.

    Parameters
    ----------
    head_steps, group_steps, empty_steps : int
        Head steps, group steps, and head steps that saw no key (their output is zero).
    visible_keys, group_keys : int
        Keys scored, summed over head steps; key rows streamed, summed over group steps (the union over the group).
    feature_reads, key_features : int
        Key features read, summed over group steps: keys times the features any head of the group needs; and all
        features of those keys (keys times d).
    score_terms : int
        Features with a non-zero query factor times keys, summed over head steps: multiply-accumulates with dense
        scores. With ternary scores each costs its count in additions, summed here: sum of |count| times keys.
    unique_rows, group_rows : int
        Distinct value rows read, summed over head steps, and over group steps after the group's union.
    value_terms : int
        Value rows added (or, for the baselines, multiplied and added), summed over head steps; times d additions.
    saturated_q, saturated_k, saturated_v, saturated_score, saturated_output : int
        Codes clipped at each quantiser. K and V codes are counted when they are
        stored: among the newest keys of a call, as many as it has queries.
    lost_mass : float
        Mass lost to the weight width against 32 bits, as a share of each head step's mass, summed over head steps.
    """

    head_steps: int = 0
    group_steps: int = 0
    empty_steps: int = 0
    visible_keys: int = 0
    group_keys: int = 0
    feature_reads: int = 0
    key_features: int = 0
    score_terms: int = 0
    unique_rows: int = 0
    group_rows: int = 0
    value_terms: int = 0
    saturated_q: int = 0
    saturated_k: int = 0
    saturated_v: int = 0
    saturated_score: int = 0
    saturated_output: int = 0
    lost_mass: float = 0.0

    def __add__(self, other: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self)})

    @property
    def saturations(self) -> dict[str, int]:
        """Clipped codes by quantiser: q, k, v, score, output."""
        names = ("q", "k", "v", "score", "output")
        return {name: getattr(self, f"saturated_{name}") for name in names}

    @property
    def total_saturations(self) -> int:
        """Clipped codes of all quantisers."""
        return sum(self.saturations.values())

    @property
    def live_steps(self) -> int:
        """Head steps that saw a key; means are over these, so that padding does not dilute them."""
        return self.head_steps - self.empty_steps

    @property
    def mean_unique_rows(self) -> float:
        """Distinct value rows a head step reads, averaged."""
        return self.unique_rows / max(1, self.live_steps)

    @property
    def mean_group_rows(self) -> float:
        """Distinct value rows a group step reads (the union over its heads), averaged."""
        # The heads of a group see the same keys, so they are empty together.
        return self.group_rows * self.head_steps / max(1, self.group_steps * self.live_steps)

    @property
    def mean_lost_mass(self) -> float:
        """Share of the mass lost to the weight width, averaged over head steps."""
        return self.lost_mass / max(1, self.live_steps)

    @property
    def kv_reads(self) -> float:
        """Key and value rows that head steps read, as a share of all that they see: every key, the values drawn.

        A key counts whole, whatever share of its features is read.
        """
        return (self.visible_keys + self.unique_rows) / max(1, 2 * self.visible_keys)

    @property
    def group_kv_reads(self) -> float:
        """The same for group steps, after the union over a group's heads."""
        return (self.group_keys + self.group_rows) / max(1, 2 * self.group_keys)

    @property
    def features_read(self) -> float:
        """Share of the key features of the visible rows that were read, after the group's union."""
        return self.feature_reads / max(1, self.key_features)


@dataclass(frozen=True)
class TeamTally(Tally):
    """A tally of steps that score what stands for teams of keys, and not every key.

    Parameters
    ----------
    key_rows, group_key_rows : int
        Key rows read, summed over head steps, and over group steps after the group's union.
    """

    key_rows: int = 0
    group_key_rows: int = 0

    @property
    def kv_reads(self) -> float:
        """Key and value rows that head steps read, as a share of all that they see."""
        return (self.key_rows + self.unique_rows) / max(1, 2 * self.visible_keys)

    @property
    def group_kv_reads(self) -> float:
        """The same for group steps, after the union over a group's heads."""
        return (self.group_key_rows + self.group_rows) / max(1, 2 * self.group_keys)


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of tallies."""
    result = Tally()
    for tally in tallies:
        result += tally
    return result
