"""The smallest DistributedDataParallel script: torchrun --nproc-per-node=2 examples/minimal_ddp.py"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import tutti  # noqa: F401  (not needed once the package is installed: torch finds the backend by itself)


def main() -> None:
    """Trains ten steps on random data."""
    rank = int(os.environ["RANK"])
    device = torch.device("cpu")

    dist.init_process_group(backend="tutti")

    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    ddp_model = DDP(model)
    optimizer = torch.optim.AdamW(ddp_model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()

    for step in range(10):
        x = torch.randn(8, 512, device=device)
        y = torch.randint(0, 10, (8,), device=device)
        optimizer.zero_grad(set_to_none=True)
        loss_fn(ddp_model(x), y).backward()
        optimizer.step()
        if rank == 0:
            print(step, "ok")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
