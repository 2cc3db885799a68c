"""All-reduce, all-gather and reduce-scatter along a ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tutti.language.builtins.block_trees import BlockTrees, Edge
from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of, ranks_of, start
from tutti.language.chunks import Buffer
from tutti.language.collectives import AllGather, AllReduce, ReduceScatter
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.utils import AlgoSpec

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]


def _edges(ranks: int) -> Callable[[int], Iterator[Edge]]:
    def edges(block: int) -> Iterator[Edge]:
        """The sum sets out behind the block's owner and goes round to it."""
        for step in range(ranks - 1):
            yield step, (block + 1 + step) % ranks, (block + 2 + step) % ranks

    return edges


def ring_all_gather(spec: AlgoSpec) -> CollectiveProgram:
    """Every block goes round, from neighbour to neighbour: n-1 steps, n-1 blocks a rank."""
    with start(spec, "ring all-gather", AllGather) as program:
        BlockTrees(program, _edges(program.num_ranks)).run()
    return program


def ring_reduce_scatter(spec: AlgoSpec) -> CollectiveProgram:
    """Every block's sum goes round and ends at its owner: n-1 steps, n-1 blocks a rank."""
    with start(spec, "ring reduce-scatter", ReduceScatter) as program:
        BlockTrees(program, _edges(program.num_ranks)).run()
    return program


def ring_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Reduces and gathers along a ring: 2(n-1) steps, 2(n-1)/n of the data a rank, least for long messages.

    In the first round block b sets out from rank b and is added to at every rank on the way to b-1, which then has it
    whole and sends it round once more. A rank overwrites its successor's block only with one that contains what the
    successor sent before, so the two cannot meet.
    """
    with start(spec, "ring", AllReduce) as program:
        n, factor = program.num_ranks, spec.collective.chunk_factor
        mesh = Mesh()
        slots = [Buffer(rank, (n - 1) * factor) for rank in ranks_of(program)] if n > 1 else []
        mesh.enter((rank, (rank + 1) % n) for rank in ranks_of(program) if n > 1)

        def block(number: int) -> slice:
            at = number % n * factor
            return slice(at, at + factor)

        for step in range(n - 1):
            slot = slice(step * factor, (step + 1) * factor)
            for rank in ranks_of(program):
                following = (rank + 1) % n
                source = input_of(rank) if step == 0 else output_of(rank)
                mesh.send(rank, following, [(slots[following][slot], source[block(rank - step)])])
            for rank in ranks_of(program):
                mesh.receive(rank, (rank - 1) % n)
                here = block(rank - step - 1)
                Rank(rank).reduce(input_of(rank)[here], [slots[rank][slot]], tb=0, dst_chunk=output_of(rank)[here])
        for step in range(n - 1):
            for rank in ranks_of(program):
                following, here = (rank + 1) % n, block(rank + 1 - step)
                mesh.send(rank, following, [(output_of(following)[here], output_of(rank)[here])])
            for rank in ranks_of(program):
                mesh.receive(rank, (rank - 1) % n)
        if n == 1:
            copy_unless_same(program, 0, output_of(0)[:], input_of(0)[:])
    return program
