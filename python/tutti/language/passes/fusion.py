"""Merges neighbouring operations of a thread block that one operation does, and joints that others make superfluous.

Every rule keeps the result: what a fused operation leaves in memory is what the two would have left. Its elements are
in no order among themselves, so two are not merged if one touches, at another place of its range, what the other
writes.
"""

from __future__ import annotations

from dataclasses import replace

from tutti.language.operations import Barrier, Group, Joining, Local, Loop, Nop, Operation, Transfer
from tutti.language.passes.draft import Spots
from tutti.language.passes.runs import Run, Sending, run_of
from tutti.language.vocabulary import ChannelType, Instruction, SyncType


def fuse(rank: int, operations: tuple[Operation, ...], spots: Spots) -> tuple[Operation, ...]:
    """The operations of a thread block of ``rank``, merged from left to right."""
    fused: list[Operation] = []
    run: Run | None = None
    for operation in operations:
        if isinstance(operation, Loop):
            operation = replace(operation, body=fuse(rank, operation.body, spots))
        if run is not None:
            if run.take(operation):
                continue
            first = run.built()
            merged = _merge(rank, first, operation, spots)
            if merged is not None:
                origins = tuple(dict.fromkeys(first.origins + operation.origins))
                run = run_of(rank, replace(merged, origins=origins), spots)
                continue
            first, operation = _drop_double_joint(first, operation)
            fused.append(first)
        run = run_of(rank, operation, spots)
    return (*fused, run.built()) if run is not None else ()


def _merge(rank: int, first: Operation, second: Operation, spots: Spots) -> Operation | None:
    """What does both, where it is neither's kind of operation or only the one's; runs have those of one kind."""
    if isinstance(first, Transfer) and isinstance(second, Transfer):
        return _merge_transfers(rank, first, second, spots)
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


def _merge_transfers(rank: int, first: Transfer, second: Transfer, spots: Spots) -> Operation | None:
    if first.share != second.share:
        return None
    if first.name == Instruction.group_load_reduce and second.name == Instruction.group_store:
        return _merge_reduce_with_store(first, second)
    if second.channel_type == ChannelType.memory:
        sending = Sending(rank, first, spots)
        return sending.built() if sending.take(second) else None
    if (
        first.name == Instruction.reduce_packet
        and second.name == Instruction.copy_packet
        and first.destinations[0] == second.sources[0]
    ):
        destinations = first.destinations + second.destinations
        return replace(first, name=Instruction.reduce_copy_packet, destinations=destinations)
    return None


def _merge_reduce_with_store(first: Transfer, second: Transfer) -> Transfer | None:
    """The fused operation leaves no result but the one it stores, so it must store it where the reduction left it."""
    result, stored = first.destinations[0], second.destinations[0]
    if first.channels != second.channels or second.sources[0] != result or not isinstance(stored, Group):
        return None
    if not isinstance(result, Local) or (result.buffer, result.index) != (stored.buffer, stored.index):
        return None
    return replace(first, name=Instruction.group_load_reduce_store, destinations=second.destinations)
