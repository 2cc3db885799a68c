"""What a program says in Python, and no variable of the environment does, different on one rank: right results, or an
error on all ranks that says what differs. The C++ tests of settings have the rest.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context

import tutti

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]
LARGE = 1 << 18


def calls_are_right(group: dist.ProcessGroup, size: int) -> bool:
    """Asynchronous calls with futures and what follows them, small and large ones."""
    rank = dist.get_rank(group)
    works, tensors = [], []
    for count in (1, LARGE, 100, LARGE, 7):
        tensors.append(torch.full((count,), float(rank + 1)))
        works.append(dist.all_reduce(tensors[-1], group=group, async_op=True))
    sums = [work.get_future().then(lambda done: float(done.value()[0][-1])).wait() for work in works]
    gathered = [torch.empty(3) for _ in range(size)]
    dist.all_gather(gathered, torch.full((3,), float(rank)), group=group)
    total = size * (size + 1) / 2
    return sums == [total] * 5 and [float(g[2]) for g in gathered] == [float(r) for r in range(size)]


def overlap_on(ctx: Context, odd: int) -> bool:
    options = tutti.Options(overlap_futures=True) if ctx.rank == odd else tutti.Options()
    group = dist.new_group(pg_options=options)
    right = calls_are_right(group, ctx.size)
    dist.destroy_process_group(group)
    return right


def timeout_of(ctx: Context, odd: int) -> bool:
    group = dist.new_group(timeout=datetime.timedelta(minutes=10 if ctx.rank == odd else 1))
    right = calls_are_right(group, ctx.size)
    dist.destroy_process_group(group)
    return right


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("setting", [overlap_on, timeout_of])
def test_what_may_differ(world: World, setting: Callable[..., bool], odd: int) -> None:
    assert world(3).call(setting, odd) == [True] * 3


def algorithm_on(ctx: Context, odd: int) -> str:
    options = tutti.Options(algorithm="all_reduce=staged") if ctx.rank == odd else tutti.Options()
    with pytest.raises(RuntimeError) as raised:
        dist.new_group(pg_options=options)
    return str(raised.value)


@pytest.mark.parametrize("odd", [0, 2])
def test_the_algorithms_of_one_rank_are_named(fresh_world: World, odd: int) -> None:
    for said in fresh_world(3).call(algorithm_on, odd):
        assert "Options(algorithm=...)" in said and "all_reduce=staged" in said and f"rank {odd}" in said, said


def no_options_on(ctx: Context, odd: int) -> str:
    options: Any = object() if ctx.rank == odd else tutti.Options()
    with pytest.raises(TypeError if ctx.rank == odd else RuntimeError) as raised:
        dist.new_group(pg_options=options)
    return str(raised.value)


@pytest.mark.parametrize("odd", [0, 2])
def test_what_is_no_options_on_one_rank_is_told(fresh_world: World, odd: int) -> None:
    """Long before the deadline of the others, which wait for that rank."""
    for rank, said in enumerate(fresh_world(3).call(no_options_on, odd, timeout_s=30)):
        assert "pg_options of a tutti group must be tutti.Options, got object" in said, said
        assert rank == odd or f"rank {odd}" in said, said


def gloo_on(ctx: Context, odd: int) -> str:
    ctx.close()
    if ctx.rank != odd:
        tutti.pretend("gloo")
    try:
        dist.init_process_group(
            "gloo",
            store=ctx.store(f"{ctx.generation}.pretence"),
            rank=ctx.rank,
            world_size=ctx.size,
            timeout=datetime.timedelta(seconds=8),
        )
        dist.all_reduce(torch.ones(1))
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("odd", [0, 2])
def test_a_rank_that_does_not_pretend_is_named(fresh_world: World, odd: int) -> None:
    """That rank's group is gloo's, which waits for the others in its own way. They see by the store that it is."""
    for rank, said in enumerate(fresh_world(3).call(gloo_on, odd)):
        assert said
        assert rank == odd or (f"rank {odd} cannot join" in said and "its group of this name is gloo's" in said), said


def gloo_again_on(ctx: Context, late: int) -> list[float]:
    """The sums of two groups of one name in one store, of which the second alone is Tutti's; a rank is late for it."""
    ctx.close()
    sums = []
    for turn in range(2):
        if turn == 1:
            tutti.pretend("gloo")
            time.sleep(2.0 if ctx.rank == late else 0)
        dist.init_process_group("gloo", store=ctx.store(f"{ctx.generation}.again"), rank=ctx.rank, world_size=ctx.size)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        sums.append(tensor.item())
        dist.barrier()
        ctx.close()
        dist.distributed_c10d._world.group_count = 0  # so that the next has the same name
    return sums


@pytest.mark.parametrize("late", [0, 2])
def test_what_gloo_has_left_in_the_store_accuses_nobody(fresh_world: World, late: int) -> None:
    for sums in fresh_world(3).call(gloo_again_on, late):
        assert sums == [3.0, 3.0]
