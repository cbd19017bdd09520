"""Teams of similar keys: each block of consecutive keys is grouped around a few of its own keys."""

from dataclasses import dataclass

import torch

from santa_hw.reference.dense import check_count, is_finite


@dataclass(frozen=True)
class Teams:
    """
    The teams of full blocks; numbers count inside the block.

    Parameters
    ----------
    representative : (..., blocks, R) int64
        The key of its block that stands for each team.
    member : (..., blocks, block) int64
        The team, 0 to R - 1, of each key.
    size : (..., blocks, R) int64
        Keys of each team, at least 1; a block's sizes sum to its keys.
    """

    representative: torch.Tensor
    member: torch.Tensor
    size: torch.Tensor

    def first(self, blocks: int) -> "Teams":
        """The teams of the first `blocks` blocks."""
        return Teams(*(x[..., :blocks, :] for x in (self.representative, self.member, self.size)))

    def followed_by(self, later: "Teams") -> "Teams":
        """These blocks and then later ones: teams of keys that are there do not change."""
        pairs = zip(
            (self.representative, self.member, self.size),
            (later.representative, later.member, later.size),
            strict=True,
        )
        return Teams(*(torch.cat(pair, dim=-2) for pair in pairs))

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.size.shape[-2]


def form_teams(k: torch.Tensor, block: int, representatives: int) -> Teams:
    """Group the keys of each block into teams.

    The first representative is the key nearest the block's mean, each further one the key farthest from the
    representatives so far, and every key joins its nearest representative (Euclidean distance; ties: the lowest key,
    the earliest team). A representative is of its own team, whatever key equals it.

    Parameters
    ----------
    k : (..., n, d), n a multiple of ``block``; any leading axes.
    representatives : R, at most ``block``.

    Examples
    --------
    >>> import torch
    >>> form_teams(torch.tensor([[0.0], [1.0], [9.0], [2.0]]), block=4, representatives=2).member
    tensor([[0, 0, 1, 0]])
    """
    check_count("block", block)
    check_count("representatives", representatives)
    if representatives > block:
        raise ValueError(f"representatives is {representatives}; allowed: at most the {block} keys of a block")
    if k.shape[-2] % block:
        raise ValueError(f"k has {k.shape[-2]} keys; allowed: whole blocks of {block}")
    if not is_finite(k):
        raise ValueError("k holds NaN or infinity; allowed: finite numbers")
    keys = k.double().unflatten(-2, (k.shape[-2] // block, block))

    def distance(points: torch.Tensor) -> torch.Tensor:
        return (keys - points).square().sum(dim=-1)

    def key(index: torch.Tensor) -> torch.Tensor:
        return keys.gather(-2, index.unsqueeze(-1).expand(*index.shape, keys.shape[-1]))

    chosen = distance(keys.mean(dim=-2, keepdim=True)).argmin(dim=-1, keepdim=True)
    nearest = distance(key(chosen))
    member = torch.zeros(nearest.shape, dtype=torch.int64, device=k.device)
    for team in range(1, representatives):
        # Equal keys are at distance 0 from a representative: the one that is chosen must still be another key.
        farthest = nearest.scatter(-1, chosen, -1.0).argmax(dim=-1, keepdim=True)
        chosen = torch.cat([chosen, farthest], dim=-1)
        reach = distance(key(farthest))
        member = torch.where(reach < nearest, team, member)
        nearest = torch.minimum(reach, nearest)
    own = torch.arange(representatives, device=k.device).expand(chosen.shape)
    member = member.scatter(-1, chosen, own)
    size = torch.zeros(chosen.shape, dtype=torch.int64, device=k.device)
    return Teams(chosen, member, size.scatter_add(-1, member, torch.ones_like(member)))
