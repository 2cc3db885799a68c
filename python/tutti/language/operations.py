"""The recorded operations. They never change: a pass makes new ones.

Channels and semaphores are numbered by rank here; only the emitted plan numbers channels by thread block. ``origins``
are the lines of the program that an operation comes from, several where operations were fused.
"""

from __future__ import annotations

from dataclasses import dataclass

from tutti.language.errors import Origin
from tutti.language.vocabulary import BufferType, ChannelType, Instruction, ReduceOperationType, SyncType


@dataclass(frozen=True, slots=True)
class Local:
    """Chunks of the rank that executes the operation."""

    buffer: BufferType
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Remote:
    """Chunks of another rank."""

    rank: int
    buffer: BufferType
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Group:
    """The same chunks of every rank of a switch channel."""

    buffer: BufferType
    index: int
    size: int


Place = Local | Remote | Group


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of an operation a thread block of a group does."""

    part: int
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What every operation has."""

    name: Instruction
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nop(Operation):
    """Joins the lanes of its thread block."""

    name: Instruction = Instruction.nop


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Operation):
    """Joins thread blocks of a rank."""

    name: Instruction = Instruction.barrier
    id: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Operation):
    """Moves or combines chunks. Of sources and destinations, the local ones come first."""

    sources: tuple[Place, ...]
    destinations: tuple[Place, ...]
    channel_type: ChannelType = ChannelType.none
    channels: tuple[int, ...] = ()
    reduce_op: ReduceOperationType | None = None
    share: Share | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining(Operation):
    """An operation that may join the lanes before and after itself."""

    sync: SyncType = SyncType.none


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Joining):
    """Signals, waits or flushes channels."""

    channel_type: ChannelType
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphoreUse(Joining):
    """Acquires or releases semaphores."""

    semaphores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Operation):
    """Repeats its body over the units of a chunk."""

    name: Instruction = Instruction.pipeline
    unit: int
    chunks: int
    body: tuple[Operation, ...]


def locals_of(places: tuple[Place, ...]) -> tuple[Local, ...]:
    """The places on the executing rank, in their order."""
    return tuple(place for place in places if isinstance(place, Local))


def others_of(places: tuple[Place, ...]) -> tuple[Place, ...]:
    """The places elsewhere, in their order."""
    return tuple(place for place in places if not isinstance(place, Local))
