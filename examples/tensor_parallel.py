"""Tensor-parallel inference of a small transformer: tokens a second over Tutti and over its peer, in one run.

    torchrun --nproc-per-node=4 examples/tensor_parallel.py

Every rank holds a part of each layer's heads and hidden units, so each layer has two all-reduces of a few kilobytes:
their delay limits the speed. On GPUs one decoding step is a CUDA graph and the peer is NCCL; without a GPU the
steps run eagerly and the peer is gloo. The weights are random: the tokens mean nothing, but they must not depend on the
backend, and the example says whether they do.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tutti  # noqa: F401  (registers the backend)


@dataclass
class Shape:
    """Sizes of the model."""

    hidden: int = 1024
    heads: int = 16
    layers: int = 8
    vocabulary: int = 4096
    longest: int = 512

    @property
    def head(self) -> int:
        """Numbers in a head."""
        return self.hidden // self.heads


class Layer(nn.Module):
    """This rank's part of an attention and of a feed-forward block."""

    def __init__(
        self, shape: Shape, batch: int, rank: int, ranks: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()

        def part(rows: int, columns: int, dimension: int) -> torch.Tensor:
            """This rank's slice of a matrix that is the same on all ranks, whatever their number."""
            whole = torch.randn(rows, columns) * columns**-0.5
            own: torch.Tensor = whole.chunk(ranks, dimension)[rank]
            return own.to(device, dtype).contiguous()

        self.heads, self.head = shape.heads // ranks, shape.head
        self.query, self.key, self.value = (part(shape.hidden, shape.hidden, 0) for _ in range(3))
        self.out = part(shape.hidden, shape.hidden, 1)
        self.up, self.gate = (part(4 * shape.hidden, shape.hidden, 0) for _ in range(2))
        self.down = part(shape.hidden, 4 * shape.hidden, 1)
        self.norms = [torch.ones(shape.hidden, device=device, dtype=dtype) for _ in range(2)]
        cache = (batch, self.heads, shape.longest, shape.head)
        self.keys, self.values = (torch.zeros(cache, device=device, dtype=dtype) for _ in range(2))

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor, reduce: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        """One token of each sequence: x is (batch, hidden)."""
        batch = x.shape[0]
        y = F.rms_norm(x, x.shape[-1:], self.norms[0])
        query, key, value = (
            (y @ w.t()).view(batch, self.heads, 1, self.head) for w in (self.query, self.key, self.value)
        )
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        y = (
            F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask).reshape(batch, -1)
            @ self.out.t()
        )
        reduce(y)
        x = x + y
        y = F.rms_norm(x, x.shape[-1:], self.norms[1])
        y = (F.silu(y @ self.gate.t()) * (y @ self.up.t())) @ self.down.t()
        reduce(y)
        return x + y


class Model(nn.Module):
    """The whole of it; one step decodes a token for each sequence of the batch."""

    def __init__(
        self, shape: Shape, batch: int, rank: int, ranks: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding = (torch.randn(shape.vocabulary, shape.hidden) * 0.5).to(device, dtype)
        self.layers = nn.ModuleList(Layer(shape, batch, rank, ranks, device, dtype) for _ in range(shape.layers))
        self.places = torch.arange(shape.longest, device=device)
        self.token = torch.arange(batch, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)

    def start(self) -> None:
        """Back to the first token."""
        self.token.copy_(torch.arange(len(self.token)))
        self.position.zero_()

    def step(self, reduce: Callable[[torch.Tensor], None]) -> None:
        """Replaces every sequence's token by the next one."""
        mask = (self.places <= self.position).view(1, 1, 1, -1)
        x = self.embedding[self.token]
        for layer in self.layers:
            x = layer(x, self.position, mask, reduce)
        self.token.copy_((x @ self.embedding.t()).argmax(-1))
        self.position.add_(1)


@torch.inference_mode()
def decode(model: Model, group: dist.ProcessGroup | None, tokens: int) -> tuple[list[list[int]], float]:
    """The tokens, and how many a second each sequence got."""

    def reduce(x: torch.Tensor) -> None:
        dist.all_reduce(x, group=group)

    model.start()
    for _ in range(3):  # what is made at the first call is made
        model.step(reduce)
    step: Callable[[], None] = lambda: model.step(reduce)  # noqa: E731
    if model.token.is_cuda:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.step(reduce)
        step = graph.replay
    model.start()
    step()
    history = [model.token.clone()]
    if model.token.is_cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(tokens - 1):
        step()
        history.append(model.token.clone())
    if model.token.is_cuda:
        torch.cuda.synchronize()
    rate = (tokens - 1) / (time.perf_counter() - begun)
    return [t.tolist() for t in history], rate


def main() -> None:
    """Decodes over each backend in turn and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--save-stats", type=Path, help="write the figures as JSON")
    parser.add_argument("--rounds", type=int, default=3, help="the backends take turns this often; the best counts")
    arguments = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    groups: dict[str, dist.ProcessGroup | None] = {"tutti": dist.group.WORLD}
    if not gpu or torch.cuda.device_count() >= ranks:  # NCCL takes one rank a GPU
        peer = "nccl" if gpu else "gloo"
        groups[peer] = dist.new_group(backend=peer)
    shape = Shape(hidden=arguments.hidden, layers=arguments.layers)
    model = Model(shape, arguments.batch, rank, ranks, device, torch.bfloat16 if gpu else torch.float32)
    best: dict[str, float] = {}
    said: dict[str, list[list[int]]] = {}
    for _ in range(arguments.rounds):
        for name, group in groups.items():
            said[name], rate = decode(model, group, min(arguments.tokens, shape.longest - 4))
            best[name] = max(best.get(name, 0.0), rate)
    if rank == 0:
        message = arguments.batch * arguments.hidden * (2 if gpu else 4)
        print(f"{ranks} ranks on {device.type}, {2 * shape.layers} all-reduces of {message} bytes a token")
        for name, rate in best.items():
            print(f"{name:6} {rate:8.1f} tokens/s a sequence")
        first, *others = said.values()
        same = [sum(a == b for a, b in zip(first, other, strict=True)) for other in others]
        for count in same:
            print(f"the same tokens in {count} of {len(first)} steps")
        if arguments.save_stats:
            arguments.save_stats.write_text(json.dumps({"tokens_per_s": best, "steps": len(first), "same": same}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
