"""All-reduce in two levels: within hosts, and between them.

After the hierarchical schemes of N. T. Karonis et al., Exploiting Hierarchy in Parallel Computer Networks to Optimize
Collective Operation Performance, IPDPS 2000, with the work between hosts shared by all ranks of a host.
"""

from __future__ import annotations

from collections.abc import Iterator

from tutti.language.builtins.block_trees import BlockTrees, Edge
from tutti.language.builtins.common import require, start
from tutti.language.collectives import AllReduce
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["two_level_all_reduce"]

_NAME = "the two-level all-reduce"


def _groups(spec: AlgoSpec) -> list[range]:
    """The ranks of each host: as the tag ``groups`` says, else ``nranks_per_node`` each and the rest in the last."""
    ranks = spec.world_size
    sizes = list(spec.tags.get("groups", ()))
    if not sizes:
        sizes = [min(spec.nranks_per_node, ranks - first) for first in range(0, ranks, spec.nranks_per_node)]
    fits = sum(sizes) == ranks and all(size >= 1 for size in sizes)
    require(fits, _NAME, f"has {ranks} ranks, which groups of {sizes} do not add up to")
    firsts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [range(first, first + size) for first, size in zip(firsts, sizes, strict=True)]


def two_level_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Adds up within every group, between groups, and goes back: 4 steps, groups of any sizes.

    In a group of m ranks each adds up every m-th block of its fellows, so it sends (m-1)/m of the data there and 1/m
    between groups, and the same back. With unequal groups a rank of a small group stands for more blocks than one of a
    large group; every block still crosses into each group once.
    """
    groups = _groups(spec)
    group_of = {rank: group for group in groups for rank in group}

    def agent(group: range, block: int) -> int:
        """Who adds up a block in a group: consecutive blocks fall to all its ranks in turn."""
        return group[block % len(group)]

    def owner(block: int) -> int:
        return agent(group_of[block], block)

    def edges(block: int) -> Iterator[Edge]:
        for group in groups:
            for rank in group:
                if rank != agent(group, block):
                    yield 0, rank, agent(group, block)
            if group != group_of[block]:
                yield 1, agent(group, block), owner(block)

    with start(spec, _NAME, AllReduce) as program:
        BlockTrees(program, edges, owner).run()
    return program
