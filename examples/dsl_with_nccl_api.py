"""A plan of one's own under backend="nccl", by every call that it fits:

    TUTTI_NCCL=1 LD_PRELOAD="$(tutti nccl --path)" torchrun --nproc-per-node=4 examples/dsl_with_nccl_api.py

The group is NCCL's, and so are the calls. Before it is made, the script gives a plan to the process and a function that
takes it from 1 MB on; smaller calls go on as they would: Tutti's kernels, or NCCL. Without those two settings NCCL runs
everything. ``TUTTI_NCCL_REPORT=1`` prints at the end how many calls ran "by plans".
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

import tutti
from customized_comm import switch_all_reduce
from tutti.language import AlgoSpec, AllReduce

PLAN = "switch_all_reduce"
LEAST = 1 << 20
BUFFER = 24 << 20


def choose(
    algorithms: dict[str, dict[str, tutti.Algorithm]], request: tutti.CollectiveRequest
) -> tutti.Algorithm | None:
    """The plan, for all-reduces of 1 MB and more: alike on all ranks, as it looks at nothing of one rank's own."""
    if request.collective != "allreduce" or request.message_size < LEAST:
        return None
    return algorithms["allreduce"][PLAN]


def give_plan(rank: int, ranks: int) -> None:
    """Compiles and proves the plan, and gives it to the groups that this process makes from now on."""
    spec = AlgoSpec(
        name=PLAN, collective=AllReduce(ranks, 1, True), world_size=ranks, in_place=True, min_message_size=LEAST
    )
    builder = tutti.AlgorithmCollectionBuilder()
    builder.add_algorithm_builder(tutti.compile(algo=switch_all_reduce, algo_spec=spec, rank=rank))
    builder.set_algorithm_selector(choose)


def check(x: torch.Tensor, rank: int, ranks: int) -> None:
    """All-reduces small whole numbers, whose sums every type holds exactly."""
    pattern = torch.arange(x.numel(), device=x.device) % 7
    x.copy_(pattern + rank)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    if not torch.equal(x, (ranks * pattern + ranks * (ranks - 1) // 2).to(x.dtype)):
        raise SystemExit(f"rank {rank}: the all-reduce of {x.nbytes} bytes is wrong")


def main() -> None:
    """Makes the group, and checks a large call and a small one."""
    rank, ranks, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    torch.cuda.set_device(local)
    give_plan(rank, ranks)
    dist.init_process_group(backend="nccl", device_id=torch.device("cuda", local))
    memory = tutti.RawGpuBuffer(BUFFER)
    large = torch.utils.dlpack.from_dlpack(memory.to_dlpack(data_type=str(torch.bfloat16)))
    check(large, rank, ranks)
    check(large[:1000], rank, ranks)
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: both all-reduces are right")


if __name__ == "__main__":
    main()
