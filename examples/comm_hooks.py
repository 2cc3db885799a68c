"""DDP communication hooks: torchrun --nproc-per-node=2 examples/comm_hooks.py

fp16 compression and PowerSGD, each compared with plain DDP: compression must come close, PowerSGD must learn.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from common.digits import batches, load_digits, make_model

PER_RANK, EPOCHS = 32, 3


def train(hook: str) -> float:
    """Loss of the last steps, averaged over the ranks."""
    data = load_digits()
    model = DDP(make_model(0.1, seed=5))
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=4)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = []
    for epoch in range(EPOCHS):
        for indices in batches(len(data.train_images), PER_RANK, rank, ranks, seed=epoch):
            optimizer.zero_grad()
            loss = cross_entropy(model(data.train_images[indices]), data.train_labels[indices])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    mean = torch.stack(losses[-5:]).mean()
    dist.all_reduce(mean)
    return mean.item() / ranks


def main() -> None:
    """Trains three times and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="tutti")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    losses = {hook: train(hook) for hook in ("none", "fp16", "powersgd")}
    if dist.get_rank() == 0:
        print("  ".join(f"{hook}: {loss:.4f}" for hook, loss in losses.items()))
    if abs(losses["fp16"] - losses["none"]) > 0.02 * losses["none"]:
        raise SystemExit("fp16 compression strays from plain DDP")
    if losses["powersgd"] > 1.0:  # guessing gives 2.3
        raise SystemExit("PowerSGD does not learn")
    dist.barrier()
    if dist.get_rank() == 0:
        print("ok")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
