"""``tutti plan step``: a debugger that runs a plan an operation at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tutti.cli.plan_file import PlanFile, no_plan
from tutti.cli.plan_step_views import Views
from tutti.plans.files import read_plan
from tutti.plans.resolved import Where
from tutti.plans.stepping import Breakpoint, Session

DONE, STUCK = 0, 1  # exit statuses; 2 if the file is no plan

HELP = """\
step [RANK BLOCK]          s  one operation: of that thread block, or of whose turn it is
next [RANK BLOCK]          n  until that thread block (the last one) has done its operation; others run as they must
continue [RANK BLOCK [OP]] c  until that operation, a breakpoint, the end of the call or a deadlock
break RANK [BLOCK [OP]]    b  stop before an operation; also: break NAME (put), break FILE:LINE; without words: list
delete [N]                    a breakpoint, or all
back [N]                      undo steps
where                      w  what all thread blocks are at
waits                         who waits for what, and on whom
list [RANK BLOCK]          l  operations around where it is
buffers [RANK]             p  what lies in a rank's buffers, or in all
counters [RANK]               signals that have been raised and taken; semaphores
call                          begin the next call, after the end of this one
quit                       q"""


class Debugger:
    """Takes commands one by one; ``done`` after quit."""

    def __init__(self, session: Session, views: Views) -> None:
        self.session = session
        self.views = views
        self.breakpoints: list[Breakpoint] = []
        self.done = False
        self.commands: dict[str, Callable[[list[str]], None]] = {
            "step": self.step,
            "next": self.next,
            "continue": self.go_on,
            "break": self.break_at,
            "delete": self.delete,
            "back": self.back,
            "where": lambda _: self.views.where(),
            "waits": lambda _: self.views.waits(),
            "list": self.list_block,
            "buffers": lambda words: self.views.buffers(self._ranks(words)),
            "counters": lambda words: self.views.counters(self._ranks(words)),
            "call": lambda _: self.begin(),
            "help": lambda _: self.views.say(HELP),
            "quit": lambda _: self.quit(),
        }
        self.short = {
            "s": "step",
            "n": "next",
            "c": "continue",
            "b": "break",
            "w": "where",
            "l": "list",
            "p": "buffers",
        }

    def run(self, line: str) -> None:
        """Carries out a line; what is wrong with it is said."""
        words = line.split("#")[0].split()
        if not words:
            return
        name = self.short.get(words[0], words[0])
        matching = [command for command in self.commands if command.startswith(name)]
        if name not in self.commands and len(matching) != 1:
            self.views.say(f'no command is called "{words[0]}"; help lists them')
            return
        try:
            self.commands[name if name in self.commands else matching[0]](words[1:])
        except (ValueError, IndexError) as error:
            self.views.say(str(error))

    def quit(self) -> None:
        """Ends the session."""
        self.done = True

    def begin(self) -> None:
        """Begins the next call."""
        self.session.begin()
        self.views.say(f"call {self.session.call} begins")

    def step(self, words: list[str]) -> None:
        """One operation."""
        turn = self._task(words) if words else self.session.following()
        if turn is None:
            self.views.outcome()
            return
        before = self.session.place(*turn)
        moved = self.session.step(*turn)
        self.views.stepped(turn, before, moved)
        if not moved or self.session.following() is None:
            self.views.outcome()

    def next(self, words: list[str]) -> None:
        """Until a thread block has got past its operation."""
        rank, task = self._task(words) if words else self._last()
        start = self.session.place(rank, task)
        if start is None:
            raise ValueError(f"rank {rank}, thread block {task} has ended its call")
        while self.session.place(rank, task) == start:
            if self.session.step(rank, task):
                continue
            turn = self.session.following()
            if turn is None:
                break
            self.session.step(*turn)
        self.views.stepped((rank, task), start, self.session.place(rank, task) != start)
        if self.session.following() is None:
            self.views.outcome()

    def go_on(self, words: list[str]) -> None:
        """Until an operation, a breakpoint, the end or a deadlock."""
        wanted = [_breakpoint(words)] if words else self.breakpoints
        here = self.session.following()
        standing = self.session.place(*here) if here else None
        moved = len(self.session.history)

        def stop(where: Where) -> bool:
            # What it stands at already is no reason to stop before anything has been done.
            if where == standing and len(self.session.history) == moved:
                return False
            return any(entry.holds(where, self.session.resolver.operation(where)) for entry in wanted)

        reached = self.session.run(stop)
        if reached is None:
            self.views.outcome()
        else:
            self.views.reached(reached)

    def break_at(self, words: list[str]) -> None:
        """Adds a breakpoint, or lists them."""
        if words:
            self.breakpoints.append(_breakpoint(words))
        for number, entry in enumerate(self.breakpoints, 1):
            self.views.say(f"{number}: {entry}")

    def delete(self, words: list[str]) -> None:
        """Removes a breakpoint, or all."""
        if words:
            number = _number(words[0])
            if not 1 <= number <= len(self.breakpoints):
                raise ValueError(f"there is no breakpoint {number}")
            del self.breakpoints[number - 1]
        else:
            self.breakpoints.clear()

    def back(self, words: list[str]) -> None:
        """Undoes steps."""
        undone = self.session.back(_number(words[0]) if words else 1)
        self.views.say(f"{undone} undone; {len(self.session.history) - 1} since the beginning")

    def list_block(self, words: list[str]) -> None:
        """Operations of a thread block."""
        self.views.list_block(*(self._task(words) if words else self._last()))

    def _last(self) -> tuple[int, int]:
        rank, task = self.session.last
        return self._exists(rank, max(task, 0))

    def _ranks(self, words: list[str]) -> list[int]:
        if not words:
            return list(range(self.session.ranks))
        return [self._rank(words[0])]

    def _rank(self, word: str) -> int:
        rank = _number(word)
        if rank >= self.session.ranks:
            raise ValueError(f"there is no rank {rank}")
        return rank

    def _task(self, words: list[str]) -> tuple[int, int]:
        return self._exists(self._rank(words[0]), _number(words[1]) if len(words) > 1 else 0)

    def _exists(self, rank: int, task: int) -> tuple[int, int]:
        count = len(self.session.stepper.tasks(rank))
        if task >= count:
            raise ValueError(f"rank {rank} has no task {task}: thread blocks come first, then port channels")
        return rank, task


def _breakpoint(words: list[str]) -> Breakpoint:
    if words[0].isdecimal():
        rank, block, op = [*(_number(word) for word in words[:3]), None, None][:3]
        return Breakpoint(rank, block, op)
    if ":" in words[0]:
        return Breakpoint(origin=words[0])
    return Breakpoint(name=words[0])


def _number(word: str) -> int:
    if not word.isdecimal():
        raise ValueError(f'"{word}" is no number')
    return int(word)


def step(
    file: PlanFile,
    cells: Annotated[int, typer.Option("--cells", min=1, max=4096, help="Of a chunk: more make loops run longer.")] = 1,
) -> None:
    """Runs a plan an operation at a time, forwards and backwards, and shows what it does; `help` lists the commands.

    Commands come from the terminal or from standard input. Leaves 0, 1 if it stood in a deadlock at the end, 2 if the
    file is no plan.
    """
    from rich.console import Console

    if sys.stdin is None:
        raise typer.BadParameter("commands come from standard input, which is closed")
    with no_plan(file):
        session = Session(read_plan(file), cells)
    console = Console(highlight=False)
    debugger = Debugger(session, Views(session, console, [Path.cwd(), file.parent]))
    terminal = sys.stdin.isatty()
    debugger.views.opening(file)
    if terminal:
        import readline  # noqa: F401 -- gives input() a history
    while not debugger.done:
        try:
            line = input("(step) ") if terminal else input()
        except (EOFError, KeyboardInterrupt):
            break
        if not terminal:
            console.print(f"(step) {line}", markup=False, style="dim")
        debugger.run(line)
    raise typer.Exit(STUCK if session.stuck else DONE)
