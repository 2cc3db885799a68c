"""A forked child of a rank of TorchComms: its calls raise or do nothing at once, whoever had which lock at the fork."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from rank_pool import RankPool, unique_name
from rank_worker import Context
from torchcomms_interface import NEEDS_TORCHCOMMS, ON_STAND_IN, interface, new_comm, refused

World = Callable[..., RankPool]
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]
PARENTS = "belongs to the parent: Tutti is disabled in a forked child"


def in_child(call: Callable[[], Any]) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it hangs
        try:
            call()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status


def calls_of_a_child(comm: Any, handle: Any) -> list[Callable[[], Any]]:
    """What asks for the communicator's lock, or for that of its hooks, or does so on the way."""

    def nothing() -> None:
        comm.abort()
        comm.finalize()
        comm.finalize()

    def ended() -> None:
        assert comm.is_aborted() and not comm.is_initialized()

    return [
        ended,
        nothing,
        handle.remove,
        lambda: refused(PARENTS, lambda: comm.register_abort_hook(lambda: None)),
        lambda: refused(PARENTS, lambda: comm.reconfigure(77, [comm.get_init_handle()])),
        # What else an aborted one refuses.
        lambda: comm.set_timeout(timedelta(seconds=20)),
        lambda: refused(PARENTS, lambda: comm.split([comm.get_rank()], "part")),
        lambda: refused("belongs to the parent", lambda: comm.barrier(False)),
    ]


def reconfigured(ctx: Context, name: str) -> Any:
    comm, store = new_comm(ctx, name, enable_reconfigure=True), ctx.store(name)
    store.set(f"handle{ctx.rank}", comm.get_init_handle())
    comm.reconfigure(1, [store.get(f"handle{rank}").decode() for rank in range(ctx.size)]).wait()
    return comm


def goes_on(ctx: Context, comm: Any) -> None:
    one = torch.ones(1)
    comm.all_reduce(one, interface().ReduceOp.SUM, False)
    assert float(one) == ctx.size
    comm.finalize()


def while_threads_ask(ctx: Context, name: str) -> None:
    """At the fork a thread has the communicator's lock, nearly always: each call of the child does without."""
    comm = reconfigured(ctx, name)
    ran: list[str] = []
    calls = calls_of_a_child(comm, comm.register_abort_hook(lambda: ran.append("hook")))

    def fork() -> None:
        for call in [*calls] * 3:
            in_child(call)

    comm.while_others_ask(fork)
    assert not comm.is_aborted() and not ran
    goes_on(ctx, comm)


def while_a_hook_runs(ctx: Context, name: str) -> None:
    """At the fork a thread has the lock of the hooks: abort() runs one."""
    comm, inside, leave = reconfigured(ctx, name), threading.Event(), threading.Event()

    def run() -> None:
        inside.set()
        leave.wait()

    handle = comm.register_abort_hook(run)
    aborting = threading.Thread(target=comm.abort)
    aborting.start()
    inside.wait()
    try:
        for call in calls_of_a_child(comm, handle)[:5]:
            in_child(call)
    finally:
        leave.set()
        aborting.join()


def while_a_signal_is_awaited(ctx: Context, name: str) -> None:
    """A signal that never comes to the child: it does not wait, and the parent gets it."""
    comm = new_comm(ctx, name)
    window = comm.new_window(torch.zeros(4))
    known = window.wait_signal(ctx.rank, True)
    window.signal(ctx.rank, False)
    known.wait()
    awaited = window.wait_signal(ctx.rank, True)
    in_child(known.wait)
    in_child(lambda: refused(PARENTS, awaited.wait))
    in_child(lambda: refused(PARENTS, awaited.wait_blocking))

    parent = os.getpid()

    def fork(*_: Any) -> None:
        """Within a wait, whose child raises as it goes on with it."""
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            return
        status = os.waitpid(child, 0)[1]
        window.signal(ctx.rank, False)
        assert status == 0, status

    signal.signal(signal.SIGUSR1, fork)
    timer = threading.Timer(0.3, os.kill, (parent, signal.SIGUSR1))
    timer.start()
    try:
        awaited.wait()
    except BaseException as error:
        if os.getpid() != parent:
            os._exit(0 if PARENTS in str(error) and isinstance(error, RuntimeError) else 1)
        raise
    finally:
        if os.getpid() != parent:
            os._exit(1)
    timer.join()
    window.tensor_deregister()
    goes_on(ctx, comm)


@ON_STAND_IN
def test_a_fork_while_threads_ask(fresh_world: World) -> None:
    fresh_world(2, open_group=False).call(while_threads_ask, unique_name("tc"), timeout_s=240)


@pytest.mark.parametrize("function", [while_a_hook_runs, while_a_signal_is_awaited])
def test_a_fork(fresh_world: World, function: Callable[..., None]) -> None:
    fresh_world(2, open_group=False).call(function, unique_name("tc"), timeout_s=240)
