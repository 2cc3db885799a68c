"""Joins the lanes of a thread block between operations that depend on each other.

Lanes run on their own between two joints, so an operation must not touch what another one since the last joint has
written, nor write what it has read, in the memory of its own rank or of another. Packets carry flags that order them,
so what is read or written as packets does not count; and what other ranks do needs signals, which are the program's
business.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from tutti.language.operations import Barrier, Loop, Nop, Operation, Place, Transfer
from tutti.language.passes.draft import Spots
from tutti.language.vocabulary import BufferType, Instruction

_SOURCES_ARE_PACKETS = {
    Instruction.unpack_packet,
    Instruction.read_put_packet,
    Instruction.group_store_packet,
}
_DESTINATIONS_ARE_PACKETS = {
    Instruction.copy_packet,
    Instruction.put_packet,
    Instruction.read_put_packet,
    Instruction.group_store_packet,
}
_REDUCES_PACKETS = {  # all sources but the first are packets, all destinations but the first too
    Instruction.reduce_packet,
    Instruction.reduce_copy_packet,
    Instruction.reduce_send_packet,
    Instruction.reduce_copy_send_packet,
}


@dataclass(frozen=True, slots=True)
class Access:
    """Chunks of a rank's buffer that an operation reads or writes."""

    memory: tuple[int, BufferType]
    start: int
    end: int
    writes: bool


class _Intervals:
    """Disjoint intervals in order; neighbours that overlap are merged."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def overlap(self, start: int, end: int) -> bool:
        at = bisect_right(self._ends, start)
        return at < len(self._starts) and self._starts[at] < end

    def add(self, start: int, end: int) -> None:
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]


class _Touched:
    """What was read and written since the last joint."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, BufferType], _Intervals] = {}
        self._written: dict[tuple[int, BufferType], _Intervals] = {}

    def conflicts(self, access: Access) -> bool:
        before = [self._written, self._read] if access.writes else [self._written]
        return any(kind[access.memory].overlap(access.start, access.end) for kind in before if access.memory in kind)

    def add(self, access: Access) -> None:
        kind = self._written if access.writes else self._read
        kind.setdefault(access.memory, _Intervals()).add(access.start, access.end)


class _Beginnings:
    """Where ranges begin, and how far those go that begin up to there."""

    def __init__(self, accesses: Iterable[Access]) -> None:
        ends: dict[tuple[tuple[int, BufferType], bool], dict[int, int]] = {}
        for access in accesses:
            known = ends.setdefault((access.memory, access.writes), {})
            known[access.start] = max(access.end, known.get(access.start, 0))
        self._starts = {kind: sorted(known) for kind, known in ends.items()}
        self._reach = {
            kind: list(accumulate((ends[kind][start] for start in starts), max))
            for kind, starts in self._starts.items()
        }

    def conflicts(self, access: Access) -> bool:
        """Whether one that is written, or meets a write, overlaps with ``access`` and begins elsewhere."""
        return any(self._overlap(access, writes) for writes in ([True, False] if access.writes else [True]))

    def _overlap(self, access: Access, writes: bool) -> bool:
        kind = access.memory, writes
        starts = self._starts.get(kind, [])
        before = bisect_left(starts, access.start)
        after = bisect_right(starts, access.start)
        reaches = before > 0 and self._reach[kind][before - 1] > access.start
        return reaches or (after < len(starts) and starts[after] < access.end)


def join_dependent(rank: int, operations: tuple[Operation, ...], spots: Spots) -> tuple[Operation, ...]:
    """The operations of a thread block of ``rank``, with a nop before each that depends on one since the last joint."""
    joined: list[Operation] = []
    touched = _Touched()
    for operation in operations:
        if isinstance(operation, Loop):
            body = join_dependent(rank, operation.body, spots)
            if _iterations_meet(rank, body, spots):
                body = (Nop(origins=operation.origins), *body)
            operation = replace(operation, body=body)
        if isinstance(operation, Nop | Barrier):
            touched = _Touched()
        accesses = list(_accesses_of(rank, operation, spots))
        if any(touched.conflicts(access) for access in accesses):
            joined.append(Nop(origins=operation.origins))
            touched = _Touched()
        for access in accesses:
            touched.add(access)
        joined.append(operation)
    return tuple(joined)


def _iterations_meet(rank: int, body: tuple[Operation, ...], spots: Spots) -> bool:
    """Whether what a loop's body does before its first joint depends on what an iteration before does after its last.

    An iteration works on its own unit of each operand. So iterations meet where operands overlap and begin apart: what
    is one unit of the one is another unit of the other.
    """
    joints = [at for at, operation in enumerate(body) if isinstance(operation, Nop | Barrier)]
    first, last = (joints[0], joints[-1] + 1) if joints else (len(body), 0)
    head = [access for operation in body[:first] for access in _accesses_of(rank, operation, spots)]
    tail = _Beginnings(access for operation in body[last:] for access in _accesses_of(rank, operation, spots))
    return any(tail.conflicts(access) for access in head)


def _accesses_of(rank: int, operation: Operation, spots: Spots) -> Iterator[Access]:
    """What an operation reads and writes, packets aside."""
    if isinstance(operation, Loop):
        for inner in operation.body:
            yield from _accesses_of(rank, inner, spots)
    if not isinstance(operation, Transfer):
        return
    sources, destinations = operation.sources, operation.destinations
    if operation.name in _REDUCES_PACKETS:
        sources, destinations = sources[:1], destinations[:1]
    sides: list[tuple[tuple[Place, ...], bool]] = []
    if operation.name not in _SOURCES_ARE_PACKETS:
        sides.append((sources, False))
    if operation.name not in _DESTINATIONS_ARE_PACKETS:
        sides.append((destinations, True))
    for places, writes in sides:
        for place in places:
            for owner, buffer, start in spots.of(rank, operation, place):
                yield Access((owner, buffer), start, start + place.size, writes)
