"""Collectives over bine (binomial negabinary) trees, whose messages go shorter ways than a binomial tree's.

D. De Sensi et al., Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality, SC 2025.
"""

from __future__ import annotations

from collections.abc import Iterator

from tutti.language.builtins.block_trees import BlockTrees, Edge
from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of, start
from tutti.language.builtins.rooted import RootedTree, broadcast_down, reduce_up
from tutti.language.chunks import BaseBuffer, Buffer, Chunk
from tutti.language.collectives import (
    AllGather,
    AllReduce,
    Broadcast,
    Collective,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
)
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = [
    "bine_all_gather",
    "bine_all_reduce",
    "bine_broadcast",
    "bine_gather",
    "bine_reduce",
    "bine_reduce_scatter",
    "bine_scatter",
]


def _distance(bits: int) -> int:
    """1 + (-2) + 4 + ... of so many terms: odd, so whoever goes one way meets who goes the other."""
    distance: int = (1 - (-2) ** bits) // 3
    return distance


class _BineTree(RootedTree):
    """Distances are sums of powers of -2, one way from even numbers and the other from odd ones.

    The tree spans the largest power of two of the ranks; each of the rest hangs below one of the first, a step more.
    """

    def __init__(self, program: CollectiveProgram) -> None:
        super().__init__(program)
        steps = self.size.bit_length() - 1
        spanned = 1 << steps
        self._parent: dict[int, int] = {}
        self._children: dict[int, list[int]] = {v: [] for v in range(self.size)}
        self._nearness: dict[int, int] = {}
        reached = [0]
        for step in range(steps):
            distance = _distance(steps - step)
            for v in list(reached):
                child = (v + distance if v % 2 == 0 else v - distance) % spanned
                self._hang(child, v, steps - step)
                reached.append(child)
        for v in range(spanned, self.size):
            self._hang(v, v - spanned, 0)

    def _hang(self, child: int, parent: int, nearness: int) -> None:
        self._parent[child] = parent
        self._nearness[child] = nearness
        self._children[parent].append(child)

    def parent(self, v: int) -> int:
        """Who reached v first."""
        return self._parent[v]

    def children(self, v: int) -> list[int]:
        """Whom v reached, in the order of the steps."""
        return self._children[v]

    def nearness(self, v: int) -> int:
        """Counts the steps backwards from that which reaches the ranks beyond the power of two, which is 0."""
        return self._nearness[v]


def bine_broadcast(spec: AlgoSpec) -> CollectiveProgram:
    """Everyone who has the data gives it on, far first: log n steps (rounded up), the whole data in each.

    The distances are about 2/3 of a binomial tree's (3, 1, 1 for 8 ranks, not 4, 2, 1).
    """
    with start(spec, "bine broadcast", Broadcast) as program:
        broadcast_down(program, _BineTree(program))
    return program


def bine_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """The broadcast backwards: log n steps (rounded up), the whole data in each."""
    with start(spec, "bine reduce", Reduce) as program:
        reduce_up(program, _BineTree(program))
    return program


class _Blocks:
    """Where the blocks of the ranks below each are: by rank at the root, in scratch elsewhere, parents first."""

    def __init__(self, tree: RootedTree, at_root: BaseBuffer) -> None:
        self._tree, self._at_root = tree, at_root
        self.below: dict[int, list[int]] = {}
        for v in reversed(tree.top_down()):
            self.below[v] = [w for child in tree.children(v) for w in (child, *self.below[child])]
        self._scratch = {
            v: Buffer(tree.rank(v), len(below) * tree.factor) for v, below in self.below.items() if v and below
        }

    def at(self, holder: int, v: int) -> Chunk:
        """The block of v, as ``holder`` keeps it."""
        place = self.below[holder].index(v) if holder else self._tree.rank(v)
        buffer = self._scratch[holder] if holder else self._at_root
        return buffer[place * self._tree.factor : (place + 1) * self._tree.factor]


def bine_gather(spec: AlgoSpec) -> CollectiveProgram:
    """Everyone collects what those below have and passes it up: log n steps, at the root (n-1)/n of the result."""
    with start(spec, "bine gather", Gather) as program:
        tree, mesh = _BineTree(program), Mesh()
        blocks = _Blocks(tree, output_of(tree.root))
        mesh.enter((tree.rank(v), tree.rank(tree.parent(v))) for v in range(1, tree.size))
        copy_unless_same(program, tree.root, blocks.at(0, 0), input_of(tree.root)[:])
        for v in reversed(tree.top_down()):
            here = tree.rank(v)
            for child in reversed(tree.children(v)):
                mesh.receive(here, tree.rank(child))
            if v:
                parent = tree.parent(v)
                moves = [(blocks.at(parent, w), blocks.at(v, w)) for w in blocks.below[v]]
                mesh.send(here, tree.rank(parent), [(blocks.at(parent, v), input_of(here)[:]), *moves])
    return program


def bine_scatter(spec: AlgoSpec) -> CollectiveProgram:
    """Everyone gives those below what is theirs: log n steps, at the root (n-1)/n of the data."""
    with start(spec, "bine scatter", Scatter) as program:
        tree, mesh = _BineTree(program), Mesh()
        blocks = _Blocks(tree, input_of(tree.root))
        mesh.enter((tree.rank(tree.parent(v)), tree.rank(v)) for v in range(1, tree.size))
        copy_unless_same(program, tree.root, output_of(tree.root)[:], blocks.at(0, 0))
        for v in tree.top_down():
            here = tree.rank(v)
            if v:
                mesh.receive(here, tree.rank(tree.parent(v)))
            for child in tree.children(v):
                there = tree.rank(child)
                moves = [(blocks.at(child, w), blocks.at(v, w)) for w in blocks.below[child]]
                mesh.send(here, there, [(output_of(there)[:], blocks.at(v, child)), *moves])
    return program


def _block_trees(spec: AlgoSpec, name: str, collective: type[Collective]) -> CollectiveProgram:
    with start(spec, name, collective) as program:
        tree = _BineTree(program)

        def edges(block: int) -> Iterator[Edge]:
            """The tree at the block's owner, mirrored for odd ones: so of an even number, all even ranks go one way."""
            way = 1 - 2 * (block % 2)
            for v in range(1, tree.size):
                yield tree.nearness(v), (block + way * v) % tree.size, (block + way * tree.parent(v)) % tree.size

        BlockTrees(program, edges).run()
    return program


def bine_all_gather(spec: AlgoSpec) -> CollectiveProgram:
    """A tree for every block, all at once, far first: log n steps (rounded up), n-1 blocks a rank."""
    return _block_trees(spec, "bine all-gather", AllGather)


def bine_reduce_scatter(spec: AlgoSpec) -> CollectiveProgram:
    """The all-gather backwards, near ranks first: log n steps (rounded up), n-1 blocks a rank, as many of scratch."""
    return _block_trees(spec, "bine reduce-scatter", ReduceScatter)


def bine_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Reduce-scatter and all-gather: 2 log n steps (each log rounded up), 2(n-1)/n of the data a rank.

    With a power of two of ranks these are the exchanges of Swing; other numbers, also odd ones, are served as well.
    """
    return _block_trees(spec, "bine all-reduce", AllReduce)
