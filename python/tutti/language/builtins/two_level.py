"""Collectives in two levels: within hosts, and between them.

After the hierarchical schemes of N. T. Karonis et al., Exploiting Hierarchy in Parallel Computer Networks to Optimize
Collective Operation Performance, IPDPS 2000, with the work between hosts shared by all ranks of a host.

Within a host ranks meet by memory channels, between hosts by port channels, so the plans also run on several hosts. The
tag ``channels`` says "memory" where all ranks share memory and the groups are parts of one host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tutti.language.builtins.block_trees import BlockTrees, Edge
from tutti.language.builtins.common import Mesh, require, start, whole_numbers
from tutti.language.builtins.rooted import RootedTree, broadcast_down, reduce_up
from tutti.language.collectives import AllGather, AllReduce, Broadcast, Collective, Reduce, ReduceScatter
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = [
    "two_level_all_gather",
    "two_level_all_reduce",
    "two_level_broadcast",
    "two_level_reduce",
    "two_level_reduce_scatter",
]

_NAME = "the two-level algorithm"


class _Groups:
    """The ranks of each host: as the tag ``groups`` says, else ``nranks_per_node`` each and the rest in the last."""

    def __init__(self, spec: AlgoSpec) -> None:
        ranks = spec.world_size
        sizes = whole_numbers(spec.tags.get("groups", ()), "the sizes of groups", _NAME)
        if not sizes:
            sizes = [min(spec.nranks_per_node, ranks - first) for first in range(0, ranks, spec.nranks_per_node)]
        fits = sum(sizes) == ranks and all(size >= 1 for size in sizes)
        require(fits, _NAME, f"has {ranks} ranks, which groups of {sizes} do not add up to")
        self.channels = spec.tags.get("channels", "port")
        require(self.channels in ("port", "memory"), _NAME, f'knows channels "port" and "memory", not {self.channels}')
        firsts = [sum(sizes[:place]) for place in range(len(sizes))]
        self.all = [range(first, first + size) for first, size in zip(firsts, sizes, strict=True)]
        self.of = {rank: group for group in self.all for rank in group}

    def mesh(self) -> Mesh:
        """Channels that fit the groups."""
        return Mesh(lambda here, there: self.channels == "port" and self.of[here] != self.of[there])

    def edges(self, agent: Callable[[range, int], int]) -> Callable[[int], Iterator[Edge]]:
        """The tree of a block: everyone gives to the agent of its group, these to the one that owns the block."""

        def edges_of(block: int) -> Iterator[Edge]:
            owner = agent(self.of[block], block)
            for group in self.all:
                for rank in group:
                    if rank != agent(group, block):
                        yield 0, rank, agent(group, block)
                if group != self.of[block]:
                    yield 1, agent(group, block), owner

        return edges_of


def two_level_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Adds up within every group, between groups, and goes back: 4 steps, groups of any sizes.

    In a group of m ranks each adds up every m-th block of its fellows, so it sends (m-1)/m of the data there and 1/m
    between groups, and the same back. With unequal groups a rank of a small group stands for more blocks than one of a
    large group; every block still crosses into each group once.
    """
    groups = _Groups(spec)

    def agent(group: range, block: int) -> int:
        """Who adds up a block in a group: consecutive blocks fall to all its ranks in turn."""
        return group[block % len(group)]

    with start(spec, _NAME, AllReduce) as program:
        trees = BlockTrees(program, groups.edges(agent), lambda block: agent(groups.of[block], block), groups.mesh())
        trees.run()
    return program


def _trees_to_blocks(spec: AlgoSpec, collective: type[Collective]) -> CollectiveProgram:
    groups = _Groups(spec)

    def agent(group: range, block: int) -> int:
        return block if block in group else group[block % len(group)]

    with start(spec, _NAME, collective) as program:
        BlockTrees(program, groups.edges(agent), mesh=groups.mesh()).run()
    return program


def two_level_all_gather(spec: AlgoSpec) -> CollectiveProgram:
    """Every block crosses into each group once, to ranks of it in turn, which spread it there: 2 steps."""
    return _trees_to_blocks(spec, AllGather)


def two_level_reduce_scatter(spec: AlgoSpec) -> CollectiveProgram:
    """The all-gather backwards: each group adds up what it has of a block before it crosses; 2 steps."""
    return _trees_to_blocks(spec, ReduceScatter)


class _TwoLevelTree(RootedTree):
    """The root reaches one rank of each other group, and each of these its fellows."""

    def __init__(self, program: CollectiveProgram, groups: _Groups) -> None:
        super().__init__(program)
        self._leader: dict[int, int] = {}
        for group in groups.all:
            leader = self.root if self.root in group else group[0]
            self._leader.update((self._number(rank), self._number(leader)) for rank in group)

    def _number(self, rank: int) -> int:
        return (rank - self.root) % self.size

    def parent(self, v: int) -> int:
        """The leader of its group; a leader's is the root."""
        return 0 if self._leader[v] == v else self._leader[v]

    def children(self, v: int) -> list[int]:
        """Leaders first: what crosses takes longest."""
        mine = [child for child in range(1, self.size) if child != v and self.parent(child) == v]
        return sorted(mine, key=lambda child: self._leader[child] != child)


def two_level_broadcast(spec: AlgoSpec) -> CollectiveProgram:
    """The root gives the data to one rank of each other group, and these to their fellows: 2 steps."""
    groups = _Groups(spec)
    with start(spec, _NAME, Broadcast) as program:
        broadcast_down(program, _TwoLevelTree(program, groups), groups.mesh())
    return program


def two_level_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """The broadcast backwards: each group adds up before it sends to the root."""
    groups = _Groups(spec)
    with start(spec, _NAME, Reduce) as program:
        reduce_up(program, _TwoLevelTree(program, groups), groups.mesh())
    return program
