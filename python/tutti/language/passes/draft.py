"""What the passes hand to each other: per rank, its resources and the operations of its thread blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tutti.language.operations import Group, Operation, Place, Remote, Transfer
from tutti.language.recorder import GroupChannel, PairChannel
from tutti.language.vocabulary import BufferType, ChannelType


@dataclass(frozen=True, slots=True)
class RemoteBuffer:
    """A buffer of another rank that this one reaches, and the kinds of channels it does so by."""

    rank: int
    buffer: BufferType
    access: tuple[ChannelType, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A thread block. Channels and remote buffers are those it uses, by the rank's numbers, in order of first use."""

    id: int
    operations: tuple[Operation, ...]
    channels: dict[ChannelType, tuple[int, ...]]
    remotes: dict[ChannelType, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class RankDraft:
    """A rank. ``pair_channels`` come by type, in the order in which the program first made one of each."""

    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: tuple[Block, ...]
    pair_channels: dict[ChannelType, tuple[PairChannel, ...]]
    group_channels: tuple[GroupChannel, ...]
    remote_buffers: tuple[RemoteBuffer, ...]
    semaphores: tuple[int, ...]
    barriers: int

    def home(self, buffer: BufferType, index: int, *, inplace: bool) -> tuple[BufferType, int]:
        """Where a chunk is. In place, the smaller of input and output is a part of the larger one."""
        sizes = {BufferType.input: self.input_chunks, BufferType.output: self.output_chunks}
        if buffer == BufferType.scratch or not inplace or 0 in sizes.values():
            return buffer, index
        larger = max(sizes, key=lambda kind: sizes[kind])
        whole = sizes[BufferType.input] == sizes[BufferType.output] or buffer == larger
        return larger, index if whole else index + self.id * sizes[buffer]


Spot = tuple[int, BufferType, int]  # rank, buffer, first chunk


@dataclass(frozen=True, slots=True)
class Spots:
    """Where in the memory of all ranks the operands of operations are."""

    drafts: Sequence[RankDraft]
    inplace: bool

    def of(self, rank: int, operation: Transfer, place: Place) -> Iterator[Spot]:
        """Where an operand of ``rank``'s operation begins: on one rank, or on each of a switch channel's."""
        if isinstance(place, Group):
            for member in self.drafts[rank].group_channels[operation.channels[0]].ranks:
                yield self._at(member, place)
        else:
            yield self._at(place.rank if isinstance(place, Remote) else rank, place)

    def shared(self, rank: int, one: tuple[Transfer, Place], other: tuple[Transfer, Place]) -> set[int]:
        """By how many chunks two operands lie apart, where they have chunks in common; {0}: they are the same ones."""
        return {
            second[2] - first[2]
            for first in self.of(rank, *one)
            for second in self.of(rank, *other)
            if first[:2] == second[:2] and -other[1].size < second[2] - first[2] < one[1].size
        }

    def _at(self, rank: int, place: Place) -> Spot:
        return rank, *self.drafts[rank].home(place.buffer, place.index, inplace=self.inplace)
