"""All-to-all in which every block goes straight home."""

from __future__ import annotations

from tutti.language.builtins.common import Mesh, input_of, output_of, ranks_of, require, start
from tutti.language.collectives import AllToAll
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.utils import AlgoSpec

__all__ = ["pairwise_all_to_all"]


def pairwise_all_to_all(spec: AlgoSpec) -> CollectiveProgram:
    """In step s every rank sends to the rank s after it: n-1 steps, (n-1)/n of the data, each to one rank only."""
    name = "pairwise all-to-all"
    require(not spec.collective.inplace, name, "cannot work in place: a block may arrive before the old one has left")
    with start(spec, name, AllToAll) as program:
        n, factor, mesh = program.num_ranks, spec.collective.chunk_factor, Mesh()

        def block(rank: int) -> slice:
            return slice(rank * factor, (rank + 1) * factor)

        mesh.enter((rank, (rank + step) % n) for step in range(1, n) for rank in ranks_of(program))
        for rank in ranks_of(program):
            Rank(rank).copy(output_of(rank)[block(rank)], input_of(rank)[block(rank)], tb=0)
        for step in range(1, n):
            for rank in ranks_of(program):
                target = (rank + step) % n
                mesh.send(rank, target, [(output_of(target)[block(rank)], input_of(rank)[block(target)])])
            for rank in ranks_of(program):
                mesh.receive(rank, (rank - step) % n)
    return program
