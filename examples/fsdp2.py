"""FSDP2 (fully_shard): torchrun --nproc-per-node=2 examples/fsdp2.py

Trains a sharded model and, on every rank, an unsharded twin on the whole batch; checks that they stay equal.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import mse_loss

FEATURES, PER_RANK, STEPS = 96, 8, 5


def make_model() -> nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 2 * FEATURES), nn.GELU(), nn.Linear(2 * FEATURES, FEATURES))


def main() -> None:
    """Trains both and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="tutti")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    mesh = init_device_mesh("cpu", (ranks,))
    sharded, twin = make_model(), make_model()
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded_optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2)

    generator = torch.Generator().manual_seed(4)
    for step in range(STEPS):
        inputs = torch.randn(ranks * PER_RANK, FEATURES, generator=generator)
        mine = inputs[rank * PER_RANK : (rank + 1) * PER_RANK]
        for model, optimizer, batch in ((sharded, sharded_optimizer, mine), (twin, twin_optimizer, inputs)):
            optimizer.zero_grad()
            loss = mse_loss(model(batch), batch)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"step {step}: loss of the whole batch {loss.item():.4f}")

    for (name, shard), whole in zip(sharded.named_parameters(), twin.parameters(), strict=True):
        assert isinstance(shard, DTensor)
        torch.testing.assert_close(shard.full_tensor(), whole.detach(), rtol=1e-4, atol=1e-5, msg=f"{name} differs")
    if rank == 0:
        held = sum(p.to_local().numel() for p in sharded.parameters() if isinstance(p, DTensor))
        print(f"ok: {held} of {sum(p.numel() for p in twin.parameters())} parameters on this rank")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
