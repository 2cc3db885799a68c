"""Calls that are made as one: the coalescing manager, `all_reduce_coalesced`, batches of messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context

World = Callable[..., RankPool]


def coalesce_one_thrice(ctx: Context, elements: int, step: int) -> float:
    """Each is read before any is written, whatever the size and the strides."""
    tensor = torch.ones(elements * step)[::step]
    with dist._coalescing_manager(async_ops=True) as manager:
        for _ in range(3):
            dist.all_reduce(tensor)
    manager.wait()
    return float(tensor[-1])


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("elements", [2, 100_000])
def test_a_tensor_is_coalesced_with_itself(world: World, elements: int, step: int) -> None:
    assert world(2).call(coalesce_one_thrice, elements, step) == [2.0, 2.0]


def coalesce_neighbours(ctx: Context, elements: int) -> list[list[float]]:
    """Of one matrix on the first rank, apart on the others; then one tensor twice, and two."""
    matrix = torch.ones(elements, 2)
    columns = [matrix[:, 0], matrix[:, 1]] if ctx.rank == 0 else [torch.ones(elements), torch.ones(elements)]
    dist.all_reduce_coalesced(columns)
    one = torch.ones(elements)
    twice = [one, one] if ctx.rank == 0 else [torch.ones(elements), torch.ones(elements)]
    dist.all_reduce_coalesced(twice)
    return [[float(tensor.min()), float(tensor.max())] for tensor in (*columns, *twice)]


@pytest.mark.parametrize("elements", [3, 100_000])
def test_where_tensors_lie_is_each_ranks_own(world: World, elements: int) -> None:
    assert world(2).call(coalesce_neighbours, elements) == [[[2.0, 2.0]] * 4] * 2


def coalesce(ctx: Context) -> list[bool]:
    """The coalescing manager and batches of messages."""
    reduced = [torch.full((n,), float(n)) for n in (1, 10, 20_000, 0, 300_000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in reduced:
            dist.all_reduce(tensor)
    manager.wait()
    gathered = [torch.zeros(n * ctx.size) for n in (1, 10)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in gathered:
            dist.all_gather_into_tensor(tensor, torch.full((tensor.numel() // ctx.size,), float(ctx.rank)))
    manager.wait()
    scattered = [torch.zeros(n) for n in (1, 10)]
    with dist._coalescing_manager(async_ops=False):
        for tensor in scattered:
            dist.reduce_scatter_tensor(tensor, torch.ones(tensor.numel() * ctx.size))
    right, left = (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size
    received = [torch.zeros(500_000), torch.zeros(3)]
    operations = [dist.P2POp(dist.isend, torch.full_like(tensor, float(ctx.rank)), right) for tensor in received]
    operations += [dist.P2POp(dist.irecv, tensor, left) for tensor in received]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [
        all(bool((tensor == tensor.numel() * ctx.size).all()) for tensor in reduced),
        all(torch.equal(t.view(ctx.size, -1)[:, 0], torch.arange(ctx.size).float()) for t in gathered),
        all(bool((tensor == ctx.size).all()) for tensor in scattered),
        all(bool((tensor == left).all()) for tensor in received),
    ]


@pytest.mark.tutti_only
def test_coalescing(world: World) -> None:
    assert world(3).call(coalesce) == [[True] * 4] * 3
