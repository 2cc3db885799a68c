"""The faces of Tutti under storm_rank.py: on each the same calls, of which every result is checked.

A face has a method for each kind of call, with a count that all ranks draw alike. What those that make groups need
beside it, they draw from ``shared``, alike on all ranks, too.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from forked_calls import refused

import tutti

SEED = int(os.environ["STORM_SEED"])
FOLDER = Path(os.environ["STORM_FOLDER"])  # that all ranks share
LIMIT_S = 50.0
VICTIM = int(os.environ["STORM_VICTIM"])
HEARD_S = 20.0  # far below LIMIT_S: what is known so soon was found by looking, not by waiting
# With a death: a shrink of a part waits so long for a rank that has no descriptors or has heard of the death before it,
# and as long again where one has signed in.
ALONE_S = 5.0
PATIENCE_S = LIMIT_S if VICTIM < 0 else ALONE_S
# When the victim has died, which nobody sees that is alone on its host: until survivors have left such a shrink.
SHRINK_S = 2 * ALONE_S + 2 if os.environ["STORM_ALONE"] == "yes" else LIMIT_S
# A group that does not form for want of these says so.
WANT = re.compile(r"descriptor|ulimit -n|Too many open files", re.IGNORECASE)


def same(got: Any, *wanted: float) -> None:
    """Blocks of one value each."""
    blocks = np.asarray(got.cpu() if hasattr(got, "cpu") else got).reshape(len(wanted), -1)
    assert (blocks == np.array(wanted).reshape(-1, 1)).all(), f"seed {SEED}: {blocks[:, :4]} for {wanted}"


def carried(name: str, make: Callable[[], bytes], maker: bool) -> bytes:
    """What one rank makes, taken to the others by a file, as launchers carry an id."""
    path = FOLDER / name
    if maker:
        made = make()
        path.with_suffix(".part").write_bytes(made)
        path.with_suffix(".part").rename(path)
        return made
    end = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < end, f"nobody has made {name}"
        time.sleep(0.001)
    return path.read_bytes()


class Face:
    """What all have in common. ``rank`` and ``size`` are those in ``group``, which shrinks by a death."""

    kinds: tuple[str, ...] = ("all_reduce", "all_reduce", "broadcast", "all_gather", "all_to_all", "messages")
    kinds += ("barrier", "reduce", "reduce_scatter", "gather", "scatter", "part", "smaller")

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.formed = {True: 0, False: 0}
        self.of: list[int] = []  # of the group that this call has made: errors of that name its ranks by their places
        self.begin_anew()

    def begin_anew(self) -> None:
        """What all ranks have alike: those that survive a death may have come further one than another."""
        self.shared, self.turn = random.Random(SEED + 2), 0

    @property
    def sum(self) -> float:
        return self.size * (self.size + 1) / 2

    def here(self, count: int) -> Any:
        return np.full(count, self.rank + 1.0)

    def await_all(self) -> None:
        """Faces whose calls may be waited for later do so."""

    def metrics(self) -> Any:
        return None

    def all_or_none(self, of: list[int], make: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> Any:
        """A group of these ranks forms on all of them or on none, and then each names what was wanting."""
        made, why, self.of = None, "", of
        try:
            made = make() if self.rank in of else otherwise()
        except (RuntimeError, ValueError) as error:
            why = str(error)
            if not WANT.search(why):
                raise
        have = self.votes(self.rank in of and not why)
        assert have in (0, len(of)), f"seed {SEED}: {have} of ranks {of} have formed a group; here: {why or 'formed'}"
        self.formed[have > 0] += 1
        return made if self.rank in of else None

    def votes(self, yes: bool) -> int:
        """How many ranks have said yes."""
        raise NotImplementedError

    def none_is_missing(self, members: list[int]) -> None:
        gone = set(range(self.size)) - set(members)
        assert not gone or gone == {VICTIM}, f"seed {SEED}: {members}"

    def some_ranks(self) -> list[int]:
        return sorted(self.shared.sample(range(self.size), self.shared.randrange(1, self.size + 1)))


class Arrays(Face):
    """``tutti.Communicator`` on arrays."""

    def __init__(self) -> None:
        self.comm = self.open()
        super().__init__(self.comm.rank, self.comm.size)

    def open(self) -> Any:
        self.has_store = True  # rank 0 lives, which serves it
        return tutti.Communicator(timeout=LIMIT_S)

    def make_id(self, address: str = "") -> bytes:
        return tutti.make_id(address)

    def all_reduce(self, count: int) -> None:
        same(self.comm.all_reduce(self.here(count).astype(np.float32)), self.sum)

    def broadcast(self, count: int) -> None:
        same(self.comm.broadcast(self.here(count), root=count % self.size), count % self.size + 1)

    def all_gather(self, count: int) -> None:
        out = self.comm.all_gather(self.here(count), np.empty(self.size * count))
        same(out, *(r + 1 for r in range(self.size)))

    def all_to_all(self, count: int) -> None:
        x = np.repeat(np.arange(self.size), count) + 10.0 * self.rank
        out = self.comm.all_to_all(x, np.empty(self.size * count))
        same(out, *(10 * r + self.rank for r in range(self.size)))

    def reduce(self, count: int) -> None:
        x, root = self.here(count), count % self.size
        self.comm.reduce(x, root=root)
        if root == self.rank:
            same(x, self.sum)

    def reduce_scatter(self, count: int) -> None:
        x = np.repeat(np.arange(self.size), count) + 1.0 * self.rank
        out = self.comm.reduce_scatter(x, np.empty(count))
        same(out, self.size * self.rank + self.size * (self.size - 1) / 2)

    def gather(self, count: int) -> None:
        root = count % self.size
        out = np.empty(self.size * count) if root == self.rank else None
        self.comm.gather(self.here(count), out, root)
        if out is not None:
            same(out, *(r + 1 for r in range(self.size)))

    def scatter(self, count: int) -> None:
        root = count % self.size
        parts = np.repeat(np.arange(self.size) + 1.0, count) if root == self.rank else None
        same(self.comm.scatter(parts, np.empty(count), root), self.rank + 1)

    def messages(self, count: int) -> None:
        x, out = np.full(count, float(self.rank)), np.empty(count)
        before = (self.rank - 1) % self.size
        for send in (True, False) if self.rank == 0 else (False, True):
            if send:
                self.comm.send(x, (self.rank + 1) % self.size)
            else:
                assert self.comm.recv(out, before) == before
        same(out, before)

    def barrier(self, count: int) -> None:
        self.comm.barrier()

    def votes(self, yes: bool) -> int:
        return int(self.comm.all_reduce(np.array([float(yes)]))[0])

    def part(self, count: int) -> None:
        of = self.some_ranks()
        part = self.all_or_none(of, lambda: self.comm.split(0), lambda: self.comm.split(None))
        if part is not None:
            same(part.all_reduce(self.here(count)), sum(r + 1 for r in of))
            part.close()

    def smaller(self, count: int) -> None:
        everyone = list(range(self.size))
        part = self.all_or_none(everyone, lambda: self.comm.split(0))
        id = None if self.has_store and self.shared.random() < 0.5 else self.new_id()
        smaller = None
        if part is not None and id != b"":
            smaller = self.all_or_none(everyone, lambda: part.shrink(id, timeout=PATIENCE_S))
        if smaller is not None:
            self.none_is_missing(smaller[1])
            same(smaller[0].all_reduce(self.here(count)), sum(r + 1 for r in smaller[1]))
            smaller[0].close()
        if part is not None:
            part.close()

    def new_id(self) -> bytes:
        """Made by a rank that all draw; empty where that has no descriptors for it."""
        maker, id = self.shared.randrange(self.size), b""
        if self.rank == maker:
            try:
                id = self.make_id("localhost")
            except RuntimeError as error:
                assert WANT.search(str(error)), error
        told = np.frombuffer(id.ljust(128, bytes(1)), np.uint8).copy()
        told = self.comm.broadcast(told, root=maker)
        return bytes(told) if told.any() else b""

    def survive(self) -> list[int]:
        self.has_store = self.has_store and VICTIM != 0
        lowest = min(r for r in range(self.size) if r != VICTIM)
        self.comm.abort("the group is being shrunk")  # one that heard of the death in a part is awaited in the group
        id = carried("survivors", self.make_id, self.rank == lowest)
        self.comm, members = self.comm.shrink(id, timeout=SHRINK_S)
        self.rank, self.size = self.comm.rank, self.comm.size
        return members

    def in_child(self, what: int) -> None:
        if what == 0:
            refused(lambda: self.comm.all_reduce(np.ones(3)))
            refused(lambda: self.comm.send(np.ones(3), (self.rank + 1) % self.size))
            refused(lambda: self.comm.split(0))
        elif what == 1:
            self.comm.abort("the child's")
            self.comm.close()

    def metrics(self) -> Any:
        return self.comm.metrics()

    def close(self) -> None:
        self.comm.close()


class Later(Face):
    """On tensors; calls may be waited for later."""

    def __init__(self, rank: int, size: int) -> None:
        import torch

        self.torch = torch
        super().__init__(rank, size)
        self.chooser = random.Random(SEED + 1)
        self.pending: list[tuple[Any, Callable[[], None]]] = []

    def full(self, count: int, value: float | None = None) -> Any:
        return self.torch.full((count,), self.rank + 1.0 if value is None else float(value))

    def finish(self, work: Any, check: Callable[[], None]) -> None:
        self.pending.append((work, check))
        if self.chooser.random() < 0.5:
            self.await_all()

    def await_all(self) -> None:
        while self.pending:
            work, check = self.pending.pop()
            work.wait()
            check()


class Torch(Later):
    """A default group of ``torch.distributed``."""

    kinds = (*Face.kinds, "uneven", "coalesced", "batch", "objects")

    def __init__(self) -> None:
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group("tutti", timeout=timedelta(seconds=LIMIT_S))
        super().__init__(dist.get_rank(), dist.get_world_size())
        self.group: Any = None

    def begin(self, name: str, *arguments: Any, check: Callable[[], None] = lambda: None, **options: Any) -> None:
        self.finish(getattr(self.dist, name)(*arguments, group=self.group, async_op=True, **options), check)

    def all_reduce(self, count: int) -> None:
        x = self.full(count)
        self.begin("all_reduce", x, check=lambda: same(x, self.sum))

    def broadcast(self, count: int) -> None:
        x, root = self.full(count), count % self.size
        self.begin("broadcast", x, group_src=root, check=lambda: same(x, root + 1))

    def all_gather(self, count: int) -> None:
        out = [self.torch.empty(count) for _ in range(self.size)]
        check = lambda: same(self.torch.cat(out), *(r + 1 for r in range(self.size)))  # noqa: E731
        self.begin("all_gather", out, self.full(count), check=check)

    def all_to_all(self, count: int) -> None:
        x = self.torch.arange(self.size).repeat_interleave(count) + 10.0 * self.rank
        out = self.torch.empty(self.size * count)
        check = lambda: same(out, *(10 * r + self.rank for r in range(self.size)))  # noqa: E731
        self.begin("all_to_all_single", out, x, check=check)

    def uneven(self, count: int) -> None:
        """Rank r sends r + 1 parts to each, so it gets as many from each as that one's number says."""
        n, mine = self.size, self.rank + 1
        x, out = self.full(n * count * mine, self.rank), self.torch.empty(count * n * (n + 1) // 2)
        check = lambda: same(out, *(r for r in range(n) for _ in range(r + 1)))  # noqa: E731
        self.begin("all_to_all_single", out, x, [count * (r + 1) for r in range(n)], [count * mine] * n, check=check)

    def reduce(self, count: int) -> None:
        x, root = self.full(count), count % self.size
        check = lambda: same(x, self.sum) if root == self.rank else None  # noqa: E731
        self.begin("reduce", x, group_dst=root, check=check)

    def reduce_scatter(self, count: int) -> None:
        x = self.torch.arange(self.size).repeat_interleave(count) + 1.0 * self.rank
        out, wanted = self.torch.empty(count), self.size * self.rank + self.size * (self.size - 1) / 2
        self.begin("reduce_scatter_tensor", out, x, check=lambda: same(out, wanted))

    def gather(self, count: int) -> None:
        root, wanted = count % self.size, [r + 1 for r in range(self.size)]
        out = [self.torch.empty(count) for _ in range(self.size)] if root == self.rank else None
        check = lambda: same(self.torch.cat(out), *wanted) if out else None  # noqa: E731
        self.begin("gather", self.full(count), out, group_dst=root, check=check)

    def scatter(self, count: int) -> None:
        out, root = self.torch.empty(count), count % self.size
        parts = [self.full(count, r + 1.0) for r in range(self.size)] if root == self.rank else None
        self.begin("scatter", out, parts, group_src=root, check=lambda: same(out, self.rank + 1))

    def messages(self, count: int) -> None:
        x, out, before = self.full(count, self.rank), self.torch.empty(count), (self.rank - 1) % self.size
        receive = self.dist.irecv(out, group=self.group, group_src=before)
        send = self.dist.isend(x, group=self.group, group_dst=(self.rank + 1) % self.size)
        self.finish(send, lambda: same(x, self.rank))
        self.finish(receive, lambda: same(out, before))

    def batch(self, count: int) -> None:
        """To every other rank and from each, by messages of several lengths."""
        others = [r for r in range(self.size) if r != self.rank]
        out = {(r, k): self.torch.empty(count + k) for r in others for k in range(3)}
        operation = self.dist.P2POp
        todo = [operation(self.dist.irecv, to, group=self.group, group_peer=r) for (r, k), to in out.items()]
        sent = [self.full(count + k, 10 * self.rank + k) for k in range(3)]
        todo += [operation(self.dist.isend, sent[k], group=self.group, group_peer=r) for r, k in out]
        works = self.dist.batch_isend_irecv(todo) if todo else []
        for work in works:
            self.finish(work, lambda: None)
        self.await_all()
        for (r, k), got in out.items():
            same(got, 10 * r + k)

    def coalesced(self, count: int) -> None:
        """Several calls as one."""
        kind = self.shared.randrange(3)
        x = [self.full(count + k, self.rank + 1.0 + k) for k in range(3)]
        out = [self.torch.empty((count + k) * self.size) for k in range(3)]
        with self.dist._coalescing_manager(self.group, async_ops=True) as manager:
            for k in range(3):
                if kind == 0:
                    self.dist.all_reduce(x[k], group=self.group)
                elif kind == 1:
                    self.dist.all_gather_into_tensor(out[k], x[k], group=self.group)
                else:
                    wide = x[k].repeat(self.size)
                    self.dist.reduce_scatter_tensor(x[k], wide, group=self.group)

        def check() -> None:
            for k in range(3):
                if kind == 1:
                    same(out[k], *(r + 1 + k for r in range(self.size)))
                else:
                    same(x[k], self.sum + k * self.size)

        self.finish(manager, check)

    def objects(self, count: int) -> None:
        out = [None] * self.size
        self.await_all()
        self.dist.all_gather_object(out, {"rank": self.rank, "text": "x" * (count % 3000)}, group=self.group)
        assert out == [{"rank": r, "text": "x" * (count % 3000)} for r in range(self.size)], f"seed {SEED}: {out}"

    def barrier(self, count: int) -> None:
        self.begin("barrier")

    def votes(self, yes: bool) -> int:
        self.await_all()
        x = self.full(1, float(yes))
        self.dist.all_reduce(x, group=self.group)
        return int(x)

    def part(self, count: int) -> None:
        """By new_group, which all call, or by a split."""
        if self.group is not None:
            return  # new_group takes ranks of the default group
        of, split = self.some_ranks(), self.shared.random() < 0.5
        make = (lambda: tutti.split_group([of])) if split else (lambda: self.dist.new_group(of))
        part = self.all_or_none(of, make, make)
        if part is not None:
            x = self.full(count)
            self.dist.all_reduce(x, group=part)
            same(x, sum(r + 1 for r in of))
            self.dist.destroy_process_group(part)

    def smaller(self, count: int) -> None:
        if self.group is not None:
            return
        everyone = list(range(self.size))
        part = self.all_or_none(everyone, self.dist.new_group)
        smaller = self.all_or_none(everyone, lambda: tutti.shrink(part, PATIENCE_S)) if part is not None else None
        if smaller is not None:
            self.none_is_missing(smaller[1])
            x = self.full(count)
            self.dist.all_reduce(x, group=smaller[0])
            same(x, sum(r + 1 for r in smaller[1]))
            self.dist.destroy_process_group(smaller[0])
        if part is not None:
            self.dist.destroy_process_group(part)

    def survive(self) -> list[int]:
        self.pending.clear()
        self.group, members = tutti.shrink(timeout=SHRINK_S)
        self.rank, self.size = self.dist.get_rank(self.group), self.dist.get_world_size(self.group)
        return members

    def in_child(self, what: int) -> None:
        self.dist.distributed_c10d._world.pg_coalesce_state.clear()  # of the parent: calls would only be noted down
        if what == 0:
            refused(lambda: self.dist.all_reduce(self.torch.ones(3)))
            refused(lambda: self.dist.isend(self.torch.ones(3), (self.rank + 1) % self.size))
        elif what == 1:
            tutti.abort()
            self.dist.destroy_process_group()

    def metrics(self) -> Any:
        return tutti.get_metrics()

    def close(self) -> None:
        self.dist.destroy_process_group()
