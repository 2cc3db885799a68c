"""One of two ranks whose calls are large enough that the kernel may read the other's tensors. Its argument says what
it does."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import sys
from typing import Any

import numpy as np

import tutti

COUNT = 300_000  # of float32: a block of 1.2 MB


def data(rank: int, count: int = COUNT) -> Any:
    return (np.arange(count, dtype=np.float32) + 1000 * rank) % 8191


def calls(comm: tutti.Communicator, mine: Any) -> None:
    """Every collective of the kind, right on both ranks. ``mine``: where this rank's two blocks lie."""
    me = comm.rank
    both = np.concatenate([data(0, COUNT // 2), data(1, COUNT // 2)])
    for root in (0, 1):
        mine[:] = data(me)
        got = np.full(COUNT // 2, -1, np.float32)
        comm.scatter(mine if me == root else None, got, root=root)
        check(got, data(root)[me * (COUNT // 2) : (me + 1) * (COUNT // 2)])
        comm.broadcast(mine, root=root)
        check(mine, data(root))
    mine[:] = data(me)
    got = np.full(COUNT, -1, np.float32)
    comm.all_to_all(mine, got)
    check(got, np.concatenate([data(r)[me * (COUNT // 2) : (me + 1) * (COUNT // 2)] for r in (0, 1)]))
    mine[: COUNT // 2] = data(me, COUNT // 2)
    check(comm.all_gather(mine[: COUNT // 2], got), both)
    mine[:] = both if me == 0 else mine
    own = mine[me * (COUNT // 2) : (me + 1) * (COUNT // 2)]
    own[:] = data(me, COUNT // 2)
    check(comm.all_gather(own, mine), both)  # in place


def check(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(got, wanted)


def plain(comm: tutti.Communicator) -> None:
    for _ in range(3):
        calls(comm, np.empty(COUNT, np.float32))
    ran = {row["algorithm"] for row in comm.metrics()["rows"]}
    print("by", *sorted(ran))


def pulls(comm: tutti.Communicator) -> bool:
    """Whether this group's calls are: each measures anew whether it pays."""
    comm.broadcast(data(comm.rank))
    found = any(row["algorithm"] == "pulled" for row in comm.metrics()["rows"])
    if not found:
        print("not here: calls are staged")
    comm.reset_metrics()
    return found


def named(comm: tutti.Communicator) -> None:
    """Chosen by name, like any other."""
    if not pulls(comm):
        return
    defaults = tutti.AlgorithmCollectionBuilder().build_default_algorithms()
    pulled = defaults.for_collective("broadcast")["pulled"]
    mine = data(comm.rank)
    end = mine.ctypes.data
    pulled.execute(comm, end, end, mine.nbytes, mine.nbytes, tutti.DataType.float32)
    check(mine, data(0))
    print("by", *sorted({row["algorithm"] for row in comm.metrics()["rows"]}))


def secret(comm: tutti.Communicator) -> None:
    """Rank 0's blocks lie in memory that the kernel gives to nobody (memfd_secret)."""
    if comm.rank != 0:
        return calls(comm, np.empty(COUNT, np.float32))
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(447, 0)
    if fd < 0:
        print("not here:", errno.errorcode[ctypes.get_errno()])
        memory: Any = bytearray(COUNT * 4)
    else:
        os.ftruncate(fd, COUNT * 4)
        memory = mmap.mmap(fd, COUNT * 4)
    return calls(comm, np.frombuffer(memory, np.float32))


def hole(comm: tutti.Communicator) -> None:
    """The root's tensor has a page in its middle that nobody may read."""
    if not pulls(comm):
        return
    memory = mmap.mmap(-1, COUNT * 4)
    mine = np.frombuffer(memory, np.float32)
    mine[:] = data(0)
    if comm.rank == 0:
        page = mine.ctypes.data + COUNT * 2 // mmap.PAGESIZE * mmap.PAGESIZE
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0) == 0
    try:
        comm.broadcast(mine, root=0)
        print("no error")
    except RuntimeError as error:
        print("said", error)


def death(comm: tutti.Communicator) -> None:
    """Rank 1 dies between two calls of a loop, wherever the other is then."""
    block, got = data(comm.rank), np.empty(2 * COUNT, np.float32)
    comm.all_gather(block, got)
    if comm.rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    try:
        while True:
            comm.all_gather(block, got)
    except RuntimeError as error:
        print("said", error)


if __name__ == "__main__":
    communicator = tutti.Communicator(timeout=30)
    globals()[sys.argv[1]](communicator)
    print("done")
