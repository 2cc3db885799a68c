"""The pool itself: results, exceptions, deaths and hangs of ranks come back as what they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankError, RankPool
from rank_worker import Context

World = Callable[..., RankPool]


def sum_ranks(ctx: Context) -> float:
    tensor = torch.full((3,), float(ctx.rank))
    dist.all_reduce(tensor)
    return float(tensor[0])


def raise_on(ctx: Context, rank: int) -> None:
    if ctx.rank == rank:
        raise ValueError(f"rank {rank} says no")


def die_on(ctx: Context, rank: int) -> None:
    if ctx.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)


def hang_on(ctx: Context, rank: int) -> None:
    if ctx.rank == rank:
        signal.pause()


def test_results_come_in_rank_order(world: World) -> None:
    assert world(3).call(sum_ranks) == [3.0, 3.0, 3.0]


def test_pool_is_kept_between_tests(world: World) -> None:
    first = world(3)
    assert first.call(sum_ranks) == [3.0, 3.0, 3.0]
    assert world(3) is first


def test_exception_is_reported_with_its_trace(fresh_world: World) -> None:
    pool = fresh_world(2)
    with pytest.raises(RankError, match="rank 1 says no"):
        pool.call(raise_on, 1)
    assert not pool.alive


def test_death_is_reported_with_its_signal(fresh_world: World) -> None:
    with pytest.raises(RankError, match="rank 0 died with exit code -9"):
        fresh_world(2).call(die_on, 0)


def test_hang_is_reported_with_the_stack(fresh_world: World) -> None:
    with pytest.raises(RankError, match="(?s)rank 1 hangs.*hang_on"):
        fresh_world(2).call(hang_on, 1, timeout_s=0.3)
