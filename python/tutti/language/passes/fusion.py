"""Merges neighbouring operations of a thread block that one operation does, and joints that others make superfluous.

Every rule keeps the result: what a fused operation leaves in memory is what the two would have left. Its elements are
in no order among themselves, so two are not merged if one touches, at another place of its range, what the other
writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tutti.language.operations import (
    Barrier,
    Group,
    Joining,
    Local,
    Loop,
    Nop,
    Notice,
    Operation,
    Place,
    SemaphoreUse,
    Transfer,
    locals_of,
    others_of,
)
from tutti.language.passes.draft import Spots
from tutti.language.vocabulary import ENTRY_BY_ENTRY, ChannelType, Instruction, SyncType

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
_THEN_PASS_ON = {  # a reduction that leaves packets here, and the passing on of these packets
    Instruction.reduce_copy_packet: Instruction.reduce_copy_send_packet,
    Instruction.reduce_copy_send_packet: Instruction.reduce_copy_send_packet,
}


def fuse(rank: int, operations: tuple[Operation, ...], spots: Spots) -> tuple[Operation, ...]:
    """The operations of a thread block of ``rank``, merged from left to right."""
    fused: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Loop):
            operation = replace(operation, body=fuse(rank, operation.body, spots))
        if fused:
            merged = _merge(fused[-1], operation, _Memory(rank, spots))
            if merged is not None:
                origins = tuple(dict.fromkeys(fused[-1].origins + operation.origins))
                fused[-1] = replace(merged, origins=origins)
                continue
            fused[-1], operation = _drop_double_joint(fused[-1], operation)
        fused.append(operation)
    return tuple(fused)


@dataclass(frozen=True, slots=True)
class _Memory:
    """What operands of a rank's operations have in common."""

    rank: int
    spots: Spots

    def overlap(self, first: Transfer, one: Place, second: Transfer, other: Place) -> bool:
        """Whether the two have a chunk in common."""
        return bool(self.spots.shared(self.rank, (first, one), (second, other)))

    def shifted(self, first: Transfer, one: Place, second: Transfer, other: Place) -> bool:
        """Whether the two have a chunk in common that is another one of each: their elements are not the same ones."""
        return bool(self.spots.shared(self.rank, (first, one), (second, other)) - {0})


def _merge(first: Operation, second: Operation, memory: _Memory) -> Operation | None:
    if isinstance(first, Transfer) and isinstance(second, Transfer):
        return _merge_transfers(first, second, memory)
    if isinstance(first, Notice) and isinstance(second, Notice):
        return _merge_notices(first, second)
    if isinstance(first, SemaphoreUse) and isinstance(second, SemaphoreUse):
        return _merge_semaphores(first, second)
    if isinstance(second, Nop) and (isinstance(first, Nop) or _joins_at_end(first)):
        return first
    if isinstance(first, Nop) and _joins_at_start(second):
        return second
    return None


def _joins_at_start(operation: Operation) -> bool:
    """Whether a barrier or loop begins with a joint."""
    if not isinstance(operation, Loop):
        return isinstance(operation, Barrier)
    head = operation.body[0]
    return isinstance(head, Nop | Barrier) or (isinstance(head, Joining) and SyncType.before in head.sync)


def _joins_at_end(operation: Operation) -> bool:
    """Whether a barrier or loop ends with a joint."""
    if not isinstance(operation, Loop):
        return isinstance(operation, Barrier)
    tail = operation.body[-1]
    return isinstance(tail, Nop | Barrier) or (isinstance(tail, Joining) and SyncType.after in tail.sync)


def _drop_double_joint(first: Operation, second: Operation) -> tuple[Operation, Operation]:
    """Of two joints without anything between them, leaves one."""
    if isinstance(second, Joining) and (isinstance(first, Nop) or _joins_at_end(first)):
        return first, replace(second, sync=second.sync & ~SyncType.before)
    if isinstance(first, Joining):
        joined = isinstance(second, Joining) and SyncType.before in second.sync
        if joined or isinstance(second, Nop) or _joins_at_start(second):
            return replace(first, sync=first.sync & ~SyncType.after), second
    return first, second


def _merge_notices(first: Notice, second: Notice) -> Notice | None:
    if (first.name, first.channel_type) != (second.name, second.channel_type):
        return None
    new = tuple(channel for channel in second.channels if channel not in first.channels)
    if len(new) < len(second.channels) and first.name != Instruction.flush:
        return None  # two signals are not one; two flushes are
    return replace(first, channels=first.channels + new, sync=first.sync | second.sync)


def _merge_semaphores(first: SemaphoreUse, second: SemaphoreUse) -> SemaphoreUse | None:
    if first.name != second.name or set(first.semaphores) & set(second.semaphores):
        return None
    return replace(first, semaphores=first.semaphores + second.semaphores, sync=first.sync | second.sync)


def _merge_transfers(first: Transfer, second: Transfer, memory: _Memory) -> Transfer | None:
    if first.share != second.share:
        return None
    if first.name == second.name and first.channel_type == second.channel_type:
        return _merge_alike(first, second, memory)
    if first.name == Instruction.group_load_reduce and second.name == Instruction.group_store:
        return _merge_reduce_with_store(first, second)
    if second.channel_type == ChannelType.memory:
        return _merge_reduce_with_put(first, second, memory)
    if (
        first.name == Instruction.reduce_packet
        and second.name == Instruction.copy_packet
        and first.destinations[0] == second.sources[0]
    ):
        destinations = first.destinations + second.destinations
        return replace(first, name=Instruction.reduce_copy_packet, destinations=destinations)
    return None


def _merge_alike(first: Transfer, second: Transfer, memory: _Memory) -> Transfer | None:
    channels = first.channels + second.channels
    if first.name in ENTRY_BY_ENTRY:
        if first.sources[0].size != second.sources[0].size or _overwrites(first, second, memory):
            return None
        sources, destinations = first.sources + second.sources, first.destinations + second.destinations
        return replace(first, sources=sources, destinations=destinations, channels=channels)
    if first.name == Instruction.read_put_packet and first.sources == second.sources:
        return replace(first, destinations=first.destinations + second.destinations, channels=channels)
    if first.name in _ACCUMULATE and _accumulates(first, second, memory):
        more = locals_of(second.sources)[1:]
        sources = locals_of(first.sources) + more + others_of(first.sources) + others_of(second.sources)
        return replace(first, sources=sources, channels=channels)
    return None


def _overwrites(first: Transfer, second: Transfer, memory: _Memory) -> bool:
    """Whether the second leaves something else where the first has written: the order of entries is not fixed."""
    before = list(zip(first.sources, first.destinations, strict=True))
    return any(
        memory.overlap(first, other, second, target) and (source, target) not in before
        for source, target in zip(second.sources, second.destinations, strict=True)
        for other in first.destinations
    )


def _accumulates(first: Transfer, second: Transfer, memory: _Memory) -> bool:
    """Whether the second adds to what the first has left. One that begins anew would overwrite it instead."""
    target = first.destinations[0]
    begun = first.sources[0] == second.sources[0] == target and first.destinations == second.destinations
    reads_result = any(memory.overlap(first, target, second, one) for one in locals_of(second.sources)[1:])
    return begun and not reads_result and first.reduce_op == second.reduce_op


def _merge_reduce_with_put(first: Transfer, second: Transfer, memory: _Memory) -> Transfer | None:
    name = _THEN_PUT.get((first.name, second.name))
    result = first.destinations[0]
    if second.name == Instruction.read_put_packet and first.name in _THEN_PASS_ON:
        name, result = _THEN_PASS_ON[first.name], first.destinations[1]
    if name is None or second.sources != (result,):
        return None
    far = others_of(first.sources + first.destinations)
    if any(memory.shifted(first, place, second, target) for place in far for target in second.destinations):
        return None
    return replace(
        first,
        name=name,
        destinations=first.destinations + second.destinations,
        channels=first.channels + second.channels,
        channel_type=ChannelType.memory,
    )


def _merge_reduce_with_store(first: Transfer, second: Transfer) -> Transfer | None:
    """The fused operation leaves no result but the one it stores, so it must store it where the reduction left it."""
    result, stored = first.destinations[0], second.destinations[0]
    if first.channels != second.channels or second.sources[0] != result or not isinstance(stored, Group):
        return None
    if not isinstance(result, Local) or (result.buffer, result.index) != (stored.buffer, stored.index):
        return None
    return replace(first, name=Instruction.group_load_reduce_store, destinations=second.destinations)
