"""What a program has said so far: its operations in order, and its resources in the order they were made.

A recorder is append-only. It belongs to one program, so identifiers start afresh in each.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tutti.language.errors import Origin
from tutti.language.operations import Operation
from tutti.language.vocabulary import BufferType, ChannelType


@dataclass(frozen=True, slots=True)
class PairChannel:
    """A memory or port channel, at the rank that uses it."""

    channel_type: ChannelType
    peer: int


@dataclass(frozen=True, slots=True)
class GroupChannel:
    """A switch channel, as one of its ranks knows it."""

    buffer: BufferType
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoopFrame:
    """A loop of the program; each is one of its own, whatever its numbers."""

    unit: int
    chunks: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Recorded:
    """An operation, who executes it, and in which loop it was written."""

    rank: int
    block: int
    operation: Operation
    loop: LoopFrame | None


@dataclass(slots=True)
class RankResources:
    """What a rank owns besides its input and output."""

    scratch: int = 0
    pair_channels: dict[ChannelType, list[PairChannel]] = field(default_factory=dict)
    group_channels: list[GroupChannel] = field(default_factory=list)
    semaphores: list[int] = field(default_factory=list)
    barriers: dict[frozenset[int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """A signal or a wait, kept to see whether each has its counterpart."""

    signaller: int
    waiter: int
    channel_type: ChannelType
    loop: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Use:
    """Where a signal or a wait is."""

    block: int
    origin: Origin


class Recorder:
    """The record of one program."""

    def __init__(self, ranks: int) -> None:
        self.resources = [RankResources() for _ in range(ranks)]
        self.operations: list[Recorded] = []
        self.loop: LoopFrame | None = None
        self.signals: dict[Message, list[Use]] = {}
        self.waits: dict[Message, list[Use]] = {}
        self._ends: dict[tuple[int, Hashable, str], int] = {}

    def add(self, rank: int, block: int, operation: Operation) -> None:
        """Appends an operation to what a thread block does."""
        self.operations.append(Recorded(rank, block, operation, self.loop))

    def allocate(self, rank: int, size: int) -> int:
        """Takes scratch of a rank and returns where it begins."""
        start = self.resources[rank].scratch
        self.resources[rank].scratch += size
        return start

    def pair_channel(self, rank: int, peer: int, channel_type: ChannelType) -> int:
        """Makes a channel and returns its number among the rank's channels of this type."""
        channels = self.resources[rank].pair_channels.setdefault(channel_type, [])
        channels.append(PairChannel(channel_type, peer))
        return len(channels) - 1

    def group_channel(self, ranks: tuple[int, ...], buffer: BufferType) -> dict[int, int]:
        """Makes a switch channel and returns its number at each of its ranks."""
        numbers = {}
        for rank in ranks:
            channels = self.resources[rank].group_channels
            numbers[rank] = len(channels)
            channels.append(GroupChannel(buffer, ranks))
        return numbers

    def semaphore(self, rank: int, initial: int) -> int:
        """Makes a semaphore and returns its number."""
        semaphores = self.resources[rank].semaphores
        semaphores.append(initial)
        return len(semaphores) - 1

    def barrier(self, rank: int, blocks: frozenset[int]) -> int:
        """The number of the barrier of these thread blocks, the same at each use."""
        barriers = self.resources[rank].barriers
        return barriers.setdefault(blocks, len(barriers))

    def claim(self, rank: int, counter: Hashable, end: str, block: int) -> int:
        """The thread block at an end of a counter: the first that has been there."""
        return self._ends.setdefault((rank, counter, end), block)

    def signal(self, rank: int, peer: int, channel_type: ChannelType, use: Use) -> None:
        """Notes that ``rank`` tells ``peer`` something."""
        self.signals.setdefault(Message(rank, peer, channel_type, self._loop_shape()), []).append(use)

    def wait(self, rank: int, peer: int, channel_type: ChannelType, use: Use) -> None:
        """Notes that ``rank`` waits for ``peer``."""
        self.waits.setdefault(Message(peer, rank, channel_type, self._loop_shape()), []).append(use)

    def _loop_shape(self) -> tuple[int, int] | None:
        return None if self.loop is None else (self.loop.unit, self.loop.chunks)
