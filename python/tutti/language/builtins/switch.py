"""All-reduce by a switch that combines and multiplies."""

from __future__ import annotations

from tutti.language.builtins.common import Mesh, input_of, output_of, ranks_of, start
from tutti.language.channel import SwitchChannel
from tutti.language.collectives import AllReduce
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec
from tutti.language.vocabulary import BufferType, SyncType

__all__ = ["switch_all_reduce"]


def switch_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Every rank has its block combined from all ranks and written to all: two steps, 1/n of the data each way.

    All ranks must have entered before one is read, and all blocks be written before one leaves.
    """
    with start(spec, "switch", AllReduce) as program:
        factor, mesh, everyone = spec.collective.chunk_factor, Mesh(), ranks_of(program)
        source = SwitchChannel(rank_list=everyone, buffer_type=BufferType.input)
        target = source if spec.collective.inplace else SwitchChannel(everyone, BufferType.output)

        def meet() -> None:
            for rank in everyone:
                peers = [peer for peer in everyone if peer != rank]
                for peer in peers:
                    mesh.between(rank, peer).signal(tb=0, data_sync=SyncType.before)
                for peer in peers:
                    mesh.between(rank, peer).wait(tb=0, data_sync=SyncType.after)

        meet()
        for rank in everyone:
            result = (input_of if spec.collective.inplace else output_of)(rank)
            at, block = rank * factor, result[rank * factor : (rank + 1) * factor]
            source.at_rank(rank).reduce(buffer_offset=at, size=factor, dst_chunk=block, tb=0)
            target.at_rank(rank).broadcast(src_chunk=block, buffer_offset=at, size=factor, tb=0)
        meet()
    return program
