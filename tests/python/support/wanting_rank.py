"""A rank for tests of want: of memory, of descriptors. It makes groups and uses them, as lines of its input say.

Each line is a round, in JSON: its name, which no round had before, the face, the ranks' hosts as a letter for each, and
what this rank is to lack. Each gets a line of output: what became of the round.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import tutti
import tutti._core
import tutti._torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SIZES = (3, 3000, 60_000)  # in a slot, by the plan, staged


def same(got: Any, wanted: float) -> None:
    assert (np.asarray(got) == wanted).all(), f"{np.asarray(got).ravel()[:4]} for {wanted}"


class Arrays:
    """``tutti.Communicator`` on arrays."""

    def __init__(self, store: Any, limit_s: float) -> None:
        self.comm = tutti.Communicator(store, RANK, SIZE, name="wanting", timeout=limit_s)
        self.parts: list[Any] = []

    def calls(self) -> Iterator[Callable[[], None]]:
        for count in SIZES:
            yield lambda count=count: self.all_reduce(self.comm, count)
        yield self.gather
        yield from (self.send, self.receive) if RANK == 0 else (self.receive, self.send)
        yield self.split
        yield lambda: self.all_reduce(self.parts[-1], 3000)
        yield self.look

    def all_reduce(self, comm: Any, count: int) -> None:
        same(comm.all_reduce(np.full(count, RANK + 1, np.float32)), SIZE * (SIZE + 1) / 2)

    def gather(self) -> None:
        got = self.comm.all_gather(np.full(5, RANK), np.empty(5 * SIZE, int))
        assert got.tolist() == np.repeat(np.arange(SIZE), 5).tolist(), got

    def send(self) -> None:
        self.comm.send(np.full(50_000, float(RANK)), (RANK + 1) % SIZE, tag=7)

    def receive(self) -> None:
        out = np.empty(50_000)
        assert self.comm.recv(out, (RANK - 1) % SIZE, tag=7) == (RANK - 1) % SIZE
        same(out, (RANK - 1) % SIZE)

    def split(self) -> None:
        self.parts.append(self.comm.split(0))

    def look(self) -> None:
        assert self.comm.metrics()["rows"]
        assert self.comm.flight_record()["entries"]

    def close(self) -> None:
        for comm in (*self.parts, self.comm):
            comm.close()


class Torch:
    """A default group of ``torch.distributed``."""

    def __init__(self, store: Any, limit_s: float) -> None:
        limit = timedelta(seconds=limit_s)
        dist.init_process_group("tutti", store=store, rank=RANK, world_size=SIZE, timeout=limit)
        self.parts: list[Any] = []

    def calls(self) -> Iterator[Callable[[], None]]:
        for count in SIZES:
            yield lambda count=count: self.all_reduce(None, count)
        yield self.gather
        yield self.at_once
        yield from (self.send, self.receive) if RANK == 0 else (self.receive, self.send)
        yield self.split
        yield lambda: self.all_reduce(self.parts[-1], 3000)
        yield self.look

    def all_reduce(self, group: Any, count: int) -> None:
        x = torch.full((count,), RANK + 1.0)
        dist.all_reduce(x, group=group)
        same(x, SIZE * (SIZE + 1) / 2)

    def gather(self) -> None:
        got = [torch.empty(5) for _ in range(SIZE)]
        dist.all_gather(got, torch.full((5,), float(RANK)))
        for rank, x in enumerate(got):
            same(x, rank)

    def at_once(self) -> None:
        x = torch.full((3000,), RANK + 1.0)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        work.wait()
        same(x, SIZE * (SIZE + 1) / 2)

    def send(self) -> None:
        dist.send(torch.full((50_000,), float(RANK)), (RANK + 1) % SIZE, tag=7)

    def receive(self) -> None:
        out = torch.empty(50_000)
        dist.recv(out, (RANK - 1) % SIZE, tag=7)
        same(out, (RANK - 1) % SIZE)

    def split(self) -> None:
        self.parts.append(tutti.split_group([list(range(SIZE))]))

    def look(self) -> None:
        assert tutti.get_metrics()["rows"]
        assert json.loads(tutti.flight_record())["entries"]

    def close(self) -> None:
        dist.destroy_process_group()


FACES: dict[str, Any] = {"arrays": Arrays, "torch": Torch}


class NoWant:
    """Nothing is wanting. What a rank may lack is told by these calls where the round stands."""

    def begin(self, where: str) -> None:
        """Before the group is made ("forming"), and when it is there ("formed")."""

    def end(self) -> None:
        """The rank has all that it likes from here on."""

    def may_try_again(self, error: BaseException) -> bool:
        """Whether a call that raised this is to be made once more."""
        return False

    def report(self) -> dict[str, Any]:
        return {}


class WantOfMemory(NoWant):
    """The n-th allocation is refused, or all from there on, of this thread or of any, from a place of the round on."""

    def __init__(self, n: int, all_from_there: bool, any_thread: bool, where: str) -> None:
        self.arguments = n, int(all_from_there), int(any_thread)
        self.all_from_there = all_from_there
        self.where = where
        self.preloaded = ctypes.PyDLL(None)
        self.preloaded.refuse_memory.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int]

    def begin(self, where: str) -> None:
        if where == self.where:
            self.preloaded.refuse_memory(*self.arguments)

    def end(self) -> None:
        self.preloaded.refuse_no_memory()

    def may_try_again(self, error: BaseException) -> bool:
        return "Nothing has been sent" in str(error)

    def report(self) -> dict[str, Any]:
        return {
            "refused": self.preloaded.refused_allocations(),
            "counted": self.preloaded.counted_allocations(),
        }


class WantOfDescriptors(NoWant):
    """So many can be opened, from a place of the round on, until the rank may try again or has ended."""

    def __init__(self, left: int, where: str) -> None:
        self.left = left
        self.where = where
        self.taken: list[int] = []

    def begin(self, where: str) -> None:
        if where != self.where:
            return
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(os.dup(0))
        for _ in range(self.left):
            os.close(self.taken.pop())

    def end(self) -> None:
        while self.taken:
            os.close(self.taken.pop())

    def may_try_again(self, error: BaseException) -> bool:
        return "Nothing has been sent" in str(error)


WANTS: dict[str, Any] = {"nothing": NoWant, "memory": WantOfMemory, "descriptors": WantOfDescriptors}
# Soft and hard limit: Tutti raises the one to the other.
MOST_DESCRIPTORS = 160


def once_more(call: Callable[[], None], want: NoWant, errors: list[BaseException]) -> None:
    """The call, and once more where it was refused something: the others wait for it."""
    try:
        call()
    except Exception as error:
        errors.append(error)
        if not want.may_try_again(error):
            raise
        want.end()
        call()


def use(make: Callable[[], Any], want: NoWant, errors: list[BaseException]) -> None:
    group = None
    try:
        want.begin("forming")
        group = make()
        want.begin("formed")
        for call in group.calls():
            once_more(call, want, errors)
        group.close()
    except Exception as error:
        want.end()
        if error not in errors:
            errors.append(error)
        raise
    finally:
        want.end()
        with contextlib.suppress(Exception):
            if group is not None:
                group.close()
            elif dist.is_initialized():
                dist.destroy_process_group()
        # torch counts the groups that could not be made, and names the next one by that.
        dist.distributed_c10d._world.group_count = 0


def play(store: Any, name: str, face: str, layout: str, want: list[Any], limit_s: float) -> dict[str, Any]:
    os.environ["TUTTI_HOST_ID"] = f"host-{layout[RANK]}"
    os.environ["TUTTI_PLAN_PATH"] = os.path.join(os.environ["PLANS"], layout)
    wanting = WANTS[want[0]](*want[1:])
    errors: list[BaseException] = []
    begun = time.monotonic()
    ended = "right"
    try:
        use(lambda: FACES[face](dist.PrefixStore(name, store), limit_s), wanting, errors)
    except AssertionError:
        ended = "wrong"
    except Exception:
        ended = "raised"
    texts = [f"{type(error).__name__}: {error}" for error in errors]
    errors.clear()
    gc.collect()
    return {"ended": ended, "errors": texts, "seconds": round(time.monotonic() - begun, 3), **wanting.report()}


def main() -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))
    host, port = os.environ["STORE"].split(":")
    store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
    for line in sys.stdin:
        print(json.dumps(play(store, **json.loads(line))), flush=True)


main()
