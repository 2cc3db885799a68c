"""A plan run an operation at a time, forwards and backwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tutti.plans.provenance import Content, read_chunk
from tutti.plans.resolved import Json, Resolver, Where, describe
from tutti.plans.waiting import PACKET_READERS, PACKET_WRITERS, Task, Wait, Waits

BEGIN = (-1, -1)  # in a history: a call begins


@dataclass(frozen=True)
class Breakpoint:
    """Stops before an operation: of a place, of a name, or of a line of the program. None matches everything."""

    rank: int | None = None
    block: int | None = None
    op: int | None = None
    name: str | None = None
    origin: str | None = None

    def holds(self, where: Where, operation: Json) -> bool:
        """Whether it is this operation's."""
        return (
            self.rank in (None, where.rank)
            and self.block in (None, where.block)
            and self.op in (None, where.op)
            and self.name in (None, operation["name"])
            and self.origin in (None, operation.get("origin"))
        )

    def __str__(self) -> str:
        if self.name is not None:
            return f"any {self.name}"
        if self.origin is not None:
            return f"line {self.origin}"
        return f"rank {self.rank}, thread block {self.block}" + ("" if self.op is None else f", operation {self.op}")


class Session:
    """All ranks of a plan, what was done to them, and what they are at. ValueError if the text is no plan."""

    def __init__(self, text: str, cells: int = 1) -> None:
        from tutti import _core

        _core.plan_info(text)
        self.plan: Json = json.loads(text)
        if "template" in self.plan:
            text = _core.write_out_plan(text)
            self.plan = json.loads(text)
        self.text = text
        self.cells = cells
        self.resolver = Resolver(self.plan)
        self.waits_of = Waits(self.plan)
        self.packets = _packet_chunks(self)
        self.history: list[tuple[int, int]] = []
        self.last = (0, -1)  # rank and task of the last step
        self._restart([])

    def _restart(self, history: list[tuple[int, int]]) -> None:
        from tutti import _core

        self.stepper = _core.PlanStepper(self.text, self.cells)
        self.history = []
        self.begin()
        for rank, task in history[1:]:
            if (rank, task) == BEGIN:
                self.begin()
            else:
                self.step(rank, task)

    @property
    def ranks(self) -> int:
        """How many ranks the plan has."""
        return len(self.plan["gpus"])

    @property
    def call(self) -> int:
        """The number of the call, from 1."""
        return self.history.count(BEGIN)

    def begin(self) -> None:
        """Begins a call; ValueError if the one before is not over."""
        if self.history and not self.ended:
            raise ValueError("this call is not over")
        self.stepper.begin()
        self.history.append(BEGIN)
        self.last = (0, -1)

    def tasks(self) -> list[list[Task]]:
        """What every rank's thread blocks and port channels are at."""
        return [self.stepper.tasks(rank) for rank in range(self.ranks)]

    @property
    def ended(self) -> bool:
        """The call is over: nothing is left to do."""
        return all(task["ended"] for own in self.tasks() for task in own)

    @property
    def stuck(self) -> bool:
        """The call is not over, and nobody can go on."""
        tasks = [task for own in self.tasks() for task in own if not task["ended"]]
        return bool(tasks) and not any(task["ready"] for task in tasks)

    def waits(self) -> list[Wait]:
        """Which thread blocks wait, and for what."""
        return self.waits_of.of(self.tasks())

    def step(self, rank: int, task: int) -> bool:
        """Runs a task's operation, as far as it gets. False if it can do nothing."""
        if not self.stepper.step(rank, task):
            return False
        self.history.append((rank, task))
        self.last = (rank, task)
        return True

    def following(self) -> tuple[int, int] | None:
        """Whose turn it is: the next task after the last one that can do something; None if none can."""
        ready = [
            (rank, number)
            for rank, own in enumerate(self.tasks())
            for number, task in enumerate(own)
            if not task["ended"] and task["ready"]
        ]
        return min(ready, key=lambda entry: (entry <= self.last, entry), default=None)

    def place(self, rank: int, task: int) -> Where | None:
        """The operation that a task is at."""
        state = self.stepper.tasks(rank)[task]
        return None if state["ended"] else Where(rank, state["of_block"], state["op"], state["inner"])

    def run(self, stop: Callable[[Where], bool]) -> Where | None:
        """Runs all in turn until somebody is about to run an operation that ``stop`` wants; None at the end."""
        while (turn := self.following()) is not None:
            where = self.place(*turn)
            block = self.stepper.tasks(turn[0])[turn[1]]["block"]
            if where is not None and block >= 0 and stop(where):
                return where
            self.step(*turn)
        return None

    def back(self, count: int) -> int:
        """Undoes steps by running all but these again; returns how many it were."""
        count = min(count, len(self.history) - 1)
        self._restart(self.history[: len(self.history) - count])
        return count

    def describe(self, where: Where) -> str:
        """An operation in words."""
        operation = self.resolver.operation(where)
        return describe(operation, where, self.resolver, self._channel, lambda _, what, number: f"{what} {number}")

    def _channel(self, where: Where, kind: str, own: int) -> str:
        return f"{self.resolver.channel_id(where, kind, own)} to rank {self.resolver.peer(where, kind, own)}"

    def chunks(self, rank: int, buffer: str) -> Iterator[tuple[int, bool, list[Content]]]:
        """Chunk, whether it holds packets, and what is in it, for a buffer of a rank."""
        for index in range(self.stepper.chunks_of(rank, buffer)):
            packets = buffer == "s" and (rank, index) in self.packets
            data = self.stepper.chunk(rank, buffer, index, packets)
            yield index, packets, read_chunk(data, self.stepper.cell_bytes)

    def counters(self, rank: int) -> dict[str, Any]:
        """As PlanStepper.counters."""
        return self.stepper.counters(rank)


def _packet_chunks(session: Session) -> set[tuple[int, int]]:
    """Chunks of scratch that hold packets, as (rank, chunk)."""
    waits = session.waits_of
    return {
        chunk
        for where, operation in waits.all
        for side, names in (("src_buff", PACKET_READERS), ("dst_buff", PACKET_WRITERS))
        for chunk in waits.packets(where, operation, side, names)
    }
