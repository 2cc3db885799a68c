"""What outlives a call of the backend of TorchComms: persistent gathers, registered tensors, and reconfiguration."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from launching import free_port
from rank_pool import RankPool, unique_name
from rank_worker import Context
from storm_weather import weather
from torchcomms_interface import CPU, NEEDS_TORCHCOMMS, interface, new_comm, refused, same

World = Callable[..., RankPool]
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]


def handles_of(ctx: Context, comm: Any, name: str, ranks: Iterable[int]) -> list[str]:
    store = ctx.store(name)
    store.set(f"handle{ctx.rank}", comm.get_init_handle())
    return [store.get(f"handle{r}").decode() for r in ranks]


def sum_of_ones(comm: Any) -> float:
    one = torch.ones(1)
    comm.all_reduce(one, interface().ReduceOp.SUM, False)
    return float(one)


def persistent(ctx: Context, name: str) -> None:
    comm = new_comm(ctx, name, enable_reconfigure=True)
    other = new_comm(ctx, f"{name}.other")
    refused("all_gather_p_init.*reconfigure", lambda: comm.all_gather_p_init(torch.zeros(4)))
    handles = handles_of(ctx, comm, name, range(ctx.size))
    comm.reconfigure(1, handles).wait()
    refused(f"divide by the {ctx.size} ranks", lambda: comm.all_gather_p_init(torch.zeros(ctx.size + 1)))
    output = torch.zeros(2 * ctx.size)
    handle = comm.all_gather_p_init(output)
    for turn in range(3):
        comm.all_gather_p_exec(handle, torch.full((2,), 10.0 * turn + ctx.rank), turn % 2 == 1).wait()
        same(output, 10.0 * turn + torch.arange(ctx.size).repeat_interleave(2))
    refused("not one of this communicator's", lambda: other.all_gather_p_exec(handle, torch.ones(2), False))
    refused("not one of this communicator's", lambda: other.all_gather_p_free(handle))
    freed = comm.all_gather_p_init(output)
    comm.all_gather_p_free(freed)
    refused("or was freed", lambda: comm.all_gather_p_free(freed))
    refused("or was freed", lambda: comm.all_gather_p_exec(freed, torch.ones(2), False))
    # Of fewer ranks the output is too large; of as many it serves on.
    comm.reconfigure(2, handles).wait()
    comm.all_gather_p_exec(handle, torch.full((2,), float(ctx.rank)), False)
    same(output, torch.arange(ctx.size).repeat_interleave(2))
    comm.reconfigure(3, [handles[ctx.rank]]).wait()
    refused("all_gather_single", lambda: comm.all_gather_p_exec(handle, torch.ones(2), False))
    comm.abort()
    refused("aborted", lambda: comm.all_gather_p_exec(handle, torch.ones(2), False))
    comm.all_gather_p_free(handle)
    kept = other.all_gather_p_init(torch.zeros(ctx.size))  # goes with its communicator
    other.finalize()
    refused("finalized", lambda: other.all_gather_p_exec(kept, torch.ones(1), False))


def registered(ctx: Context, name: str) -> None:
    """A registered tensor is held, by each registration, until it or the communicator ends."""
    comm = new_comm(ctx, name)
    memory = numpy.ones(8, numpy.float32)
    free = sys.getrefcount(memory)
    tensor: torch.Tensor | None = torch.from_numpy(memory)
    comm.tensor_register(tensor)
    comm.tensor_register(tensor)
    comm.all_reduce(tensor, interface().ReduceOp.SUM, False)
    same(tensor, torch.tensor(float(ctx.size)))
    comm.tensor_deregister(tensor)
    comm.tensor_deregister(tensor)
    refused("tensor_deregister.*not registered", lambda: comm.tensor_deregister(tensor))
    refused("tensor_deregister.*not registered", lambda: comm.tensor_deregister(torch.ones(1)))
    comm.tensor_register(tensor)
    tensor = None
    assert sys.getrefcount(memory) > free
    comm.finalize()
    assert sys.getrefcount(memory) == free
    refused("finalized", lambda: comm.tensor_register(torch.ones(1)))


def sets(ctx: Context, name: str) -> None:
    """Handles in no order: the ranks are all there, and all know the same."""
    comm = new_comm(ctx, name, enable_reconfigure=True)
    handles = handles_of(ctx, comm, name, range(ctx.size))
    refused("reconfigure.*twice", lambda: comm.reconfigure(1, [*handles, handles[0]]))
    comm.reconfigure(1, set(handles)).wait()
    assert comm.get_rank() == sorted(handles).index(handles[ctx.rank]) and comm.get_size() == ctx.size
    out = torch.zeros(ctx.size)
    comm.all_gather_single(out, torch.tensor([float(comm.get_rank())]), False)
    same(out, torch.arange(ctx.size))
    comm.finalize()


def failed_then_retried(ctx: Context, name: str) -> None:
    """A rank that is late fails the others, which try again; a group from before goes on until then."""
    comm = new_comm(ctx, name, enable_reconfigure=True)
    store = ctx.store(name)
    handles = handles_of(ctx, comm, name, range(ctx.size))

    def fail(number: int) -> None:
        if ctx.rank == 0:
            refused(".", lambda: comm.reconfigure(number, handles, timeout=timedelta(milliseconds=500)))
            refused("uuid .* has been used", lambda: comm.reconfigure(number, handles))
            store.set(f"failed{number}", "1")
        else:
            store.wait([f"failed{number}"])

    fail(1)
    refused("reconfigure", lambda: comm.barrier(False))
    comm.reconfigure(2, handles).wait()
    assert sum_of_ones(comm) == ctx.size
    fail(3)
    assert sum_of_ones(comm) == ctx.size
    comm.reconfigure(4, handles).wait()
    assert sum_of_ones(comm) == ctx.size
    comm.finalize()


def from_before(ctx: Context, name: str) -> None:
    """Windows, parts and works of the group before: they end or go on, and say so; the new group is not disturbed."""
    comm = new_comm(ctx, name, enable_reconfigure=True)
    handles = handles_of(ctx, comm, name, range(ctx.size))
    comm.reconfigure(1, handles).wait()
    after = (ctx.rank + 1) % ctx.size
    window = comm.new_window(torch.zeros(4))
    part = comm.split(list(range(ctx.size)), "part")
    pending = comm.recv(torch.ones(1), after, True)
    comm.barrier(False)
    comm.reconfigure(2, handles).wait()
    refused(".", pending.wait)  # nobody sends any more
    refused("put.*group.*register it again", lambda: window.put(torch.ones(4), after, 0, False))
    refused("signal.*group.*register it again", lambda: window.signal(after, False))
    window.tensor_deregister()
    memory = torch.zeros(4)
    window.tensor_register(memory)
    window.put(torch.full((4,), 1.0 + ctx.rank), after, 0, False)
    window.signal(after, False)
    window.wait_signal((ctx.rank - 1) % ctx.size, False)
    same(memory, torch.tensor(1.0 + (ctx.rank - 1) % ctx.size))
    assert sum_of_ones(part) == sum_of_ones(comm) == ctx.size
    window.tensor_deregister()
    part.finalize()
    comm.finalize()


def limits(ctx: Context, name: str) -> None:
    """The time that a reconfiguration may take is not that of the calls after it; what has failed has no parts."""
    comm, store = new_comm(ctx, name, enable_reconfigure=True, timeout=timedelta(milliseconds=300)), ctx.store(name)
    comm.reconfigure(1, handles_of(ctx, comm, name, range(ctx.size)), timeout=timedelta(seconds=30)).wait()
    if ctx.rank == 0:
        refused("after 300 ms", lambda: comm.recv(torch.ones(1), 1, False))
        for ranks in ([0], [0, 1]):  # the other one need not come: it may have heard of the failure by another call
            refused("after 300 ms", lambda ranks=ranks: comm.split(ranks, "part"))
        store.set("over", "1")
    else:
        store.wait(["over"])


def replaced_with_works(ctx: Context, name: str) -> None:
    """Works that are pending when all ranks reconfigure end with the group: that is no failure, and runs no hook, also
    on a rank that goes on long after the others have given up the group."""
    from tutti.dist import torchcomms as face

    make = face.make_group

    def late(*arguments: Any) -> Any:
        made = make(*arguments)
        threading.Event().wait(0.4 * ctx.rank)  # the watch looks ten times a second
        return made

    comm = new_comm(ctx, name, enable_reconfigure=True)
    handles, ran = handles_of(ctx, comm, name, range(ctx.size)), []
    comm.register_abort_hook(lambda: ran.append(True))
    comm.reconfigure(1, handles).wait()
    pending = comm.recv(torch.ones(1), (ctx.rank + 1) % ctx.size, True)
    face.make_group = late
    comm.reconfigure(2, handles).wait()
    face.make_group = make
    refused(".", pending.wait)
    assert sum_of_ones(comm) == ctx.size and not ran
    comm.finalize()


def parts_meet_apart(ctx: Context, name: str) -> None:
    """A part that reconfigures meets in the store that the program gave, and in none that its ranks had made before."""
    from tutti.dist import torchcomms as face

    make, stores = face.make_group, []

    def note(store: Any, *arguments: Any) -> Any:
        stores.append(store)
        return make(ctx.store(name) if store is None else store, *arguments)

    face.make_group = note
    for stored in (True, False):
        own = f"{name}{stored}"
        comm = new_comm(ctx, own, stored=stored)
        part = comm.split(list(range(ctx.size)), "part")
        part.reconfigure(1, handles_of(ctx, part, own, range(ctx.size))).wait()
        assert (stores[-1] is not None) == stored and sum_of_ones(part) == ctx.size
    face.make_group = make


def hints_of_what_raised(ctx: Context, name: str) -> None:
    """They are not in force: the failure after it does not end the process."""
    comm, store = new_comm(ctx, name), ctx.store(name)
    handles = handles_of(ctx, comm, name, range(ctx.size))
    if ctx.rank == 0:
        soon, ends = timedelta(milliseconds=300), {"tutti.abort_process": "1"}
        refused(".", lambda: comm.reconfigure(1, handles, timeout=soon, hints=ends))
        comm.set_timeout(timedelta(milliseconds=50))
        refused("after 50 ms", lambda: comm.recv(torch.ones(1), 1, False))
        store.set("over", "1")
    store.wait(["over"])


def without_descriptors(ctx: Context, name: str) -> None:
    """Where one rank has none left, not even to connect to the store, all hear so, and try again."""
    comm = new_comm(ctx, name, enable_reconfigure=True)
    handles = handles_of(ctx, comm, name, range(ctx.size))
    comm.reconfigure(1, handles).wait()
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), [os.dup(2)]
    try:
        if ctx.rank == 0:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(2))
        refused("descriptor|Too many open files", lambda: comm.reconfigure(2, handles))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in taken:
            os.close(one)
    comm.reconfigure(3, handles).wait()
    assert sum_of_ones(comm) == ctx.size
    comm.finalize()


def while_its_store_is_stopped(ctx: Context, name: str) -> None:
    """Other threads of the program run on while a rank connects: here the one that lets the store's process go on."""
    told = ctx.store(name)
    if ctx.rank == 1:
        served = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        told.set("place", f"{served.port} {os.getpid()}")
        told.wait(["formed"])
        return
    port, process = map(int, told.get("place").split())
    store = torch.distributed.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    os.environ.update(RANK="0", WORLD_SIZE="1")
    os.kill(process, signal.SIGSTOP)
    resume = threading.Timer(0.1, os.kill, (process, signal.SIGCONT))
    resume.start()
    comm = interface().new_comm("tutti", CPU, name, timeout=timedelta(seconds=30), store=store)
    assert sum_of_ones(comm) == 1
    told.set("formed", "1")
    comm.finalize()
    resume.join()


def open_comm(ctx: Context, name: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ctx.kept["comm"] = new_comm(ctx, name, stored=port == 0, enable_reconfigure=True)


def reconfigure(ctx: Context, name: str, number: int, ranks: list[int]) -> None:
    comm = ctx.kept["comm"]
    comm.reconfigure(number, handles_of(ctx, comm, f"{name}.{number}", ranks)).wait()
    assert (comm.get_rank(), comm.get_size()) == (ranks.index(ctx.rank), len(ranks))
    assert sum_of_ones(comm) == len(ranks)


def fail_with_it(ctx: Context) -> None:
    if ctx.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(".", lambda: ctx.kept["comm"].barrier(False))
    assert ctx.kept["comm"].is_aborted()


def finalize(ctx: Context) -> None:
    ctx.kept["comm"].finalize()


@pytest.mark.parametrize("stored", [True, False])
def test_a_communicator_grows_and_outlives_a_process(fresh_world: World, stored: bool) -> None:
    """Also without a store, where a process that joins later takes the place of one that has died."""
    pool, name = fresh_world(4, open_group=False), unique_name("tc")
    port = 0 if stored else free_port()
    two, three, replaced = [0, 1], [0, 1, 2], [0, 1, 3]
    pool.call(open_comm, name, port, ranks=two)
    pool.call(reconfigure, name, 1, two, ranks=two)
    pool.call(open_comm, name, port, ranks=[2])
    pool.call(reconfigure, name, 2, three, ranks=three)
    outcomes = pool.begin(fail_with_it, ranks=three).wait(60)
    assert [outcomes[rank].kind for rank in three] == ["ok", "ok", "died"], pool.explain(outcomes)
    pool.call(reconfigure, name, 3, two, ranks=two)
    pool.call(open_comm, name, port, ranks=[3])
    pool.call(reconfigure, name, 4, replaced, ranks=replaced)
    pool.call(finalize, ranks=replaced)
    pool.kill()


APART = [limits, parts_meet_apart, replaced_with_works, hints_of_what_raised]
WANT = [without_descriptors, while_its_store_is_stopped]


@pytest.mark.parametrize("function", [persistent, registered, sets, failed_then_retried, from_before, *APART, *WANT])
def test_what_outlives_a_call(fresh_world: World, function: Callable[..., None]) -> None:
    fresh_world(2, open_group=False).call(function, unique_name("tc"))


@pytest.mark.parametrize(("groups", "victim"), [((1, 1), -1), ((3,), 1)], ids=["of all ranks", "with a death"])
def test_a_storm(groups: tuple[int, ...], victim: int, tmp_path: Path, seed: int) -> None:
    """Signals, forks and want of descriptors at random moments: test_storms.py has more of it."""
    weather("comms", groups, seed, tmp_path, victim)
