"""Many groups, many ranks, and nothing left behind."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool, names_in_dev_shm, unique_name
from rank_worker import Context

World = Callable[..., RankPool]

CREATIONS = 1000
GROUPS_AT_ONCE = 200
REINITIALISATIONS = 50
MANY_RANKS = 64
# What the C library's allocator may map in the meantime, whoever asks: not one mapping a group.
MAPPINGS_TOLERATED = 10


def belongings() -> dict[str, int]:
    """Descriptors, threads and mappings of this process."""
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    return {"fd": len(os.listdir("/proc/self/fd")), "task": len(os.listdir("/proc/self/task")), "maps": mappings}


def create_and_destroy(ctx: Context, times: int) -> list[dict[str, int]]:
    """Belongings before and after many groups that were made, used and destroyed."""

    def once(number: int) -> None:
        group = dist.new_group(list(range(ctx.size)))
        tensor = torch.ones(number % 50 + 1)
        if number % 3 == 0:
            dist.all_reduce(tensor, group=group, async_op=True).wait()
        else:
            dist.all_reduce(tensor, group=group)
        assert float(tensor[0]) == ctx.size
        dist.destroy_process_group(group)

    for number in range(20):
        once(number)
    before = belongings()
    for number in range(times):
        once(number)
    return [before, belongings()]


@pytest.mark.tutti_only
def test_groups_leave_nothing_behind(fresh_world: World) -> None:
    before_shm = names_in_dev_shm()
    for before, after in fresh_world(2).call(create_and_destroy, CREATIONS, timeout_s=150):
        assert after["fd"] == before["fd"], (before, after)
        assert after["task"] == before["task"], (before, after)
        assert after["maps"] <= before["maps"] + MAPPINGS_TOLERATED, (before, after)
    assert not names_in_dev_shm() - before_shm


def hold_many_groups(ctx: Context, number: int) -> bool:
    """Many groups at once; each rank issues on them in an order of its own and waits in another."""
    groups = [dist.new_group(list(range(ctx.size))) for _ in range(number)]
    order = list(range(number))
    random.Random(ctx.rank).shuffle(order)
    tensors = {index: torch.full((index + 1,), float(index + ctx.rank)) for index in order}
    works = [(index, dist.all_reduce(tensors[index], group=groups[index], async_op=True)) for index in order]
    random.Random(ctx.rank + 100).shuffle(works)
    for _, work in works:
        work.wait()
    total = sum(range(ctx.size))
    right = all(bool((tensors[index] == index * ctx.size + total).all()) for index in order)
    for group in groups:
        dist.destroy_process_group(group)
    return right


def test_many_groups_at_once(fresh_world: World) -> None:
    assert all(fresh_world(2).call(hold_many_groups, GROUPS_AT_ONCE, timeout_s=120))


def all_together(ctx: Context) -> bool:
    tensor = torch.full((1001,), float(ctx.rank))
    dist.all_reduce(tensor)
    gathered = torch.empty(ctx.size, dtype=torch.int64)
    dist.all_gather_into_tensor(gathered, torch.tensor([ctx.rank]))
    received = torch.empty(ctx.size, dtype=torch.int64)
    dist.all_to_all_single(received, torch.arange(ctx.size) + 1000 * ctx.rank)
    dist.barrier()
    total = ctx.size * (ctx.size - 1) // 2
    return (
        bool((tensor == total).all())
        and torch.equal(gathered, torch.arange(ctx.size))
        and torch.equal(received, torch.arange(ctx.size) * 1000 + ctx.rank)
    )


def test_many_ranks(fresh_world: World) -> None:
    """64 processes on however few cores there are."""
    assert all(fresh_world(MANY_RANKS).call(all_together, timeout_s=90))


def start_again(ctx: Context, name: str, times: int) -> bool:
    """init_process_group and destroy_process_group in one process, many times."""
    right = True
    for number in range(times):
        ctx.init(f"{name}.{number}")
        tensor = torch.full((7,), float(number))
        dist.all_reduce(tensor)
        right = right and float(tensor[0]) == number * ctx.size
        ctx.close()
    return right


def test_reinitialisation(world: World) -> None:
    pool = world(2)
    results: list[Any] = pool.call(start_again, unique_name("again"), REINITIALISATIONS)
    pool.open_group()
    assert results == [True, True]
