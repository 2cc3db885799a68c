"""Who waits for what in a plan that is being stepped through, and on whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tutti.plans.resolved import MEMORY, PORT, SIGNALS, Json, Resolver, Where, channel_kind, operations

Task = dict[str, Any]  # as PlanStepper.tasks() has it
Block = tuple[int, int]

# Of operations on packets, how many destinations come before those that hold packets.
PACKET_WRITERS = {"cpkt": 0, "ppkt": 0, "rppkt": 0, "respkt": 1, "recpkt": 1, "recspkt": 1, "gstorepkt": 0}
PACKET_READERS = {"rppkt": 0, "upkt": 0, "repkt": 1, "respkt": 1, "recpkt": 1, "recspkt": 1, "gstorepkt": 0}


@dataclass(frozen=True)
class Wait:
    """A thread block that cannot go on; ``on`` are the operations that would let it, empty if none is left to come."""

    where: Where
    what: str
    on: tuple[Where, ...]

    @property
    def block(self) -> Block:
        """The one that waits."""
        return self.where.rank, self.where.block


class Waits:
    """Finds what would end a wait; made once for a plan."""

    def __init__(self, plan: Json) -> None:
        self.resolver = Resolver(plan)
        self.all = list(operations(plan))

    def of(self, tasks: list[list[Task]]) -> list[Wait]:
        """All waits, by rank and thread block; ``tasks`` is by rank."""
        at = {
            (rank, task["block"]): None if task["ended"] else Where(rank, task["block"], task["op"], task["inner"])
            for rank, own in enumerate(tasks)
            for task in own
            if task["block"] >= 0
        }
        waiting = [
            (task, where)
            for rank, own in enumerate(tasks)
            for task in own
            if task["block"] >= 0 and not task["ended"] and not task["ready"] and (where := at[rank, task["block"]])
        ]
        arrived = {where for task, where in waiting if task["waits_for"] == "barrier"}
        return [self._wait(task, where, at, arrived) for task, where in waiting]

    def _wait(self, task: Task, where: Where, at: dict[Block, Where | None], arrived: set[Where]) -> Wait:
        kind = task["waits_for"]
        if kind == "signal":
            return self._signal(task, where, at)
        if kind == "semaphore":
            number = task["counter"]
            found = self._coming(
                at, lambda w, op: w.rank == where.rank and op["name"] == "sem_release" and number in op["semaphore_ids"]
            )
            return Wait(where, f"semaphore {number}", tuple(found))
        if kind == "barrier":
            barrier = self.resolver.operation(where)["barrier_id"]
            found = self._coming(
                at,
                lambda w, op: (
                    w.rank == where.rank and op.get("barrier_id") == barrier and at[w.rank, w.block] not in arrived
                ),
            )
            return Wait(where, f"barrier {barrier}", tuple(found))
        if kind == "flush":
            return Wait(where, "its port channel to be empty", ())
        reads = set(self.packets(where, self.resolver.operation(where), "src_buff", PACKET_READERS))
        found = self._coming(
            at, lambda w, op: any(chunk in reads for chunk in self.packets(w, op, "dst_buff", PACKET_WRITERS))
        )
        chunks = ", ".join(str(chunk) for _, chunk in sorted(reads))
        return Wait(where, f"packets in chunk {chunks} of its scratch", tuple(found))

    def _signal(self, task: Task, where: Where, at: dict[Block, Where | None]) -> Wait:
        rank = where.rank
        memory = len(self.resolver.wires[rank][MEMORY])
        kind, channel = (MEMORY, task["counter"]) if task["counter"] < memory else (PORT, task["counter"] - memory)
        wire = self.resolver.wires[rank][kind][channel]
        peer = self.resolver.peers[rank][kind][channel]

        def raises(w: Where, op: Json) -> bool:
            return (
                w.rank == peer
                and op["name"] in SIGNALS
                and channel_kind(op) == kind
                and any(self.resolver.wire(w, kind, own) == wire for own in op["channel_ids"])
            )

        return Wait(where, f"a signal of rank {peer} on {kind} channel {channel}", tuple(self._coming(at, raises)))

    def _coming(self, at: dict[Block, Where | None], wanted: Callable[[Where, Json], bool]) -> Iterator[Where]:
        """The next such operation of each thread block, among those that are still to be run."""
        seen: set[Block] = set()
        for where, operation in self.all:
            now = at[where.rank, where.block]
            if now is None or (where.rank, where.block) in seen or where.op < now.op:
                continue
            # Within a pipeline any of its operations may come again.
            if wanted(where, operation):
                seen.add((where.rank, where.block))
                yield where

    def packets(self, where: Where, operation: Json, side: str, names: dict[str, int]) -> Iterator[tuple[int, int]]:
        """(rank, chunk of its scratch) of the packets that an operation reads or writes."""
        if operation["name"] not in names:
            return
        kind = channel_kind(operation)
        for entry in operation[side][names[operation["name"]] :]:
            ranks: tuple[int, ...] = (where.rank,)
            if "buffer_id" in entry:
                ranks = (self.resolver.remote(where, kind, entry["buffer_id"])[0],)
            elif "switch_channel_id" in entry:
                ranks = self.resolver.group(where, entry["switch_channel_id"])[1]
            for rank in ranks:
                for chunk in range(entry["index"], entry["index"] + entry["size"]):
                    yield rank, chunk


def cycle(waits: list[Wait]) -> list[Wait]:
    """Waits that end only if each other do, or else the one for which nothing is left to come."""
    by_block = {wait.block: wait for wait in waits}
    for start in waits:
        path: list[Wait] = []
        wait: Wait | None = start
        while wait is not None and wait not in path:
            path.append(wait)
            following = [by_block.get((on.rank, on.block)) for on in wait.on]
            wait = next((entry for entry in following if entry is not None), None)
        if wait is not None:
            return path[path.index(wait) :]
    return [wait for wait in waits if not wait.on][:1] or waits[:1]
