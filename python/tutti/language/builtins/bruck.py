"""Bruck's algorithms: gathering and exchanging in a logarithmic number of steps, for any number of ranks.

J. Bruck et al., Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems, 1997.
"""

from __future__ import annotations

from collections.abc import Iterator

from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of, ranks_of, start, wrapped
from tutti.language.chunks import Buffer, Chunk
from tutti.language.collectives import AllGather, AllToAll
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.utils import AlgoSpec

__all__ = ["bruck_all_gather", "bruck_all_to_all"]


def _distances(ranks: int) -> Iterator[int]:
    return (1 << step for step in range((ranks - 1).bit_length()))


def bruck_all_gather(spec: AlgoSpec) -> CollectiveProgram:
    """Gives what one has to the rank at distance 1, 2, 4, ... before: log n steps, (n-1)/n of the result.

    Blocks go where they belong at once: a rank has the blocks from its own on, so they lie in at most two pieces.
    """
    with start(spec, "Bruck's all-gather", AllGather) as program:
        n, factor, mesh = program.num_ranks, spec.collective.chunk_factor, Mesh()
        mesh.enter((rank, (rank - distance) % n) for distance in _distances(n) for rank in ranks_of(program))
        for rank in ranks_of(program):
            copy_unless_same(program, rank, output_of(rank)[rank * factor : (rank + 1) * factor], input_of(rank)[:])
        for distance in _distances(n):
            for rank in ranks_of(program):
                target = (rank - distance) % n
                pieces = [
                    slice(first * factor, last * factor)
                    for first, last in wrapped(rank, min(distance, n - distance), n)
                ]
                mesh.send(rank, target, [(output_of(target)[piece], output_of(rank)[piece]) for piece in pieces])
            for rank in ranks_of(program):
                mesh.receive(rank, (rank + distance) % n)
    return program


def bruck_all_to_all(spec: AlgoSpec) -> CollectiveProgram:
    """Passes blocks on by the bits of how far they have to go: log n steps, half of the data in each.

    Least steps, for short messages. A block that is i ranks away from home travels at the steps of i's bits.
    """
    with start(spec, "Bruck's all-to-all", AllToAll) as program:
        n, factor, mesh = program.num_ranks, spec.collective.chunk_factor, Mesh()
        moving = {distance: [i for i in range(n) if i & distance] for distance in _distances(n)}
        slots = {
            (rank, distance): Buffer(rank, len(blocks) * factor)
            for distance, blocks in moving.items()
            for rank in ranks_of(program)
        }

        def place(rank: int, distance: int, position: int) -> Chunk:
            return slots[rank, distance][position * factor : (position + 1) * factor]

        def block(number: int) -> slice:
            return slice(number % n * factor, number % n * factor + factor)

        mesh.enter((rank, (rank + distance) % n) for distance in moving for rank in ranks_of(program))
        at = [[input_of(rank)[block(rank + i)] for i in range(n)] for rank in ranks_of(program)]
        for distance, blocks in moving.items():
            for rank in ranks_of(program):
                target = (rank + distance) % n
                moves = [(place(target, distance, position), at[rank][i]) for position, i in enumerate(blocks)]
                mesh.send(rank, target, moves)
            for rank in ranks_of(program):
                mesh.receive(rank, (rank - distance) % n)
                for position, i in enumerate(blocks):
                    at[rank][i] = place(rank, distance, position)
        for rank in ranks_of(program):
            copy_unless_same(program, rank, output_of(rank)[block(rank)], at[rank][0])
            for i in range(1, n):
                Rank(rank).copy(output_of(rank)[block(rank - i)], at[rank][i], tb=0)
    return program
