"""All-reduce of CUDA tensors through torch: Tutti, NCCL and PyTorch's symmetric memory in one run, as CSV.

    torchrun --nproc-per-node=2 bench/cuda/torch_bench.py [--sizes 1K,64K,1M] [--modes graph,eager,host]

In the modes ``graph`` and ``eager`` a repetition is 20 calls between two events, in a CUDA graph or issued one by one;
its time is the longest of all ranks; median and minimum of the repetitions are printed, in microseconds a call. In the
mode ``host`` it is what a call costs the host: the time to issue 200 calls of which none is waited for. All calls add
bf16; each is checked once before it is measured. NVLink multicast must be off in all of them for a fair picture:
NCCL_NVLS_ENABLE=0 and TORCH_SYMM_MEM_DISABLE_MULTICAST=1, which this program sets.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

import tutti
import tutti.ops
from tutti._units import parse_bytes

CALLS, HOST_CALLS = 20, 200
Call = Callable[[], torch.Tensor]


def implementations(size: int, groups: dict[str, dist.ProcessGroup]) -> dict[str, tuple[torch.Tensor, Call]]:
    """By name: the input, and a call that returns where the sum is. ``size`` is in bytes, a multiple of 16."""
    count = size // 2
    made: dict[str, tuple[torch.Tensor, Call]] = {}

    def in_place(name: str, tensor: torch.Tensor) -> None:
        def call() -> torch.Tensor:
            dist.all_reduce(tensor, group=groups[name.split()[0]])
            return tensor

        made[name] = tensor, call

    usual = torch.empty(count, dtype=torch.bfloat16, device="cuda")
    in_place("tutti", usual)
    in_place("tutti registered", tutti.empty(count, dtype=torch.bfloat16, device="cuda", group=groups["tutti"]))
    made["tutti op"] = usual, lambda: tutti.ops.all_reduce(usual, groups["tutti"])
    in_place("nccl", usual)
    shared = symmetric_memory.empty(count, dtype=torch.bfloat16, device=usual.device)
    name = groups["nccl"].group_name
    symmetric_memory.rendezvous(shared, name)
    operations = torch.ops.symm_mem
    made["symmetric memory, one-shot"] = shared, lambda: operations.one_shot_all_reduce(shared, "sum", name)
    made["symmetric memory, two-shot"] = shared, lambda: operations.two_shot_all_reduce_(shared, "sum", name)
    return made


def check(tensor: torch.Tensor, call: Call, ranks: int) -> None:
    """Small whole numbers: their sum is exact."""
    places = torch.arange(tensor.numel(), device=tensor.device)
    own = (places + 3 * dist.get_rank()) % 11
    tensor.copy_(own)
    torch.cuda.synchronize()
    dist.barrier()  # symmetric memory reads the peers' tensors as soon as they call
    found = call()
    want = torch.stack([(places + 3 * rank) % 11 for rank in range(ranks)]).sum(0)
    if not torch.equal(found.float(), want.float()):
        raise SystemExit(f"rank {dist.get_rank()}: a sum of {tensor.numel()} elements is wrong")


def longest(own: list[float]) -> list[float]:
    """Of each repetition the longest time of all ranks."""
    times = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return sorted(times.tolist())


def measure(call: Call, mode: str, repeats: int) -> list[float]:
    """Microseconds a call of each repetition, in rising order."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run: Callable[[], object]
    calls = HOST_CALLS if mode == "host" else CALLS
    run = lambda: [call() for _ in range(calls)]  # noqa: E731
    if mode == "graph":
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay
    times = []
    for i in range(-2, repeats):
        torch.cuda.synchronize()
        dist.barrier()
        begun = time.perf_counter()
        start.record()
        run()
        end.record()
        issued = time.perf_counter() - begun
        torch.cuda.synchronize()
        if i >= 0:
            times.append(issued * 1e6 / calls if mode == "host" else start.elapsed_time(end) * 1e3 / calls)
    return longest(times)


def main() -> None:
    """Measures every implementation at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1K,4K,16K,32K,64K,128K,256K,512K,1M,4M,16M,64M,256M")
    parser.add_argument("--modes", default="graph,eager,host")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--budget-s", type=float, default=120)
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:tutti,cuda:tutti")
    groups = {"tutti": dist.group.WORLD, "nccl": dist.new_group(backend="nccl")}
    rank, ranks, begun = dist.get_rank(), dist.get_world_size(), time.monotonic()
    if rank == 0:
        print(
            f"# {ranks} x {torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}"
        )
        print("mode,bytes,implementation,median_us,min_us", flush=True)
    for mode in arguments.modes.split(","):
        for size in map(parse_bytes, arguments.sizes.split(",")):
            if mode == "host" and size > 1 << 16:
                continue  # the queue of launches would fill, and the host wait for the GPU
            for name, (tensor, call) in implementations(size, groups).items():
                late = torch.tensor([time.monotonic() - begun > arguments.budget_s])
                dist.all_reduce(late, dist.ReduceOp.MAX)
                if late.item():
                    break
                check(tensor, call, ranks)
                times = measure(call, mode, arguments.repeats)
                if rank == 0:
                    print(f"{mode},{size},{name},{statistics.median(times):.2f},{times[0]:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
