"""A broadcast along a chain in which every rank passes on a unit while it receives the next one.

    python examples/plans/pipelined_broadcast.py --ranks 4 > broadcast.json

Two thread blocks a rank: one waits for units from the rank before and tells the other, which puts them to the rank
after. The loop repeats that for every 64 KiB of the data, so a chain of n ranks takes about as long as two.
"""

from __future__ import annotations

import argparse

from tutti.language import (
    AlgoSpec,
    Broadcast,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    Rank,
    Semaphore,
    SyncType,
)

RECEIVE, SEND = 0, 1
UNIT = 64 << 10


def pipelined_broadcast(spec: AlgoSpec) -> CollectiveProgram:
    """The program of ``spec``, whose collective is a broadcast from rank 0."""
    n = spec.world_size
    with CollectiveProgram.from_spec(spec) as program:
        chunks = spec.collective.total
        to_next = {rank: MemoryChannel(rank + 1, rank) for rank in range(n - 1)}
        to_previous = {rank: MemoryChannel(rank - 1, rank) for rank in range(1, n)}
        arrived = {rank: Semaphore(rank, 0) for rank in range(1, n - 1)}
        for rank in range(n):  # who receives says that it is there
            if rank > 0:
                to_previous[rank].signal(tb=RECEIVE, data_sync=SyncType.none)
            if rank < n - 1:
                to_next[rank].wait(tb=SEND, data_sync=SyncType.after)
        if not spec.collective.inplace:
            root = Rank(0)
            root.copy(root.get_output_buffer()[:], root.get_input_buffer()[:], tb=SEND)
        with LoopIterationContext(unit=UNIT, num_chunks=chunks):
            for rank in range(n):
                output = Rank(rank).get_output_buffer()[:]
                if rank > 0:
                    to_previous[rank].wait(tb=RECEIVE, data_sync=SyncType.after)
                if rank in arrived:
                    arrived[rank].release(tb=RECEIVE)
                    arrived[rank].acquire(tb=SEND)
                if rank < n - 1:
                    to_next[rank].put(Rank(rank + 1).get_output_buffer()[:], output, tb=SEND)
                    to_next[rank].signal(tb=SEND, data_sync=SyncType.before)
    return program


def main() -> None:
    """Prints the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--in-place", action="store_true")
    arguments = parser.parse_args()
    collective = Broadcast(arguments.ranks, 1, arguments.in_place)
    print(pipelined_broadcast(AlgoSpec(name="pipelined broadcast", collective=collective)).to_json())


if __name__ == "__main__":
    main()
