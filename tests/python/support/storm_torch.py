"""``torch.distributed`` under storm_rank.py: a default group of backend tutti."""

from __future__ import annotations

import errno
import gc
import importlib
import json
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
from forked_calls import refused
from storm_faces import FOLDER, LIMIT_S, MAPPED, OF_ANY, PATIENCE_S, SEED, SHRINK_S, VICTIM, Face, Later, same

import tutti


class Functional:
    """The result of a functional collective, waited for as a work is."""

    def __init__(self, calls: Any, result: Any) -> None:
        self.calls, self.result = calls, result

    def wait(self) -> None:
        self.result = self.calls.wait_tensor(self.result)


class Torch(Later):
    """A default group of ``torch.distributed``."""

    kinds = (*Face.kinds, "uneven", "uneven_lists", "coalesced", "batch", "objects", "functional", "monitored", *OF_ANY)
    kinds += ("given_algorithms", "comm_group")

    def __init__(self) -> None:
        import torch.distributed as dist

        # Loaded late, else: there may be no descriptors for it then.
        for name in ("torch.distributed._functional_collectives", "tutti.dist.report"):
            importlib.import_module(name)
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
        out = [self.empty(count) for _ in range(self.size)]
        check = lambda: same(self.torch.cat(out), *(r + 1 for r in range(self.size)))  # noqa: E731
        self.begin("all_gather", out, self.give(self.full(count)), check=check)

    def all_to_all(self, count: int) -> None:
        x = self.give(self.full(count, *(r + 10 * self.rank for r in range(self.size))))
        out = self.empty(self.size * count)
        check = lambda: same(out, *(10 * r + self.rank for r in range(self.size)))  # noqa: E731
        self.begin("all_to_all_single", out, x, check=check)

    def uneven(self, count: int) -> None:
        """Rank r sends r + 1 parts to each, so it gets as many from each as that one's number says."""
        n, mine = self.size, self.rank + 1
        x, out = self.give(self.full(n * count * mine, self.rank)), self.empty(count * n * (n + 1) // 2)
        check = lambda: same(out, *(r for r in range(n) for _ in range(r + 1)))  # noqa: E731
        self.begin("all_to_all_single", out, x, [count * (r + 1) for r in range(n)], [count * mine] * n, check=check)

    def uneven_lists(self, count: int) -> None:
        """Rank r gives r + 1 parts to all, and gets as many of a sum."""
        if self.shared.random() < 0.5:
            out = [self.empty(count * (r + 1)) for r in range(self.size)]
            x = self.give(self.full(count * (self.rank + 1), self.rank))
            check = lambda: [same(part, r) for r, part in enumerate(out)]  # noqa: E731
            self.begin("all_gather", out, x, check=check)
        else:
            mine, parts = self.empty(count * (self.rank + 1)), [self.full(count * (r + 1)) for r in range(self.size)]
            for part in parts:
                self.give(part)
            self.begin("reduce_scatter", mine, parts, check=lambda: same(mine, self.sum))

    def functional(self, count: int) -> None:
        """By torch's operators: the functions around them load half of torch, at the first call."""
        group, kind = (self.group or self.dist.group.WORLD).group_name, self.shared.randrange(4)
        x = self.give(self.full(count, *(r + self.rank for r in range(self.size))))
        calls, sums = self.torch.ops._c10d_functional, self.size * (self.size - 1) / 2
        wanted: list[float]
        if kind == 0:
            result = calls.all_reduce(x, "sum", group)
            wanted = [self.size * r + sums for r in range(self.size)]
        elif kind == 1:
            result = calls.all_gather_into_tensor(x, self.size, group)
            wanted = [a + b for a in range(self.size) for b in range(self.size)]
        elif kind == 2:
            result, wanted = calls.reduce_scatter_tensor(x, "sum", self.size, group), [self.size * self.rank + sums]
        else:
            sizes = [count] * self.size
            result, wanted = calls.all_to_all_single(x, sizes, sizes, group), [r + self.rank for r in range(self.size)]
        work = Functional(calls, result)
        self.finish(work, lambda: same(work.result, *wanted))

    def monitored(self, count: int) -> None:
        self.await_all()
        tutti.monitored_barrier(self.group, wait_all_ranks=self.shared.random() < 0.5)

    def of_any(self, count: int) -> None:
        """Rank 0 takes what comes, whoever sends it. A tag each time: who is early may be at the next."""
        self.turn += 1
        if self.rank != 0:
            x = self.give(self.full(count))
            self.finish(self.dist.isend(x, group=self.group, group_dst=0, tag=self.turn), lambda: None)
            return
        group = self.group or self.dist.group.WORLD
        for _ in range(1, self.size):
            out = self.empty(count)
            source = self.dist.recv(out, group=self.group, tag=self.turn)
            same(out, self.dist.get_group_rank(group, source) + 1)

    def given_algorithms(self, count: int) -> None:
        self.own_algorithms(self.group or self.dist.group.WORLD, count)

    def comm_group(self, count: int) -> None:
        """Of the group's ranks, for arrays: algorithms and messages of its own."""
        self.await_all()
        everyone = list(range(self.size))
        make = lambda: tutti.CommGroup(torch_group=self.group or self.dist.group.WORLD, timeout=PATIENCE_S)  # noqa: E731
        comm = self.all_or_none(everyone, make)
        if comm is None:
            return
        x, out = self.give(self.full(count)), self.empty(count * self.size)
        try:
            self.algorithm("allgather", False)[0].execute(comm, x, out)
            same(out, *(r + 1 for r in range(self.size)))
            ran = True
        except (ValueError, NotImplementedError) as error:  # for want of descriptors for the memory of others
            assert "only port channels" in str(error) or "map each other's memory" in str(error), error
            ran = False
        assert self.votes(ran) in (0, self.size)
        sent, got = np.full(count, float(self.rank)), np.empty(count)
        if self.rank == 0:
            comm.recv(got, 1, 5)
            same(got, 1)
        elif self.rank == 1:
            comm.send(sent, 0, 5)
        comm.barrier()
        comm.communicator.close()

    def reduce(self, count: int) -> None:
        x, root = self.full(count), count % self.size
        check = lambda: same(x, self.sum) if root == self.rank else None  # noqa: E731
        self.begin("reduce", x, group_dst=root, check=check)

    def reduce_scatter(self, count: int) -> None:
        x = self.give(self.full(count, *(r + self.rank for r in range(self.size))))
        out, wanted = self.empty(count), self.size * self.rank + self.size * (self.size - 1) / 2
        self.begin("reduce_scatter_tensor", out, x, check=lambda: same(out, wanted))

    def gather(self, count: int) -> None:
        root, wanted = count % self.size, [r + 1 for r in range(self.size)]
        out = [self.empty(count) for _ in range(self.size)] if root == self.rank else None
        check = lambda: same(self.torch.cat(out), *wanted) if out else None  # noqa: E731
        self.begin("gather", self.give(self.full(count)), out, group_dst=root, check=check)

    def scatter(self, count: int) -> None:
        out, root = self.empty(count), count % self.size
        parts = [self.give(self.full(count, r + 1)) for r in range(self.size)] if root == self.rank else None
        self.begin("scatter", out, parts, group_src=root, check=lambda: same(out, self.rank + 1))

    def messages(self, count: int) -> None:
        x, out, before = self.give(self.full(count, self.rank)), self.empty(count), (self.rank - 1) % self.size
        receive = self.dist.irecv(out, group=self.group, group_src=before)
        send = self.dist.isend(x, group=self.group, group_dst=(self.rank + 1) % self.size)
        self.finish(send, lambda: same(x, self.rank))
        self.finish(receive, lambda: same(out, before))

    def batch(self, count: int) -> None:
        """To every other rank and from each, by messages of several lengths."""
        others = [r for r in range(self.size) if r != self.rank]
        out = {(r, k): self.empty(count + k) for r in others for k in range(3)}
        operation = self.dist.P2POp
        todo = [operation(self.dist.irecv, to, group=self.group, group_peer=r) for (r, k), to in out.items()]
        sent = [self.give(self.full(count + k, 10 * self.rank + k)) for k in range(3)]
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
        out = [self.empty((count + k) * self.size) for k in range(3)]
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
        assert tutti.get_metrics()["rescued_waits"] == 0
        self.pending.clear()
        self.group, members = tutti.shrink(timeout=SHRINK_S)
        self.rank, self.size = self.dist.get_rank(self.group), self.dist.get_world_size(self.group)
        return members

    def in_child(self, what: int) -> None:
        self.dist.distributed_c10d._world.pg_coalesce_state.clear()  # of the parent: calls would only be noted down
        if what == 0:
            self.scribble()
            # A handler may run amid what PyTorch does on tensors without memory, whose calls go nowhere.
            with self.torch.utils._python_dispatch._disable_current_modes():
                refused(lambda: self.dist.all_reduce(self.torch.ones(3)))
                refused(lambda: self.dist.isend(self.torch.ones(3), (self.rank + 1) % self.size))
        elif what == 1:
            tutti.abort()
            self.dist.destroy_process_group()
        else:
            time.sleep(0.005)  # whatever its parent does with them now
            self.unchanged()

    def look(self, chooser: random.Random) -> None:
        """What a file takes a descriptor for that there is none for is not told."""
        group = self.group
        metrics, record = tutti.get_metrics(group), json.loads(tutti.flight_record(group))
        self.check_record(record, metrics)
        explained = tutti.get_communicator(group).explain("all_reduce", chooser.randrange(1, 1000))
        assert explained.startswith("->") or "-> " in explained, explained
        info, stats = tutti.group_info(group), tutti.arena_stats()
        assert (info.rank, info.size) == (self.rank, self.size), info
        assert stats["in_use"] + stats["cached"] + stats["quarantined"] <= stats["bytes"], stats
        if VICTIM < 0:
            assert (info.failure, tutti.get_error(group)) == (None, ("success", None)), info
        try:
            tutti.dump_flight_record(FOLDER / "record {rank}", group)
            if record["entries"]:
                tutti.dump_flight_trace(FOLDER / "trace", group)
        except OSError as error:
            assert error.errno in (errno.EMFILE, errno.ENFILE), error

    def ended(self) -> None:
        """Mapped memory is given back."""
        self.made.clear()
        self.given.clear()
        self.held.clear()
        gc.collect()
        stats = tutti.arena_stats()
        assert (stats["bytes"] > 0) >= MAPPED, stats
        # What a failed group has used may stay: who wakes late may write there.
        assert VICTIM >= 0 or stats["in_use"] == stats["quarantined"] == 0, f"seed {SEED}: {stats}"

    def metrics(self) -> Any:
        return tutti.get_metrics(self.group)

    def close(self) -> None:
        self.dist.destroy_process_group()
