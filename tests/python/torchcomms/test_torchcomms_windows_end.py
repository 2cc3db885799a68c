"""How windows of the TorchComms backend end: with their communicator, a peer's, a failure, a fork."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import RankPool, unique_name
from rank_worker import Context
from torchcomms_interface import NEEDS_TORCHCOMMS, interface, new_comm, refused, same

World = Callable[..., RankPool]
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]


def dropped(ctx: Context, name: str) -> None:
    """A window that goes without tensor_deregister: peers may put still, so its memory stays until the communicator's
    end, which need not wait for them.
    """
    comm = new_comm(ctx, name)
    store, peer = ctx.store(name), 1 - ctx.rank
    array = np.zeros(300_000, dtype=np.float32)
    memory = weakref.ref(array)
    window = comm.new_window()
    window.tensor_register(torch.from_numpy(array), owning=False)
    del array
    if ctx.rank == 0:
        del window
        gc.collect()
        assert memory() is not None
        store.set("dropped", "1")
    else:
        store.wait(["dropped"])
        window.put(torch.full((300_000,), 7.0), peer, 0, False)
    comm.barrier(False)
    comm.finalize()
    gc.collect()
    assert (memory() is None) == (ctx.rank == 0)


def dropped_and_mapped(ctx: Context, name: str) -> None:
    """As above, of memory that the peers map: what they write is seen, and is there when it goes back."""
    import tutti

    comm, peer = new_comm(ctx, name), 1 - ctx.rank
    memory = tutti.zeros(1000)
    window = comm.new_window(memory)
    if ctx.rank == 1:
        del window
        gc.collect()
    comm.barrier(False)
    if ctx.rank == 0:
        window.put(torch.full((1000,), 5.0), peer, 0, False)
    comm.barrier(False)
    same(memory, torch.tensor(5.0 * ctx.rank))
    comm.finalize()
    same(memory, torch.tensor(5.0 * ctx.rank))


def under_way(ctx: Context, name: str) -> None:
    """What is put is in the window once its sender has deregistered, which may end the communicator then."""
    comm, count = new_comm(ctx, name), 8 << 20
    memory = torch.zeros(count)
    window = comm.new_window(memory)
    comm.barrier(False)
    if ctx.rank == 0:
        put = window.put(torch.ones(count), 1, 0, True)
        window.tensor_deregister()
        comm.finalize()
        put.wait()
    else:
        window.tensor_deregister()
        same(memory, torch.tensor(1.0))
        assert not comm.is_aborted()
        comm.finalize()


def reconfigured_alone(ctx: Context, name: str) -> None:
    """A reconfiguration that raises leaves the windows, on all ranks."""
    comm, store, peer = new_comm(ctx, name), ctx.store(name), 1 - ctx.rank
    store.set(f"handle{ctx.rank}", comm.get_init_handle())
    handles = [store.get(f"handle{r}").decode() for r in range(ctx.size)]
    memory = torch.zeros(4)
    window = comm.new_window(memory)
    noticed = threading.Event()
    comm.register_abort_hook(noticed.set)
    if ctx.rank == 0:
        refused(".", lambda: comm.reconfigure(1, handles, timeout=timedelta(milliseconds=300)))
        store.set("raised", "1")
    store.wait(["raised"])
    window.put(torch.full((4,), 1.0 + ctx.rank), peer, 0, False)
    window.signal(peer, False)
    window.wait_signal(peer, False)
    same(memory, torch.tensor(1.0 + peer))
    comm.barrier(False)
    comm.reconfigure(2, handles).wait()  # which all end them by
    refused("register it again", lambda: window.signal(peer, False))
    assert not noticed.wait(0.2) and not comm.is_aborted()
    comm.finalize()


def finalized_first(ctx: Context, name: str) -> None:
    """The end of a peer that has not deregistered is no failure: what it said is there, nothing more is expected."""
    comm, store, count = new_comm(ctx, name), ctx.store(name), 4 << 20
    window = comm.new_window(torch.zeros(count))
    comm.barrier(False)
    if ctx.rank == 0:
        window.put(torch.ones(count), 1, 0, True)
        window.signal(1, True)
        comm.finalize()
        store.set("over", "1")
        return
    noticed = threading.Event()
    comm.register_abort_hook(noticed.set)
    store.wait(["over"])
    assert not noticed.wait(0.2) and not comm.is_aborted()
    window.wait_signal(0, False)
    same(window.get_tensor(), torch.tensor(1.0))
    calls = [lambda: window.signal(0, False), lambda: window.put(torch.ones(1), 0, 0, False)]
    for call in (*calls, lambda: window.wait_signal(0, False)):
        refused("rank 0 has finalized", call)
    window.tensor_deregister()
    assert not comm.is_aborted()
    comm.finalize()


def finalized_meanwhile(ctx: Context, name: str) -> None:
    """A rank may end while others put to it, signal, and deregister: nothing fails, and these go on with each other."""
    comm, store, count = new_comm(ctx, name), ctx.store(name), 1 << 20
    put, deregistered = (comm.new_window(torch.zeros(count)) for _ in range(2))
    comm.barrier(False)
    if ctx.rank == 0:
        for peer in (1, 2):
            put.wait_signal(peer, False)  # they have begun
        comm.finalize()
        store.set("over", "1")
        return

    data = torch.ones(count)

    def on_and_on() -> None:
        while True:
            works = []
            try:
                for _ in range(20):
                    works += [put.put(data, 0, 0, True), put.signal(0, True)]
            finally:  # what was begun is taken all the same
                for work in works:
                    work.wait()

    refused("rank 0 has finalized", on_and_on)
    deregistered.tensor_deregister()
    store.wait(["over"])
    peer = 3 - ctx.rank
    put.put(torch.ones(count), peer, 0, False)
    put.signal(peer, False)
    put.wait_signal(peer, False)
    same(put.get_tensor(), torch.tensor(1.0))
    assert not comm.is_aborted()
    comm.finalize()


def interrupted(call: Callable[[], Any]) -> None:
    """By a handler that raises, once ``call`` has begun."""

    def begun() -> None:
        call()

    def interrupt(number: int, frame: Any) -> None:
        if frame.f_code is begun.__code__ and frame.f_lineno > begun.__code__.co_firstlineno:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            begun()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupted_finalize(ctx: Context, name: str) -> None:
    """What a signal's handler raises while finalize() waits for a peer passes, and the communicator has ended."""
    comm, store = new_comm(ctx, name), ctx.store(name)
    window = comm.new_window(torch.zeros(4))
    store.set(f"pid of {ctx.rank}", str(os.getpid()))
    stopped = int(store.get("pid of 1"))
    if ctx.rank == 0:
        os.kill(stopped, signal.SIGSTOP)
        try:
            interrupted(comm.finalize)
        finally:
            os.kill(stopped, signal.SIGCONT)
        refused("already finalized", comm.finalize)
        refused("finalized", lambda: window.signal(1, False))
    store.set(f"over {ctx.rank}", "1")
    store.wait(["over 0"])


def interrupted_before_the_end(ctx: Context, name: str) -> None:
    """What a handler has raised while a rank deregistered is raised there, and once: the end of the communicator, and
    another wait for the same, hear of it as an error.
    """
    comm, store = new_comm(ctx, name), ctx.store(name)
    window = comm.new_window(torch.zeros(4))
    if ctx.rank == 0:
        waiting = window.wait_signal(1, True)
        interrupted(waiting.wait)
        interrupted(window.tensor_deregister)
        refused("a handler of a signal has raised", waiting.wait)
        comm.finalize()
        store.set("over", "1")
    store.wait(["over"])


def aborted_alone(ctx: Context, name: str) -> None:
    """abort() ends a wait for a signal of this very rank, too: no peer has anything to do with it."""
    comm = new_comm(ctx, name)
    part = comm.split([ctx.rank], "alone", timeout=timedelta(seconds=2))
    window = part.new_window(torch.zeros(4))
    waiting = window.wait_signal(0, True)
    part.abort()
    refused("abort", waiting.wait)
    comm.finalize()


def abort_meanwhile(ctx: Context, name: str) -> None:
    """abort() while the first window's group is made."""
    from tutti.dist import torchcomms as face

    comm = new_comm(ctx, name)
    make = face.make_group

    def abort_and_make(*arguments: Any) -> Any:
        comm.abort()
        return make(*arguments)

    if ctx.rank == 0:
        face.make_group = abort_and_make
    refused("abort", lambda: comm.new_window(torch.zeros(4)))


def failed_alone(ctx: Context, name: str) -> None:
    """A group of windows that fails is the communicator's failure: its other calls raise, too, on all ranks, and say
    so.
    """
    from tutti.dist import torchcomms as face

    comm = new_comm(ctx, name)
    make, made = face.make_group, []

    def note(*arguments: Any) -> Any:
        made.append(make(*arguments))
        return made[-1]

    face.make_group = note
    window = comm.new_window(torch.zeros(4))
    comm.barrier(False)
    noticed = threading.Event()
    comm.register_abort_hook(noticed.set)
    if ctx.rank == 0:
        [(group, _)] = made
        group.abort()
        assert noticed.wait(30) and comm.is_aborted()
        refused("abort", window.tensor_deregister)
    why = "a group of its windows has failed"
    refused(why, lambda: comm.all_reduce(torch.ones(3), interface().ReduceOp.SUM, False))
    assert noticed.wait(30) and comm.is_aborted()


def late_to_register(ctx: Context, name: str) -> None:
    """Who has not come to register is named by the communicator's other calls, too."""
    comm, store = new_comm(ctx, name), ctx.store(name)
    kept = comm.new_window(torch.zeros(4))  # which makes their group
    comm.barrier(False)
    if ctx.rank == 0:
        comm.set_timeout(timedelta(milliseconds=200))
        refused("rank 1 has not arrived", lambda: comm.new_window(torch.zeros(4)))
        refused("a group of its windows has failed.*rank 1 has not arrived", lambda: comm.send(torch.ones(1), 1, False))
        store.set("over", "1")
    store.wait(["over"])
    del kept


def forked(ctx: Context, name: str) -> None:
    """A child's calls are refused before they take a lock that a thread of the parent may have had at the fork."""
    comm = new_comm(ctx, name)
    window = comm.new_window(torch.zeros(4))
    calls: list[Callable[[], Any]] = [
        lambda: window.put(torch.ones(1), ctx.rank, 0, False),
        lambda: window.signal(ctx.rank, False),
        lambda: window.wait_signal(ctx.rank, False),
        lambda: window.get_attr(ctx.rank),
        lambda: window.map_remote_tensor(ctx.rank),
        window.tensor_deregister,
    ]
    window.signal(ctx.rank, False)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it hangs
        try:
            for call in calls:
                refused("forked child", call)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
    window.wait_signal(ctx.rank, False)
    window.tensor_deregister()
    comm.finalize()


@pytest.mark.parametrize(
    ("ranks", "function"),
    [
        (2, dropped),
        (2, dropped_and_mapped),
        (2, under_way),
        (2, reconfigured_alone),
        (2, finalized_first),
        (3, finalized_meanwhile),
        (2, interrupted_finalize),
        (2, interrupted_before_the_end),
        (2, aborted_alone),
        (2, abort_meanwhile),
        (2, failed_alone),
        (2, late_to_register),
        (2, forked),
    ],
)
def test_ends_of_windows(fresh_world: World, ranks: int, function: Callable[..., None]) -> None:
    fresh_world(ranks, open_group=False).call(function, unique_name("tc"))
