"""Operations of one kind, one after the other, that one operation does.

A run keeps lists of what has joined it, and where its ranges of chunks begin in order: what joins is compared with its
neighbours only, and the operation is built once, when nothing more joins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from dataclasses import replace

from tutti.language.limits import MOST_OPERANDS
from tutti.language.operations import (
    Notice,
    Operation,
    Place,
    SemaphoreUse,
    Transfer,
    locals_of,
    others_of,
)
from tutti.language.passes.draft import Spot, Spots
from tutti.language.vocabulary import ENTRY_BY_ENTRY, BufferType, ChannelType, Instruction

_ACCUMULATE = {Instruction.reduce, Instruction.reduce_packet, Instruction.read_reduce}
_THEN_PUT = {  # a reduction and the put of its result
    (Instruction.reduce, Instruction.put): Instruction.reduce_send,
    (Instruction.reduce_send, Instruction.put): Instruction.reduce_send,
    (Instruction.read_reduce, Instruction.put): Instruction.read_reduce_send,
    (Instruction.read_reduce_send, Instruction.put): Instruction.read_reduce_send,
    (Instruction.reduce_packet, Instruction.put_packet): Instruction.reduce_send_packet,
    (Instruction.reduce_send_packet, Instruction.put_packet): Instruction.reduce_send_packet,
    (Instruction.reduce_copy_packet, Instruction.put_packet): Instruction.reduce_copy_send_packet,
    (Instruction.reduce_copy_send_packet, Instruction.put_packet): Instruction.reduce_copy_send_packet,
}
_RESULTS = {reduction for reduction, _ in _THEN_PUT}
_THEN_PASS_ON = {  # a reduction that leaves packets here, and the passing on of these packets
    Instruction.reduce_copy_packet: Instruction.reduce_copy_send_packet,
    Instruction.reduce_copy_send_packet: Instruction.reduce_copy_send_packet,
}


class Run(ABC):
    """An operation, and what has joined it."""

    def __init__(self, first: Operation) -> None:
        self._origins = dict.fromkeys(first.origins)
        self._single: Operation | None = first

    def take(self, operation: Operation) -> bool:
        """Whether the operation joins the run."""
        if not self._join(operation):
            return False
        self._single = None
        self._origins.update(dict.fromkeys(operation.origins))
        return True

    def built(self) -> Operation:
        """The one operation."""
        return replace(self._build(), origins=tuple(self._origins)) if self._single is None else self._single

    @abstractmethod
    def _join(self, operation: Operation) -> bool: ...

    @abstractmethod
    def _build(self) -> Operation: ...


def run_of(rank: int, first: Operation, spots: Spots) -> Run:
    """The run that an operation of ``rank`` begins."""
    if isinstance(first, Notice):
        return _Notices(first)
    if isinstance(first, SemaphoreUse):
        return _Semaphores(first)
    if isinstance(first, Transfer):
        if first.name in ENTRY_BY_ENTRY:
            return _Entries(rank, first, spots)
        if first.name == Instruction.read_put_packet:
            return _PassingOn(first)
        if first.name in _ACCUMULATE:
            return _Sum(rank, first, spots)
        if first.name in _THEN_PUT.values():
            return Sending(rank, first, spots)
    return _Alone(first)


class _Alone(Run):
    """What nothing of its kind joins."""

    def _join(self, operation: Operation) -> bool:
        return False

    def _build(self) -> Operation:
        raise AssertionError("nothing has joined")


class _Notices(Run):
    def __init__(self, first: Notice) -> None:
        super().__init__(first)
        self._first = first
        self._channels = list(first.channels)
        self._known = set(first.channels)
        self._sync = first.sync

    def _join(self, operation: Operation) -> bool:
        first = self._first
        if not isinstance(operation, Notice):
            return False
        if (first.name, first.channel_type) != (operation.name, operation.channel_type):
            return False
        new = [channel for channel in operation.channels if channel not in self._known]
        if len(new) < len(operation.channels) and first.name != Instruction.flush:
            return False  # two signals are not one; two flushes are
        self._channels += new
        self._known.update(new)
        self._sync |= operation.sync
        return True

    def _build(self) -> Notice:
        return replace(self._first, channels=tuple(self._channels), sync=self._sync)


class _Semaphores(Run):
    def __init__(self, first: SemaphoreUse) -> None:
        super().__init__(first)
        self._first = first
        self._semaphores = list(first.semaphores)
        self._known = set(first.semaphores)
        self._sync = first.sync

    def _join(self, operation: Operation) -> bool:
        if not isinstance(operation, SemaphoreUse) or self._first.name != operation.name:
            return False
        if not self._known.isdisjoint(operation.semaphores):
            return False
        self._semaphores += operation.semaphores
        self._known.update(operation.semaphores)
        self._sync |= operation.sync
        return True

    def _build(self) -> SemaphoreUse:
        return replace(self._first, semaphores=tuple(self._semaphores), sync=self._sync)


class _Transfers(Run):
    """Transfers, of which each adds operands to the first."""

    def __init__(self, first: Transfer) -> None:
        super().__init__(first)
        self._first = first
        self._sources = list(first.sources)
        self._destinations = list(first.destinations)
        self._channels = list(first.channels)

    def _join(self, operation: Operation) -> bool:
        if not isinstance(operation, Transfer) or self._first.share != operation.share or not self._adds(operation):
            return False
        self._channels += operation.channels
        return True

    @abstractmethod
    def _adds(self, operation: Transfer) -> bool: ...

    def _extends(self, sources: tuple[Place, ...], destinations: tuple[Place, ...]) -> bool:
        """Adds these operands, unless no operation has so many."""
        if max(len(self._sources) + len(sources), len(self._destinations) + len(destinations)) > MOST_OPERANDS:
            return False
        self._sources += sources
        self._destinations += destinations
        return True

    def _is_alike(self, operation: Transfer) -> bool:
        first = self._first
        return (first.name, first.channel_type) == (operation.name, operation.channel_type)

    def _build(self) -> Transfer:
        return replace(
            self._first,
            sources=tuple(self._sources),
            destinations=tuple(self._destinations),
            channels=tuple(self._channels),
        )


class _PassingOn(_Transfers):
    """The same packets to one after the other."""

    def _adds(self, operation: Transfer) -> bool:
        same = self._is_alike(operation) and self._first.sources == operation.sources
        return same and self._extends((), operation.destinations)


class _Entries(_Transfers):
    """Sources and destinations entry by entry. The order of entries is not fixed."""

    def __init__(self, rank: int, first: Transfer, spots: Spots) -> None:
        super().__init__(first)
        self._entries = set(zip(first.sources, first.destinations, strict=True))
        self._written = _Ranges(rank, spots)
        self._written.add(first, first.destinations)

    def _adds(self, operation: Transfer) -> bool:
        if not self._is_alike(operation) or self._first.sources[0].size != operation.sources[0].size:
            return False
        entries = list(zip(operation.sources, operation.destinations, strict=True))
        # None may leave something else where another one has written.
        if any(self._written.meet(operation, entry[1]) and entry not in self._entries for entry in entries):
            return False
        if not self._extends(operation.sources, operation.destinations):
            return False
        self._entries.update(entries)
        self._written.add(operation, operation.destinations)
        return True


class _Sum(_Transfers):
    """Reductions that each add to what those before them have left."""

    def __init__(self, rank: int, first: Transfer, spots: Spots) -> None:
        super().__init__(first)
        self._rank = rank
        self._spots = spots

    def _adds(self, operation: Transfer) -> bool:
        first, target = self._first, self._first.destinations[0]
        # One that begins anew would overwrite the sum instead.
        begun = first.sources[0] == operation.sources[0] == target and first.destinations == operation.destinations
        if not (self._is_alike(operation) and begun and first.reduce_op == operation.reduce_op):
            return False
        more = locals_of(operation.sources)[1:]
        if any(self._spots.shared(self._rank, (first, target), (operation, one)) for one in more):
            return False  # it reads the sum
        return self._extends(more + others_of(operation.sources), ())

    def _build(self) -> Transfer:
        sources = tuple(self._sources)
        return replace(super()._build(), sources=locals_of(sources) + others_of(sources))


class Sending(_Transfers):
    """A reduction, and puts of its result."""

    def __init__(self, rank: int, first: Transfer, spots: Spots) -> None:
        super().__init__(first)
        self._name = first.name
        self._far = _Ranges(rank, spots)
        if first.name in _RESULTS:
            self._far.add(first, others_of(first.sources + first.destinations))

    def _adds(self, operation: Transfer) -> bool:
        name = _THEN_PUT.get((self._name, operation.name))
        result = self._destinations[0]
        if operation.name == Instruction.read_put_packet and self._name in _THEN_PASS_ON:
            name, result = _THEN_PASS_ON[self._name], self._destinations[1]
        if name is None or operation.channel_type != ChannelType.memory or operation.sources != (result,):
            return False
        # Elements are in no order: none may be written where another one is read or written.
        if any(self._far.meet(operation, target, elsewhere=True) for target in operation.destinations):
            return False
        if not self._extends((), operation.destinations):
            return False
        self._name = name
        self._far.add(operation, operation.destinations)
        return True

    def _build(self) -> Transfer:
        return replace(super()._build(), name=self._name, channel_type=ChannelType.memory)


class _Ranges:
    """Chunks that operands of a rank's operations reach."""

    def __init__(self, rank: int, spots: Spots) -> None:
        self._rank = rank
        self._spots = spots
        self._begins: dict[tuple[int, BufferType], dict[int, list[int]]] = {}  # by size, in order

    def add(self, operation: Transfer, places: tuple[Place, ...]) -> None:
        for place in places:
            for owner, buffer, start in self._spots.of(self._rank, operation, place):
                begins = self._begins.setdefault((owner, buffer), {}).setdefault(place.size, [])
                at = bisect_left(begins, start)
                if begins[at : at + 1] != [start]:
                    begins.insert(at, start)

    def meet(self, operation: Transfer, place: Place, *, elsewhere: bool = False) -> bool:
        """Whether a range has a chunk in common with an operand's; ``elsewhere``: as another one of each."""
        return any(self._meet(spot, place.size, elsewhere) for spot in self._spots.of(self._rank, operation, place))

    def _meet(self, spot: Spot, size: int, elsewhere: bool) -> bool:
        owner, buffer, start = spot
        for other, begins in self._begins.get((owner, buffer), {}).items():
            first, last = bisect_right(begins, start - other), bisect_left(begins, start + size)
            at = bisect_left(begins, start, first, max(first, last))
            same = elsewhere and at < last and begins[at] == start
            if last - first > same:
                return True
        return False
