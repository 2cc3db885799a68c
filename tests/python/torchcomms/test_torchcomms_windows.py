"""Windows of the TorchComms backend: data and signals that a target takes while it does something else."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import RankPool, unique_name
from rank_worker import Context
from torchcomms_interface import NEEDS_TORCHCOMMS, STAND_IN, interface, new_comm, refused, same

World = Callable[..., RankPool]
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]


def windows(ctx: Context, name: str) -> None:
    """Data and signals around a ring, which arrive while their target does something else."""
    comm = new_comm(ctx, name)
    rank, size = ctx.rank, ctx.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype, count in ((torch.float32, 1), (torch.int8, 1000), (torch.bfloat16, 300_001), (torch.bool, 5)):
        memory = torch.zeros(size, count, dtype=dtype)
        window = comm.new_window(memory)
        assert window.get_size() == memory.nbytes
        for asynchronous in (False, True):
            for turn in range(3):
                data = torch.full((count,), rank + turn + 1, dtype=dtype)
                put = window.put(data, after, after * count, asynchronous)
                told = window.signal(after, asynchronous)
                window.wait_signal(before, asynchronous).wait()
                same(memory[rank], torch.full((count,), before + turn + 1, dtype=dtype))
                for work in (put, told):
                    work.wait()
                    assert work.is_completed()
                window.signal(before, False)  # read
                window.wait_signal(after, False)
        window.tensor_deregister()
    # Tensors of different sizes, two windows at once, views, this rank itself; what was put last is there.
    small, large = comm.new_window(), comm.new_window()
    scalars, rows = torch.zeros(rank + 1), torch.zeros(size, 1000)
    small.tensor_register(scalars, owning=False)
    large.tensor_register(rows)
    assert small.get_tensor() is None and large.get_tensor().data_ptr() == rows.data_ptr()
    for peer in range(size):
        for value in range(20):
            large.put(torch.full((1000, 2), 100.0 * rank + value)[:, 0], peer, 1000 * rank, True)
            small.put(torch.tensor(float(rank)), peer, peer, True)
        large.signal(peer, True)
        small.signal(peer, True)
    waits = [large.wait_signal(peer, True) for peer in range(size)]
    for peer in range(size):
        small.wait_signal(peer, False)
    for work in waits:
        work.wait()
    same(rows, (100.0 * torch.arange(size) + 19).unsqueeze(1))
    assert float(scalars[rank]) in range(size)
    copies = []
    if STAND_IN:  # TorchComms binds it for C++ alone
        before_copy = rows.clone()
        copies.append(large.clone())
        same(copies[0].get_tensor(), before_copy)
        copies[0].put(torch.full((3,), -1.0), rank, 0, False)
        assert float(copies[0].get_tensor()[0, 0]) == -1 != float(rows[0, 0])
    comm.barrier(False)  # all have read
    # Its target is in no call of the communicator.
    store = ctx.store(name)
    if rank == 0:
        large.put(torch.full((1000 * size,), 7.0), after, 0, True).wait()
        store.set("put", "1")
    else:
        store.wait(["put"])
    large.signal(after, False)
    large.wait_signal(before, False)
    if before == 0:
        same(rows, torch.tensor(7.0))
    window_errors(comm, small, large)
    for window in (*copies, small, large):
        window.tensor_deregister()
    comm.finalize()


def mapped(ctx: Context, name: str) -> None:
    """Tensors of memory that all ranks map: their peers see them, and put() writes there itself."""
    import tutti

    comm = new_comm(ctx, name)
    rank, size = ctx.rank, ctx.size
    after, before = (rank + 1) % size, (rank - 1) % size
    access = interface().TorchCommWinAccessType
    for count in (5, 100_000):
        memory = tutti.empty(size, count)
        memory.fill_(rank)
        window = comm.new_window(memory)
        for peer in range(size):
            assert window.get_attr(peer).access_type == access.WIN_ACCESS_TYPE_UNIFIED
            seen = window.map_remote_tensor(peer)
            assert seen.shape == memory.shape and seen.dtype == memory.dtype
            same(seen, torch.tensor(float(peer)))
        comm.barrier(False)
        for turn in range(3):
            window.put(torch.full((count,), 10.0 * rank + turn), after, after * count, True)
            window.signal(after, True)
            window.wait_signal(before, False)
            same(memory[rank], torch.tensor(10.0 * before + turn))
            same(window.map_remote_tensor(after)[after], torch.tensor(10.0 * rank + turn))
            window.signal(before, False)
            window.wait_signal(after, False)
        kept = window.map_remote_tensor(after)
        window.tensor_deregister()
        assert kept.shape == memory.shape  # still mapped
    # Where only one rank's tensor is mapped, the others' data comes as messages.
    memory = tutti.zeros(10) if rank == 0 else torch.zeros(10)
    window = comm.new_window(memory)
    unified = [window.get_attr(peer).access_type == access.WIN_ACCESS_TYPE_UNIFIED for peer in range(size)]
    assert unified == [peer in (0, rank) for peer in range(size)]
    if rank == 0:
        refused("map_remote_tensor.*rank 1's tensor is not in memory.*tutti.empty", lambda: window.map_remote_tensor(1))
    window.put(torch.full((10,), float(rank)), after, 0, False)
    window.signal(after, False)
    window.wait_signal(before, False)
    same(memory, torch.tensor(float(before)))
    window.tensor_deregister()
    comm.finalize()


def window_errors(comm: Any, small: Any, large: Any) -> None:
    """The window stays usable after each of them."""
    size, rank = comm.get_size(), comm.get_rank()
    refused("put.*1 elements at 1 end behind the window of rank 0", lambda: small.put(torch.ones(1), 0, 1, False))
    refused("put.*dtype.*Float", lambda: large.put(torch.ones(1, dtype=torch.int64), 0, 0, False))
    refused(f"signal.*peer {size} is no rank", lambda: large.signal(size, False))
    refused("tensor_register.*has a tensor already", lambda: large.tensor_register(torch.ones(1)))
    empty = comm.new_window()
    refused("wait_signal.*no tensor", lambda: empty.wait_signal(0, False))
    refused("tensor_deregister.*no tensor", empty.tensor_deregister)
    refused("contiguous", lambda: empty.tensor_register(torch.ones(4, 4)[:, 0]))
    limit = timedelta(milliseconds=50)
    refused(
        f"wait_signal.*rank {rank} has not signalled within 50 ms",
        lambda: large.wait_signal(rank, False, timeout=limit),
    )
    late = large.wait_signal(rank, True, timeout=limit)
    refused("has not signalled", late.wait)
    if STAND_IN:  # TorchComms gives it to C++ alone
        assert late.status() == interface().WorkStatus.TIMEDOUT
    large.signal(rank, False)  # neither of them has taken it
    large.wait_signal(rank, False)
    refused("has not signalled", lambda: large.wait_signal(rank, False, timeout=limit))
    refused(
        "another dtype",
        lambda: empty.tensor_register(torch.ones(1, dtype=torch.float32 if rank == 0 else torch.float64)),
    )


def window_failures(ctx: Context, name: str) -> None:
    """A peer that goes, and abort(), end what waits for a signal."""
    comm = new_comm(ctx, name)
    window = comm.new_window(torch.zeros(4))
    waiting = window.wait_signal(1 - ctx.rank, True)
    if ctx.rank == 0:
        comm.abort()
        refused("abort", waiting.wait)
        refused("abort", lambda: window.signal(1, False))
    else:
        refused(".", waiting.wait)
        refused(".", lambda: window.wait_signal(0, False))


def late_puts(ctx: Context, name: str) -> None:
    """What a peer puts after its target has given up to wait for it does not reach the memory, and the peer goes on."""
    comm = new_comm(ctx, name)
    store, peer = ctx.store(name), 1 - ctx.rank
    memory = torch.zeros(300_000)
    window = comm.new_window()
    window.tensor_register(memory, owning=False)
    if ctx.rank == 0:
        waiting = window.wait_signal(peer, True)
        comm.set_timeout(timedelta(milliseconds=50))
        refused("tensor_deregister.*rank 1 has not deregistered in time", window.tensor_deregister)
        refused("tensor was deregistered", waiting.wait)
        comm.set_timeout(timedelta(seconds=30))
        memory.fill_(5.0)
        store.set("late", "1")
    else:
        store.wait(["late"])
        for count in (1, 300_000):
            window.put(torch.full((count,), 7.0), peer, 0, False)  # returns when the larger one has been taken
        window.signal(peer, False)
        window.tensor_deregister()
        store.set("put", "1")
    store.wait(["put"])
    same(memory, torch.tensor(5.0 if ctx.rank == 0 else 0.0))
    window.tensor_register(memory)
    window.put(torch.full((1,), 9.0), peer, 0, True)
    window.signal(peer, False)
    window.wait_signal(peer, False)
    assert float(memory[0]) == 9.0
    window.tensor_deregister()
    comm.finalize()


def views_and_cut_storages(ctx: Context, name: str) -> None:
    """What lies otherwise in memory than it reads is copied; what is not there is refused before the peer is told."""
    comm, peer = new_comm(ctx, name), 1 - ctx.rank
    values = torch.tensor([1 + 2j, 3 + 4j])
    refused("conjugate", lambda: comm.new_window().tensor_register(values.conj()))
    cut = torch.ones(1000)
    cut.untyped_storage().resize_(16)
    refused("it was resized", lambda: comm.new_window().tensor_register(cut))
    window = comm.new_window(torch.zeros(2, dtype=torch.complex64))
    window.put(values.conj(), peer, 0, False)
    window.signal(peer, False)
    window.wait_signal(peer, False)
    same(window.get_tensor(), values.conj())
    comm.barrier(False)
    for left in (8, 0):
        gone = values.clone()
        gone.untyped_storage().resize_(left)
        for asynchronous in (False, True):
            refused("it was resized", lambda gone=gone, a=asynchronous: window.put(gone, peer, 0, a))
    window.put(values, peer, 0, False)
    window.signal(peer, False)
    window.wait_signal(peer, False)
    same(window.get_tensor(), values)
    window.tensor_deregister()
    comm.finalize()


def let_go(ctx: Context, name: str) -> None:
    """A tensor that was put and taken is the caller's alone again."""
    comm = new_comm(ctx, name)
    window, peer = comm.new_window(torch.zeros(1 << 20)), 1 - ctx.rank
    array = np.ones(1 << 20, dtype=np.float32)
    memory = weakref.ref(array)
    window.put(torch.from_numpy(array), peer, 0, True).wait()
    window.signal(peer, False)
    window.wait_signal(peer, False)
    del array
    deadline = time.monotonic() + 10  # who tells the waiting thread lets go of it right afterwards
    while memory() is not None and time.monotonic() < deadline:
        gc.collect()
    assert memory() is None
    window.tensor_deregister()
    comm.finalize()


@pytest.mark.parametrize(
    ("ranks", "function"),
    [
        (2, windows),
        (3, windows),
        (2, mapped),
        (3, mapped),
        (2, window_failures),
        (2, late_puts),
        (2, views_and_cut_storages),
        (2, let_go),
    ],
)
def test_windows(fresh_world: World, ranks: int, function: Callable[..., None]) -> None:
    fresh_world(ranks, open_group=False).call(function, unique_name("tc"))
