"""Reduce-scatter and all-gather along a tree for every block, all trees at once.

Every rank owns a block. A reduction tree leads it from all ranks to its owner; what a rank sends another in the same
step goes as one message. Gathering goes the same trees backwards. So an algorithm is no more than its trees, and every
block is added up in one order, so all ranks get the same bits.

Sums on their way are kept in scratch, so no rank's input changes. Gathered blocks go where they belong at once: the
owner has its block only after every rank has given its part of it away, so none is overwritten that is still needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of, ranks_of
from tutti.language.chunks import Buffer, Chunk
from tutti.language.collectives import AllGather, AllReduce, ReduceScatter
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank

__all__ = ["BlockTrees", "Edge"]

Edge = tuple[int, int, int]
"""Step, sender, receiver: in a reduction, at which step the sender gives the receiver its sum of a block."""


class BlockTrees:
    """The trees of a program's blocks, and what is done along them."""

    def __init__(
        self,
        program: CollectiveProgram,
        edges: Callable[[int], Iterable[Edge]],
        owner: Callable[[int], int] = int,
        mesh: Mesh | None = None,
    ) -> None:
        self._program = program
        self._factor = program.collective.chunk_factor
        self._mesh = mesh or Mesh()
        self._owners = {block: owner(block) for block in ranks_of(program)}
        messages: dict[Edge, list[int]] = {}
        for block in ranks_of(program):
            for edge in edges(block):
                messages.setdefault(edge, []).append(block)
        steps = sorted({step for step, _, _ in messages})
        self._rounds = [
            {(sender, receiver): blocks for (at, sender, receiver), blocks in messages.items() if at == step}
            for step in steps
        ]

    def run(self) -> None:
        """Does what the program's collective asks for: the trees up, down, or both."""
        kind = self._program.collective
        up = [pair for messages in self._rounds for pair in messages]
        down = [(receiver, sender) for sender, receiver in up]
        writes = {AllReduce: up + down, ReduceScatter: up, AllGather: down}[type(kind)]
        self._mesh.enter(writes)
        if isinstance(kind, AllGather) or self._program.num_ranks == 1:
            for block, owner in self._owners.items():
                source = input_of(owner)[:] if isinstance(kind, AllGather) else self._input(owner, block)
                copy_unless_same(self._program, owner, self._output(owner, block), source)
        if not isinstance(kind, AllGather):
            self._reduce()
        if not isinstance(kind, ReduceScatter):
            self._gather()
        self._mesh.leave()

    def _slice(self, block: int) -> slice:
        return slice(block * self._factor, (block + 1) * self._factor)

    def _input(self, rank: int, block: int) -> Chunk:
        return input_of(rank)[self._slice(block)]

    def _output(self, rank: int, block: int) -> Chunk:
        whole = isinstance(self._program.collective, ReduceScatter)
        return output_of(rank)[:] if whole else output_of(rank)[self._slice(block)]

    def _reduce(self) -> None:
        sums: dict[tuple[int, int], Chunk] = {}
        for messages in self._rounds:
            arrived = {}
            for (sender, receiver), blocks in messages.items():
                slots = Buffer(receiver, len(blocks) * self._factor)
                arrived[sender, receiver] = [slots[self._slice(place)] for place in range(len(blocks))]
                sources = [sums.get((sender, block), self._input(sender, block)) for block in blocks]
                self._mesh.send(sender, receiver, zip(arrived[sender, receiver], sources, strict=True))
            for (sender, receiver), blocks in messages.items():
                self._mesh.receive(receiver, sender)
                for block, slot in zip(blocks, arrived[sender, receiver], strict=True):
                    self._add(sums, receiver, block, slot)

    def _add(self, sums: dict[tuple[int, int], Chunk], rank: int, block: int, slot: Chunk) -> None:
        """Adds what has arrived; the sum stays in the first slot of its block, the owner's in its output."""
        so_far = sums.get((rank, block), self._input(rank, block))
        target = self._output(rank, block) if rank == self._owners[block] else sums.get((rank, block), slot)
        Rank(rank).reduce(so_far, [slot], tb=0, dst_chunk=target)
        sums[rank, block] = target

    def _gather(self) -> None:
        for messages in reversed(self._rounds):
            for (child, parent), blocks in messages.items():
                moves = [(self._output(child, block), self._output(parent, block)) for block in blocks]
                self._mesh.send(parent, child, moves)
            for child, parent in messages:
                self._mesh.receive(child, parent)
