"""All-reduce in which every rank speaks to every other, with packets: no signals, so the least delay.

Packets carry flags, so a reader knows that they are complete; scratch alternates between calls, so a writer that is one
call ahead cannot overwrite what is still being read.
"""

from __future__ import annotations

from dataclasses import replace

from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of, ranks_of, require, start
from tutti.language.chunks import Buffer
from tutti.language.collectives import AllReduce
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.utils import AlgoSpec

__all__ = ["one_shot_all_reduce", "two_shot_all_reduce"]

_MOST_RANKS = 64  # the channels of a rank and the packets of its scratch grow with the ranks


def _start(spec: AlgoSpec, algorithm: str) -> CollectiveProgram:
    most = f"is for at most {_MOST_RANKS} ranks, since every rank holds packets of every other; these are"
    require(spec.world_size <= _MOST_RANKS, algorithm, f"{most} {spec.world_size}")
    return start(replace(spec, protocol="LL", use_double_scratch_buffer=True), algorithm, AllReduce)


def one_shot_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Every rank gives everything to every other: one step, (n-1) times the data.

    All ranks add in the order of the ranks, themselves among them, so all get the same bits.
    """
    with _start(spec, "one-shot all-pairs") as program:
        length, mesh = len(input_of(0)), Mesh()
        slots = [
            [Buffer(rank, length) for _ in ranks_of(program)] if program.num_ranks > 1 else []
            for rank in ranks_of(program)
        ]
        for rank in ranks_of(program):
            for peer in ranks_of(program):
                if peer != rank:
                    mesh.between(rank, peer).put_packets(slots[peer][rank][:], input_of(rank)[:], tb=0)
        for rank in ranks_of(program):
            if program.num_ranks == 1:
                copy_unless_same(program, rank, output_of(rank)[:], input_of(rank)[:])
                continue
            here, whole = Rank(rank), output_of(rank)[:]
            here.copy_packets(slots[rank][rank][:], input_of(rank)[:], tb=0)
            here.unpack_packets(whole, slots[rank][0][:], tb=0)
            here.reduce(whole, [slot[:] for slot in slots[rank][1:]], tb=0, packet=True)
    return program


def two_shot_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Every rank adds up its block and gives it to every other: two steps, 2(n-1)/n of the data."""
    with _start(spec, "two-shot all-pairs") as program:
        n, factor, mesh = program.num_ranks, spec.collective.chunk_factor, Mesh()

        def block(rank: int) -> slice:
            return slice(rank * factor, (rank + 1) * factor)

        given = [Buffer(rank, n * factor) for rank in ranks_of(program)]
        summed = [Buffer(rank, n * factor) for rank in ranks_of(program)]
        for rank in ranks_of(program):
            for peer in ranks_of(program):
                if peer != rank:
                    mesh.between(rank, peer).put_packets(given[peer][block(rank)], input_of(rank)[block(peer)], tb=0)
        for rank in ranks_of(program):
            peers = [peer for peer in ranks_of(program) if peer != rank]
            mine = output_of(rank)[block(rank)]
            if not peers:
                copy_unless_same(program, rank, mine, input_of(rank)[block(rank)])
                continue
            others = [given[rank][block(peer)] for peer in peers]
            Rank(rank).reduce(input_of(rank)[block(rank)], others, tb=0, dst_chunk=mine, packet=True)
            for peer in peers:
                mesh.between(rank, peer).put_packets(summed[peer][block(rank)], mine, tb=0)
        for rank in ranks_of(program):
            for peer in ranks_of(program):
                if peer != rank:
                    Rank(rank).unpack_packets(output_of(rank)[block(peer)], summed[rank][block(peer)], tb=0)
    return program
