"""What a rank does on its own: copies, reductions, barriers and semaphores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tutti.language.checks import blocks_of, bounded, checked_block, checked_rank, listed, whole
from tutti.language.chunks import BaseBuffer, Buffer, Chunk, check_chunk, check_same_size
from tutti.language.context import get_program
from tutti.language.errors import caller, fail
from tutti.language.limits import MOST_CREDIT, MOST_SEMAPHORES
from tutti.language.operations import Barrier, Local, Nop, SemaphoreUse, Transfer
from tutti.language.thread_block_group import ThreadBlockGroup
from tutti.language.vocabulary import BufferType, ChannelType, Instruction, ReduceOperationType, SyncType

__all__ = [
    "BaseBuffer",
    "Buffer",
    "BufferType",
    "ChannelType",
    "Chunk",
    "Rank",
    "ReduceOperationType",
    "Semaphore",
    "SyncType",
    "ThreadBlockGroup",
    "get_program",
]


class Rank:
    """A rank of the program."""

    def __init__(self, rank: int) -> None:
        self._program = get_program()
        self.rank = checked_rank(self._program, rank, "Rank")

    def __repr__(self) -> str:
        return f"Rank({self.rank})"

    def get_input_buffer(self) -> BaseBuffer:
        """What the caller of the collective gives."""
        return self._program.buffers[self.rank][BufferType.input]

    def get_output_buffer(self) -> BaseBuffer:
        """What the caller of the collective gets."""
        return self._program.buffers[self.rank][BufferType.output]

    def copy(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Copies chunks of this rank."""
        self._copy(Instruction.copy, dst_chunk, src_chunk, tb, tb_group)

    def copy_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Copies chunks into scratch as packets."""
        self._copy(Instruction.copy_packet, dst_chunk, src_chunk, tb, tb_group)

    def unpack_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for packets in scratch and copies what they carry."""
        self._copy(Instruction.unpack_packet, dst_chunk, src_chunk, tb, tb_group)

    def _copy(
        self, name: Instruction, target: Chunk, source: Chunk, tb: int | None, group: ThreadBlockGroup | None
    ) -> None:
        for block, share in blocks_of(tb, group, self.rank, name.name):
            self._check_ours(target, name.name, block)
            self._check_ours(source, name.name, block)
            check_same_size(target.size, source.size, self.rank, block, name.name)
            packets = {Instruction.copy_packet: target, Instruction.unpack_packet: source}.get(name)
            if packets is not None and packets.buffer != BufferType.scratch:
                fail("packets are in scratch only", rank=self.rank, thread_block=block, operation=name.name)
            operation = Transfer(
                name=name,
                origins=(caller(),),
                sources=(local(source),),
                destinations=(local(target),),
                share=share,
            )
            self._program.record(self.rank, block, operation)

    def reduce(
        self,
        src_chunk: Chunk,
        other_chunks: Sequence[Chunk] | Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
        packet: bool = False,
        *,
        op: ReduceOperationType | None = None,
    ) -> None:
        """Combines chunks of this rank into ``dst_chunk``, or into ``src_chunk`` if there is none.

        With ``packet``, the other chunks are packets in scratch, which are waited for. ``op`` is ``reduce_op`` by its
        older name.
        """
        name = Instruction.reduce_packet if packet else Instruction.reduce
        target = src_chunk if dst_chunk is None else dst_chunk
        others = (
            [other_chunks]
            if isinstance(other_chunks, Chunk)
            else listed(other_chunks, "chunks", rank=self.rank, operation=name.name)
        )
        for block, share in blocks_of(tb, tb_group, self.rank, name.name):
            if not others:
                fail("nothing to reduce with", rank=self.rank, thread_block=block, operation=name.name)
            for chunk in (src_chunk, target, *others):
                self._check_ours(chunk, name.name, block)
                check_same_size(chunk.size, src_chunk.size, self.rank, block, name.name)
            if packet and any(chunk.buffer != BufferType.scratch for chunk in others):
                fail("packets are in scratch only", rank=self.rank, thread_block=block, operation=name.name)
            operation = Transfer(
                name=name,
                origins=(caller(),),
                sources=(local(src_chunk), *map(local, others)),
                destinations=(local(target),),
                reduce_op=op or reduce_op,
                share=share,
            )
            self._program.record(self.rank, block, operation)

    def barrier(self, tb_list: Iterable[int]) -> None:
        """Joins thread blocks of this rank; of a single one, its lanes."""
        blocks = [
            checked_block(tb, self.rank, "barrier")
            for tb in listed(tb_list, "thread blocks", rank=self.rank, operation="barrier")
        ]
        if not blocks:
            fail("a barrier joins at least one thread block", rank=self.rank, operation="barrier")
        if len(set(blocks)) < len(blocks):
            fail(f"a thread block is listed twice: {blocks}", rank=self.rank, operation="barrier")
        origins = (caller(),)
        if len(blocks) == 1:
            self._program.record(self.rank, blocks[0], Nop(origins=origins))
            return
        number = self._program.recorder.barrier(self.rank, frozenset(blocks))
        for block in blocks:
            self._program.record(self.rank, block, Barrier(origins=origins, id=number, blocks=len(blocks)))

    def nop(self, tb: int) -> None:
        """Joins the lanes of a thread block. Where operations depend on each other, the language does it by itself."""
        self.barrier([tb])

    copy_packet = copy_packets
    unpack_packet = unpack_packets

    def _check_ours(self, chunk: Chunk, operation: str, block: int) -> None:
        foreign = "the chunk is rank {}'s; a channel reaches it"
        check_chunk(self._program, chunk, self.rank, foreign, self.rank, block, operation)


class Semaphore:
    """A counter by which thread blocks of a rank wait for each other."""

    def __init__(self, rank: int, initial_value: int) -> None:
        self._program = get_program()
        self.rank = checked_rank(self._program, rank, "Semaphore")
        self.initial_value = whole(initial_value, "the initial value", rank=self.rank, operation="Semaphore")
        if self.initial_value < 0:
            reason = f"the initial value is at least 0, not {self.initial_value}"
            fail(reason, rank=self.rank, operation="Semaphore")
        bounded(self.initial_value, 0, MOST_CREDIT, "the initial value", rank=self.rank, operation="Semaphore")
        if len(self._program.recorder.resources[self.rank].semaphores) >= MOST_SEMAPHORES:
            fail(f"a rank has at most {MOST_SEMAPHORES} semaphores", rank=self.rank, operation="Semaphore")
        self.id = self._program.recorder.semaphore(self.rank, self.initial_value)

    def acquire(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Waits until the value is positive and takes one from it."""
        self._use(Instruction.sem_acquire, tb, data_sync)

    def release(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Adds one to the value."""
        self._use(Instruction.sem_release, tb, data_sync)

    def _use(self, name: Instruction, tb: int, sync: SyncType) -> None:
        block = checked_block(tb, self.rank, name.value)
        operation = SemaphoreUse(name=name, origins=(caller(),), sync=sync, semaphores=(self.id,))
        claimed = self._program.recorder.claim(self.rank, ("semaphore", self.id), name.value, block)
        if claimed != block:
            reason = f"thread blocks {claimed} and {block} both do it: its order would depend on the schedule"
            fail(reason, rank=self.rank, thread_block=block, operation=name.value)
        self._program.record(self.rank, block, operation)


def local(chunk: Chunk) -> Local:
    """A chunk, as an operation of its own rank names it."""
    return Local(chunk.buffer, chunk.index, chunk.size)
