"""TorchComms under storm_rank.py: a communicator of torchcomms, or of the stand-in for it (torchcomms_interface.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from forked_calls import refused
from storm_faces import LIMIT_S, PATIENCE_S, SEED, VICTIM, Face, Later, carried, same
from torch.distributed import PrefixStore, rendezvous
from torchcomms_interface import CPU, interface

AFTER_THE_DEATH = 1_000_000  # a number that no other reconfiguration has


class Comms(Later):
    """A communicator, which is reconfigured where others shrink."""

    kinds = (*Face.kinds, "uneven", "batch", "window", "persistent")

    def __init__(self) -> None:
        super().__init__(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        self.sum_of = interface().ReduceOp.SUM
        self.comm = interface().new_comm(
            "tutti", CPU, "storm", timeout=timedelta(seconds=LIMIT_S), enable_reconfigure=True, **self.given_store()
        )
        handle = self.comm.get_init_handle().encode()
        self.handles = [carried(f"handle {r}", lambda: handle, r == self.rank).decode() for r in range(self.size)]
        self.number = 0
        self.reconfigure()

    def given_store(self) -> dict[str, Any]:
        self.store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=LIMIT_S)))
        return {"store": PrefixStore("storm", self.store)}

    def reconfigure(self) -> None:
        """All there are, in their order."""
        self.number += 1
        self.comm.reconfigure(self.number, self.handles, timeout=timedelta(seconds=PATIENCE_S)).wait()

    def begin(self, name: str, *arguments: Any, check: Callable[[], None] = lambda: None) -> None:
        self.finish(getattr(self.comm, name)(*arguments, True), check)

    def all_reduce(self, count: int) -> None:
        x = self.full(count)
        self.begin("all_reduce", x, self.sum_of, check=lambda: same(x, self.sum))

    def broadcast(self, count: int) -> None:
        x, root = self.full(count), count % self.size
        self.begin("broadcast", x, root, check=lambda: same(x, root + 1))

    def all_gather(self, count: int) -> None:
        out = [torch.empty(count) for _ in range(self.size)]
        check = lambda: same(torch.cat(out), *(r + 1 for r in range(self.size)))  # noqa: E731
        self.begin("all_gather", out, self.full(count), check=check)

    def all_to_all(self, count: int) -> None:
        x = torch.arange(self.size).repeat_interleave(count) + 10.0 * self.rank
        out = torch.empty(self.size * count)
        check = lambda: same(out, *(10 * r + self.rank for r in range(self.size)))  # noqa: E731
        self.begin("all_to_all_single", out, x, check=check)

    def uneven(self, count: int) -> None:
        """Rank r gives r + 1 parts, and gets its own of what each has."""
        out = [torch.empty(count * (r + 1)) for r in range(self.size)]
        check = lambda: [same(part, r) for r, part in enumerate(out)]  # noqa: E731
        self.begin("all_gather_v", out, self.full(count * (self.rank + 1), self.rank), check=check)
        mine, given = torch.empty(count * (self.rank + 1)), [self.full(count * (r + 1)) for r in range(self.size)]
        self.begin("reduce_scatter_v", mine, given, self.sum_of, check=lambda: same(mine, self.sum))

    def reduce(self, count: int) -> None:
        x, root = self.full(count), count % self.size
        self.begin(
            "reduce", x, root, self.sum_of, check=lambda: same(x, self.sum if root == self.rank else self.rank + 1)
        )

    def reduce_scatter(self, count: int) -> None:
        x = torch.arange(self.size).repeat_interleave(count) + 1.0 * self.rank
        out, wanted = torch.empty(count), self.size * self.rank + self.size * (self.size - 1) / 2
        self.begin("reduce_scatter_single", out, x, self.sum_of, check=lambda: same(out, wanted))

    def gather(self, count: int) -> None:
        root, wanted = count % self.size, [r + 1 for r in range(self.size)]
        out = [torch.empty(count) for _ in range(self.size)] if root == self.rank else []
        check = lambda: same(torch.cat(out), *wanted) if out else None  # noqa: E731
        self.begin("gather", out, self.full(count), root, check=check)

    def scatter(self, count: int) -> None:
        out, root = torch.empty(count), count % self.size
        parts = [self.full(count, r + 1.0) for r in range(self.size)] if root == self.rank else []
        self.begin("scatter", out, parts, root, check=lambda: same(out, self.rank + 1))

    def messages(self, count: int) -> None:
        x, out, before = self.full(count, self.rank), torch.empty(count), (self.rank - 1) % self.size
        send = self.comm.send(x, (self.rank + 1) % self.size, True)
        self.begin("recv", out, before, check=lambda: same(out, before))
        self.finish(send, lambda: same(x, self.rank))

    def batch(self, count: int) -> None:
        """To every other rank and from each, by messages of several lengths."""
        batch, others = self.comm.batch_op_create(), [r for r in range(self.size) if r != self.rank]
        out = {(r, k): torch.empty(count + k) for r in others for k in range(3)}
        sent = [self.full(count + k, 10 * self.rank + k) for k in range(3)]
        for (r, k), to in out.items():
            batch.recv(to, r)
            batch.send(sent[k], r)
        if out:
            self.finish(batch.issue(True), lambda: [same(got, 10 * r + k) for (r, k), got in out.items()])

    def persistent(self, count: int) -> None:
        out = torch.empty(self.size * count)
        gather = self.comm.all_gather_p_init(out)
        for turn in range(3):
            self.comm.all_gather_p_exec(gather, self.full(count, self.rank + turn), turn % 2 == 1).wait()
            same(out, *(r + turn for r in range(self.size)))
        self.comm.all_gather_p_free(gather)

    def window(self, count: int) -> None:
        """What each puts into the next one's is there once it has said so."""
        memory, after, before = torch.zeros(self.size * count), (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self.await_all()
        window = self.all_or_none(list(range(self.size)), lambda: self.comm.new_window(memory))
        if window is None:
            return
        for turn in range(2):
            works = [window.put(self.full(count, self.rank + turn), after, self.rank * count, True)]
            works.append(window.signal(after, True))
            window.wait_signal(before, False)
            same(memory.reshape(self.size, count)[before], before + turn)
            window.signal(before, False)  # it has been read
            window.wait_signal(after, False)
            for work in works:
                work.wait()
        window.tensor_deregister()

    def barrier(self, count: int) -> None:
        self.begin("barrier")

    def votes(self, yes: bool) -> int:
        self.await_all()
        x = self.full(1, float(yes))
        self.comm.all_reduce(x, self.sum_of, False)
        return int(x)

    def part(self, count: int) -> None:
        of = self.some_ranks()
        self.turn += 1
        make = lambda: self.comm.split(of if self.rank in of else [], f"part {self.turn}")  # noqa: E731
        part = self.all_or_none(of, make, make)
        if part is not None:
            x = self.full(count)
            part.all_reduce(x, self.sum_of, False)
            same(x, sum(r + 1 for r in of))
            part.finalize()

    def smaller(self, count: int) -> None:
        """Another group in the place of this one, which goes on where none forms."""
        self.await_all()
        self.all_or_none(list(range(self.size)), self.reconfigure)
        x = self.full(count)
        self.comm.all_reduce(x, self.sum_of, False)
        same(x, self.sum)

    def survive(self) -> list[int]:
        self.pending.clear()
        members = [r for r in range(self.size) if r != VICTIM]
        self.handles = [self.handles[r] for r in members]
        self.comm.reconfigure(AFTER_THE_DEATH, self.handles).wait()
        self.number = AFTER_THE_DEATH
        self.rank, self.size = self.comm.get_rank(), self.comm.get_size()
        return members

    def in_child(self, what: int) -> None:
        if what == 0:
            refused(lambda: self.comm.all_reduce(torch.ones(3), self.sum_of, False))
            refused(lambda: self.comm.send(torch.ones(3), (self.rank + 1) % self.size, True))
        elif what == 1:
            self.comm.abort()
            self.comm.finalize()

    def close(self) -> None:
        self.comm.finalize()


class Storeless(Comms):
    """Without a store: ranks meet anew for each reconfiguration, beside a store of PyTorch's at that port or not."""

    kinds = (*Comms.kinds, "smaller", "smaller")

    def given_store(self) -> dict[str, Any]:
        if SEED % 2:
            super().given_store()
        return {}
