"""What broadcasts and reductions over a tree have in common, whatever the tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of
from tutti.language.chunks import BaseBuffer, Buffer
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank


class RootedTree(ABC):
    """A tree over the ranks of a program, in numbers counted from the root, which is 0."""

    def __init__(self, program: CollectiveProgram) -> None:
        self.size = program.num_ranks
        self.root = program.collective.root or 0
        self.factor = program.collective.chunk_factor

    def rank(self, v: int) -> int:
        """The rank of v."""
        return (v + self.root) % self.size

    @abstractmethod
    def parent(self, v: int) -> int:
        """The parent of v, which is not the root."""

    @abstractmethod
    def children(self, v: int) -> list[int]:
        """The children of v, those with most below them first."""

    def top_down(self) -> list[int]:
        """All, parents before their children."""
        order = [0]
        for v in order:
            order += self.children(v)
        return order


def broadcast_down(program: CollectiveProgram, tree: RootedTree, mesh: Mesh | None = None) -> None:
    """Everyone who has the data gives it to its children."""
    mesh = mesh or Mesh()
    mesh.enter((tree.rank(tree.parent(v)), tree.rank(v)) for v in range(1, tree.size))
    copy_unless_same(program, tree.root, output_of(tree.root)[:], input_of(tree.root)[:])
    hand_down(tree, mesh)
    mesh.leave()


def hand_down(tree: RootedTree, mesh: Mesh, part: Callable[[int], slice] = lambda child: slice(None)) -> None:
    """Everyone gives each child its part of the output."""
    for v in tree.top_down():
        here = tree.rank(v)
        if v:
            mesh.receive(here, tree.rank(tree.parent(v)))
        for child in tree.children(v):
            there, chunks = tree.rank(child), part(child)
            mesh.send(here, there, [(output_of(there)[chunks], output_of(here)[chunks])])


def reduce_up(program: CollectiveProgram, tree: RootedTree, mesh: Mesh | None = None) -> None:
    """Everyone adds what its children have and passes the sum to its parent."""
    mesh = mesh or Mesh()
    length = len(input_of(0))
    slots = {child: Buffer(tree.rank(tree.parent(child)), length) for child in range(1, tree.size)}
    sums: dict[int, BaseBuffer] = {0: output_of(tree.root)}
    for v in range(1, tree.size):
        sums[v] = Buffer(tree.rank(v), length) if tree.children(v) else input_of(tree.rank(v))
    mesh.enter((tree.rank(v), tree.rank(tree.parent(v))) for v in range(1, tree.size))
    for v in reversed(tree.top_down()):
        here, so_far = tree.rank(v), input_of(tree.rank(v))
        for child in reversed(tree.children(v)):
            mesh.receive(here, tree.rank(child))
            Rank(here).reduce(so_far[:], [slots[child][:]], tb=0, dst_chunk=sums[v][:])
            so_far = sums[v]
        if v:
            mesh.send(here, tree.rank(tree.parent(v)), [(slots[v][:], sums[v][:])])
    mesh.leave()
    if tree.size == 1:
        copy_unless_same(program, 0, output_of(0)[:], input_of(0)[:])
