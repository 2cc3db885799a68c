"""Windows and works on GPUs that nobody ends well, or beside captures. Skipped without a GPU."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from rank_pool import RankPool
from rank_worker import Context
from torchcomms_interface import GPU_RANKS, GPUS, ON_GPUS, call_on_gpus, device_of, interface, new_comm, refused

World = Callable[..., RankPool]
pytestmark = ON_GPUS


def neighbours(ctx: Context) -> tuple[int, int]:
    return (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size


def forked(ctx: Context, name: str) -> None:
    """A child that lets go of its copy of a window touches nothing of CUDA's, and says nothing."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    after, before = neighbours(ctx)
    window = comm.new_window(torch.zeros(1000, device=device))
    for _ in range(3):  # whose works are gone but for the last ones: the tensors of signals were on other streams
        window.put(torch.ones(10, device=device), after, 0, False)
        window.signal(after, True)
        window.wait_signal(before, True)
    torch.cuda.synchronize()
    time.sleep(0.2)
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends it if it hangs
            os.dup2(said.fileno(), 2)
            del window
            gc.collect()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        said.seek(0)
        text = said.read().decode()
    assert (status, text) == (0, "")
    window.tensor_deregister()
    comm.finalize()


def dropped(ctx: Context, name: str) -> None:
    """What a signal is still to be received into is nobody else's, though the window is gone."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    store = ctx.store(name)
    window = comm.new_window(torch.zeros(1000, device=device))
    torch.cuda.synchronize()
    if ctx.rank == 0:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            window.wait_signal(1, True).wait()
        del window
        gc.collect()
        others = [torch.full((1,), 7, dtype=torch.uint8, device=device) for _ in range(4096)]
        torch.cuda.current_stream().synchronize()
        assert not side.query()
        store.set("dropped", "1")
        side.synchronize()
        assert all(other.item() == 7 for other in others)
        store.set("looked", "1")
    else:
        store.wait(["dropped"])
        if ctx.rank == 1:
            window.signal(0, False)
        store.wait(["looked"])
    comm.finalize()


def signals_of_captures(ctx: Context, name: str) -> None:
    """A signal to oneself that was captured is heard in that capture alone."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    memory = torch.zeros(1000, device=device)
    window = comm.new_window(memory)
    torch.cuda.synchronize()
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    with torch.cuda.graph(graphs[0]):
        window.signal(ctx.rank, False)  # nobody waits for it
    refused("this rank has not signalled to itself", lambda: window.wait_signal(ctx.rank, False))
    with torch.cuda.graph(graphs[1]):
        memory.add_(1)
        refused("this rank has not signalled to itself", lambda: window.wait_signal(ctx.rank, False))
    with torch.cuda.graph(graphs[2]):
        memory.add_(1)
        window.signal(ctx.rank, False)
        window.wait_signal(ctx.rank, False)
        memory.add_(1)
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    assert (memory == 3).all().item()
    del graphs, graph
    window.tensor_deregister()
    comm.finalize()


def waits_beside_a_capture(ctx: Context, name: str) -> None:
    """Another thread may wait for works and windows, and ask for them, while this one captures."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    after, before = neighbours(ctx)
    memory = torch.zeros(1000, device=device)
    window = comm.new_window(memory)
    tensor, captured = torch.ones(1000, device=device), torch.zeros(1000, device=device)
    torch.cuda.synchronize()
    works = [comm.all_reduce(tensor, interface().ReduceOp.SUM, True)]
    works.append(window.put(torch.full((1000,), 2.0, device=device), after, 0, True))
    window.signal(after, False)
    window.wait_signal(before, False)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            torch.cuda.set_device(device)
            for work in works:
                work.wait_blocking()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.add_(1)
        thread.start()
        thread.join()
        captured.add_(1)
    assert not errors, errors
    graph.replay()
    torch.cuda.synchronize()
    assert (captured == 2).all().item() and (tensor == ctx.size).all().item() and (memory == 2).all().item()
    del graph
    window.tensor_deregister()
    comm.finalize()


def outlived(ctx: Context, name: str) -> None:
    """Replays of signals write nowhere, also when the communicator has ended, and their window is gone."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    store = ctx.store(name)
    after, before = neighbours(ctx)
    window = comm.new_window(torch.zeros(1000, device=device))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        window.signal(after, True).wait()
        window.wait_signal(before, True).wait()
    graph.replay()
    torch.cuda.synchronize()
    del window
    comm.finalize()
    gc.collect()
    others = [torch.full((1,), 7, dtype=torch.uint8, device=device) for _ in range(4096)]
    torch.cuda.synchronize()
    store.set(f"over {ctx.rank}", "1")
    store.wait([f"over {rank}" for rank in range(ctx.size)])
    graph.replay()
    torch.cuda.synchronize()
    assert all(other.item() == 7 for other in others)
    store.set(f"looked {ctx.rank}", "1")
    store.wait([f"looked {rank}" for rank in range(ctx.size)])
    del graph


def placed_beside_a_waiting_call(ctx: Context, name: str) -> None:
    """Data comes though the stream of its target waits for the rank that puts it."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    memory = torch.zeros(100_000 + ctx.rank, device=device)  # of sizes that differ: by way of the host
    window = comm.new_window(memory)
    tensor = torch.ones(1000, device=device)
    torch.cuda.synchronize()
    comm.all_reduce(tensor, interface().ReduceOp.SUM, False)
    torch.cuda.synchronize()
    store = ctx.store(name)
    if ctx.rank > 0:
        comm.all_reduce(tensor, interface().ReduceOp.SUM, False)
        store.set(f"waits {ctx.rank}", "1")
        window.wait_signal(0, False)
    else:
        store.wait([f"waits {rank}" for rank in range(1, ctx.size)])
        for peer in range(1, ctx.size):
            for part in range(3):
                window.put(torch.full((30_000,), part + 1.0, device=device), peer, part * 30_000, False)
            window.signal(peer, False)
        comm.all_reduce(tensor, interface().ReduceOp.SUM, False)
    torch.cuda.synchronize()
    expected = torch.tensor([1.0, 2.0, 3.0], device=device).repeat_interleave(30_000)
    assert ctx.rank == 0 or torch.equal(memory[:90_000], expected)
    window.tensor_deregister()
    comm.finalize()


FUNCTIONS = [forked, dropped, signals_of_captures, waits_beside_a_capture, outlived, placed_beside_a_waiting_call]


@pytest.mark.parametrize("function", FUNCTIONS)
@GPU_RANKS
def test_windows_on_gpus(fresh_world: World, ranks: int, function: Callable[..., Any]) -> None:
    call_on_gpus(fresh_world, ranks, function)


def burst(ctx: Context, name: str) -> None:
    """The thread that looks at calls nobody waits for leaves each process with the context of its own GPU alone."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    tensor = torch.ones(10, device=device)
    comm.all_reduce(tensor, interface().ReduceOp.SUM, False)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    for _ in range(600):  # more than the group keeps events for
        comm.all_reduce(tensor, interface().ReduceOp.SUM, True)
    torch.cuda.synchronize()
    time.sleep(0.5)  # until the last of them has been seen to end
    driver = ctypes.CDLL("libcuda.so.1")
    flags, active = ctypes.c_uint(), ctypes.c_int()
    for other in range(GPUS):
        assert driver.cuDevicePrimaryCtxGetState(other, ctypes.byref(flags), ctypes.byref(active)) == 0
        assert bool(active.value) == (other == device.index), other
    comm.finalize()


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_unwaited_calls_make_no_context_on_another_gpu(fresh_world: World) -> None:
    call_on_gpus(fresh_world, 2, burst)


def held_up(ctx: Context, name: str) -> None:
    """Without peer access put() and signal() wait on the host for the stream, and say of what if that takes long."""
    device = device_of(ctx)
    comm = new_comm(ctx, name, device=device)
    store = ctx.store(name)
    after, before = neighbours(ctx)
    memory = torch.zeros(1000, device=device)
    source = torch.ones(1000, device=device)
    window = comm.new_window(memory)
    comm.set_timeout(timedelta(seconds=1))
    torch.cuda.synchronize()
    for _ in range(4):  # about ten seconds
        torch.cuda._sleep(5_000_000_000)
    for operation, call in (
        ("signal", lambda: window.signal(after, False)),
        ("put", lambda: window.put(source, after, 0, False)),
    ):
        refused(rf"{operation} on communicator.*window 0.*rank {after}.*1000 ms", call)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    comm.set_timeout(timedelta(seconds=30))
    with torch.cuda.graph(graph):
        memory.add_(0)
        refused("cannot be captured", lambda: window.signal(after, False))
    del graph
    store.set(f"ready {ctx.rank}", "1")
    store.wait([f"ready {rank}" for rank in range(ctx.size)])
    window.put(source, after, 0, False)
    window.signal(after, False)
    window.wait_signal(before, False)
    assert (memory == 1).all().item()
    window.tensor_deregister()
    comm.finalize()


def test_streams_that_hold_up_a_window(fresh_world: World) -> None:
    call_on_gpus(fresh_world, 2, held_up, TUTTI_CUDA_TRANSPORT="host")
