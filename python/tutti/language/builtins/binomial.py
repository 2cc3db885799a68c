"""Collectives with a root, over a binomial tree: log n steps for any number of ranks.

Ranks are counted from the root. The parent of v is v without its lowest set bit, so the ranks below v are those from v
on, as many as that bit says (less where the ranks end).
"""

from __future__ import annotations

from tutti.language.builtins.common import (
    Mesh,
    copy_unless_same,
    input_of,
    output_of,
    start,
    wrapped,
)
from tutti.language.builtins.rooted import RootedTree, broadcast_down, reduce_up
from tutti.language.chunks import BaseBuffer, Buffer, Chunk
from tutti.language.collectives import Broadcast, Gather, Reduce, Scatter
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["BinomialTree", "binomial_broadcast", "binomial_gather", "binomial_reduce", "binomial_scatter"]


class BinomialTree(RootedTree):
    """The parent of v is v without its lowest set bit."""

    def span(self, v: int) -> int:
        """How many ranks v and those below it are."""
        return min(v & -v, self.size - v) if v else self.size

    def parent(self, v: int) -> int:
        """v without its lowest set bit."""
        return v & (v - 1)

    def children(self, v: int) -> list[int]:
        """v with a bit set that is lower than all of its own."""
        bits = [1 << step for step in range(self.size.bit_length()) if 1 << step < self.span(v)]
        return [v + bit for bit in reversed(bits)]


def binomial_broadcast(spec: AlgoSpec) -> CollectiveProgram:
    """Everyone who has the data gives it to those below: log n steps, the whole data in each."""
    with start(spec, "binomial broadcast", Broadcast) as program:
        broadcast_down(program, BinomialTree(program))
    return program


def binomial_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Everyone adds what those below have and passes it up: log n steps, the whole data in each."""
    with start(spec, "binomial reduce", Reduce) as program:
        reduce_up(program, BinomialTree(program))
    return program


class _Blocks:
    """Where blocks lie that are on their way up or down: at the root where they belong, elsewhere in scratch."""

    def __init__(self, tree: BinomialTree, at_root: BaseBuffer) -> None:
        self._tree = tree
        self._at_root = at_root
        self._scratch = {
            v: Buffer(tree.rank(v), (tree.span(v) - 1) * tree.factor) for v in range(1, tree.size) if tree.span(v) > 1
        }

    def below(self, holder: int, child: int, skip: int) -> list[Chunk]:
        """What ``holder`` has for the ranks of ``child``, without the first ``skip``, in at most two pieces.

        The pieces are cut alike for every holder, where the root's memory begins anew.
        """
        tree, factor = self._tree, self._tree.factor
        count = tree.span(child) - skip
        pieces = wrapped(child + skip + tree.root, count, tree.size) if count else []
        if holder == 0:
            return [self._at_root[first * factor : last * factor] for first, last in pieces]
        chunks, at = [], child + skip - holder - 1
        for first, last in pieces:
            chunks.append(self._scratch[holder][at * factor : (at + last - first) * factor])
            at += last - first
        return chunks


def binomial_gather(spec: AlgoSpec) -> CollectiveProgram:
    """Everyone collects what those below have and passes it up: log n steps, at the root (n-1)/n of the result."""
    with start(spec, "binomial gather", Gather) as program:
        tree, mesh = BinomialTree(program), Mesh()
        at_root = output_of(tree.root)
        blocks = _Blocks(tree, at_root)
        mesh.enter((tree.rank(v), tree.rank(tree.parent(v))) for v in range(1, tree.size))
        own = at_root[tree.root * tree.factor : (tree.root + 1) * tree.factor]
        copy_unless_same(program, tree.root, own, input_of(tree.root)[:])
        for v in reversed(tree.top_down()):
            here = tree.rank(v)
            for child in reversed(tree.children(v)):
                mesh.receive(here, tree.rank(child))
            if not v:
                continue
            parent = tree.parent(v)
            everything, rest = blocks.below(parent, v, 0), blocks.below(parent, v, 1)
            mine = _first_block(everything, tree.factor)
            moves = [(mine, input_of(here)[:]), *zip(rest, blocks.below(v, v, 1), strict=True)]
            mesh.send(here, tree.rank(parent), moves)
    return program


def binomial_scatter(spec: AlgoSpec) -> CollectiveProgram:
    """Everyone gives those below what is theirs: log n steps, at the root (n-1)/n of the data."""
    with start(spec, "binomial scatter", Scatter) as program:
        tree, mesh = BinomialTree(program), Mesh()
        at_root = input_of(tree.root)
        blocks = _Blocks(tree, at_root)
        mesh.enter((tree.rank(tree.parent(v)), tree.rank(v)) for v in range(1, tree.size))
        own = at_root[tree.root * tree.factor : (tree.root + 1) * tree.factor]
        copy_unless_same(program, tree.root, output_of(tree.root)[:], own)
        for v in tree.top_down():
            here = tree.rank(v)
            if v:
                mesh.receive(here, tree.rank(tree.parent(v)))
            for child in tree.children(v):
                there = tree.rank(child)
                its_own = _first_block(blocks.below(v, child, 0), tree.factor)
                rest = zip(blocks.below(child, child, 1), blocks.below(v, child, 1), strict=True)
                mesh.send(here, there, [(output_of(there)[:], its_own), *rest])
    return program


def _first_block(pieces: list[Chunk], factor: int) -> Chunk:
    first = pieces[0]
    return Chunk(first.rank, first.buffer, first.index, factor)
