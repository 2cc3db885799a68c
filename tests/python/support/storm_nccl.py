"""NCCL's name under storm_rank.py: libtutti_nccl.so, preloaded above a stand-in for NCCL that only notes its calls.

Device memory is the host's. A tutti.Communicator beside it carries ids and votes.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from storm_faces import HEARD_S, LIMIT_S, SEED, Face, same

import tutti

DOUBLE, SUM = 8, 0
SYSTEM_ERROR, REMOTE_ERROR = 2, 6  # what a call ends with that another rank has given up
LIBRARY = ctypes.CDLL(None)
STAND_IN = ctypes.CDLL(os.environ["TUTTI_NCCL_LIB_PATH"])
STAND_IN.stand_in_take.restype = LIBRARY.ncclGetLastError.restype = ctypes.c_char_p


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_ubyte * 128)]


def do(name: str, *arguments: Any, may: tuple[int, ...] = ()) -> int:
    """The stand-in never fails, nor may what stands above it."""
    result = int(getattr(LIBRARY, name)(*arguments))
    assert result == 0 or result in may, f"seed {SEED}: {name} is {result}: {LIBRARY.ncclGetLastError(None).decode()}"
    return result


class Group:
    """A communicator, and this rank's place in it."""

    def __init__(self, comm: ctypes.c_void_p, rank: int, size: int) -> None:
        self.comm, self.rank, self.size = comm, rank, size

    def calls(self) -> list[tuple[str, Callable[[int], Callable[[], None]]]]:
        """Functions by name that make a call of so many elements, and give what checks it if Tutti has run it."""
        return [
            ("AllReduce", self.all_reduce),
            ("AllGather", self.all_gather),
            ("ReduceScatter", self.reduce_scatter),
            ("Broadcast", self.broadcast),
            ("Reduce", self.reduce),
        ]

    def call(self, name: str, x: Any, out: Any, count: int, *rest: int) -> None:
        ends = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, out)]
        do(f"nccl{name}", *ends, ctypes.c_size_t(count), DOUBLE, *rest, self.comm, None)

    def all_reduce(self, count: int) -> Callable[[], None]:
        x = np.full(count, self.rank + 1.0)
        self.call("AllReduce", x, x, count, SUM)
        return lambda: same(x, self.size * (self.size + 1) / 2)

    def all_gather(self, count: int) -> Callable[[], None]:
        x, out = np.full(count, self.rank + 1.0), np.empty(count * self.size)
        self.call("AllGather", x, out, count)
        return lambda: same(out, *(r + 1 for r in range(self.size))) or same(x, self.rank + 1)

    def reduce_scatter(self, count: int) -> Callable[[], None]:
        x, out = np.repeat(np.arange(self.size) + 1.0 * self.rank, count), np.empty(count)
        self.call("ReduceScatter", x, out, count, SUM)
        return lambda: same(out, self.size * self.rank + self.size * (self.size - 1) / 2) or same(x[:1], self.rank)

    def broadcast(self, count: int) -> Callable[[], None]:
        x, out, root = np.full(count, self.rank + 1.0), np.empty(count), count % self.size
        self.call("Broadcast", x, out, count, root)
        return lambda: same(out, root + 1) or same(x, self.rank + 1)

    def reduce(self, count: int) -> Callable[[], None]:
        x, out, root = np.full(count, self.rank + 1.0), np.empty(count), count % self.size
        self.call("Reduce", x, out, count, SUM, root)
        return lambda: same(out, self.size * (self.size + 1) / 2) if root == self.rank else same(x, self.rank + 1)


class Nccl(Face):
    """A program of NCCL's: calls, groups of them, parts, communicators that end in order and by an abort."""

    kinds = ("one", "one", "grouped", "grouped", "part", "anew", "abort")

    def __init__(self) -> None:
        self.control = tutti.Communicator(timeout=LIMIT_S)
        super().__init__(self.control.rank, self.control.size)
        self.slowest = 0.0
        self.ran = {True: 0, False: 0}  # by Tutti, or by NCCL
        self.group = self.join()

    def votes(self, yes: bool) -> int:
        return int(self.control.all_reduce(np.array([float(yes)]))[0])

    def join(self) -> Group:
        """Whoever has no descriptors for a group of Tutti's leaves it to NCCL, with all others."""
        id, comm, begun = UniqueId(), ctypes.c_void_p(), time.monotonic()
        maker = self.shared.randrange(self.size)
        if self.rank == maker:
            do("ncclGetUniqueId", ctypes.byref(id))
        told = np.ctypeslib.as_array(id.internal)
        self.control.broadcast(told, root=maker)
        do("ncclCommInitRank", ctypes.byref(comm), self.size, id, self.rank)
        self.took(begun)
        return Group(comm, self.rank, self.size)

    def took(self, begun: float) -> None:
        self.slowest = max(self.slowest, time.monotonic() - begun)

    def run(self, group: Group, kinds: list[int], count: int, grouped: bool) -> int:
        """How many calls Tutti has run; what it has run is right."""
        STAND_IN.stand_in_take()
        if grouped:
            do("ncclGroupStart")
        calls = [(group.calls()[kind][0], group.calls()[kind][1](count)) for kind in kinds]
        if grouped:
            do("ncclGroupEnd")
        noted = {word.partition(":")[0] for word in STAND_IN.stand_in_take().decode().split()}
        by_tutti = [check for name, check in calls if name not in noted]
        for check in by_tutti:
            check()
        self.ran[True] += len(by_tutti)
        self.ran[False] += len(calls) - len(by_tutti)
        return len(by_tutti)

    def run_by_all(self, group: Group, kinds: list[int], count: int, grouped: bool) -> None:
        """What Tutti runs it runs on all ranks."""
        mine = self.run(group, kinds, count, grouped)
        assert self.control.all_reduce(np.array([mine]))[0] == mine * self.size, f"seed {SEED}: {mine} by Tutti here"

    def one(self, count: int) -> None:
        self.run_by_all(self.group, [self.shared.randrange(5)], count, False)

    def grouped(self, count: int) -> None:
        self.run_by_all(self.group, [self.shared.randrange(5) for _ in range(self.shared.randrange(1, 6))], count, True)

    def part(self, count: int) -> None:
        of, comm, begun = self.some_ranks(), ctypes.c_void_p(), time.monotonic()
        mine = self.rank in of
        if mine:
            os.environ["STAND_IN_SPLIT"] = f"{of.index(self.rank)},{len(of)}"
        do("ncclCommSplit", self.group.comm, 0 if mine else -1, self.rank, ctypes.byref(comm), None)
        self.took(begun)
        end = self.shared.choice(("ncclCommDestroy", "ncclCommAbort"))
        kinds = [self.shared.randrange(5) for _ in range(3)]
        if mine:
            part = Group(comm, of.index(self.rank), len(of))
            self.run(part, kinds, count, bool(count % 2))
            if end == "ncclCommDestroy" and count % 3:
                do("ncclCommFinalize", comm)
            do(end, comm)

    def anew(self, count: int) -> None:
        """A second communicator, which takes the place of the first."""
        old, self.group = self.group, self.join()
        self.run_by_all(old, [0], count, False)
        do(self.shared.choice(("ncclCommDestroy", "ncclCommAbort")), old.comm)

    def abort(self, count: int) -> None:
        """By one rank while others are in a call, which ends; then by all."""
        who = self.shared.randrange(self.size)
        if self.rank != who:
            x = np.full(count, self.rank + 1.0)
            end = x.ctypes.data_as(ctypes.c_void_p)
            begun = time.monotonic()
            do(
                "ncclAllReduce",
                *(end, end, ctypes.c_size_t(count), DOUBLE, SUM, self.group.comm, None),
                may=(SYSTEM_ERROR, REMOTE_ERROR),
            )
            assert time.monotonic() - begun < HEARD_S, f"seed {SEED}: heard after {time.monotonic() - begun:.1f} s"
        do("ncclCommAbort", self.group.comm)
        self.group = self.join()

    def in_child(self, what: int) -> None:
        """What the parent has is the parent's: a child only reads."""
        rank = ctypes.c_int(-1)
        if what == 0:
            do("ncclCommUserRank", self.group.comm, ctypes.byref(rank))

    def close(self) -> None:
        do("ncclCommDestroy", self.group.comm)
        self.control.close()
        print(f"calls by Tutti {self.ran[True]}, by NCCL {self.ran[False]}; slowest group {self.slowest:.1f} s")
