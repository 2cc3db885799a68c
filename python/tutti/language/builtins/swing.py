"""Swing: exchanges with ranks at distances 1, -1, 3, -5, 11, ..., so messages stay short on a ring or torus.

D. De Sensi et al., Swing: Short-cutting Rings for Higher Bandwidth Allreduce, NSDI 2024.
"""

from __future__ import annotations

from collections.abc import Callable

from tutti.language.builtins.block_trees import BlockTrees, Edge
from tutti.language.builtins.common import require, start
from tutti.language.collectives import AllReduce
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["swing_all_reduce"]


def _partner(rank: int, step: int, ranks: int) -> int:
    """Even ranks go one way, odd ones the other, and distances are odd, so partners agree about each other."""
    distance: int = (1 - (-2) ** (step + 1)) // 3
    return (rank + distance if rank % 2 == 0 else rank - distance) % ranks


def _edges(ranks: int) -> Callable[[int], list[Edge]]:
    def edges(block: int) -> list[Edge]:
        """Found from the owner backwards: whoever is not reached by a later step gives its part at this one.

        Where the ranks are no power of two a partner may have been reached before; the message leaves the block out.
        """
        reached, found = {block}, []
        for step in reversed(range((ranks - 1).bit_length())):
            for rank in sorted(reached):
                partner = _partner(rank, step, ranks)
                if partner not in reached:
                    reached.add(partner)
                    found.append((step, partner, rank))
        return found

    return edges


def swing_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Reduce-scatter and all-gather over swinging distances: 2 log n steps, 2(n-1)/n of the data a rank.

    On a ring, step s crosses about 2^s/3 links where recursive halving crosses 2^s.
    """
    name = "Swing"
    ranks = spec.world_size
    require(ranks % 2 == 0, name, f"pairs even ranks with odd ones, so it is for an even number of ranks, not {ranks}")
    with start(spec, name, AllReduce) as program:
        BlockTrees(program, _edges(ranks)).run()
    return program
