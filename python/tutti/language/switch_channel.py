"""Channels among a group of ranks whose switch combines and multiplies what passes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tutti.language.checks import checked_block, checked_rank, listed, whole
from tutti.language.chunks import Chunk, check_chunk, check_same_size
from tutti.language.context import get_program
from tutti.language.errors import caller, fail
from tutti.language.limits import MOST_CHANNELS
from tutti.language.operations import Group, Local, Transfer
from tutti.language.vocabulary import BufferType, ChannelType, Instruction, ReduceOperationType


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a switch channel."""

    size: int
    ranks: list[int]


class SwitchChannel:
    """Reaches the same chunks of one buffer of all ranks of a group at once."""

    def __init__(self, rank_list: Iterable[int], buffer_type: BufferType) -> None:
        self._program = get_program()
        members = listed(rank_list, "the ranks of a switch channel", operation="SwitchChannel")
        ranks = [checked_rank(self._program, rank, "SwitchChannel") for rank in members]
        if not ranks:
            fail("a switch channel needs at least one rank", operation="SwitchChannel")
        if len(set(ranks)) < len(ranks):
            fail(f"a rank is listed twice: {ranks}", operation="SwitchChannel")
        if not isinstance(buffer_type, BufferType):
            fail(f"buffer_type is a BufferType, not {buffer_type!r}", operation="SwitchChannel")
        for rank in ranks:
            if len(self._program.recorder.resources[rank].group_channels) >= MOST_CHANNELS:
                fail(f"a rank has at most {MOST_CHANNELS} channels of a kind", rank=rank, operation="SwitchChannel")
        self.channel_type = ChannelType.switch
        self.buffer_type = buffer_type
        self.rank_group = RankGroup(len(ranks), ranks)
        self.channel_ids = self._program.recorder.group_channel(tuple(ranks), buffer_type)

    def at_rank(self, rank: int) -> SwitchChannelRankView:
        """The channel as one of its ranks uses it."""
        self._check_member(whole(rank, "rank", operation="SwitchChannel"), None, "at_rank")
        return SwitchChannelRankView(self, rank)

    def reduce(
        self,
        rank: int,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Combines the chunks of all ranks of the group into a chunk of ``rank``, which executes it."""
        name = Instruction.group_load_reduce
        here, group, block = self._operands(name, rank, dst_chunk, buffer_offset, size, tb)
        self._record(name, rank, block, (group,), (here,), reduce_op)

    def broadcast(self, rank: int, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Writes a chunk of ``rank``, which executes it, to all ranks of the group, itself among them."""
        name = Instruction.group_store
        here, group, block = self._operands(name, rank, src_chunk, buffer_offset, size, tb)
        self._record(name, rank, block, (here,), (group,), None)

    def broadcast_packets(self, rank: int, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Waits for packets in the scratch of ``rank`` and writes them to the scratch of all ranks of the group."""
        name = Instruction.group_store_packet
        here, group, block = self._operands(name, rank, src_chunk, buffer_offset, size, tb)
        if here.buffer != BufferType.scratch or self.buffer_type != BufferType.scratch:
            fail("packets are in scratch only", rank=rank, thread_block=block, operation=name.name)
        self._record(name, rank, block, (here,), (group,), None)

    def _operands(
        self, name: Instruction, rank: int, chunk: Chunk, offset: int, size: int, tb: int
    ) -> tuple[Local, Group, int]:
        block = checked_block(tb, rank, name.name)
        self._check_member(rank, block, name.name)
        start, count = whole(offset, "buffer_offset", operation=name.name), whole(size, "size", operation=name.name)

        def refuse(reason: str) -> None:
            fail(reason, rank=rank, thread_block=block, operation=name.name)

        foreign = "the chunk is rank {}'s, not of the rank that executes the operation"
        check_chunk(self._program, chunk, rank, foreign, rank, block, name.name)
        check_same_size(chunk.size, count, rank, block, name.name)
        if start < 0:
            refuse(f"buffer_offset is at least 0, not {start}")
        for member in self.rank_group.ranks:
            available = self._program.buffer_size(member, self.buffer_type)
            if start + count > available:
                place = f"the {available} chunks of rank {member}'s {self.buffer_type.name} buffer"
                refuse(f"chunks {start} to {start + count - 1} are beyond {place}")
        return Local(chunk.buffer, chunk.index, chunk.size), Group(self.buffer_type, start, count), block

    def _record(
        self,
        name: Instruction,
        rank: int,
        block: int,
        sources: tuple[Local | Group, ...],
        destinations: tuple[Local | Group, ...],
        reduce_op: ReduceOperationType | None,
    ) -> None:
        operation = Transfer(
            name=name,
            origins=(caller(),),
            sources=sources,
            destinations=destinations,
            channel_type=self.channel_type,
            channels=(self.channel_ids[rank],),
            reduce_op=reduce_op,
        )
        self._program.record(rank, block, operation)

    def _check_member(self, rank: int, block: int | None, operation: str) -> None:
        if rank not in self.rank_group.ranks:
            reason = f"the channel is among ranks {self.rank_group.ranks} only"
            fail(reason, rank=rank, thread_block=block, operation=operation)


class SwitchChannelRankView:
    """A switch channel as one rank uses it."""

    def __init__(self, channel: SwitchChannel, rank: int) -> None:
        self._channel = channel
        self._rank = rank

    def reduce(
        self,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """:meth:`SwitchChannel.reduce` by this rank."""
        self._channel.reduce(self._rank, buffer_offset, size, dst_chunk, tb, reduce_op)

    def broadcast(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """:meth:`SwitchChannel.broadcast` by this rank."""
        self._channel.broadcast(self._rank, src_chunk, buffer_offset, size, tb)

    def broadcast_packets(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """:meth:`SwitchChannel.broadcast_packets` by this rank."""
        self._channel.broadcast_packets(self._rank, src_chunk, buffer_offset, size, tb)
