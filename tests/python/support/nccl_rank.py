"""One rank of a program of NCCL's, which knows nothing of Tutti: RANK SIZE PORT CASE. Prints a line of JSON."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "product": dist.ReduceOp.PRODUCT}
# Small ones, odd ones, and one that is NCCL's.
COUNTS = [1, 7, 1000, 4097, 100_003]


def source(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers: exact in every type, also their sums and products."""
    return ((torch.arange(count, device="cuda") + rank) % 3 + 1).to(dtype)


def reduced(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    stack = torch.stack([part.double() for part in parts])
    if op == "sum":
        return stack.sum(0)
    if op == "product":
        return stack.prod(0)
    return stack.max(0).values if op == "max" else stack.min(0).values


def same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(got.double(), wanted.double()), (got[:8], wanted[:8])


def collectives(rank: int, size: int) -> object:
    for dtype in DTYPES:
        for count in COUNTS:
            parts = [source(r, count, dtype) for r in range(size)]
            for name, op in OPS.items():
                mine = parts[rank].clone()
                dist.all_reduce(mine, op)
                same(mine, reduced(parts, name))
                mine = parts[rank].clone()
                dist.reduce(mine, 1, op)
                if rank == 1:
                    same(mine, reduced(parts, name))
                whole = [source(r, count * size, dtype) for r in range(size)]
                part = torch.empty(count, dtype=dtype, device="cuda")
                dist.reduce_scatter_tensor(part, whole[rank], op)
                same(part, reduced(whole, name)[rank * count : (rank + 1) * count])
            gathered = torch.empty(count * size, dtype=dtype, device="cuda")
            dist.all_gather_into_tensor(gathered, parts[rank])
            same(gathered, torch.cat(parts))
            given = parts[1].clone() if rank == 1 else torch.zeros_like(parts[1])
            dist.broadcast(given, 1)
            same(given, parts[1])
            sent = source(rank, count * size, dtype)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent)
            same(
                received,
                torch.cat([source(r, count * size, dtype)[rank * count : (rank + 1) * count] for r in range(size)]),
            )
    mean = torch.full((1000,), float(rank), device="cuda")
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    same(mean, torch.full_like(mean, (size - 1) / 2))
    for scalar in (0.5, torch.tensor([0.5], device="cuda")):  # on the host, and on the device
        scaled = torch.full((1000,), 1.0, device="cuda")
        dist.all_reduce(scaled, torch._C._distributed_c10d._make_nccl_premul_sum(scalar))
        same(scaled, torch.full_like(scaled, size / 2))
    large = torch.full((1 << 23,), float(rank + 1), device="cuda")
    dist.all_reduce(large)
    same(large, torch.full_like(large, size * (size + 1) / 2))
    dist.barrier()
    return "done"


def groups(rank: int, size: int) -> object:
    """Coalesced calls, messages beside them, and subgroups, of which one is split from the first."""
    tensors = [torch.full((100 * (i + 1),), float(rank + i), device="cuda") for i in range(10)]
    with dist._coalescing_manager(device=torch.device("cuda")):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for i, tensor in enumerate(tensors):
        same(tensor, torch.full_like(tensor, size * i + size * (size - 1) / 2))
    peer = (rank + 1) % size
    out = torch.full((1000,), float(rank), device="cuda")
    into = torch.zeros_like(out)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, (rank - 1) % size)]
    ):
        work.wait()
    same(into, torch.full_like(into, float((rank - 1) % size)))
    again = dist.new_group(list(range(size)))
    alone = dist.new_group([0])
    works = []
    values = [torch.ones(5000, device="cuda") for _ in range(20)]
    for i, value in enumerate(values):
        works.append(dist.all_reduce(value, group=again if i % 2 else None, async_op=True))
    for work in works:
        work.wait()
    for value in values:
        same(value, torch.full_like(value, float(size)))
    if rank == 0:
        dist.all_reduce(torch.ones(10, device="cuda"), group=alone)
    torch.cuda.synchronize()
    dist.destroy_process_group(again)
    return "done"


def graphs(rank: int, size: int) -> object:
    small = torch.zeros(1000, device="cuda")
    large = torch.zeros(1 << 23, device="cuda")  # NCCL's
    dist.all_reduce(small)
    dist.all_reduce(large)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        small.mul_(2)
        dist.all_reduce(small)
        dist.all_reduce(large)
        small.add_(1)
    for step in range(50):
        small.fill_(rank + step)
        large.fill_(1)
        graph.replay()
        same(small, torch.full_like(small, 2 * (size * step + size * (size - 1) / 2) + 1))
        same(large, torch.full_like(large, float(size)))
        eager = torch.full((100,), float(step), device="cuda")
        dist.all_reduce(eager)
        same(eager, torch.full_like(eager, float(step * size)))
    return "done"


def ddp(rank: int, size: int) -> object:
    """Losses of a small model: those over NCCL alone are the same."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    data = torch.randn(32, 64, device="cuda")
    labels = torch.randint(10, (32,), device="cuda")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(parallel(data), labels)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


def times(rank: int, size: int) -> object:
    """Microseconds a call in graphs, not asserted on."""
    table = {}
    for bytes_ in (1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24):
        whole = torch.zeros(bytes_ // 2, dtype=torch.bfloat16, device="cuda")
        part = torch.zeros(bytes_ // 2 // size, dtype=torch.bfloat16, device="cuda")
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda whole=whole: dist.all_reduce(whole),
            "all_gather": lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole),
            "broadcast": lambda whole=whole: dist.broadcast(whole, 0),
            "reduce": lambda whole=whole: dist.reduce(whole, 0),
        }
        for name, call in calls.items():
            call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(20):
                    call()
            best = []
            for _ in range(10):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                best.append(start.elapsed_time(end) * 1000 / 20)
            table[f"{name} {bytes_}"] = round(sorted(best)[len(best) // 2], 1)
    return table


CASES: dict[str, Callable[[int, int], object]] = {
    "collectives": collectives,
    "groups": groups,
    "graphs": graphs,
    "ddp": ddp,
    "times": times,
}


def main() -> None:
    rank, size, port = (int(word) for word in sys.argv[1:4])
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
        device_id=torch.device("cuda", rank),
    )
    result = CASES[sys.argv[4]](rank, size)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
