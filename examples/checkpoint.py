"""torch.distributed.checkpoint: torchrun --nproc-per-node=2 examples/checkpoint.py

Saves a sharded model and its optimizer in the middle of training, loads them into fresh ones, and checks that both go
on alike. Synchronous and asynchronous saving.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

FEATURES, BATCH = 48, 16


class Training:
    """A sharded model and its optimizer."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def run(self, steps: int, seed: int) -> float:
        """Trains on random data of this rank; returns the last loss."""
        generator = torch.Generator().manual_seed(seed * 100 + dist.get_rank())
        for _ in range(steps):
            batch = torch.randn(BATCH, FEATURES, generator=generator)
            self.optimizer.zero_grad()
            loss = mse_loss(self.model(batch), batch)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, folder: Path) -> None:
        """Continues from a checkpoint."""
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main() -> None:
    """Saves, loads, compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="tutti")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    rank = dist.get_rank()
    names: list[Any] = [tempfile.mkdtemp(prefix="tutti-checkpoint-") if rank == 0 else None]
    dist.broadcast_object_list(names, src=0)
    folder = Path(names[0])

    training = Training(seed=1)
    training.run(steps=3, seed=1)
    dcp.save(training.state(), checkpoint_id=folder / "sync")
    saving = dcp.async_save(training.state(), checkpoint_id=folder / "async")
    assert isinstance(saving, Future)
    saving.result()
    expected = training.run(steps=2, seed=2)
    for kind in ("sync", "async"):
        resumed = Training(seed=99)
        resumed.load(folder / kind)
        if resumed.run(steps=2, seed=2) != expected:
            raise SystemExit(f"training resumed from the {kind} checkpoint goes another way")
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
        print(f"ok: training resumed from both checkpoints reaches the same loss, {expected:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
