"""Random programs: sequences of collectives and messages over subgroups, and how a rank runs them.

All ranks walk through the same list of steps; a rank skips those it has no part in. Since a step waits only for what
came before it, every program completes on a backend that keeps the rules, however its asynchronous calls overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from conformance import Case, Run
from oracle import inputs, same_bits
from rank_worker import Context


@dataclass(frozen=True)
class Collective:
    """A collective on a subgroup; it is waited for at the next `Join` if it is asynchronous."""

    members: tuple[int, ...]
    case: Case


@dataclass(frozen=True)
class Message:
    """A send and its receive; `anonymous` receives from any source, under a tag of its own."""

    source: int
    target: int
    dtype: torch.dtype
    count: int
    tag: int
    asynchronous_send: bool
    asynchronous_receive: bool
    anonymous: bool
    seed: int


@dataclass(frozen=True)
class Join:
    """Every rank waits for all that it has outstanding, in or against the order of issue."""

    backwards: bool


Step = Collective | Message | Join


class Letter:
    """One end of a message; it looks like a Run."""

    def __init__(self, step: Message, rank: int) -> None:
        self.step = step
        self.rank = rank
        self.values = inputs(step.dtype, "SUM", 1, step.count, True, step.seed)[0]
        self.tensor = self.values.clone() if rank == step.source else torch.zeros(step.count).to(step.dtype)
        self.work: Any = None
        self.origin: int | None = None

    def start(self) -> None:
        step = self.step
        if self.rank == step.source:
            if step.asynchronous_send:
                self.work = dist.isend(self.tensor, step.target, tag=step.tag)
            else:
                dist.send(self.tensor, step.target, tag=step.tag)
        elif step.anonymous:
            self.origin = dist.recv(self.tensor, tag=step.tag)
        elif step.asynchronous_receive:
            self.work = dist.irecv(self.tensor, step.source, tag=step.tag)
        else:
            self.origin = dist.recv(self.tensor, step.source, tag=step.tag)

    def finish(self) -> str | None:
        if self.work is not None:
            self.work.wait()
        if not same_bits(self.tensor, self.values):
            return "the message differs"
        if self.origin is not None and self.origin != self.step.source:
            return f"received from {self.origin}"
        return None


def group_of(ctx: Context, members: tuple[int, ...]) -> Any:
    """The subgroup of these ranks, made once a generation; every rank of the pool must ask for it."""
    if ctx.kept.get("generation") != ctx.generation:
        ctx.kept = {"generation": ctx.generation}
    if members not in ctx.kept:
        ctx.kept[members] = dist.new_group(list(members))
    return ctx.kept[members]


def run_program(ctx: Context, program: list[Step]) -> list[str]:
    """Runs it; returns what went wrong on this rank."""
    for step in program:
        if isinstance(step, Collective):
            group_of(ctx, step.members)
    outstanding: list[tuple[int, Step, Run | Letter]] = []
    problems: list[str] = []

    def settle(number: int, step: Step, part: Run | Letter) -> None:
        problem = part.finish()
        if problem:
            problems.append(f"step {number} {step}: {problem}")

    for number, step in enumerate([*program, Join(False)]):
        if isinstance(step, Join):
            for entry in reversed(outstanding) if step.backwards else outstanding:
                settle(*entry)
            outstanding.clear()
        elif isinstance(step, Collective):
            if ctx.rank in step.members:
                rank = step.members.index(ctx.rank)
                run = Run(step.case, rank, list(step.members), group_of(ctx, step.members))
                run.start()
                if step.case.asynchronous:
                    outstanding.append((number, step, run))
                else:
                    settle(number, step, run)
        elif ctx.rank in (step.source, step.target):
            letter = Letter(step, ctx.rank)
            letter.start()
            if letter.work is not None:
                outstanding.append((number, step, letter))
            else:
                settle(number, step, letter)
    return problems
