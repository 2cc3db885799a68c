"""Communicators of GPUs under TorchComms, from the first call to the last. Skipped without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from rank_pool import RankPool
from rank_worker import Context
from test_torchcomms_life import handles_of
from torchcomms_interface import (
    GPU_RANKS,
    ON_GPUS,
    STAND_IN,
    call_on_gpus,
    device_of,
    interface,
    new_comm,
    refused,
)

World = Callable[..., RankPool]
pytestmark = ON_GPUS


def check_sum(comm: Any, device: torch.device) -> None:
    """A synchronous and an asynchronous call give the number of ranks and its square."""
    ranks = comm.get_size()
    for count in (1, 100_000):
        tensor = torch.ones(count, device=device)
        comm.all_reduce(tensor, interface().ReduceOp.SUM, False)
        comm.all_reduce(tensor, interface().ReduceOp.SUM, True).wait()
        assert (tensor == ranks**2).all().item(), (tensor.unique().tolist(), ranks)


def device_without_a_number(ctx: Context, name: str) -> None:
    """It is that of the rank's number, and becomes the current one."""
    device = device_of(ctx)
    torch.cuda.set_device(0)
    comm = new_comm(ctx, name, device=torch.device("cuda"))
    assert comm.get_device() == device and torch.cuda.current_device() == device.index
    check_sum(comm, device)
    comm.barrier(False)
    comm.finalize()
    later = new_comm(ctx, f"{name}.later", device=torch.device("cuda"), enable_reconfigure=True)
    handles = handles_of(ctx, later, name, range(ctx.size))
    later.reconfigure(1, handles[::-1]).wait()
    count = torch.cuda.device_count()
    assert later.get_device() == torch.device("cuda", later.get_rank() % count)
    assert torch.cuda.current_device() == later.get_device().index
    later.finalize()


def splits(ctx: Context, name: str) -> None:
    """Parts and parts of parts on the same GPU, used in turn with the whole; one is finalized before the others."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    whole = comm.split(list(range(ctx.size)), "whole")
    alone = whole.split([ctx.rank], "alone")
    first = comm.split([0] if ctx.rank == 0 else [], "first")
    assert (first is None) == (ctx.rank != 0)
    for turn in range(3):
        for part in (comm, whole, alone):
            check_sum(part, device)
        if turn == 1:
            alone.finalize()
            alone = whole.split([ctx.rank], "again")
    refused("Duplicate", lambda: comm.split([0, 0], "twice"))
    refused("no rank of it", lambda: comm.split([ctx.rank, ctx.size], "beyond"))
    for part in (alone, whole, comm, *([first] if first is not None else [])):
        part.finalize()


def reconfigured(ctx: Context, name: str) -> None:
    """In another order, of one rank, and of all again; a call that is under way has ended or raises."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device, enable_reconfigure=True)
    refused("reconfigure", lambda: comm.barrier(False))
    handles = handles_of(ctx, comm, name, range(ctx.size))
    for number, order in enumerate((handles, handles[::-1], [handles[ctx.rank]], handles), 1):
        comm.reconfigure(number, order).wait()
        assert comm.get_size() == len(order) and comm.get_rank() == order.index(handles[ctx.rank])
        check_sum(comm, device)
    torch.cuda.synchronize()
    comm.finalize()


def aborted(ctx: Context, name: str) -> None:
    """abort() ends what waits on the GPU; later calls say why; reconfigure() makes it usable again."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device, enable_reconfigure=True)
    store = ctx.store(name)
    handles = handles_of(ctx, comm, f"{name}.handles", range(ctx.size))
    comm.reconfigure(1, handles).wait()
    check_sum(comm, device)
    told: list[int] = []
    comm.register_abort_hook(lambda: told.append(ctx.rank))
    if ctx.rank == 0:
        work = comm.all_reduce(torch.ones(1000, device=device), interface().ReduceOp.SUM, True)
        comm.abort()
        assert comm.is_aborted() and told == [0]
        refused(".", work.wait_blocking)
        store.set("aborted", "1")
    else:
        store.wait(["aborted"])
        refused(
            ".",
            lambda: comm.all_reduce(torch.ones(1000, device=device), interface().ReduceOp.SUM, True).wait_blocking(),
        )
        assert comm.is_aborted()
    refused(".", lambda: comm.barrier(False))
    comm.reconfigure(2, handles).wait()
    assert not comm.is_aborted()
    check_sum(comm, device)
    torch.cuda.synchronize()
    comm.finalize()


def finalized(ctx: Context, name: str) -> None:
    """Once: the second time and every later call raise, and say so. The GPU goes on."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    check_sum(comm, device)
    work = comm.all_reduce(torch.ones(1000, device=device), interface().ReduceOp.SUM, True)
    work.wait()
    comm.finalize()
    refused("already finalized", comm.finalize)
    tensor = torch.ones(10, device=device)
    refused("all_reduce.*finalized", lambda: comm.all_reduce(tensor, interface().ReduceOp.SUM, False))
    refused("split.*finalized", lambda: comm.split([ctx.rank], "late"))
    assert (tensor + 1).sum().item() == 20
    again = new_comm(ctx, f"{name}.again", device=device)
    check_sum(again, device)
    again.finalize()


def hooks(ctx: Context, name: str) -> None:
    """Start and end hooks of works on a GPU run once each, whoever waits; those of barriers too."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    check_sum(comm, device)
    tensor = torch.ones(1000, device=device)
    for issue in (lambda: comm.all_reduce(tensor, interface().ReduceOp.SUM, True), lambda: comm.barrier(True)):
        for wait in ("wait", "wait_blocking", "host_synchronize"):
            told: list[str] = []
            work = issue()
            for event in ("start", "end", "wait_pre", "wait_post"):
                getattr(work, f"register_work_{event}_hook")(lambda event=event, told=told: told.append(event))
            getattr(work, wait)()
            assert work.is_completed()
            torch.cuda.synchronize()
            # The end may have been noticed before the wait began.
            waits = [event for event in told if event.startswith("wait")]
            assert waits == (["wait_pre", "wait_post"] if wait == "wait" else []), (wait, told)
            assert [event for event in told if event not in waits] == ["start", "end"], (wait, told)
    comm.finalize()


def barriers(ctx: Context, name: str) -> None:
    """An asynchronous barrier is over when the GPU has passed it, not when it is enqueued."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    comm.barrier(True).wait()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    comm.barrier(False)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        work = comm.barrier(True)
        assert not side.query()
        assert not work.is_completed()
        work.wait_blocking()
        assert work.is_completed()
    comm.finalize()


def allocator(ctx: Context, name: str) -> None:
    """Memory of get_mem_allocator() is a pool's of torch, which calls and windows take."""
    device = device_of(ctx)
    on_cpu = new_comm(ctx, f"{name}.cpu")
    comm = new_comm(ctx, name, device=device)
    pools = [torch.cuda.MemPool(c.get_mem_allocator()) for c in (comm, comm, on_cpu)]
    for pool in pools:
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.ones(1 << 20, device=device)
        comm.all_reduce(tensor, interface().ReduceOp.SUM, False)
        assert (tensor == ctx.size).all().item()
    with torch.cuda.use_mem_pool(pools[0]):
        memory = torch.zeros(1000, device=device)
    window = comm.new_window(memory)
    after, before = (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size
    window.put(torch.full((1000,), float(ctx.rank), device=device), after, 0, False)
    window.signal(after, False)
    window.wait_signal(before, False)
    assert (memory == before).all().item()
    window.tensor_deregister()
    del tensor, memory
    comm.finalize()
    on_cpu.finalize()


def mistakes(ctx: Context, name: str) -> None:
    """What is wrong is named before anything is enqueued: the next call is right."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    op = interface().ReduceOp
    tensor = torch.ones(6, device=device)
    other = torch.ones(6)
    refused("broadcast.*root 9", lambda: comm.broadcast(tensor, 9, False))
    refused("all_gather", lambda: comm.all_gather_single(torch.zeros(6 * ctx.size), tensor, False))
    refused("all_gather", lambda: comm.all_gather_single(torch.zeros(6 * ctx.size + 1, device=device), tensor, False))
    refused("negative", lambda: comm.all_reduce(tensor, op.SUM, False, timeout=timedelta(milliseconds=-5)))
    refused("tutti", lambda: comm.all_reduce(tensor, op.SUM, False, hints={"tutti.nothing": "1"}))
    comm.all_reduce(other, op.SUM, False)  # CPU tensors are taken, too
    assert (other == ctx.size).all().item()
    check_sum(comm, device)
    comm.finalize()


ON_BOTH = [device_without_a_number, splits, reconfigured, aborted, finalized, barriers, allocator, mistakes]


@pytest.mark.parametrize("function", [*ON_BOTH, hooks] if STAND_IN else ON_BOTH)
@GPU_RANKS
def test_on_gpus(fresh_world: World, ranks: int, function: Callable[..., Any]) -> None:
    call_on_gpus(fresh_world, ranks, function)
