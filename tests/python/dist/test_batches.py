"""Batches of messages: all of one is sent when it ends, or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context

import tutti

World = Callable[[int], RankPool]

pytestmark = pytest.mark.tutti_only


def batch_that_is_refused(ctx: Context) -> list[list[float]]:
    """A message of a batch that cannot be: nothing of it is sent, and the group goes on, its next collective too."""
    peer = 1 - ctx.rank
    received = torch.zeros(4)
    operations = [
        dist.P2POp(dist.isend, torch.full((4,), float(ctx.rank)), peer),
        dist.P2POp(dist.irecv, received, peer),
    ]
    wrong = [
        dist.P2POp(dist.irecv, torch.zeros(1).expand(4), peer),
        dist.P2POp(dist.isend, torch.zeros(4), peer, tag=-1),
    ]
    if ctx.rank == 0:
        for operation in wrong:
            with pytest.raises(ValueError, match=r"share memory|tags from 0"):
                dist.batch_isend_irecv([*operations, operation])
            assert not received.any()
        with pytest.raises(ValueError, match="source -1"), dist._coalescing_manager(device=torch.device("cpu")):
            dist.isend(torch.zeros(4), peer)
            dist.group.WORLD.recv([torch.zeros(4)], -1, 0)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    dist.barrier()
    return [tensor.tolist(), received.tolist()]


def test_a_refused_batch_sends_nothing(world: World) -> None:
    assert world(2).call(batch_that_is_refused) == [[[2.0] * 3, [1.0] * 4], [[2.0] * 3, [0.0] * 4]]


def batch_on_a_failed_group(ctx: Context) -> bool:
    group = dist.new_group([0, 1])
    tutti.abort(group, "to be tested")
    peer, tensor = 1 - ctx.rank, torch.ones(4)
    with pytest.raises(dist.DistBackendError, match="to be tested"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer, group)])
    with pytest.raises(dist.DistBackendError, match="to be tested"):
        dist.all_reduce(tensor, group=group)
    return True


def test_a_batch_on_a_failed_group(world: World) -> None:
    assert world(2).call(batch_on_a_failed_group) == [True] * 2


def wait_in_a_batch(ctx: Context) -> list[float]:
    """A work of a message has not completed before its batch ends, and can be waited for afterwards."""
    peer = 1 - ctx.rank
    received = torch.zeros(4)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        send = dist.isend(torch.full((4,), float(ctx.rank)), peer)
        receive = dist.irecv(received, peer)
        assert send is not None and receive is not None and not receive.is_completed()
        with pytest.raises(ValueError, match="sent when the batch ends"):
            receive.wait()
    receive.wait()
    send.wait()
    manager.wait()
    return received.tolist()


def test_works_of_a_batch(world: World) -> None:
    assert world(2).call(wait_in_a_batch) == [[1.0] * 4, [0.0] * 4]
