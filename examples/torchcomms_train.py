"""Data-parallel training over TorchComms: gradients on Tutti, the losses on another backend beside it.

Run: torchrun --nproc-per-node=2 examples/torchcomms_train.py [--device cuda] [--beside nccl]

Needs torchcomms, and Tutti built with its headers (docs/torchcomms.md).
"""

from __future__ import annotations

import argparse

import torch
import torchcomms


class Replicated:
    """Averages gradients as soon as they are there, while the backward pass goes on: what DDP does, in a few lines."""

    def __init__(self, module: torch.nn.Module, comm: torchcomms.TorchComm) -> None:
        self.module = module
        self.comm = comm
        self.works: list[torchcomms.TorchWork] = []
        for parameter in module.parameters():
            comm.broadcast(parameter.data, 0, async_op=False)
            parameter.register_post_accumulate_grad_hook(self._average)

    def _average(self, parameter: torch.Tensor) -> None:
        self.works.append(self.comm.all_reduce(parameter.grad, torchcomms.ReduceOp.AVG, async_op=True))

    def finish(self) -> None:
        """Waits for the gradients of this step."""
        for work in self.works:
            work.wait()
        self.works.clear()


def main() -> None:
    """Trains a small model and prints the mean loss of all ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: a GPU for each rank of a host")
    parser.add_argument("--beside", help="backend of the communicator for losses (default: gloo, nccl on GPUs)")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()

    beside = arguments.beside or {"cpu": "gloo", "cuda": "nccl"}[arguments.device]
    gradients = torchcomms.new_comm("tutti", torch.device(arguments.device), name="gradients")
    device = gradients.get_device()  # with the number of the rank's GPU
    losses = torchcomms.new_comm(beside, device, name="losses")
    torch.manual_seed(gradients.get_rank())

    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    replicated = Replicated(model, gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(arguments.steps):
        data = torch.randn(32, 16, device=device)
        loss = torch.nn.functional.mse_loss(model(data), data.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        replicated.finish()
        optimizer.step()
        mean = loss.detach().clone() / losses.get_size()
        losses.all_reduce(mean, torchcomms.ReduceOp.SUM, async_op=False)
        if gradients.get_rank() == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {float(mean):.4f}")
    gradients.finalize()
    losses.finalize()


if __name__ == "__main__":
    main()
