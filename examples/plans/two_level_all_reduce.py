"""An all-reduce for several hosts: packets within a host, ports between hosts.

    python examples/plans/two_level_all_reduce.py --ranks 8 --ranks-per-host 4 > all_reduce.json

Every rank adds up one block of its host, exchanges it with the ranks that have the same block on other hosts, adds
these, and gives the result to its host. So each byte crosses between two hosts once, spread over all of their ranks.
"""

from __future__ import annotations

import argparse

from tutti.language import AlgoSpec, AllReduce, Buffer, CollectiveProgram, MemoryChannel, PortChannel, Rank, SyncType


def two_level_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """The program of ``spec``; every host has ``spec.nranks_per_node`` ranks."""
    n, width = spec.world_size, spec.nranks_per_node
    if n % width:
        raise ValueError(f"{n} ranks are not whole hosts of {width}")
    blocks = spec.collective.total // width
    with CollectiveProgram.from_spec(spec) as program:
        near = {(a, b): MemoryChannel(b, a) for a in range(n) for b in range(n) if a // width == b // width and a != b}
        far = {(a, b): PortChannel(b, a) for a in range(n) for b in range(n) if a % width == b % width and a != b}
        given = [Buffer(rank, width * blocks) for rank in range(n)]
        summed = [Buffer(rank, width * blocks) for rank in range(n)]
        partial = [Buffer(rank, (n // width) * blocks) for rank in range(n)]

        def block(number: int) -> slice:
            return slice(number * blocks, (number + 1) * blocks)

        for a, b in near:
            source = Rank(a).get_input_buffer()[block(b % width)]
            near[a, b].put_packets(given[b][block(a % width)], source, tb=0)
        for rank in range(n):
            own, host = rank % width, rank // width
            peers = [b for a, b in near if a == rank]
            others = [given[rank][block(peer % width)] for peer in peers]
            source, mine = Rank(rank).get_input_buffer()[block(own)], partial[rank][block(host)]
            if others:
                Rank(rank).reduce(source, others, tb=0, dst_chunk=mine, packet=True)
            else:
                Rank(rank).copy(mine, source, tb=0)
            partners = [b for a, b in far if a == rank]
            for partner in partners:
                far[rank, partner].signal(tb=0, data_sync=SyncType.before)
            for partner in partners:
                far[rank, partner].wait(tb=0, data_sync=SyncType.after)
            for partner in partners:
                far[rank, partner].put_with_signal(partial[partner][block(host)], mine, tb=0)
            for partner in partners:
                far[rank, partner].wait(tb=0, data_sync=SyncType.after)
            result = Rank(rank).get_output_buffer()[block(own)]
            Rank(rank).copy(result, partial[rank][block(0)], tb=0)
            for other in range(1, n // width):  # in the order of the hosts, so that all get the same bits
                Rank(rank).reduce(result, [partial[rank][block(other)]], tb=0)
            for peer in peers:
                near[rank, peer].put_packets(summed[peer][block(own)], result, tb=0)
            for peer in peers:
                target = Rank(rank).get_output_buffer()[block(peer % width)]
                Rank(rank).unpack_packets(target, summed[rank][block(peer % width)], tb=0)
            for partner in partners:
                far[rank, partner].flush(tb=0)
    return program


def main() -> None:
    """Prints the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--ranks-per-host", type=int, default=4)
    arguments = parser.parse_args()
    spec = AlgoSpec(
        name="two-level all-reduce",
        collective=AllReduce(arguments.ranks, 1),
        nranks_per_node=arguments.ranks_per_host,
        protocol="LL",
        use_double_scratch_buffer=True,
    )
    print(two_level_all_reduce(spec).to_json())


if __name__ == "__main__":
    main()
