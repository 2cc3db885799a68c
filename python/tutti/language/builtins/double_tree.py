"""All-reduce over two binary trees at once, in pipelined pieces.

P. Sanders, J. Speck, J. L. Träff, Two-Tree Algorithms for Full Bandwidth Broadcast, Reduction and Scan, 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of, start
from tutti.language.chunks import Buffer
from tutti.language.collectives import AllReduce
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.utils import AlgoSpec

__all__ = ["double_tree_all_reduce"]

_MOST_PIECES = 8  # of a tree; more would shorten the pipeline's start, but each piece costs its messages


def _parent(place: int, ranks: int) -> int:
    """In order: odd places are leaves, a place whose lowest bit is higher is higher up, 0 is the root."""
    bit = place & -place
    above = (place ^ bit) | (bit << 1)
    return above if above < ranks else place ^ bit


class _Pass(NamedTuple):
    """A piece's passing through a rank at a time; of the same time, all are independent."""

    time: int
    down: bool
    piece: int
    rank: int


class _Tree:
    """One of the trees: ``rank_at`` says who is at a place of it."""

    def __init__(self, ranks: int, rank_at: Callable[[int], int]) -> None:
        self.root = rank_at(0)
        self.parent = {rank_at(place): rank_at(_parent(place, ranks)) for place in range(1, ranks)}
        self.children: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
        for child, parent in self.parent.items():
            self.children[parent].append(child)
        order = [self.root]
        for rank in order:
            order += self.children[rank]
        self._depth = {self.root: 0}
        for rank in order[1:]:
            self._depth[rank] = self._depth[self.parent[rank]] + 1
        self._height = max(self._depth.values())

    def schedule(self, pieces: int) -> list[_Pass]:
        """All passes, by time: every piece follows the one before it by one step."""
        passes = [
            _Pass(piece + self._height + (depth if down else -depth), down, piece, rank)
            for piece in range(pieces)
            for rank, depth in self._depth.items()
            for down in (False, True)
        ]
        return sorted(passes)


def _run(tree: _Tree, ranges: list[slice], tb: int) -> None:
    """Reduces the pieces up the tree and passes the sums down, a thread block a tree."""
    mesh, first = Mesh(), ranges[0].start
    length = ranges[-1].stop - first
    slots = {child: Buffer(parent, length) for child, parent in tree.parent.items()}
    mesh.enter([pair for child, parent in tree.parent.items() for pair in ((child, parent), (parent, child))], tb=tb)
    for step in tree.schedule(len(ranges)):
        rank, piece = step.rank, ranges[step.piece]
        local = slice(piece.start - first, piece.stop - first)
        if step.down:
            if rank != tree.root:
                mesh.receive(rank, tree.parent[rank], tb=tb)
            for child in tree.children[rank]:
                mesh.send(rank, child, [(output_of(child)[piece], output_of(rank)[piece])], tb=tb)
            continue
        so_far = input_of(rank)[piece]
        for child in tree.children[rank]:
            mesh.receive(rank, child, tb=tb)
            Rank(rank).reduce(so_far, [slots[child][local]], tb=tb, dst_chunk=output_of(rank)[piece])
            so_far = output_of(rank)[piece]
        if rank != tree.root:
            mesh.send(rank, tree.parent[rank], [(slots[rank][local], so_far)], tb=tb)


def _pieces(first: int, last: int) -> list[slice]:
    count = min(last - first, _MOST_PIECES)
    bounds = [first + (last - first) * piece // count for piece in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def double_tree_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Reduces half of the data up each tree and sends it down again: 2 log n + k steps for k pieces, twice the data.

    An inner rank of one tree is a leaf of the other (but for one or two), so all send and receive about alike, and the
    latency is logarithmic where a ring's is linear.
    """
    with start(spec, "the double binary tree", AllReduce) as program:
        n, total = program.num_ranks, len(input_of(0))
        if n == 1:
            copy_unless_same(program, 0, output_of(0)[:], input_of(0)[:])
            return program

        def other(place: int) -> int:
            """The second tree is the mirror of the first; where that would not swap leaves, it is shifted by one."""
            return n - 1 - place if n % 2 == 0 else (place + 1) % n

        _run(_Tree(n, int), _pieces(0, total // 2), tb=0)
        _run(_Tree(n, other), _pieces(total // 2, total), tb=1)
    return program
