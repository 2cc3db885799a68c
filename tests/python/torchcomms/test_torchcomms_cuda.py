"""The backend of TorchComms on CUDA tensors. Skipped without a GPU; ranks take the GPUs in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from rank_pool import RankPool
from rank_worker import Context
from torchcomms_interface import (
    GPU_RANKS,
    ON_GPUS,
    STAND_IN,
    batch_limit,
    call_on_gpus,
    device_of,
    interface,
    new_comm,
    refused,
    same,
)
from torchcomms_sweep import sweep as sweep_of_collectives
from torchcomms_sweep import sweep_of_large

World = Callable[..., RankPool]
pytestmark = ON_GPUS


def compare(got: torch.Tensor, wanted: torch.Tensor) -> None:
    same(got.cpu(), wanted)


def sweep(ctx: Context, name: str) -> None:
    """Dtypes, sizes, operations and layouts; in place and again; synchronous and not."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    op, size = interface().ReduceOp, ctx.size
    total = sum(range(1, size + 1))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.float64):
        for count in (1, 7, 1000, 70_000, 3 << 20):
            tensor = torch.full((count,), ctx.rank + 1, dtype=dtype, device=device)
            comm.all_reduce(tensor, op.SUM, False)
            compare(tensor, torch.tensor(total))
            work = comm.all_reduce(tensor, op.MAX, True)
            work.wait()
            compare(tensor, torch.tensor(total))
            assert work.is_completed()
    for reduce, value in ((op.AVG, total / size), (op.MIN, 1.0), (op.PREMUL_SUM(0.5), total / 2)):
        tensor = torch.full((5,), float(ctx.rank + 1), device=device)
        comm.all_reduce(tensor, reduce, False)
        compare(tensor, torch.tensor(value))
    whole = torch.full((6, 8), float(ctx.rank + 1), device=device)
    comm.all_reduce(whole[:, ::2], op.SUM, True).wait()
    compare(whole[:, ::2], torch.tensor(float(total)))
    compare(whole[:, 1::2], torch.tensor(float(ctx.rank + 1)))
    assert torch.cuda.current_device() == device.index
    comm.finalize()


def collectives(ctx: Context, name: str) -> None:
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    op, rank, size = interface().ReduceOp, ctx.rank, ctx.size
    ones = torch.ones(3, device=device)
    for asynchronous in (False, True):
        for root in range(size):
            tensor = ones * rank
            comm.broadcast(tensor, root, asynchronous).wait()
            compare(tensor, torch.tensor(float(root)))
            tensor = ones * rank
            comm.reduce(tensor, root, op.SUM, asynchronous).wait()
            compare(tensor, torch.tensor(float(sum(range(size)) if rank == root else rank)))
            out = torch.zeros(3, device=device)
            parts = [ones * (10 * root + r) for r in range(size)] if rank == root else []
            comm.scatter(out, parts, root, asynchronous).wait()
            compare(out, torch.tensor(10.0 * root + rank))
            outs = [torch.zeros(3, device=device) for _ in range(size)] if rank == root else []
            comm.gather(outs, ones * rank, root, asynchronous).wait()
            for r, out in enumerate(outs):
                compare(out, torch.tensor(float(r)))
        outs = [torch.zeros(3, device=device) for _ in range(size)]
        comm.all_gather(outs, ones * rank, asynchronous).wait()
        compare(torch.stack(outs), torch.arange(size).unsqueeze(1))
        out = torch.zeros(3 * size, device=device)
        comm.all_gather_single(out, ones * rank, asynchronous).wait()
        compare(out, torch.arange(size).repeat_interleave(3))
        out = torch.zeros(2, device=device)
        comm.reduce_scatter_single(out, torch.arange(2.0 * size, device=device), op.SUM, asynchronous).wait()
        compare(out, torch.tensor([2.0 * rank, 2.0 * rank + 1]) * size)
        out = torch.zeros(size, device=device)
        comm.all_to_all_single(out, 10.0 * rank + torch.arange(size, device=device), asynchronous).wait()
        compare(out, 10.0 * torch.arange(size) + rank)
        splits = [1] * (size - 1) + [2]
        mine = [splits[rank]] * size
        out = torch.full((sum(mine), 2), -1.0, device=device)
        given = torch.full((sum(splits), 2), float(rank), device=device)
        comm.all_to_all_v_single(out, given, mine, splits, asynchronous).wait()
        compare(out[:, 0], torch.arange(size).repeat_interleave(splits[rank]))
        comm.barrier(asynchronous).wait()
    comm.finalize()


def dtypes(ctx: Context, name: str) -> None:
    """Every collective in every dtype."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    sweep_of_collectives(comm, [1, 1000, 70_001], device)
    comm.finalize()


def large(ctx: Context, name: str) -> None:
    """Every collective on megabytes."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    sweep_of_large(comm, device)
    comm.finalize()


def messages(ctx: Context, name: str) -> None:
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    after, before = (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size
    for count in (10, 1 << 20):
        got = torch.zeros(2, count, device=device)
        batch = comm.batch_op_create()
        batch.recv(got[0], before)
        batch.recv(got[1], before)
        batch.send(torch.full((count,), float(ctx.rank), device=device), after)
        batch.send(torch.full((count,), 10.0 + ctx.rank, device=device), after)
        batch.issue(True).wait()
        compare(got[0], torch.tensor(float(before)))
        compare(got[1], torch.tensor(10.0 + before))
    comm.finalize()


def streams(ctx: Context, name: str) -> None:
    """A call follows its caller's stream, and its wait() holds back the stream, not the host."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    op = interface().ReduceOp
    tensor = torch.zeros(1000, device=device)
    # What is made at the first call is there, and every kernel is loaded: one that comes behind the sleep for the first
    # time is loaded when the sleep ends, and its launch holds the host until then.
    torch.cuda._sleep(1)
    comm.all_reduce(tensor.fill_(1.0), op.SUM, False)
    comm.all_reduce(tensor, op.SUM, True).wait()
    tensor.mul(2)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        tensor.fill_(ctx.rank + 1)
        work = comm.all_reduce(tensor, op.SUM, True)
        work.wait()
        doubled = tensor * 2
        assert not side.query()
    side.synchronize()
    compare(doubled, torch.tensor(2.0 * sum(range(1, ctx.size + 1))))
    work = comm.all_reduce(tensor, op.MAX, True)
    work.wait_blocking()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(tensor, op.SUM, False)
    for turn in range(3):
        tensor.fill_(ctx.rank + turn)
        graph.replay()
        compare(tensor, torch.tensor(float(sum(range(ctx.size)) + ctx.size * turn)))
    del graph
    comm.finalize()


def asleep(stream: Any) -> None:
    """Holds up the current stream, which is `stream`, for about half a second."""
    torch.cuda._sleep(1_000_000_000)
    assert not stream.query()


def waits_of_messages(ctx: Context, name: str) -> None:
    """Waits for messages that have a limit of time, as those through c10d have, hold back the stream, not the host."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    after, before = (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size
    limit = timedelta(seconds=60)
    mine, got = torch.zeros(1000, device=device), torch.zeros(2, 1000, device=device)

    def exchange() -> None:
        sent = comm.send(mine, after, True, timeout=limit)
        comm.recv(got[0], before, False, timeout=limit)
        sent.wait()
        batch = comm.batch_op_create()
        batch.send(mine, after)
        batch.recv(got[1], before)
        batch.issue(True, batch_limit(limit)).wait()

    torch.cuda._sleep(1)
    mine.fill_(0.0)
    exchange()  # makes what the first message between two ranks makes
    torch.cuda.synchronize()
    comm.barrier(False)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        asleep(side)
        mine.fill_(ctx.rank + 1.0)
        exchange()
        assert not side.query()
    side.synchronize()
    compare(got, torch.tensor(before + 1.0))
    comm.finalize()


def futures_of_works(ctx: Context, name: str) -> None:
    """TorchComms' future of a call makes the stream that uses it wait for the call, not for what is current."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    op = interface().ReduceOp
    tensor = torch.ones(1000, device=device)
    comm.all_reduce(tensor, op.SUM, True).future_value([tensor])
    tensor.mul(2)
    torch.cuda.synchronize()
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        asleep(side)
        tensor.fill_(ctx.rank + 1)
        work = comm.all_reduce(tensor, op.SUM, True)
    with torch.cuda.stream(other):
        (value,) = work.future_value([tensor])
        doubled = value * 2
        assert not other.query()
    other.synchronize()
    compare(doubled, torch.tensor(2.0 * sum(range(1, ctx.size + 1))))
    comm.finalize()


def unwaited(ctx: Context, name: str) -> None:
    """A call that nobody waits for: its state follows the GPU, its hooks run, and a failure runs the abort hooks."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    op = interface().ReduceOp
    tensor = torch.ones(1000, device=device)
    comm.all_reduce(tensor, op.SUM, False)
    torch.cuda.synchronize()
    work = comm.all_reduce(tensor, op.SUM, True)
    ended = threading.Event()
    if STAND_IN:
        work.register_work_end_hook(ended.set)
        assert ended.wait(60) and work.status() == interface().WorkStatus.COMPLETED
    until = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < until
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # nothing looks at what is captured
        captured = comm.all_reduce(tensor, op.SUM, True)
        captured.wait()
    graph.replay()
    torch.cuda.synchronize()
    compare(tensor, torch.tensor(float(ctx.size**3)))
    del graph, captured
    noticed = threading.Event()
    comm.register_abort_hook(noticed.set)
    store = ctx.store(name)
    if ctx.rank == 0:
        work = comm.all_reduce(tensor, op.SUM, True, timeout=timedelta(seconds=1))
        assert noticed.wait(60) and comm.is_aborted() and not work.is_completed()
        if STAND_IN:
            assert work.status() == interface().WorkStatus.TIMEDOUT
        store.set("noticed", "1")
    else:
        store.wait(["noticed"])


def windows(ctx: Context, name: str) -> None:
    """Data for another rank's GPU; sources on either device."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    rank, size = ctx.rank, ctx.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (1, 1000, 1 << 20):
        memory = torch.zeros(size, count, device=device)
        torch.cuda.synchronize()
        window = comm.new_window(memory)
        for turn in range(3):
            source = torch.full((count,), 10.0 * rank + turn, device=device if turn < 2 else "cpu")
            window.put(source, after, after * count, turn == 1).wait()
            window.signal(after, False)
            window.wait_signal(before, False)
            compare(memory[rank], torch.tensor(10.0 * before + turn))
            window.signal(before, False)
            window.wait_signal(after, False)
        same(window.map_remote_tensor(rank).cpu(), memory.cpu())
        seen = window.map_remote_tensor(after)
        assert seen.shape == memory.shape and seen.device == device
        comm.barrier(False)
        compare(seen[after], torch.tensor(10.0 * rank + 2))
        comm.barrier(False)  # all have looked
        assert torch.cuda.current_device() == device.index
        window.tensor_deregister()
    comm.finalize()


def windows_on_streams(ctx: Context, name: str) -> None:
    """The host waits for no signal; several windows in any order, views, other sizes, this rank itself, graphs."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    rank, size = ctx.rank, ctx.size
    after, before = (rank + 1) % size, (rank - 1) % size
    store = ctx.store(name)
    one, other = torch.zeros(1000, device=device), torch.zeros(4, 1000, device=device)[1:3]
    windows = [comm.new_window(one), comm.new_window(other)]
    torch.cuda.synchronize()
    if rank == 0:
        # Issued before anybody has put or signalled, and in another order than the signals come.
        for window in reversed(windows):
            window.wait_signal(before, False)
        copies = [one.clone(), other.clone()]
        store.set("issued", "1")
    else:
        store.wait(["issued"])
    for value, window in enumerate(windows):
        window.put(torch.full((5, 2), value + 1.0, device=device)[:, 0], after, 3, True)
        window.signal(after, True)
    if rank != 0:
        for window in reversed(windows):
            window.wait_signal(before, False)
        copies = [one.clone(), other.clone()]
    for value, copied in enumerate(copies):
        flat = copied.flatten().cpu()
        same(flat[3:8], torch.tensor(value + 1.0))
        same(flat[8:], torch.tensor(0.0))
    refused("wait_signal.*this rank has not signalled to itself", lambda: windows[0].wait_signal(rank, False))
    windows[0].put(torch.full((2,), 9.0), rank, 0, False)
    windows[0].signal(rank, False)
    windows[0].wait_signal(rank, False)
    compare(one[:2], torch.tensor(9.0))
    source = torch.zeros(1000, device=device)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        windows[0].put(source, after, 0, False)
        windows[0].signal(after, False)
        windows[0].wait_signal(before, False)
        seen = one.clone()
        windows[1].signal(before, True).wait()  # read
        windows[1].wait_signal(after, True).wait()
    for value in (20.0, 40.0):
        source.fill_(value + rank)
        graph.replay()
        compare(seen, torch.tensor(value + before))
    torch.cuda.synchronize()
    del graph
    windows[1].signal(after, False)  # nobody waits for it, nor does a later window hear it
    for window in windows:
        window.tensor_deregister()
    # Groups of windows that have gone serve new ones. Tensors of other sizes go by way of the host.
    for elements in (10, 10, 10, 10 + rank):
        memory = torch.zeros(elements, device=device)
        window = comm.new_window(memory)
        if rank == 0:
            time.sleep(0.2)
        window.put(torch.ones(10, device=device), after, 0, False)
        window.signal(after, False)
        window.wait_signal(before, False)
        compare(memory[:10], torch.tensor(1.0))
        window.tensor_deregister()
    comm.finalize()


def missing_signal(ctx: Context, name: str) -> None:
    """A signal that does not come fails the communicator, whose abort hooks run; the host has not waited for it."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    window = comm.new_window(torch.zeros(10, device=device))
    torch.cuda.synchronize()
    comm.set_timeout(timedelta(seconds=2))
    noticed = threading.Event()
    comm.register_abort_hook(noticed.set)
    store = ctx.store(name)
    if ctx.rank == 0:
        window.wait_signal(1, False)
        assert noticed.wait(60) and comm.is_aborted()
        store.set("noticed", "1")
    else:
        store.wait(["noticed"])


def late(ctx: Context, name: str) -> None:
    """A rank that does not come: the others' waits raise, and the process goes on."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    op = interface().ReduceOp
    tensor = torch.ones(10, device=device)
    comm.all_reduce(tensor, op.SUM, False)
    torch.cuda.synchronize()
    store = ctx.store(name)
    if ctx.rank == 0:
        work = comm.all_reduce(tensor, op.SUM, True, timeout=timedelta(seconds=2))
        refused(".", work.wait_blocking)
        store.set("raised", "1")
    else:
        store.wait(["raised"])


ON_BOTH = [
    sweep,
    collectives,
    dtypes,
    large,
    messages,
    streams,
    waits_of_messages,
    unwaited,
    windows,
    windows_on_streams,
    missing_signal,
    late,
]
FUNCTIONS = [*ON_BOTH, futures_of_works] if STAND_IN else ON_BOTH


@pytest.mark.parametrize("function", FUNCTIONS)
@GPU_RANKS
def test_on_cuda_tensors(fresh_world: World, ranks: int, function: Callable[..., Any]) -> None:
    call_on_gpus(fresh_world, ranks, function)


def test_where_gpus_cannot_reach_each_other(fresh_world: World) -> None:
    """Data goes by way of pinned memory of the host, as between GPUs without peer access."""
    call_on_gpus(fresh_world, 2, collectives, messages, TUTTI_CUDA_TRANSPORT="host")
