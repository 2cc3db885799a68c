"""PyTorch's own users of collectives give with this backend what they give in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context
from torch import nn

World = Callable[..., RankPool]

STEPS = 3
BATCH = 12


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(BATCH, 20, generator=generator), torch.randn(BATCH, 4, generator=generator)) for _ in range(STEPS)
    ]


def train(net: nn.Module, optimizer: Any, rank: int, size: int) -> None:
    share = BATCH // size
    for x, y in batches():
        rows = slice(rank * share, (rank + 1) * share)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
        optimizer.step()


def reference() -> list[torch.Tensor]:
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 0, 1)
    return [parameter.detach() for parameter in net.parameters()]


def worst(net: nn.Module) -> float:
    pairs = zip(net.parameters(), reference(), strict=True)
    return max(float((mine.detach() - other).abs().max()) for mine, other in pairs)


def train_ddp(ctx: Context, hook: str, view: bool) -> float:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    net = nn.parallel.DistributedDataParallel(model(), gradient_as_bucket_view=view, bucket_cap_mb=0.02)
    if hook == "fp16":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), ctx.rank, ctx.size)
    return worst(net.module)


@pytest.mark.parametrize("view", [False, True], ids=["copied", "bucket_view"])
@pytest.mark.parametrize("hook", ["none", "fp16", "powersgd"])
def test_ddp(world: World, hook: str, view: bool) -> None:
    if hook == "powersgd" and torch.cuda.is_available():
        pytest.skip("this torch's PowerSGD synchronises a CUDA device whatever the gradients' device")
    limits = {"none": 1e-6, "fp16": 1e-3, "powersgd": 0.2}
    for difference in world(2).call(train_ddp, hook, view):
        assert difference < limits[hook]


def train_ddp_shared(ctx: Context) -> tuple[bool, int]:
    """Gradients of a megabyte, large enough that the shared allocator serves their bucket."""
    import tutti

    tutti.use_shared_allocator()
    torch.manual_seed(7)
    net = nn.parallel.DistributedDataParallel(nn.Linear(512, 512), gradient_as_bucket_view=True)
    tutti.reset_metrics()
    inputs = torch.full((4, 512), float(ctx.rank + 1))
    for _ in range(STEPS):
        net.zero_grad()
        net(inputs).sum().backward()
    mapped = tutti.get_metrics()["mapped_calls"]
    tutti.use_shared_allocator(False)
    gradient = net.module.weight.grad
    assert gradient is not None
    return bool((gradient == 6.0).all()), mapped  # the mean of 4 rows of ones and 4 of twos


@pytest.mark.tutti_only
def test_ddp_over_mapped_buckets(fresh_world: World) -> None:
    """Plain DDP, its buckets in memory that all ranks map: reduced without a copy."""
    for right, mapped in fresh_world(2).call(train_ddp_shared):
        assert right and mapped > 0


def train_fsdp(ctx: Context) -> float:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ctx.size,))
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), ctx.rank, ctx.size)
    full = [parameter.full_tensor().detach() for parameter in net.parameters()]  # type: ignore[attr-defined]
    return max(float((mine - other).abs().max()) for mine, other in zip(full, reference(), strict=True))


def test_fsdp2(world: World) -> None:
    assert max(world(2).call(train_fsdp)) < 1e-6


def wide_fsdp(ctx: Context, from_group: bool) -> list[float]:
    """Losses of a sharded model, its communication buffers from the group or from PyTorch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 128))
    mesh = init_device_mesh("cpu", (ctx.size,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.set_allocate_memory_from_process_group_for_comm(from_group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3 + ctx.rank)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 128, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def fsdp_from_group(ctx: Context) -> tuple[list[float], list[float], set[tuple[str, str]]]:
    import tutti

    plain = wide_fsdp(ctx, False)
    tutti.reset_metrics()
    ours = wide_fsdp(ctx, True)
    rows = tutti.get_metrics()["rows"]
    used = {(row["collective"], row["algorithm"]) for row in rows if row["bytes"] >= 64 << 10}
    return plain, ours, used


@pytest.mark.tutti_only
def test_fsdp2_with_buffers_of_the_group(world: World) -> None:
    """The buffers that FSDP2 asks the group for lie in memory that all ranks map: nothing is staged."""
    for plain, ours, used in world(2).call(fsdp_from_group):
        assert ours == plain
        assert used == {("all_gather", "mapped"), ("reduce_scatter", "mapped")}


def train_zero(ctx: Context) -> float:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    train(net, optimizer, ctx.rank, ctx.size)
    return worst(net.module)


def test_zero_redundancy_optimizer(world: World) -> None:
    assert max(world(2).call(train_zero)) < 1e-6


def use_dtensor(ctx: Context) -> list[bool]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(5)
    left, right = torch.randn(8, 12), torch.randn(12, 6)
    a = distribute_tensor(left, mesh, [Shard(0), Shard(1)])
    b = distribute_tensor(right, mesh, [Replicate(), Shard(0)])
    product = a @ b
    partial = [isinstance(placement, Partial) for placement in product.placements]
    return [
        torch.allclose(product.full_tensor(), left @ right, atol=1e-5),
        any(partial),
        torch.allclose(a.redistribute(mesh, [Replicate(), Shard(0)]).full_tensor(), left),
        torch.allclose(product.redistribute(mesh, [Shard(1), Shard(0)]).full_tensor(), left @ right, atol=1e-5),
        mesh["tp"].size() == 2 and dist.get_world_size(mesh.get_group("dp")) == 2,
    ]


def test_dtensor_on_a_mesh(world: World) -> None:
    assert world(4).call(use_dtensor) == [[True] * 5] * 4


def checkpoint(ctx: Context, folder: str) -> bool:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (ctx.size,))
    whole = torch.arange(48.0).view(12, 4)
    state = {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "plain": torch.full((3,), 5.0)}
    dcp.save(state, checkpoint_id=folder)
    loaded = {
        # another layout than it was saved in
        "sharded": distribute_tensor(torch.zeros(12, 4), mesh, [Replicate()]),
        "plain": torch.zeros(3),
    }
    dcp.load(loaded, checkpoint_id=folder)
    return torch.equal(loaded["sharded"].full_tensor(), whole) and torch.equal(loaded["plain"], state["plain"])


def test_checkpoint(world: World, tmp_path: Path) -> None:
    assert world(2).call(checkpoint, str(tmp_path)) == [True, True]


def local_sgd(ctx: Context) -> bool:
    """Uneven inputs: DDP's join, whose shadow calls must match."""
    net = nn.parallel.DistributedDataParallel(copy.deepcopy(model()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with net.join():
        for x, y in batches()[: 1 + ctx.rank]:
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
    return all(bool(torch.isfinite(parameter).all()) for parameter in net.parameters())


def test_uneven_inputs(world: World) -> None:
    assert world(2).call(local_sgd) == [True, True]
