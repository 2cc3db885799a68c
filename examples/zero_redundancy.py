"""ZeroRedundancyOptimizer: torchrun --nproc-per-node=2 examples/zero_redundancy.py

Each rank keeps the optimizer's state of its share of the parameters; the result must be that of the plain optimizer.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from common.digits import batches, load_digits, make_model

PER_RANK, STEPS = 32, 10


def train(zero: bool) -> tuple[DDP, int]:
    """The trained model, and how many numbers of optimizer state this rank holds."""
    data = load_digits()
    model = DDP(make_model(0.1, seed=8))
    optimizer: torch.optim.Optimizer
    if zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for indices in list(batches(len(data.train_images), PER_RANK, rank, ranks, seed=9))[:STEPS]:
        optimizer.zero_grad()
        cross_entropy(model(data.train_images[indices]), data.train_labels[indices]).backward()
        optimizer.step()
    inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    held = sum(v.numel() for state in inner.state.values() for v in state.values() if isinstance(v, torch.Tensor))
    return model, held


def main() -> None:
    """Trains twice and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="tutti")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    plain, held_plain = train(zero=False)
    sharded, held_sharded = train(zero=True)
    for (name, a), b in zip(plain.named_parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6, msg=f"{name} differs")
    if dist.get_world_size() > 1 and held_sharded >= held_plain:
        raise SystemExit("the optimizer's state is not shared out")
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"ok: rank 0 holds {held_sharded} numbers of optimizer state, {held_plain} without ZeRO")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
