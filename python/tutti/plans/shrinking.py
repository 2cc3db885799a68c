"""Minimises a plan that the verifier rejects, while it is rejected for the same reason.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) over operations,
coarse groups first: ranks, thread blocks, pairs of ranks that talk, then single operations, where a signal goes with
its wait. Then whole ranks and chunks are taken out. All of it repeats until nothing more can go.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tutti.plans import candidates
from tutti.plans.resolved import Json, Where, operations
from tutti.plans.tidy import tidied

Verdict = dict[str, Any]
# A verdict on what may be no plan at all: None then.
Check = Callable[[Json], Verdict | None]

UNDECLARED = "input"  # the kind of fault that saying "writes_input" repairs
KEEP_COLLECTIVE = ("wrong result", "lost data")  # faults of the result: without its definition there is none


def core_check(plan: Json) -> Verdict | None:
    """The strict verdict of the core's verifier."""
    from tutti import _core

    try:
        return _core.check_plan(json.dumps(plan), True)
    except (ValueError, NotImplementedError):
        return None


def as_checked(plan: Json, check: Check = core_check) -> Json:
    """The plan whose fault the verifier names: one that writes its input undeclared is examined as if it said so."""
    verdict = check(plan)
    if verdict is None or verdict["fault"] is None or verdict["fault"]["kind"] != UNDECLARED:
        return plan
    declared = {**plan, "writes_input": True}
    verdict = check(declared)
    return plan if verdict is None or verdict["fault"] is None else declared


def signature(verdict: Verdict | None, kind_only: bool = False, renumbered: bool = False) -> tuple[str, ...] | None:
    """What must stay the same about a fault: its kind, which form of it, and the operations that it names.

    Without the operations, taking out all synchronisation would leave a race of any two, which explains nothing. A
    plan with fewer ranks or chunks is ``renumbered``: no number of a rank or chunk counts.
    """
    if verdict is None or verdict["fault"] is None:
        return None
    fault = verdict["fault"]
    message = fault["message"]
    form = ""
    if fault["kind"] == "deadlock":
        form = message.split(":")[0]  # a cycle, or waiting for what never comes
    elif fault["kind"] == "race":
        form = message.rsplit(": ", 1)[-1]  # what order is missing
    elif fault["kind"] == "wrong result":
        form = message.split(";")[0]  # which chunk holds what: any smaller plan has some wrong result
        if renumbered:
            form = re.sub(r"\d+", "#", form)
    named = [] if kind_only else sorted(_named(site) for site in fault["sites"])
    return fault["kind"], form, *named


def _named(site: dict[str, Any]) -> str:
    return f"{site['origin'] or site['name']} in iteration {site['iteration']} of call {site['call']}"


def tagged(plan: Json) -> tuple[Json, list[str | None]]:
    """The plan with a number in place of each operation's origin, by which verdicts then name it; and the origins."""
    plan = copy.deepcopy(plan)
    origins = []
    for _, operation in operations(plan):
        origins.append(operation.get("origin"))
        operation["origin"] = f"#{len(origins) - 1}"
    return plan, origins


def untagged(plan: Json, origins: list[str | None]) -> Json:
    """Undoes :func:`tagged`."""
    plan = copy.deepcopy(plan)
    for _, operation in operations(plan):
        origin = origins[int(operation.pop("origin")[1:])]
        if origin is not None:
            operation["origin"] = origin
    return plan


@dataclass
class Shrunk:
    """The smallest plan found; ``complete`` is false if the number of checks ran out first."""

    plan: Json
    verdict: Verdict
    checks: int
    complete: bool


PARTITIONS = (
    candidates.by_rank,
    candidates.by_block,
    candidates.by_pair,
    candidates.by_meeting,
    candidates.singly,
)


class _OutOfChecks(Exception):
    pass


class Shrinker:
    """One run: the best plan so far and how many checks it took."""

    def __init__(
        self, plan: Json, kind_only: bool = False, check: Check = core_check, most_checks: int = 20_000
    ) -> None:
        """``kind_only``: another fault of the same kind will do. ValueError if the plan has none."""
        self.check = check
        self.kind_only = kind_only
        self.most_checks = most_checks
        self.checks = 0
        self.given = as_checked(plan, check)  # what the faults before and after are of
        self.plan, self.origins = tagged(self.given)
        self._want(check(self.plan))

    def run(self) -> Shrunk:
        """Shrinks until nothing more can go. The same plan gives the same result, always."""
        complete = True
        try:
            if self.wanted[0] not in KEEP_COLLECTIVE:
                self._try(candidates.without_collective(self.plan))
            while self._round():
                pass
        except _OutOfChecks:
            complete = False
        plan = untagged(self.plan, self.origins)
        verdict = self.check(plan)
        assert verdict is not None  # origins change no verdict
        return Shrunk(plan, verdict, self.checks, complete)

    def _round(self) -> bool:
        before = self._size()
        for partition in PARTITIONS:
            self._minimise(partition(self.plan))
        if not self._try(tidied(self.plan)):
            self._try(tidied(self.plan, keep_blocks=True))
        self._take_out(candidates.without_rank, lambda: len(self.plan["gpus"]))
        self._take_out(candidates.with_rank_merged, lambda: len(self.plan["gpus"]))
        self._take_out(candidates.without_chunk, lambda: max(_chunks(self.plan)))
        return self._size() < before

    def _size(self) -> tuple[int, ...]:
        chunks = sum(gpu[f"{b}_chunks"] for gpu in self.plan["gpus"] for b in ("input", "output", "scratch"))
        return len(self.plan["gpus"]), sum(1 for _ in operations(self.plan)), chunks

    def _take_out(self, smaller: Callable[[Json, int], Json | None], count: Callable[[], int]) -> None:
        for number in reversed(range(count())):
            self._try(smaller(self.plan, number), renumbered=True)

    def _try(self, plan: Json | None, renumbered: bool = False) -> bool:
        """Takes a candidate if it fails in the same way."""
        if plan is None:
            return False
        if self.checks == self.most_checks:
            raise _OutOfChecks
        self.checks += 1
        verdict = self.check(plan)
        wanted = self.loosely_wanted if renumbered else self.wanted
        if signature(verdict, self.kind_only, renumbered) != wanted:
            return False
        self.plan = plan
        self._want(verdict)
        return True

    def _want(self, verdict: Verdict | None) -> None:
        wanted, loosely = (signature(verdict, self.kind_only, renumbered) for renumbered in (False, True))
        if wanted is None or loosely is None:
            raise ValueError("the plan is proven as it stands: there is no fault to minimise it for")
        self.wanted, self.loosely_wanted = wanted, loosely

    def _minimise(self, parts: Sequence[frozenset[Where]]) -> None:
        """Removes as many parts as it can: first half of them at once, then ever fewer, down to one."""
        original = self.plan
        kept = list(parts)
        removed: set[Where] = set()
        size = max(1, len(kept) // 2)
        while kept:
            at = 0
            while at < len(kept):
                piece = frozenset().union(*kept[at : at + size])
                if self._try(candidates.without(original, removed | piece)):
                    removed |= piece
                    del kept[at : at + size]
                else:
                    at += size
            if size == 1:
                return
            size = max(1, size // 2)


def _chunks(plan: Json) -> list[int]:
    return [gpu[f"{side}_chunks"] for gpu in plan["gpus"] for side in ("input", "output")]
