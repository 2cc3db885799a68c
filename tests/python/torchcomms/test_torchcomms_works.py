"""Works and failures of the backend of TorchComms: states, hooks, futures, and what runs when nobody waits.

What TorchComms gives C++ alone (states and hooks of works) is asked for above the stand-in only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from rank_pool import RankPool, unique_name
from rank_worker import Context
from torchcomms_interface import NEEDS_TORCHCOMMS, ON_STAND_IN, STAND_IN, interface, new_comm, refused, same

World = Callable[..., RankPool]
SOON = timedelta(milliseconds=200)
LONG = 60.0  # seconds; nothing takes that long
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]


def events_of(work: Any) -> list[str]:
    """What the hooks of a work tell, as they tell it."""
    told: list[str] = []
    for kind in ("start", "end", "wait_pre", "wait_post"):
        getattr(work, f"register_work_{kind}_hook")(lambda kind=kind: told.append(kind))
    return told


def states_and_hooks(ctx: Context, name: str) -> None:
    """Each hook runs once, in order; the state follows the call; time limits are the call's or the communicator's."""
    comm = new_comm(ctx, name, timeout=timedelta(seconds=20))
    op, state, store = interface().ReduceOp, interface().WorkStatus, ctx.store(name)
    if ctx.rank == 0:
        work = comm.all_reduce(torch.ones(4), op.SUM, True)
        assert work.status() == state.INPROGRESS
        told = events_of(work)
        work.register_work_wait_pre_hook(lambda: store.set("waits", "1"))
        work.wait()
        assert told == ["start", "wait_pre", "end", "wait_post"] and work.status() == state.COMPLETED
        work.wait()
        work.host_synchronize()
        work.wait_blocking()
        assert told == ["start", "wait_pre", "end", "wait_post", "wait_pre", "wait_post"]
        assert work.get_timeout() == timedelta(seconds=20)
        late = events_of(work)
        assert late == ["start", "end"]  # it is over: they run at once
    else:
        store.wait(["waits"])
        comm.all_reduce(torch.ones(4), op.SUM, False)
    # Nobody waits: the library's thread tells.
    work = comm.all_reduce(torch.ones(4), op.SUM, True, timeout=timedelta(seconds=10))
    ended = threading.Event()
    work.register_work_end_hook(ended.set)
    assert ended.wait(LONG) and work.is_completed()
    assert work.get_timeout() == timedelta(seconds=10)
    comm.set_timeout(timedelta(seconds=15))
    work = comm.barrier(True)
    assert work.get_timeout() == timedelta(seconds=15)
    work.wait()
    # A hook that fails takes nothing with it, and one may wait for its own work.
    work = comm.barrier(True)
    work.register_work_end_hook(work.wait)
    work.wait()
    assert work.is_completed()
    comm.finalize()


def hooks_beside_the_end(ctx: Context, name: str) -> None:
    """A call that ends while a hook is being registered, which takes no lock: the hook runs all the same."""
    comm = new_comm(ctx, name)
    op, works = interface().ReduceOp, interface().TorchWork
    one = torch.ones(1)

    def spin() -> None:
        until = time.perf_counter() + 700e-6
        while time.perf_counter() < until:
            pass

    seen = 0
    more = torch.ones(1)
    try:
        for _ in range(20_000):
            comm.barrier(False)
            works.while_registering(spin if ctx.rank == 0 else None)
            start = time.perf_counter()
            work = comm.all_reduce(one, op.MAX, True)
            told: list[int] = []
            work.register_work_end_hook(lambda told=told: told.append(1))
            in_time = time.perf_counter() - start < 900e-6  # what is promised to whoever registers at once
            work.wait()
            assert told == [1] or not in_time
            seen += in_time
            more[0] = float(seen < 50)
            comm.all_reduce(more, op.MAX, False)  # all ranks go on, or none
            if not float(more):
                break
        assert seen >= 50
    finally:
        works.while_registering(None)
    comm.finalize()


def futures(ctx: Context, name: str) -> None:
    """TorchComms' future of a work is the call's: it is there with it, and fails with it."""
    comm = new_comm(ctx, name)
    op = interface().ReduceOp
    tensor = torch.ones(1000)
    work = comm.all_reduce(tensor, op.SUM, True)
    (value,) = work.future_value([tensor])
    same(value, torch.tensor(float(ctx.size)))
    # Who has waited finds it complete: TorchComms completes it otherwise, and twice is an error. The call's own future
    # may come later, behind the callbacks of others, which may wait for this very work, as a hook may.
    for kind in ("slow", "waits", "hook waits"):
        comm.barrier(False)
        if ctx.rank == 1:
            time.sleep(0.05)  # so that the other has asked before the call is over
        work = comm.all_reduce(tensor, op.SUM, True)
        if kind == "hook waits":
            work.register_work_end_hook(work.wait)
        complete = work.completed_behind([tensor], work.wait if kind == "waits" else lambda: time.sleep(0.2))
        work.wait()
        assert complete(), kind
    comm.barrier(False)
    if ctx.rank == 0:
        work = comm.all_reduce(tensor, op.SUM, True, timeout=SOON)
        refused("all_reduce", lambda: work.future_value([tensor]))


def state_of_what_was_late(ctx: Context, name: str) -> None:
    """A call that a limit of time has ended has timed out, whoever set the limit and whether anybody waits."""
    comm = new_comm(ctx, name, timeout=SOON)
    op, state = interface().ReduceOp, interface().WorkStatus
    if ctx.rank == 0:
        work = comm.all_reduce(torch.ones(4), op.SUM, True)  # the communicator's limit
        ended = threading.Event()
        work.register_work_end_hook(ended.set)
        assert ended.wait(LONG)
        assert work.status() == state.TIMEDOUT
        refused("all_reduce", work.wait)
        assert work.status() == state.TIMEDOUT
    alone = new_comm(ctx, f"{name}.call")
    if ctx.rank == 0:
        work = alone.all_reduce(torch.ones(4), op.SUM, True, timeout=SOON)  # the call's own
        refused("all_reduce", work.wait)
        assert work.status() == state.TIMEDOUT
    message = new_comm(ctx, f"{name}.message")
    if ctx.rank == 0:
        work = message.recv(torch.ones(4), 1, True, timeout=SOON)  # the wait's
        refused("recv|receive|wait", work.wait)
        assert work.status() == state.TIMEDOUT
        ctx.store(name).set("over", "1")
    else:
        ctx.store(name).wait(["over"])  # a rank that leaves is another failure


def hooks_of_failures(ctx: Context, name: str) -> None:
    """Abort hooks run once for each group that a communicator makes, whoever notices, and abort() runs them."""
    comm = new_comm(ctx, name, enable_reconfigure=True)
    op, store = interface().ReduceOp, ctx.store(name)
    store.set(f"handle{ctx.rank}", comm.get_init_handle())
    handles = [store.get(f"handle{r}").decode() for r in range(ctx.size)]
    runs: list[int] = []
    noticed = threading.Event()

    def run() -> None:
        runs.append(1)
        if len(runs) == 3:
            noticed.set()

    comm.register_abort_hook(run)
    removed = comm.register_abort_hook(lambda: runs.append(100))
    removed.remove()
    assert not comm.is_aborted()

    comm.reconfigure(1, handles).wait()
    if ctx.rank == 0:  # several works fail, and several calls
        works = [comm.all_reduce(torch.ones(4), op.SUM, True, timeout=SOON) for _ in range(2)]
        for work in (*works, works[0]):
            refused("all_reduce", work.wait)
        refused(".", lambda: comm.all_reduce(torch.ones(4), op.SUM, False))
        comm.abort()
        assert runs == [1] and comm.is_aborted()
        store.set("failed", "1")
    else:
        # A failure counts where nobody has called abort().
        refused(".", lambda: comm.recv(torch.ones(4), 0, False))
        assert comm.is_aborted() and runs == [1]
        store.wait(["failed"])

    comm.reconfigure(2, handles).wait()
    assert not comm.is_aborted()
    comm.abort()
    comm.abort()
    assert runs == [1, 1] and comm.is_aborted()
    store.set(f"aborted{ctx.rank}", "1")
    store.wait([f"aborted{r}" for r in range(ctx.size)])

    # Nobody waits.
    comm.reconfigure(3, handles).wait()
    if ctx.rank == 0:
        kept = comm.all_reduce(torch.ones(4), op.SUM, True, timeout=SOON)
    else:
        kept = comm.recv(torch.ones(4), 0, True)  # fails with the other rank
    assert noticed.wait(LONG) and comm.is_aborted() and not kept.is_completed()
    assert runs == [1, 1, 1]


def initialized(ctx: Context, name: str) -> None:
    comm = new_comm(ctx, name)
    assert comm.is_initialized()
    comm.abort()
    assert not comm.is_initialized()


def die(ctx: Context, name: str) -> None:
    comm = new_comm(ctx, name)
    comm.barrier(False)
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    noticed = threading.Event()
    comm.register_abort_hook(noticed.set)
    work = comm.all_reduce(torch.ones(4), interface().ReduceOp.SUM, True)
    assert noticed.wait(LONG) and comm.is_aborted()
    refused("all_reduce", work.wait)
    if STAND_IN:
        assert work.status() == interface().WorkStatus.ERROR


def hints(ctx: Context, name: str) -> None:
    """Tutti's hints are known or refused, wherever they are given; what can be changed later is."""
    comm = new_comm(ctx, name, enable_reconfigure=True, hints={"tutti.algorithm": "staged", "other": "1"})
    store = ctx.store(name)
    store.set(f"handle{ctx.rank}", comm.get_init_handle())
    handles = [store.get(f"handle{r}").decode() for r in range(ctx.size)]
    comm.set_hints({"tutti.algorithm": "staged"})  # nothing is made yet
    refused("tutti.nothing", lambda: comm.reconfigure(0, handles, hints={"tutti.nothing": "1"}))
    comm.reconfigure(1, handles).wait()
    refused("set_hints.*'tutti.nothing' is not known", lambda: comm.set_hints({"tutti.nothing": "1"}))
    refused("'tutti.algorithm' settles.*reconfigure", lambda: comm.set_hints({"tutti.algorithm": "ring"}))
    refused("'tutti.abort_process' is 0 or 1", lambda: comm.set_hints({"tutti.abort_process": "yes"}))
    comm.set_hints({"tutti.algorithm": "staged", "tutti.abort_process": "0", "other": "2"})
    one = torch.ones(1)
    op = interface().ReduceOp
    wrong = {"hints": {"tutti.algorithm": "staged"}}
    refused("all_reduce.*not for a call", lambda: comm.all_reduce(one, op.SUM, False, **wrong))
    refused("send.*not for a call", lambda: comm.send(one, 0, False, **wrong))
    refused("all_gather_p_init.*not for a call", lambda: comm.all_gather_p_init(one.expand(ctx.size), **wrong))
    comm.all_reduce(one, op.SUM, False, hints={"other.thing": "1"})
    assert float(one) == ctx.size
    comm.reconfigure(2, handles, hints={"tutti.algorithm": ""}).wait()
    comm.all_reduce(one, op.SUM, False)
    refused("'tutti.nothing' is not known", lambda: comm.split([ctx.rank], "part", hints={"tutti.nothing": "1"}))
    comm.finalize()


def forked_in_a_hook(ctx: Context, name: str) -> None:
    """A child's wait is refused, though at the fork a thread that it has not ran the hooks."""
    comm, store = new_comm(ctx, name), ctx.store(name)
    if ctx.rank != 0:
        store.wait(["over"])
        return
    inside, leave = threading.Event(), threading.Event()

    def run() -> None:
        inside.set()
        leave.wait()

    comm.register_abort_hook(run)
    late = comm.all_reduce(torch.ones(1), interface().ReduceOp.SUM, True, timeout=SOON)
    inside.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it hangs
        try:
            refused(".", late.wait)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    leave.set()
    store.set("over", "1")
    assert status == 0, status


ABORTS = """
import sys
from datetime import timedelta
sys.path[:0] = {path!r}
import torch
from torchcomms_interface import interface
comm = interface().new_comm(
    "tutti", torch.device("cpu"), "ends", timeout=timedelta(milliseconds=200),
    store=torch.distributed.HashStore(), hints={{"tutti.abort_process": {value!r}}},
)
comm.register_abort_hook(lambda: print("the hook ran", flush=True))
work = comm.recv(torch.ones(1), 0, True)
try:
    {wait}
except RuntimeError:
    print("raised", flush=True)
"""


def ends(value: str, wait: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    code = ABORTS.format(path=sys.path, value=value, wait=wait)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LONG, check=False
    )


@pytest.mark.parametrize("wait", ["work.wait()", "import threading; threading.Event().wait()"])
def test_a_failure_ends_the_process_if_it_is_told_to(wait: str) -> None:
    ended = ends("1", wait)
    assert ended.returncode == -signal.SIGABRT, ended.stderr
    assert ended.stdout == "the hook ran\n"
    assert "'ends' has failed since a call was late; the hint tutti.abort_process ends this process" in ended.stderr


def test_a_failure_ends_no_process_else() -> None:
    ended = ends("0", "work.wait()")
    assert (ended.returncode, ended.stdout) == (0, "the hook ran\nraised\n"), ended.stderr


EXITS = """
import atexit, sys, threading
sys.path[:0] = {path!r}
import torch
from torchcomms_interface import interface
atexit.register(lambda: comm.send(torch.ones(1), 0, False))  # behind what the communicator has registered
comm = interface().new_comm("tutti", torch.device("cpu"), "exits", store=torch.distributed.HashStore())
def receive():
    work = comm.recv(torch.ones(1), 0, True)
    work.register_work_end_hook(lambda: print("the hook ran", flush=True))
receiver = threading.Thread(target=receive)
receiver.start()
receiver.join()
threading.Event().wait(0.01)  # for longer than its state is kept from hooks
"""
FINALIZES = """
import sys, threading
sys.path[:0] = {path!r}
import torch
from torchcomms_interface import interface
comm = interface().new_comm(
    "tutti", torch.device("cpu"), "ends", store=torch.distributed.HashStore(), hints={{"tutti.abort_process": "1"}},
)
told = threading.Event()
comm.register_abort_hook(told.set)
work = comm.recv(torch.ones(1), 0, True)
comm.finalize()
assert not told.wait(0.3) and not comm.is_aborted()
"""


def test_finalize_is_no_failure() -> None:
    """What ends with it is told to nobody, and ends no process."""
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    code = FINALIZES.format(path=sys.path)
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert ended.returncode == 0, ended.stderr


@ON_STAND_IN
def test_a_message_that_ends_with_the_interpreter_runs_no_hook() -> None:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    code = EXITS.format(path=sys.path)
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


@ON_STAND_IN
@pytest.mark.parametrize("function", [states_and_hooks, hooks_beside_the_end, futures, state_of_what_was_late])
def test_works(fresh_world: World, function: Callable[..., None]) -> None:
    fresh_world(2, open_group=False).call(function, unique_name("tc"))


@ON_STAND_IN
def test_whether_it_is_initialized(fresh_world: World) -> None:
    fresh_world(2, open_group=False).call(initialized, unique_name("tc"))


@pytest.mark.parametrize("function", [hooks_of_failures, forked_in_a_hook, hints])
def test_failures_and_hints(fresh_world: World, function: Callable[..., None]) -> None:
    fresh_world(2, open_group=False).call(function, unique_name("tc"))


def test_a_dead_peer_runs_the_hooks(fresh_world: World) -> None:
    pool = fresh_world(2, open_group=False)
    outcomes = pool.begin(die, unique_name("tc")).wait(LONG)
    assert outcomes[0].kind == "ok", pool.explain(outcomes)
    assert outcomes[1].kind == "died"
    pool.kill()
