"""Trains a classifier of handwritten digits with DistributedDataParallel, or in one process to compare.

    torchrun --nproc-per-node=2 examples/ddp_train.py --save-stats ddp_stats.json
    python examples/ddp_train.py --baseline --save-stats baseline_stats.json

Rank 0 prints a line an epoch. The data are scikit-learn's handwritten digits (common/digits.py: origin, licence).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

import tutti
from common.communication import watch
from common.digits import Digits, batches, load_digits, make_model

MEASURED_STEPS = 20


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="tutti", help="torch.distributed backend (default: tutti)")
    parser.add_argument("--baseline", action="store_true", help="one process with the same global batch, no backend")
    parser.add_argument("--ranks", type=int, default=2, help="ranks whose global batch the baseline takes (default: 2)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples a rank and step (default: 64)")
    parser.add_argument("--params", type=float, default=1.0, help="model size, 0.1 to 100 million (default: 1)")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--threads", type=int, default=1, help="threads a process computes with (default: 1)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--gradient-as-bucket-view", action="store_true", help="DDP's option: one copy less")
    parser.add_argument("--shared-allocator", action="store_true", help="tutti.use_shared_allocator(): no copies")
    parser.add_argument("--save-stats", type=Path, metavar="FILE", help="write what was measured as JSON (rank 0)")
    options = parser.parse_args()
    if not 0.1 <= options.params <= 100:
        parser.error("--params must be from 0.1 to 100")
    return options


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Digits, share: list[torch.Tensor]
) -> tuple[torch.Tensor, float]:
    """One pass over this rank's batches; returns the mean of its losses, and the seconds that the optimizer took."""
    model.train()
    losses = []
    updating = 0.0
    for indices in share:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(data.train_images[indices]), data.train_labels[indices])
        loss.backward()
        start = time.perf_counter()
        optimizer.step()
        updating += time.perf_counter() - start
        losses.append(loss.detach())
    return torch.stack(losses).mean(), updating


@torch.no_grad()
def count_right(model: nn.Module, data: Digits, rank: int, ranks: int) -> torch.Tensor:
    """How many images of this rank's share of the test set the model recognises."""
    model.eval()
    images, labels = data.test_images[rank::ranks], data.test_labels[rank::ranks]
    right: torch.Tensor = (model(images).argmax(dim=1) == labels).sum()
    return right


def measure_communication(
    model: nn.Module, data: Digits, share: list[torch.Tensor], options: argparse.Namespace
) -> dict[str, float]:
    """Some further steps with every all-reduce timed; apart from training, which stays as users run it."""
    model.zero_grad(set_to_none=True)
    model.train()
    ddp = DDP(model, gradient_as_bucket_view=options.gradient_as_bucket_view)
    times = watch(ddp)
    for step in range(2 + MEASURED_STEPS):
        if step == 2:  # DDP rebuilds its buckets after the first step
            times.intervals.clear()
            times.bytes = 0
            dist.barrier()
            start = time.perf_counter()
        indices = share[step % len(share)]
        ddp.zero_grad(set_to_none=True)
        cross_entropy(ddp(data.train_images[indices]), data.train_labels[indices]).backward()
    return times.summary(time.perf_counter() - start)


def run(options: argparse.Namespace, rank: int, ranks: int) -> dict[str, Any]:
    """Trains and returns the statistics."""
    distributed = not options.baseline
    data = load_digits()
    module = make_model(options.params, options.seed)
    model = DDP(module, gradient_as_bucket_view=options.gradient_as_bucket_view) if distributed else module
    per_rank = options.batch_size if distributed else options.batch_size * options.ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    if rank == 0:
        name = f"{options.backend}, {ranks} ranks" if distributed else "one process"
        print(f"{name}: {parameters / 1e6:.2f} M parameters, batch {per_rank} a process", flush=True)

    epochs = []
    for epoch in range(options.epochs):
        share = list(batches(len(data.train_images), per_rank, rank, ranks, options.seed + epoch))
        if not share:
            raise SystemExit(f"--batch-size {options.batch_size} x {ranks} ranks is more than the data set has")
        start = time.perf_counter()
        loss, updating = train_epoch(model, optimizer, data, share)
        elapsed = time.perf_counter() - start
        right = count_right(module, data, rank, ranks)
        if distributed:
            dist.all_reduce(loss)
            dist.all_reduce(right)
        record = {
            "loss": loss.item() / ranks,
            "accuracy": right.item() / len(data.test_labels),
            "seconds": elapsed,
            "samples_per_s": len(share) * per_rank * ranks / elapsed,
            "optimizer_share": updating / elapsed,
        }
        epochs.append(record)
        if rank == 0:
            print(
                f"epoch {epoch + 1:2d}/{options.epochs}  loss {record['loss']:.4f}  "
                f"test accuracy {record['accuracy']:6.2%}  {record['samples_per_s']:8.0f} samples/s",
                flush=True,
            )

    stats: dict[str, Any] = {
        "backend": options.backend if distributed else None,
        "ranks": ranks,
        "parameters": parameters,
        "batch_size": per_rank,
        "threads": options.threads,
        "gradient_as_bucket_view": options.gradient_as_bucket_view,
        "shared_allocator": options.shared_allocator,
        "torch": torch.__version__,
        "epochs": epochs,
        # The first epoch also warms up.
        "samples_per_s": statistics.median(record["samples_per_s"] for record in epochs[1:] or epochs),
        "optimizer_share": statistics.median(record["optimizer_share"] for record in epochs[1:] or epochs),
    }
    if distributed:
        if options.backend == "tutti":
            stats["metrics"] = tutti.get_metrics()
        del model
        stats["communication"] = measure_communication(module, data, share, options)
    return stats


def main() -> None:
    """Entry point of every rank."""
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    if options.shared_allocator:
        tutti.use_shared_allocator()
    rank, ranks = 0, 1
    if not options.baseline:
        dist.init_process_group(options.backend)
        rank, ranks = dist.get_rank(), dist.get_world_size()
    stats = run(options, rank, ranks)
    if rank == 0 and options.save_stats is not None:
        options.save_stats.write_text(json.dumps(stats, indent=1) + "\n")
    if not options.baseline:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
