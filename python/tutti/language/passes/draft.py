"""What the passes hand to each other: per rank, its resources and the operations of its thread blocks."""

from __future__ import annotations

from dataclasses import dataclass

from tutti.language.operations import Operation
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
