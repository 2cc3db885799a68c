"""All-reduce in a logarithmic number of exchanges, folded where the ranks are not a power of two.

With n = p + e ranks, p the largest power of two (or of another number that suits the algorithm), the last e ranks first
give their input to one of the first each, and get the result from it at the end. Both partners of an exchange add the
same two numbers, so all get the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of, start
from tutti.language.chunks import BaseBuffer, Buffer
from tutti.language.collectives import AllReduce
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.utils import AlgoSpec

__all__ = ["Fold", "rabenseifner_all_reduce", "recursive_doubling_all_reduce"]


class Fold:
    """The ranks that take part, and those that a partner stands for."""

    def __init__(self, program: CollectiveProgram, size: int | None = None) -> None:
        self.size = size or 1 << (program.num_ranks.bit_length() - 1)
        self.mesh = Mesh()
        self._program = program
        self._extra = [(rank, rank - self.size) for rank in range(self.size, program.num_ranks)]
        self._slots = {partner: Buffer(partner, len(input_of(partner))) for _, partner in self._extra}

    def enter(self, exchanges: list[tuple[int, int]] | None = None) -> None:
        """Begins the call and lets the partners take in the input of those they stand for.

        The exchanges are pairs (writer, target), by default those at the distances of :meth:`bits`.
        """
        if exchanges is None:
            exchanges = [(rank, rank ^ bit) for bit in self.bits() for rank in range(self.size)]
        folds = [pair for rank, partner in self._extra for pair in ((rank, partner), (partner, rank))]
        self.mesh.enter(exchanges + folds)
        for rank, partner in self._extra:
            self.mesh.send(rank, partner, [(self._slots[partner][:], input_of(rank)[:])])
        for rank, partner in self._extra:
            self.mesh.receive(partner, rank)
            whole = input_of(partner)[:]
            Rank(partner).reduce(whole, [self._slots[partner][:]], tb=0, dst_chunk=output_of(partner)[:])

    def current(self, rank: int, *, first: bool) -> BaseBuffer:
        """Where the rank's sum is: before its first reduction, the sum is its input."""
        return input_of(rank) if first and rank not in self._slots else output_of(rank)

    def bits(self) -> Iterator[int]:
        """The distances of the exchanges, near ones first."""
        return (1 << step for step in range(self.size.bit_length() - 1))

    def leave(self) -> None:
        """Gives the result to those that did not take part."""
        if self._program.num_ranks == 1:
            copy_unless_same(self._program, 0, output_of(0)[:], input_of(0)[:])
        for rank, partner in self._extra:
            self.mesh.send(partner, rank, [(output_of(rank)[:], output_of(partner)[:])])
        for rank, partner in self._extra:
            self.mesh.receive(rank, partner)


def recursive_doubling_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Exchanges everything with ranks at distances 1, 2, 4, ...: log n steps, the whole data in each.

    Least steps, for short messages.
    """
    with start(spec, "recursive doubling", AllReduce) as program:
        fold = Fold(program)
        length = len(input_of(0))
        slots = {(rank, bit): Buffer(rank, length) for bit in fold.bits() for rank in range(fold.size)}
        fold.enter()
        for bit in fold.bits():
            for rank in range(fold.size):
                source = fold.current(rank, first=bit == 1)[:]
                fold.mesh.send(rank, rank ^ bit, [(slots[rank ^ bit, bit][:], source)])
            for rank in range(fold.size):
                fold.mesh.receive(rank, rank ^ bit)
                source = fold.current(rank, first=bit == 1)[:]
                Rank(rank).reduce(source, [slots[rank, bit][:]], tb=0, dst_chunk=output_of(rank)[:])
        fold.leave()
    return program


def rabenseifner_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Halves the data it adds up in every exchange, then doubles what it gathers: 2 log n steps, 2(n-1)/n of the data.

    R. Rabenseifner, Optimization of Collective Reduction Operations, ICCS 2004.
    """
    with start(spec, "Rabenseifner's algorithm", AllReduce) as program:
        fold = Fold(program)
        total, blocks = len(input_of(0)), fold.size

        def part(rank: int, bit: int) -> slice:
            """What a rank still adds up after the exchange at this distance: the blocks that agree with it so far."""
            first = rank // bit * bit
            return slice(first * total // blocks, (first + bit) * total // blocks)

        far_first = list(fold.bits())[::-1]
        slots = {}
        for bit in far_first:
            for rank in range(blocks):
                kept = part(rank, bit)
                slots[rank, bit] = Buffer(rank, kept.stop - kept.start)
        fold.enter()
        for bit in far_first:
            first = bit == far_first[0]
            for rank in range(blocks):
                given = part(rank ^ bit, bit)
                source = fold.current(rank, first=first)[given]
                fold.mesh.send(rank, rank ^ bit, [(slots[rank ^ bit, bit][:], source)])
            for rank in range(blocks):
                fold.mesh.receive(rank, rank ^ bit)
                kept = part(rank, bit)
                source = fold.current(rank, first=first)[kept]
                Rank(rank).reduce(source, [slots[rank, bit][:]], tb=0, dst_chunk=output_of(rank)[kept])
        for bit in fold.bits():
            for rank in range(blocks):
                have = part(rank, bit)
                fold.mesh.send(rank, rank ^ bit, [(output_of(rank ^ bit)[have], output_of(rank)[have])])
            for rank in range(blocks):
                fold.mesh.receive(rank, rank ^ bit)
        fold.leave()
    return program
