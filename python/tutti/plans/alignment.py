"""Which thread block of one plan is which of another, and their operations as text that no renaming of ids changes.

Blocks are coloured as in the refinement of Weisfeiler and Leman ("The reduction of a graph to canonical form", 1968):
first by their own operations, then, again and again, by the colours of the blocks at the other ends of their channels.
Blocks of one colour are each other's equals; the rest go to their likest.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tutti.plans.resolved import MEMORY, PORT, SWITCH, Json, Resolver, Where, Wire, channel_kind, describe

# Above this many thread blocks of a rank that have no equal they are compared in order, not with their likest.
MOST_COMPARED = 64
ROUNDS = 6

Block = tuple[int, int]  # rank, thread block
Pair = tuple[int, int | None, int | None]  # rank, thread block of the first plan, of the second


class Lines:
    """The operations of thread blocks as text; ids are numbered in the order of their first use, or left out."""

    def __init__(self, plan: Json, order: Iterable[tuple[int, int | None]], numbered: bool = True) -> None:
        self.plan = plan
        self.resolver = Resolver(plan)
        self.numbered = numbered
        self.wires: dict[Wire, int] = {}
        self.counts: dict[tuple[object, ...], int] = {}
        self.ids: dict[tuple[int, str, int], int] = {}
        self.made = {(rank, block): self._block(rank, block) for rank, block in order if block is not None}

    def of(self, rank: int, block: int | None) -> list[str]:
        """A line for each operation; those of a pipeline's body are indented."""
        return [] if block is None else self.made[rank, block]

    def _block(self, rank: int, block: int) -> list[str]:
        lines = []
        for index, op in enumerate(self.plan["gpus"][rank]["threadblocks"][block]["ops"]):
            lines.append(self._line(op, Where(rank, block, index)))
            lines += ["  " + self._line(body, Where(rank, block, index, k)) for k, body in enumerate(op.get("ops", ()))]
        return lines

    def _line(self, operation: Json, where: Where) -> str:
        return describe(operation, where, self.resolver, self._channel, self._id)

    def _next(self, *key: object) -> int:
        self.counts[key] = self.counts.get(key, -1) + 1
        return self.counts[key]

    def _channel(self, where: Where, kind: str, own: int) -> str:
        if kind == SWITCH:
            return ""
        wire = self.resolver.wire(where, kind, own)
        text = f"to rank {self.resolver.peer(where, kind, own)}"
        if not self.numbered:
            return text
        if wire not in self.wires:
            self.wires[wire] = self._next(wire.kind, wire.low, wire.high)
        return text + (f" (number {self.wires[wire]})" if self.wires[wire] else "")

    def _id(self, where: Where, what: str, number: int) -> str:
        start = self.plan["gpus"][where.rank]["semaphores"][number]["init_value"] if what == "semaphore" else 0
        text = what
        if self.numbered:
            key = (where.rank, what, number)
            if key not in self.ids:
                self.ids[key] = self._next(where.rank, what)
            text += f" {self.ids[key]}"
        return text + (f" (starts at {start})" if start else "")


def align(first: Json, second: Json) -> list[Pair]:
    """Pairs of thread blocks, rank by rank; None where one plan has no such block."""
    one, other = Lines(first, _blocks(first), numbered=False), Lines(second, _blocks(second), numbered=False)
    mine, theirs = _colours(first, one), _colours(second, other)
    pairs: list[Pair] = []
    for rank in range(max(len(first["gpus"]), len(second["gpus"]))):
        left, right = _of_rank(first, rank), _of_rank(second, rank)
        matched: dict[int, int] = {}
        for a in left:
            equal = [b for b in right if theirs[rank, b] == mine[rank, a]]
            if equal:
                matched[a] = a if a in equal else equal[0]
                right.remove(matched[a])
        for a in left:
            if a in matched or not right:
                continue
            matched[a] = right[0]
            if len(left) <= MOST_COMPARED:
                matched[a] = max(right, key=lambda b: (_likeness(one.of(rank, a), other.of(rank, b)), b == a, -b))
            right.remove(matched[a])
        pairs += [(rank, a, matched.get(a)) for a in left]
        pairs += [(rank, None, b) for b in right]
    return pairs


def _colours(plan: Json, lines: Lines) -> dict[Block, int]:
    """Equal numbers for blocks that look alike as far as their channels reach; the same numbers in any plan."""
    users: dict[tuple[Wire, int], set[Block]] = {}  # of each end of a wire
    ends: dict[Block, list[tuple[Wire, int]]] = {}  # the other ends that a block talks to, in order
    for rank, block in _blocks(plan):
        ends[rank, block] = []
        for index, operation in enumerate(plan["gpus"][rank]["threadblocks"][block]["ops"]):
            for op in (operation, *operation.get("ops", ())):
                kind = channel_kind(op)
                for own in op.get("channel_ids", ()) if kind in (MEMORY, PORT) else ():
                    wire = lines.resolver.wire(Where(rank, block, index), kind, own)
                    users.setdefault((wire, rank), set()).add((rank, block))
                    ends[rank, block].append((wire, wire.low + wire.high - rank))
    colours = {(rank, block): hash(tuple(lines.of(rank, block))) for rank, block in _blocks(plan)}
    for _ in range(ROUNDS):  # as many in every plan, so that colours of two plans compare
        seen = {end: tuple(sorted(colours[block] for block in blocks)) for end, blocks in users.items()}
        colours = {
            block: hash((colour, tuple(seen.get(end, ()) for end in ends[block]))) for block, colour in colours.items()
        }
    return colours


def _likeness(one: list[str], other: list[str]) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).quick_ratio()


def _of_rank(plan: Json, rank: int) -> list[int]:
    return list(range(len(plan["gpus"][rank]["threadblocks"]))) if rank < len(plan["gpus"]) else []


def _blocks(plan: Json) -> list[Block]:
    return [(rank, block) for rank in range(len(plan["gpus"])) for block in _of_rank(plan, rank)]
