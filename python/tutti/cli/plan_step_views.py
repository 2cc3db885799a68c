"""What the debugger of plans shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.plans.files import read_file
from tutti.plans.provenance import Content
from tutti.plans.resolved import Where
from tutti.plans.stepping import Session
from tutti.plans.waiting import Task, cycle

if TYPE_CHECKING:
    from rich.console import Console

Chunk = tuple[int, bool, list[Content]]  # number, whether of packets, contents

CONTEXT = 3  # operations before and after
MOST_ROWS = 64


def _lines(file: Path) -> list[str]:
    """None if it cannot be read: sources are shown where there are any."""
    try:
        return read_file(file).decode(errors="replace").splitlines()
    except ValueError:
        return []


class Views:
    """Tables and sentences about a session; ``folders`` are where the program's source is looked for."""

    def __init__(self, session: Session, console: Console, folders: list[Path]) -> None:
        self.session = session
        self.console = console
        self.folders = folders
        self.sources: dict[str, list[str]] = {}

    def say(self, text: str, style: str = "") -> None:
        """A line as it is."""
        self.console.print(text, markup=False, style=style or None, soft_wrap=True)

    def opening(self, file: Path) -> None:
        """What is being run."""
        plan = self.session.plan
        self.say(f"{file}: {plan['name']}, {plan['collective']} among {self.session.ranks} ranks; call 1 begins")
        self.say("contents: r0-3 [2] is the sum of ranks 0 to 3's chunk 2; · is nothing", style="dim")

    def _title(self, where: Where) -> str:
        inner = f".{where.inner}" if where.inner >= 0 else ""
        return f"rank {where.rank}, thread block {where.block}, operation {where.op}{inner}"

    def _line(self, where: Where) -> str:
        """The operation, and the program's line if it is known."""
        operation = self.session.resolver.operation(where)
        text = self.session.describe(where)
        origin = operation.get("origin")
        if not origin:
            return text
        source = self._source(origin)
        return f"{text}   {origin}" + (f": {source}" if source else "")

    def _source(self, origin: str) -> str:
        name, _, number = origin.rpartition(":")
        if not number.isdigit():
            return ""
        if name not in self.sources:
            made_by = Path(self.session.plan.get("source") or name)
            paths = [folder / name for folder in self.folders] + ([made_by] if made_by.name == Path(name).name else [])
            found = next((path for path in paths if path.is_file()), None)
            self.sources[name] = _lines(found) if found else []
        lines = self.sources[name]
        return lines[int(number) - 1].strip() if 0 < int(number) <= len(lines) else ""

    def stepped(self, turn: tuple[int, int], before: Where | None, moved: bool) -> None:
        """What a step did."""
        if before is None:
            self.say(f"rank {turn[0]}, task {turn[1]} has nothing to do")
            return
        block = self.session.stepper.tasks(turn[0])[turn[1]]["block"]
        who = self._title(before) if block >= 0 else f"rank {turn[0]}'s port channel, for {self._title(before)}"
        after = self.session.place(*turn)
        mark = "ran" if moved and after != before else "ran in part" if moved else "waits"
        self.say(f"{mark}: {who}: {self._line(before)}", style="" if moved else "yellow")
        if not moved:
            for wait in self.session.waits():
                if wait.where == before:
                    self.say(f"  for {wait.what}{self._on(wait.on)}")

    def reached(self, where: Where) -> None:
        """Where a run stopped."""
        self.say(f"at: {self._title(where)}: {self._line(where)}", style="bold")

    def outcome(self) -> None:
        """The end of a call, or the deadlock."""
        if self.session.ended:
            self.say(f"call {self.session.call} is over after {len(self.session.history) - 1} steps", style="green")
            return
        if not self.session.stuck:
            return
        waits = self.session.waits()
        around = cycle(waits)
        closed = bool(around) and bool(around[0].on)
        self.say(
            "deadlock: these wait for each other:" if closed else "deadlock: this waits for what never comes:",
            style="bold red",
        )
        for wait in around:
            self.say(f"  {self._title(wait.where)}: {self._line(wait.where)}")
            self.say(f"    waits for {wait.what}{self._on(wait.on)}")
        if len(waits) > len(around):
            self.say(f"{len(waits) - len(around)} more thread blocks wait for these; `waits` lists all")

    def _on(self, operations: tuple[Where, ...]) -> str:
        if not operations:
            return ", which nobody will give"
        operation = self.session.resolver.operation
        places = [f"{self._title(where)} ({operation(where)['name']})" for where in operations[:3]]
        more = f" and {len(operations) - 3} more" if len(operations) > 3 else ""
        return ", which is to come from " + "; ".join(places) + more

    def where(self) -> None:
        """A row for every task."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in ("rank", "task", "state", "operation"):
            table.add_column(column, justify="right" if column in ("rank", "task") else "left", overflow="fold")
        rows = [(rank, task) for rank, own in enumerate(self.session.tasks()) for task in own]
        for rank, task in rows[:MOST_ROWS]:
            who = f"tb {task['block']}" if task["block"] >= 0 else f"port {task['port']}"
            table.add_row(str(rank), who, *self._state(rank, task))
        self.console.print(table, markup=False)
        if len(rows) > MOST_ROWS:
            self.say(f"… and {len(rows) - MOST_ROWS} more")

    def _state(self, rank: int, task: Task) -> tuple[str, str]:
        if task["ended"]:
            return ("ended", "") if task["block"] >= 0 else ("idle", "")
        where = Where(rank, task["of_block"], task["op"], task["inner"])
        state = "can go on" if task["ready"] else f"waits ({task['waits_for']})"
        part = f", {task['done']} of {task['bytes']} bytes done" if task["done"] else ""
        return state + part, f"{where.op}{f'.{where.inner}' if where.inner >= 0 else ''} {self._line(where)}"

    def waits(self) -> None:
        """All that wait."""
        waits = self.session.waits()
        for wait in waits[:MOST_ROWS]:
            self.say(f"{self._title(wait.where)} waits for {wait.what}{self._on(wait.on)}")
        if not waits:
            self.say("nobody waits")

    def list_block(self, rank: int, block: int) -> None:
        """Operations around where a thread block is."""
        blocks = self.session.plan["gpus"][rank]["threadblocks"]
        if block >= len(blocks):
            raise ValueError(f"rank {rank} has no thread block {block}")
        operations = blocks[block]["ops"]
        at = self.session.place(rank, block)
        middle = len(operations) if at is None else at.op
        for number in range(max(0, middle - CONTEXT), min(len(operations), middle + CONTEXT + 1)):
            mark = "->" if at is not None and number == at.op and at.inner < 0 else "  "
            self.say(f"{mark} {number:>4} {self._line(Where(rank, block, number))}")
            for inner in range(len(operations[number].get("ops", ()))):
                mark = "->" if at == Where(rank, block, number, inner) else "  "
                self.say(f"{mark}      .{inner} {self._line(Where(rank, block, number, inner))}")
        if at is None:
            self.say("->      the end of the call")

    def buffers(self, ranks: list[int]) -> None:
        """What lies in the buffers, a row a rank and buffer."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        table.add_column("rank", justify="right")
        table.add_column("buffer")
        table.add_column("chunks", overflow="fold")
        for rank in ranks:
            for number, (letter, name) in enumerate((("i", "input"), ("o", "output"), ("s", "scratch"))):
                cells = [_cell(run) for run in _runs(self.session.chunks(rank, letter))]
                if cells:
                    table.add_row(str(rank) if number == 0 else "", name, "   ".join(cells))
        self.console.print(table, markup=False)

    def counters(self, ranks: list[int]) -> None:
        """Channels and semaphores."""
        for rank in ranks:
            counters = self.session.counters(rank)
            for kind in ("memory", "port"):
                for channel, (raised, taken) in enumerate(counters[kind]):
                    peer = self.session.resolver.peers[rank][kind][channel]
                    self.say(f"rank {rank}, {kind} channel {channel} from rank {peer}: raised {raised}, taken {taken}")
            for number, value in enumerate(counters["semaphores"]):
                self.say(f"rank {rank}, semaphore {number}: {value}")


def _runs(chunks: Iterable[Chunk]) -> list[list[Chunk]]:
    """Neighbours that hold neighbouring chunks of the same ranks, or nothing, belong together."""
    runs: list[list[Chunk]] = []
    for chunk in chunks:
        if runs and _follows(runs[-1][-1], chunk):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return runs


def _follows(one: Chunk, other: Chunk) -> bool:
    if one[1] != other[1] or len(one[2]) != len(other[2]) or len(one[2]) > 1:
        return False
    if not one[2]:
        return True
    first, second = one[2][0], other[2][0]
    if (first.ranks, first.call) != (second.ranks, second.call) or (first.chunk is None) != (second.chunk is None):
        return False
    return first.chunk is None or second.chunk is None or second.chunk == first.chunk + 1


def _cell(run: list[Chunk]) -> str:
    (first, packets, contents), last = run[0], run[-1]
    text = " | ".join(str(content) for content in contents) or "·"
    number = str(first)
    if len(run) > 1:
        number += f"-{last[0]}"
        if contents and contents[0].chunk is not None:
            text = text.replace("]", f"-{last[2][0].chunk}]")
    return f"{number}: {text}{' (packets)' if packets else ''}"
