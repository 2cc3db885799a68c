"""Training and inference of a small transformer, over NCCL: torchrun --nproc-per-node=2 nccl_workloads.py WORKLOAD

Knows nothing of Tutti: nccl_compare.py runs it with the library under NCCL's name before it and without. WORKLOAD is
``ddp``, ``fsdp2``, ``tensor-parallel`` (inference) or ``graph`` (the same in a CUDA graph). Rank 0 prints a line of
JSON: what every step computed, and milliseconds a step. A backend for CPUs needs no GPU: ``--backend tutti --device
cpu``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

HEAD, WORDS, BATCH, LENGTH = 32, 1000, 4, 128
Step = Callable[[int], torch.Tensor]


class Block(nn.Module):
    """Attention and two layers behind it. Heads are counted by what the projections give, which may be a part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keeps the shape."""
        y = self.first(x)
        q, k, v = (part(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(heads.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Words in, logits of the next ones out."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Of each place."""
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def words_of(step: int, rank: int, device: torch.device) -> torch.Tensor:
    """The same for the same step and rank in every run."""
    chosen = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(WORDS, (BATCH, LENGTH), generator=chosen).to(device)


def training(model: nn.Module, rank: int, device: torch.device) -> Step:
    """Returns the mean of the ranks' losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> torch.Tensor:
        words = words_of(number, rank, device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    return step


def ddp(model: nn.Module, rank: int, device: torch.device) -> Step:
    """Buckets of 1 MB, so that there are several."""
    ids = [device.index] if device.type == "cuda" else None
    return training(nn.parallel.DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=1), rank, device)


def fsdp2(model: Transformer, rank: int, device: torch.device) -> Step:
    """Every block a unit."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return training(model, rank, device)


def in_parts(model: Transformer, device: torch.device) -> None:
    """Columns, then rows: two all-reduces a block."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    columns, rows = ("q", "k", "v", "up"), ("o", "down")
    plan = {**{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel() for name in rows}}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def tensor_parallel(model: Transformer, rank: int, device: torch.device) -> Step:
    """Inference: the mean of the logits' magnitudes."""
    in_parts(model, device)

    @torch.no_grad()
    def step(number: int) -> torch.Tensor:
        return model(words_of(number, 0, device)).abs().mean()

    return step


def graph(model: Transformer, rank: int, device: torch.device) -> Step:
    """The same, captured once and replayed."""
    in_parts(model, device)
    words = words_of(0, 0, device)
    with torch.no_grad():
        for _ in range(3):
            model(words)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            result = model(words).abs().mean()

    def step(number: int) -> torch.Tensor:
        words.copy_(words_of(number, 0, device))
        captured.replay()
        return result.clone()

    return step


WORKLOADS = {"ddp": ddp, "fsdp2": fsdp2, "tensor-parallel": tensor_parallel, "graph": graph}


def main() -> None:
    """One rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(options.backend, device_id=device if device.type == "cuda" else None)
    torch.manual_seed(1)
    model = Transformer(options.width, options.layers).to(device)
    step = WORKLOADS[options.workload](model, rank, device)
    values, times = [], []
    for number in range(options.steps):
        start = time.perf_counter()
        values.append(step(number).item())  # waits for it
        times.append((time.perf_counter() - start) * 1e3)
    if rank == 0:
        print(json.dumps({"values": values, "ms": statistics.median(times[len(times) // 3 :])}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
