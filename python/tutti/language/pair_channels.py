"""Channels between two ranks: by mapped memory, and by a port that a proxy serves."""

from __future__ import annotations

from collections.abc import Sequence

from tutti.language.checks import blocks_of, checked_block, checked_rank, listed
from tutti.language.chunks import Chunk, check_chunk, check_same_size
from tutti.language.context import get_program
from tutti.language.errors import caller, fail
from tutti.language.limits import MOST_CHANNELS
from tutti.language.operations import Local, Notice, Remote, Share, Transfer
from tutti.language.recorder import Use
from tutti.language.thread_block_group import ThreadBlockGroup
from tutti.language.vocabulary import BufferType, ChannelType, Instruction, ReduceOperationType, SyncType


class _PairChannel:
    """What both kinds have in common: ends, numbers, signals, and the checks of what they carry."""

    channel_type: ChannelType

    def __init__(self, dst_rank: int, src_rank: int) -> None:
        self._program = get_program()
        kind = type(self).__name__
        self.src_rank = checked_rank(self._program, src_rank, kind, "source rank")
        self.dst_rank = checked_rank(self._program, dst_rank, kind, "destination rank")
        if self.src_rank == self.dst_rank:
            fail("a channel to oneself: local chunks need none", rank=self.src_rank, operation=kind)
        made = self._program.recorder.resources[self.src_rank].pair_channels.get(self.channel_type, [])
        if len(made) >= MOST_CHANNELS:
            fail(f"a rank has at most {MOST_CHANNELS} channels of a kind", rank=self.src_rank, operation=kind)
        self.channel_id = self._program.recorder.pair_channel(self.src_rank, self.dst_rank, self.channel_type)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dst_rank={self.dst_rank}, src_rank={self.src_rank})"

    def _notice(self, name: Instruction, tb: int, sync: SyncType) -> None:
        block = checked_block(tb, self.src_rank, name.name)
        origin = caller()
        operation = Notice(
            name=name,
            origins=(origin,),
            sync=sync,
            channel_type=self.channel_type,
            channels=(self.channel_id,),
        )
        if name != Instruction.flush:
            self._claim("wait" if name in (Instruction.wait, Instruction.relaxed_wait) else "signal", block)
        self._program.record(self.src_rank, block, operation)
        if name in (Instruction.signal, Instruction.relaxed_signal):
            self._program.recorder.signal(self.src_rank, self.dst_rank, self.channel_type, Use(block, origin))
        elif name != Instruction.flush:
            self._program.recorder.wait(self.src_rank, self.dst_rank, self.channel_type, Use(block, origin))

    def _put(
        self, name: Instruction, target: Chunk, source: Chunk, tb: int | None, group: ThreadBlockGroup | None
    ) -> None:
        """Records a put of any kind; packets are written to scratch, and read from it if they are passed on."""
        for block, share in blocks_of(tb, group, self.src_rank, name.name):
            here = self._local(source, name.name, block)
            there = self._remote(target, name.name, block)
            check_same_size(target.size, source.size, self.src_rank, block, name.name)
            packets = name in (Instruction.put_packet, Instruction.read_put_packet)
            if packets and target.buffer != BufferType.scratch:
                self._fail("packets are written to scratch only", name.name, block)
            if name == Instruction.read_put_packet and source.buffer != BufferType.scratch:
                self._fail("packets are in scratch only", name.name, block)
            signals = name in (Instruction.put_with_signal, Instruction.put_with_signal_and_flush)
            if signals:
                self._claim("signal", block)
            self._transfer(name, block, share, (here,), (there,))
            if signals:
                use = Use(block, caller())
                self._program.recorder.signal(self.src_rank, self.dst_rank, self.channel_type, use)

    def _claim(self, what: str, block: int) -> None:
        """Of a channel one thread block signals, and one waits."""
        claimed = self._program.recorder.claim(self.src_rank, (self.channel_type, self.channel_id), what, block)
        if claimed != block:
            reason = f"thread blocks {claimed} and {block} both do it over one channel: its order would depend on the "
            self._fail(reason + "schedule", what, block)

    def _transfer(
        self,
        name: Instruction,
        block: int,
        share: Share | None,
        sources: tuple[Local | Remote, ...],
        destinations: tuple[Local | Remote, ...],
        reduce_op: ReduceOperationType | None = None,
    ) -> None:
        operation = Transfer(
            name=name,
            origins=(caller(),),
            sources=sources,
            destinations=destinations,
            channel_type=self.channel_type,
            channels=(self.channel_id,),
            reduce_op=reduce_op,
            share=share,
        )
        self._program.record(self.src_rank, block, operation)

    def _local(self, chunk: Chunk, operation: str, block: int) -> Local:
        self._check_owner(chunk, self.src_rank, "near", operation, block)
        return Local(chunk.buffer, chunk.index, chunk.size)

    def _remote(self, chunk: Chunk, operation: str, block: int) -> Remote:
        self._check_owner(chunk, self.dst_rank, "far", operation, block)
        return Remote(chunk.rank, chunk.buffer, chunk.index, chunk.size)

    def _check_owner(self, chunk: Chunk, owner: int, end: str, operation: str, block: int) -> None:
        foreign = f"the chunk at the channel's {end} end is rank {owner}'s, not {{}}'s"
        check_chunk(self._program, chunk, owner, foreign, self.src_rank, block, operation)

    def _fail(self, reason: str, operation: str, block: int) -> None:
        fail(reason, rank=self.src_rank, thread_block=block, operation=operation)


class MemoryChannel(_PairChannel):
    """Lets ``src_rank`` read and write the memory of ``dst_rank``, and signal it. Each one made is a new one."""

    channel_type = ChannelType.memory

    def signal(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Tells the far rank something. What was written before is visible to who waits for it, unless ``relaxed``."""
        self._notice(Instruction.relaxed_signal if relaxed else Instruction.signal, tb, data_sync)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Waits until the far rank has signalled over its channel to this one."""
        self._notice(Instruction.relaxed_wait if relaxed else Instruction.wait, tb, data_sync)

    def get(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Reads chunks of the far rank."""
        for block, share in blocks_of(tb, tb_group, self.src_rank, "get"):
            here = self._local(dst_chunk, "get", block)
            there = self._remote(src_chunk, "get", block)
            check_same_size(dst_chunk.size, src_chunk.size, self.src_rank, block, "get")
            self._transfer(Instruction.get, block, share, (there,), (here,))

    def put(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Writes chunks of the far rank."""
        self._put(Instruction.put, dst_chunk, src_chunk, tb, tb_group)

    def put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Writes packets to the scratch of the far rank, which needs no signal to find them complete."""
        self._put(Instruction.put_packet, dst_chunk, src_chunk, tb, tb_group)

    def read_put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for packets in this rank's scratch and passes them on to the far rank's."""
        self._put(Instruction.read_put_packet, dst_chunk, src_chunk, tb, tb_group)

    def reduce(
        self,
        local_src_chunk: Chunk,
        remote_src_chunks: Sequence[Chunk] | Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        local_dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Combines a chunk of this rank with chunks of the far one, into the former unless told otherwise."""
        target = local_src_chunk if local_dst_chunk is None else local_dst_chunk
        far: list[Chunk] | None = [remote_src_chunks] if isinstance(remote_src_chunks, Chunk) else None
        name = Instruction.read_reduce
        if far is None:
            far = listed(remote_src_chunks, "chunks", rank=self.src_rank, operation=name.name)
        for block, share in blocks_of(tb, tb_group, self.src_rank, name.name):
            if not far:
                self._fail("nothing to reduce with", name.name, block)
            here, there = self._local(local_src_chunk, name.name, block), self._local(target, name.name, block)
            remotes = tuple(self._remote(chunk, name.name, block) for chunk in far)
            for chunk in (target, *far):
                check_same_size(chunk.size, local_src_chunk.size, self.src_rank, block, name.name)
            self._transfer(name, block, share, (here, *remotes), (there,), reduce_op)

    put_packet = put_packets
    read_put_packet = read_put_packets


class PortChannel(_PairChannel):
    """Lets ``src_rank`` have data carried to ``dst_rank`` by a proxy, in order. Each one made is a new one."""

    channel_type = ChannelType.port

    def signal(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Tells the far rank something, after all puts of this channel before it."""
        self._notice(Instruction.signal, tb, data_sync)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Waits until the far rank has signalled over its channel to this one."""
        self._notice(Instruction.wait, tb, data_sync)

    def flush(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Waits until what was put may be overwritten here. It says nothing about what the far rank sees."""
        self._notice(Instruction.flush, tb, data_sync)

    def put(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Has chunks carried to the far rank."""
        self._put(Instruction.put, dst_chunk, src_chunk, tb, None)

    def put_with_signal(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Has chunks carried to the far rank and signals it."""
        self._put(Instruction.put_with_signal, dst_chunk, src_chunk, tb, None)

    def put_with_signal_and_flush(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Has chunks carried to the far rank, signals it, and waits until they may be overwritten here."""
        self._put(Instruction.put_with_signal_and_flush, dst_chunk, src_chunk, tb, None)

    def put_packets(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Has chunks carried to the far rank's scratch as packets."""
        self._put(Instruction.put_packet, dst_chunk, src_chunk, tb, None)

    def read_put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for packets in this rank's scratch and has them carried to the far rank's."""
        self._put(Instruction.read_put_packet, dst_chunk, src_chunk, tb, tb_group)

    put_packet = put_packets
    read_put_packet = read_put_packets
