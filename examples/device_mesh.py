"""DeviceMesh and DTensor in two dimensions: torchrun --nproc-per-node=4 examples/device_mesh.py

A 2 x 2 mesh: tensor parallelism along one side, data parallelism along the other. Checked against one process.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

FEATURES, PER_RANK = 32, 6


class Block(nn.Module):
    """A residual block of two linear layers: the first cut by columns, the second by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(FEATURES, 4 * FEATURES)
        self.down = nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[batch, FEATURES] -> [batch, FEATURES]."""
        result: torch.Tensor = inputs + self.down(torch.relu(self.up(inputs)))
        return result


def check_matmul(mesh: DeviceMesh) -> None:
    """A product of tensors cut in both directions, and all the ways to lay the result out."""
    torch.manual_seed(1)
    left, right = torch.randn(12, 20), torch.randn(20, 8)
    product = distribute_tensor(left, mesh, [Shard(0), Replicate()]) @ distribute_tensor(
        right, mesh, [Replicate(), Shard(1)]
    )
    for layout in ([Shard(1), Shard(0)], [Replicate(), Shard(1)], [Replicate(), Replicate()]):
        assert isinstance(product, DTensor)
        whole = product.redistribute(mesh, layout).full_tensor()
        torch.testing.assert_close(whole, left @ right, rtol=1e-4, atol=1e-5)


def check_training(mesh: DeviceMesh) -> None:
    """One step with tensor parallelism inside data parallelism, against the whole model on the whole batch."""
    torch.manual_seed(2)
    whole, cut = Block(), Block()
    cut.load_state_dict(whole.state_dict())
    parallelize_module(cut, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(cut, mesh=mesh["data"])
    row, rows = mesh["data"].get_local_rank(), mesh["data"].size()
    inputs = torch.randn(rows * PER_RANK, FEATURES)
    whole(inputs).square().mean().backward()
    cut(inputs[row * PER_RANK : (row + 1) * PER_RANK]).square().mean().backward()
    for (name, expected), parameter in zip(whole.named_parameters(), cut.parameters(), strict=True):
        gradient = parameter.grad
        assert isinstance(gradient, DTensor)
        torch.testing.assert_close(
            gradient.full_tensor(), expected.grad, rtol=1e-4, atol=1e-6, msg=f"gradient of {name} differs"
        )


def main() -> None:
    """Runs both checks on a mesh of two rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="tutti")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    ranks = dist.get_world_size()
    if ranks % 2:
        raise SystemExit("this example needs an even number of ranks")
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "model"))
    check_matmul(mesh)
    check_training(mesh)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"ok: a {mesh.size(0)} x {mesh.size(1)} mesh computes what one process does")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
