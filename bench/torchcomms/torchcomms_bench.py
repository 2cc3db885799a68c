"""Times collectives through TorchComms: Tutti, the other backends that are there, and Tutti's c10d face, in one run.

    torchrun --nproc-per-node=2 bench/torchcomms/torchcomms_bench.py --json out.json [--backends tutti,gloo]

Every implementation's result is checked before it is measured. Implementations take turns: in each round each makes
some calls one after another between two readings of the clock, on CUDA tensors between two events, and what counts is
the time of the slowest rank. Minimum, median and 99th percentile of the rounds are written, in microseconds a call.
Sizes are what a rank puts in, in bytes, on both sides of where the choice of algorithms changes. The JSON is what
bench/torchcomms/report.py draws.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torchcomms

import tutti
from tutti._units import parse_bytes

SIZES = "4,64,1K,4K,16K,32K,64K,256K,1M,4M,16M,32M"
COLLECTIVES = ("all_reduce", "all_gather_single", "reduce_scatter_single", "all_to_all_single", "broadcast")
C10D = "tutti (c10d)"
C10D_GROUP = "tutti (c10d, the group itself)"
Call = Callable[[], object]


class Buffers:
    """An input of ``size`` bytes on every rank, and an output for each collective; small whole numbers."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        count = max(size // 4, 1)
        self.input = torch.empty(count, device=device)
        self.blocks = torch.empty(count // self.ranks * self.ranks, device=device)  # that divide by the ranks
        self.output = torch.empty(count * self.ranks, device=device)
        self.part = torch.empty(count // self.ranks, device=device)

    def fill(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return tensor.copy_((torch.arange(tensor.numel(), device=tensor.device) + 3 * rank) % 11)

    def expect(self, collective: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the result will be, and what; the inputs are filled."""
        self.fill(self.input, self.rank)
        self.fill(self.blocks, self.rank)
        inputs = [self.fill(torch.empty_like(self.input), rank) for rank in range(self.ranks)]
        blocks = [self.fill(torch.empty_like(self.blocks), rank) for rank in range(self.ranks)]
        own = slice(self.rank * self.part.numel(), (self.rank + 1) * self.part.numel())
        if collective == "all_reduce":
            return self.input, torch.stack(inputs).sum(0)
        if collective == "all_gather_single":
            return self.output, torch.cat(inputs)
        if collective == "reduce_scatter_single":
            return self.part, torch.stack(blocks).sum(0)[own]
        if collective == "all_to_all_single":
            return self.output[: self.blocks.numel()], torch.cat([block[own] for block in blocks])
        return self.input, inputs[0]


def through_torchcomms(comm: Any, collective: str, b: Buffers) -> Call:
    total = torchcomms.ReduceOp.SUM
    if collective == "all_reduce":
        return lambda: comm.all_reduce(b.input, total, False)
    if collective == "all_gather_single":
        return lambda: comm.all_gather_single(b.output, b.input, False)
    if collective == "reduce_scatter_single":
        return lambda: comm.reduce_scatter_single(b.part, b.blocks, total, False)
    if collective == "all_to_all_single":
        return lambda: comm.all_to_all_single(b.output[: b.blocks.numel()], b.blocks, False)
    return lambda: comm.broadcast(b.input, 0, False)


def through_c10d(collective: str, b: Buffers) -> Call:
    if collective == "all_reduce":
        return lambda: dist.all_reduce(b.input)
    if collective == "all_gather_single":
        return lambda: dist.all_gather_into_tensor(b.output, b.input)
    if collective == "reduce_scatter_single":
        return lambda: dist.reduce_scatter_tensor(b.part, b.blocks)
    if collective == "all_to_all_single":
        return lambda: dist.all_to_all_single(b.output[: b.blocks.numel()], b.blocks)
    return lambda: dist.broadcast(b.input, 0)


def through_the_group(b: Buffers) -> Call:
    """Without the Python of torch.distributed."""
    group = dist.group.WORLD
    assert group is not None
    options = dist.AllreduceOptions()
    options.asyncOp = False
    return lambda: group.allreduce([b.input], options).wait()


def timed(call: Call, calls: int, device: torch.device) -> float:
    """Microseconds a call, on this rank."""
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / calls
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) * 1e6 / calls


def measure(calls: dict[str, Call], count: int, rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Of each implementation and round the time of the slowest rank."""
    own: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):  # the first is warming up
        for name, call in calls.items():
            dist.barrier()
            took = timed(call, count, device)
            if turn > 0:
                own[name].append(took)
    slowest = torch.tensor(list(own.values()), dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return dict(zip(own, slowest.tolist(), strict=True))


def algorithm_of(call: Call) -> str:
    """The algorithm of a call through c10d: the choice is the same for every face."""
    tutti.reset_metrics()
    call()
    rows = [row for row in tutti.get_metrics()["rows"] if row["calls"] > 0]
    return str(rows[0]["algorithm"]) if rows else ""


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth is the size of the larger buffer over the time, times this (nccl-tests' definition)."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective == "all_gather_single":
        return ranks - 1  # the size given is a rank's part
    return 1.0 if collective == "broadcast" else (ranks - 1) / ranks


def run(args: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    comms = {name: torchcomms.new_comm(name, device, f"bench.{name}") for name in args.backends.split(",")}
    ranks = dist.get_world_size()
    records = []
    for collective in args.collectives.split(","):
        for text in args.sizes.split(","):
            size = parse_bytes(text)
            if size // 4 < ranks and collective in ("reduce_scatter_single", "all_to_all_single"):
                continue
            b = Buffers(size, device)
            calls = {name: through_torchcomms(comm, collective, b) for name, comm in comms.items()}
            calls[C10D] = through_c10d(collective, b)
            if collective == "all_reduce":
                calls[C10D_GROUP] = through_the_group(b)
            for name, call in calls.items():
                place, wanted = b.expect(collective)
                dist.barrier()
                call()
                if not torch.equal(place, wanted):
                    raise SystemExit(f"rank {b.rank}: {collective} of {size} bytes by {name} is wrong")
            b.input.zero_()  # sums of sums stay finite
            b.blocks.zero_()
            algorithm = algorithm_of(calls[C10D])
            count = max(2, min(args.calls, (args.calls << 15) // size))
            for name, times in measure(calls, count, args.rounds, device).items():
                times.sort()
                p50 = times[len(times) // 2]
                records.append(
                    {
                        "collective": collective,
                        "bytes": size,
                        "implementation": name,
                        "algorithm": algorithm if name.startswith("tutti") else "",
                        "calls": count,
                        "min_us": times[0],
                        "p50_us": p50,
                        "p99_us": times[min(len(times) - 1, int(len(times) * 0.99))],
                        "bus_gb_s": size * bus_factor(collective, ranks) / p50 / 1e3,
                    }
                )
                if dist.get_rank() == 0:
                    row = records[-1]
                    print(f"{collective:22} {text:>5} {name:32} {row['min_us']:10.1f} {p50:10.1f} us", flush=True)
    for comm in comms.values():
        comm.finalize()
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="tutti,gloo", help="of torchcomms, comma-separated")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=100, help="a round, of small messages")
    parser.add_argument("--json", default="", help="where rank 0 writes the figures")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("tutti", timeout=timedelta(minutes=5))
    records = run(args, device)
    if dist.get_rank() == 0 and args.json:
        about = {
            "machine": platform.node() if device.type == "cpu" else torch.cuda.get_device_name(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "ranks": dist.get_world_size(),
            "device": device.type,
            "torch": torch.__version__,
            "tutti": tutti.__version__,
            "rounds": args.rounds,
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"about": about, "records": records}, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
