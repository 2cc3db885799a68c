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
from pathlib import Path
from typing import Any

import numpy as np
from forked_calls import refused

import tutti
import tutti.algorithms.buffers  # and what else is loaded late: there may be no descriptors for it then
import tutti.algorithms.builder
import tutti.algorithms.compiler
import tutti.algorithms.executor
import tutti.algorithms.group
from tutti.language import AlgoSpec, AllGather, AllReduce
from tutti.language.builtins import BUILTINS

ANY_SOURCE = -1
SEED = int(os.environ["STORM_SEED"])
FOLDER = Path(os.environ["STORM_FOLDER"])  # that all ranks share
MAPPED = os.environ["STORM_MAPPED"] == "yes"
GROUPS = [int(ranks) for ranks in os.environ["STORM_GROUPS"].split(",")]  # how many ranks each host has
LIMIT_S = 50.0
VICTIM = int(os.environ["STORM_VICTIM"])
HEARD_S = 20.0  # far below LIMIT_S: what is known so soon was found by looking, not by waiting
# With a death: a shrink of a part waits so long for a rank that has no descriptors or has heard of the death before it,
# and as long again where one has signed in.
ALONE_S = 5.0
PATIENCE_S = LIMIT_S if VICTIM < 0 else ALONE_S
# When the victim has died, which nobody sees that is alone on its host: until survivors have left such a shrink.
SHRINK_S = 2 * ALONE_S + 2 if os.environ["STORM_ALONE"] == "yes" else LIMIT_S
# Who waits for anyone, and not for the one on another host that has died, may wait until the deadline.
OF_ANY = ("of_any",) if VICTIM < 0 or len(GROUPS) == 1 else ()
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
        self.hosts = [host for host, ranks in enumerate(GROUPS) for _ in range(ranks)]  # of each rank
        self.own = random.Random(f"{SEED} {rank} memory")
        self.given: list[tuple[Any, Any]] = []  # what calls read and nobody may write, with copies
        self.held: list[tuple[Any, Any]] = []  # what no call has had, with copies
        self.made: dict[Any, Any] = {}
        self.seen = 0
        self.formed = {True: 0, False: 0}
        self.of: list[int] = []  # of the group that this call has made: errors of that name its ranks by their places
        self.begin_anew()

    def begin_anew(self) -> None:
        """What all ranks have alike: those that survive a death may have come further one than another."""
        self.shared, self.turn = random.Random(SEED + 2), 0

    @property
    def sum(self) -> float:
        return self.size * (self.size + 1) / 2

    def is_private(self) -> bool:
        """Whether the next memory is not to be mapped: one in eight, so that ranks differ in some calls."""
        return not MAPPED or self.own.random() < 1 / 8

    def empty(self, count: int, dtype: Any = np.float64) -> Any:
        if self.is_private():
            return np.empty(count, dtype)
        return tutti.RawBuffer(count * np.dtype(dtype).itemsize).numpy(dtype)

    def full(self, count: int, *values: float, dtype: Any = np.float64) -> Any:
        """Blocks of one value each."""
        x = self.empty(count * len(values), dtype)
        x.reshape(len(values), -1)[:] = np.reshape(values, (-1, 1))
        return x

    def here(self, count: int, dtype: Any = np.float64) -> Any:
        return self.full(count, self.rank + 1.0, dtype=dtype)

    def give(self, x: Any) -> Any:
        """What a call only reads."""
        view = np.asarray(x)
        self.given.append((view, np.array(view)))
        return x

    def unchanged(self) -> None:
        """What calls were given to read, and what they were not given, is what it was."""
        for x, copy in [*self.given, *self.held]:
            assert (x == copy).all(), f"seed {SEED}: {np.flatnonzero(x != copy)[:4]} of {x.size} have changed"

    def scribble(self) -> None:
        """In a child: what the parent gave to calls, and what it has beside, is the child's own."""
        for x, _ in [*self.given, *self.held]:
            x[:1000] = -7

    def forget(self) -> None:
        """The calls that were under way when one failed."""

    def hold(self) -> None:
        """Where the memory of failed calls was, perhaps: who has not heard of the failure yet does not write there."""
        for count in (1, 1000, 5000, 60_000, 300_000) * 2:
            x = np.asarray(self.full(count, self.own.random()))
            self.held.append((x, np.array(x)))

    def look(self, chooser: random.Random) -> None:
        """Reads what the group says of itself, at any moment, in another thread."""

    def ended(self) -> None:
        """Once the group is closed."""

    def algorithm(self, kind: str, in_place: bool) -> Any:
        """A program of our own: a ring on one host, one of two levels on several."""
        key = (kind, in_place, *self.hosts)
        if key not in self.made:
            groups = tuple(self.hosts.count(host) for host in sorted(set(self.hosts)))
            spec = AlgoSpec(
                "own",
                {"allreduce": AllReduce, "allgather": AllGather}[kind](self.size, 1, in_place),
                tags={"groups": groups} if len(groups) > 1 else {},
            )
            program = BUILTINS[kind, "ring" if len(groups) == 1 else "two_level"]
            self.made[key] = tutti.compile(algo=program, algo_spec=spec, rank=self.rank), program(spec).to_json()
        return self.made[key]

    def own_algorithms(self, target: Any, count: int) -> None:
        """Ordinary calls by algorithms that the program gives, and takes back."""
        builder = tutti.AlgorithmCollectionBuilder(target)
        builder.add_algorithm_builder(self.algorithm("allgather", False)[0])
        builder.add_algorithm_builder(self.algorithm("allreduce", True)[0])
        if self.shared.random() < 0.5:
            builder.set_algorithm_selector(lambda known, request: known.get(request.collective, {}).get("own"))
        builder.build()
        for kind in ("all_gather", "all_reduce", "broadcast"):
            getattr(self, kind)(count)
        builder.reset()

    def check_record(self, record: dict[str, Any], metrics: Any) -> None:
        calls = [entry["record_id"] for entry in record["entries"]]
        assert calls == sorted(calls), f"seed {SEED}: {calls}"
        seen = sum(row["calls"] for row in metrics["rows"])
        assert seen >= self.seen, f"seed {SEED}: {seen} calls after {self.seen}"
        self.seen = seen

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

    kinds = (*Face.kinds, "own_algorithm", "own_algorithm", "given_algorithms", *OF_ANY)

    def __init__(self) -> None:
        self.comm = self.open()
        super().__init__(self.comm.rank, self.comm.size)

    def open(self) -> Any:
        self.has_store = True  # rank 0 lives, which serves it
        if SEED % 2:
            return tutti.CommGroup(timeout=LIMIT_S).communicator
        return tutti.Communicator(timeout=LIMIT_S)

    def make_id(self, address: str = "") -> bytes:
        return tutti.make_id(address)

    def all_reduce(self, count: int) -> None:
        same(self.comm.all_reduce(self.here(count, np.float32)), self.sum)
        out = self.empty(count)
        same(self.comm.all_reduce(self.give(self.here(count)), out), self.sum)

    def broadcast(self, count: int) -> None:
        same(self.comm.broadcast(self.here(count), root=count % self.size), count % self.size + 1)

    def all_gather(self, count: int) -> None:
        out = self.comm.all_gather(self.give(self.here(count)), self.empty(self.size * count))
        same(out, *(r + 1 for r in range(self.size)))

    def all_to_all(self, count: int) -> None:
        x = self.give(self.full(count, *(r + 10 * self.rank for r in range(self.size))))
        out = self.comm.all_to_all(x, self.empty(self.size * count))
        same(out, *(10 * r + self.rank for r in range(self.size)))

    def reduce(self, count: int) -> None:
        x, root = self.here(count), count % self.size
        self.comm.reduce(x, root=root)
        if root == self.rank:
            same(x, self.sum)

    def reduce_scatter(self, count: int) -> None:
        x = self.give(self.full(count, *(r + self.rank for r in range(self.size))))
        out = self.comm.reduce_scatter(x, self.empty(count))
        same(out, self.size * self.rank + self.size * (self.size - 1) / 2)

    def gather(self, count: int) -> None:
        root = count % self.size
        out = self.empty(self.size * count) if root == self.rank else None
        self.comm.gather(self.give(self.here(count)), out, root)
        if out is not None:
            same(out, *(r + 1 for r in range(self.size)))

    def scatter(self, count: int) -> None:
        root = count % self.size
        parts = self.give(self.full(count, *(r + 1 for r in range(self.size)))) if root == self.rank else None
        same(self.comm.scatter(parts, self.empty(count), root), self.rank + 1)

    def messages(self, count: int) -> None:
        x, out = self.give(self.full(count, self.rank)), self.empty(count)
        before = (self.rank - 1) % self.size
        for send in (True, False) if self.rank == 0 else (False, True):
            if send:
                self.comm.send(x, (self.rank + 1) % self.size)
            else:
                assert self.comm.recv(out, before) == before
        same(out, before)

    def of_any(self, count: int) -> None:
        """Rank 0 takes what comes, whoever sends it. A tag each time: who is early may be at the next."""
        self.turn += 1
        if self.rank != 0:
            self.comm.send(self.give(self.here(count)), 0, self.turn)
            return
        out = self.empty(count)
        for _ in range(1, self.size):
            same(out, self.comm.recv(out, ANY_SOURCE, self.turn) + 1)

    def algorithm_by(self, kind: str, x: Any, out: Any) -> None:
        """By the algorithm, or by an executor and the text of its plan."""
        algorithm, text = self.algorithm(kind, out is x)
        if self.shared.random() < 0.5:
            algorithm.execute(self.comm, x, out)
            return
        plan = tutti.ExecutionPlan.from_text(text, self.rank)
        tutti.Executor(self.comm).execute(self.rank, x, out, plan=plan)

    def own_algorithm(self, count: int) -> None:
        if self.shared.random() < 0.5:
            x = self.here(count, np.float32)
            self.algorithm_by("allreduce", x, x)
            same(x, self.sum)
        else:
            out = self.empty(self.size * count)
            self.algorithm_by("allgather", self.give(self.here(count)), out)
            same(out, *(r + 1 for r in range(self.size)))

    def given_algorithms(self, count: int) -> None:
        self.own_algorithms(self.comm, count)

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

    def look(self, chooser: random.Random) -> None:
        self.check_record(self.comm.flight_record(), self.comm.metrics())

    def in_child(self, what: int) -> None:
        if what == 0:
            self.scribble()
            refused(lambda: self.comm.all_reduce(np.ones(3)))
            refused(lambda: self.comm.send(np.ones(3), (self.rank + 1) % self.size))
            refused(lambda: self.comm.split(0))
        elif what == 1:
            self.comm.abort("the child's")
            self.comm.close()
        else:
            time.sleep(0.005)  # whatever its parent does with them now
            self.unchanged()

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

    def empty(self, count: int, dtype: Any = None) -> Any:
        """Mapped by the allocator that the environment asks for."""
        if MAPPED and self.is_private():
            return self.torch.from_numpy(np.empty(count, np.float32))
        return self.torch.empty(count)

    def full(self, count: int, *values: float | None, dtype: Any = None) -> Any:
        values = values or (self.rank + 1.0,)
        x = self.empty(count * len(values))
        x.numpy().reshape(len(values), -1)[:] = np.reshape(values, (-1, 1))
        return x

    def forget(self) -> None:
        self.pending.clear()

    def finish(self, work: Any, check: Callable[[], None]) -> None:
        self.pending.append((work, check))
        if self.chooser.random() < 0.5:
            self.await_all()

    def await_all(self) -> None:
        while self.pending:
            work, check = self.pending.pop()
            work.wait()
            check()
