"""One frozen `TeamDesign`: what SANTA++ and the baselines beside it are asked to do, but for the number of teams M."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

SHARING = ("own", "shared", "reuse")
WEIGHTS = ("inverse", "tempered", "clipped")


@dataclass(frozen=True)
class TeamDesign:
    """
    A design point of SANTA++ ("SANTA++: Sampling Attention through Representative Keys", 2026).

    Parameters
    ----------
    block : int
        Consecutive keys that are grouped together, once the block is full.
    team : int
        Average keys of a team, a divisor of `block`: a block has block / team representatives.
    sharing : str
        What the query heads of one KV head do: "own" draws a head, the group reads the union; "shared", one draw for
        all, from the sum of the heads' normalised estimates; "reuse", a draw a head, and every head uses them all.
    weights : str
        What a drawn team counts: "inverse", 1/π, unbiased sums; "tempered", (1/π)^exponent, and "clipped",
        min(1/π, clip), are biased.
    exponent : float
        Of tempered weights, 0 to 1: 0 corrects nothing, 1 is inverse.
    clip : float
        Of clipped weights, at least 1.
    sinks : int
        First keys of the cache, always read and in no team.

    Raises
    ------
    ValueError
        A field out of range, by its name.
    """

    block: int = 128
    team: int = 8
    sharing: str = "own"
    weights: str = "inverse"
    exponent: float = 0.5
    clip: float = 8.0
    sinks: int = 4

    def __post_init__(self) -> None:
        for name, least in (("block", 1), ("team", 1), ("sinks", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} = {value!r}: an integer of at least {least} is allowed")
        if self.block % self.team:
            raise ValueError(f"team = {self.team}: a divisor of block = {self.block} is allowed")
        for name, allowed in (("sharing", SHARING), ("weights", WEIGHTS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: {', '.join(allowed)} is allowed")
        if not 0 <= self.exponent <= 1:
            raise ValueError(f"exponent = {self.exponent!r}: 0 to 1 is allowed")
        if not 1 <= self.clip < float("inf"):
            raise ValueError(f"clip = {self.clip!r}: a finite number of at least 1 is allowed")

    @property
    def representatives(self) -> int:
        """Teams of a block."""
        return self.block // self.team

    @property
    def biased(self) -> bool:
        """Whether the weights give up the sums' unbiasedness."""
        return self.weights != "inverse"

    def blocks(self, keys: int) -> int:
        """Full blocks among the first `keys` keys."""
        return max(0, keys - self.sinks) // self.block

    def teams(self, keys: int) -> int:
        """Teams of these blocks."""
        return self.blocks(keys) * self.representatives

    def used(self, method: str) -> set[str]:
        """Fields that can change a method's result; the others may hold anything."""
        names = {"block", "team", "sharing", "sinks"}
        if method == "santapp":
            names |= {"weights"} | {"tempered": {"exponent"}, "clipped": {"clip"}}.get(self.weights, set())
        return names

    def settled(self, method: str) -> TeamDesign:
        """The design with unused fields at their defaults, so that points with equal results are equal."""
        idle = {field.name: field.default for field in fields(self) if field.name not in self.used(method)}
        return replace(self, **idle)  # type: ignore[arg-type]

    def replace(self, **changes: Any) -> TeamDesign:
        """A copy with other values, checked again."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Field names and values."""
        return asdict(self)

    def __str__(self) -> str:
        changed = [f"{f.name} {getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return ", ".join([f"blocks of {self.block}, teams of {self.team}", *changed])


TEAM_FIELDS = {field.name: type(field.default) for field in fields(TeamDesign)}
"""Name -> type of each field."""
