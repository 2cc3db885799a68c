"""PAT, parallel aggregated trees: gathering and reduce-scattering in a logarithmic number of steps, for any ranks.

S. Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tutti.language.builtins.block_trees import BlockTrees, Edge
from tutti.language.builtins.common import start
from tutti.language.collectives import AllGather, ReduceScatter
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["pat_all_gather", "pat_reduce_scatter"]


def _edges(ranks: int) -> Callable[[int], Iterator[Edge]]:
    def edges(block: int) -> Iterator[Edge]:
        """A binomial tree over the distances from the block's owner, cut off where the ranks end."""
        for step in range((ranks - 1).bit_length()):
            distance = 1 << step
            for near in range(0, ranks - distance, 2 * distance):
                yield step, (block + near + distance) % ranks, (block + near) % ranks

    return edges


def pat_all_gather(spec: AlgoSpec) -> CollectiveProgram:
    """Sends far blocks first, then ever more to ever nearer ranks: log n steps, n-1 blocks a rank.

    The opposite order of Bruck's: only one block goes the longest way, most go to the neighbour. All trees of a step
    are aggregated into one message a rank, so the latency is log n times that of a message.
    """
    with start(spec, "PAT all-gather", AllGather) as program:
        BlockTrees(program, _edges(program.num_ranks)).run()
    return program


def pat_reduce_scatter(spec: AlgoSpec) -> CollectiveProgram:
    """The all-gather backwards: log n steps, near ranks first, n-1 blocks a rank, as many of scratch."""
    with start(spec, "PAT reduce-scatter", ReduceScatter) as program:
        BlockTrees(program, _edges(program.num_ranks)).run()
    return program
