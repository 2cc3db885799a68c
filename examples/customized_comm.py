"""A communicator with algorithms of one's own: torchrun --nproc-per-node=4 examples/customized_comm.py

Two all-reduces written in the language, one that comes with Tutti, and an all-gather of one's own that is compiled here
(customized_all_gather.cu). Each is checked, and timed beside the call that the library makes by itself. With --device
cuda all of them run on the ranks' GPUs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

import tutti
from tutti.language import (
    AlgoSpec,
    AllReduce,
    BufferType,
    CollectiveProgram,
    MemoryChannel,
    Rank,
    SwitchChannel,
    SyncType,
)

HERE = Path(__file__).resolve().parent
REPEAT = 20


def meet(channels: dict[tuple[int, int], MemoryChannel], ranks: int, sync: SyncType) -> None:
    """All ranks tell all others that they are here, and wait for them."""
    for rank in range(ranks):
        peers = [peer for peer in range(ranks) if peer != rank]
        for peer in peers:
            channels[peer, rank].signal(tb=0, data_sync=sync)
        for peer in peers:
            channels[peer, rank].wait(tb=0, data_sync=sync)


def everybody(ranks: int) -> dict[tuple[int, int], MemoryChannel]:
    """Channels between all: ``[to, from]``."""
    return {(b, a): MemoryChannel(b, a) for a in range(ranks) for b in range(ranks) if a != b}


def switch_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Every rank has the switch add up its block from all ranks, and write it to all of them."""
    ranks = spec.world_size
    with CollectiveProgram.from_spec(spec) as program:
        switch = SwitchChannel(rank_list=list(range(ranks)), buffer_type=BufferType.input)
        channels = everybody(ranks)
        meet(channels, ranks, SyncType.both)
        for rank in range(ranks):
            block = Rank(rank).get_input_buffer()[rank : rank + 1]
            switch.at_rank(rank).reduce(buffer_offset=rank, size=1, dst_chunk=block, tb=0)
            switch.at_rank(rank).broadcast(src_chunk=block, buffer_offset=rank, size=1, tb=0)
        meet(channels, ranks, SyncType.both)
    return program


def mesh_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Every rank reads its block from all others, adds it up, and writes it to all of them."""
    ranks = spec.world_size
    with CollectiveProgram.from_spec(spec) as program:
        channels = everybody(ranks)
        meet(channels, ranks, SyncType.both)
        for rank in range(ranks):
            block = Rank(rank).get_input_buffer()[rank : rank + 1]
            theirs = {p: Rank(p).get_input_buffer()[rank : rank + 1] for p in range(ranks) if p != rank}
            for peer, chunk in theirs.items():
                channels[peer, rank].reduce(block, [chunk], tb=0)
            for peer, chunk in theirs.items():
                channels[peer, rank].put(chunk, block, tb=0)
        meet(channels, ranks, SyncType.both)
    return program


class CustomizedComm:
    """A group whose collectives run by the algorithms that it has chosen."""

    def __init__(self, group: tutti.CommGroup, device: str) -> None:
        self.group = group
        self.device = device
        self.rank, self.size = group.my_rank, group.nranks
        self.executor = tutti.Executor(group.communicator)
        self.all_reduces = {"switch": self.compile(switch_all_reduce), "mesh": self.compile(mesh_all_reduce)}
        defaults = tutti.AlgorithmCollectionBuilder(group).build_default_algorithms()
        self.all_reduces["default"] = defaults.for_collective("allreduce")["default_allreduce_packet"]
        module = tutti.compile_native(name="customized", file=HERE / "customized_all_gather.cu")
        self.gather = tutti.Algorithm.create_from_native_capsule(module.create_all_gather())

    def compile(self, program: Callable[[AlgoSpec], CollectiveProgram]) -> tutti.Algorithm:
        """The program for this group, proven."""
        collective = AllReduce(self.size, 1, True)
        spec = AlgoSpec(name=program.__name__, collective=collective, world_size=self.size, in_place=True)
        return tutti.compile(algo=program, algo_spec=spec, rank=self.rank)

    def tensor(self, count: int) -> torch.Tensor:
        """So many floats, in main memory such as all ranks map: there nothing has to be copied."""
        if self.device == "cuda":
            return torch.empty(count, device="cuda")
        memory = tutti.RawBuffer(count * 4)
        tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(memory.to_dlpack(data_type=str(torch.float32)))
        return tensor

    def all_reduce(self, tensor: torch.Tensor, by: str) -> None:
        """Adds up, in place; on a GPU, behind what torch has enqueued."""
        self.all_reduces[by].execute(
            comm=self.group.communicator,
            executor=self.executor,
            input_buffer=tensor.data_ptr(),
            output_buffer=tensor.data_ptr(),
            input_size=tensor.nbytes,
            output_size=tensor.nbytes,
            dtype=tutti.DataType.of(tensor),
            op=tutti.ReduceOp.SUM,
            stream=torch.cuda.current_stream().cuda_stream if self.device == "cuda" else 0,
        )

    def wait(self) -> None:
        """Until the calls so far are done."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def all_gather(self, part: torch.Tensor, whole: torch.Tensor) -> None:
        """By the kernel above; arrays instead of addresses."""
        stream = torch.cuda.current_stream().cuda_stream if self.device == "cuda" else 0
        self.gather.execute(self.group, part, whole, stream=stream)


def microseconds(comm: CustomizedComm, call: Callable[[], object]) -> float:
    """The quickest of some calls on this rank, until they are done."""
    times = []
    for _ in range(REPEAT):
        comm.group.barrier()
        start = time.perf_counter()
        call()
        comm.wait()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def compare_all_reduces(comm: CustomizedComm, count: int) -> dict[str, float]:
    """Checks every all-reduce on ``count`` floats and times it; "built in" is the library's own choice."""
    x = comm.tensor(count)
    total = comm.size * (comm.size + 1) / 2
    took = {}
    for name in comm.all_reduces:
        x.fill_(comm.rank + 1)
        comm.all_reduce(x, by=name)
        if not torch.equal(x, torch.full_like(x, total)):
            raise SystemExit(f"rank {comm.rank}: the {name} all-reduce is wrong")
        took[name] = microseconds(comm, lambda name=name: comm.all_reduce(x, by=name))  # type: ignore[misc]
        x.zero_()
    took["built in"] = microseconds(comm, lambda: comm.group.communicator.all_reduce(x))
    return took


def compare_all_gathers(comm: CustomizedComm, count: int) -> dict[str, float]:
    """The same of the all-gather."""
    part = torch.full((count,), comm.rank + 1.0, device=comm.device)
    whole = torch.empty(comm.size * count, device=comm.device)
    comm.all_gather(part, whole)
    if not torch.equal(whole.cpu(), torch.arange(1.0, comm.size + 1).repeat_interleave(count)):
        raise SystemExit(f"rank {comm.rank}: the all-gather of one's own is wrong")
    return {
        "native": microseconds(comm, lambda: comm.all_gather(part, whole)),
        "built in": microseconds(comm, lambda: comm.group.communicator.all_gather(part, whole)),
    }


def main() -> None:
    """Runs everything and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bytes", type=int, nargs="+", default=[8 << 10, 1 << 20], help="sizes of one rank's block")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the tensors are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    group = tutti.CommGroup()
    if options.device == "cuda":
        torch.cuda.set_device(group.my_rank % torch.cuda.device_count())
    comm = CustomizedComm(group, options.device)
    compared = [("all-reduce", compare_all_reduces), ("all-gather", compare_all_gathers)]
    for size in options.bytes:
        for name, compare in compared:
            took = compare(comm, max(1, size // 4))
            if comm.rank == 0:
                row = "  ".join(f"{way} {time_us:.1f} us" for way, time_us in took.items())
                print(f"{name} of {size} bytes, {comm.size} ranks: {row}")
    comm.group.barrier()
    comm.group.communicator.close()


if __name__ == "__main__":
    main()
