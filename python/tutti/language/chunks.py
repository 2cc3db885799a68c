"""Buffers and the ranges of chunks that programs name by slicing them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tutti.language.checks import checked_rank, whole
from tutti.language.context import get_program
from tutti.language.errors import fail
from tutti.language.limits import MOST_CHUNKS
from tutti.language.vocabulary import BufferType

if TYPE_CHECKING:
    from tutti.language.program import CollectiveProgram


@dataclass(frozen=True)
class Chunk:
    """Neighbouring chunks of one buffer of one rank."""

    rank: int
    buffer: BufferType
    index: int
    size: int

    def to_dict(self) -> dict[str, Any]:
        """The chunk as plans write it where its rank must be said."""
        return {"rank": self.rank, "type": self.buffer.value, "index": self.index, "size": self.size}


def check_chunk(
    program: CollectiveProgram, chunk: Any, owner: int, foreign: str, rank: int, thread_block: int, operation: str
) -> None:
    """Refuses what is no chunk of the program and the owner; ``foreign`` is said of that of another rank, {}."""
    reason = None
    if not isinstance(chunk, Chunk):
        reason = f"a chunk is written buffer[start:stop], not {chunk!r}"
    elif chunk.rank != owner:
        reason = foreign.format(chunk.rank)
    elif chunk.index + chunk.size > program.buffer_size(owner, chunk.buffer):
        reason = "the chunk is beyond its buffer: it is of another program"
    if reason is not None:
        fail(reason, rank=rank, thread_block=thread_block, operation=operation)


def check_same_size(one: int, other: int, rank: int, thread_block: int, operation: str) -> None:
    """Refuses operands of different numbers of chunks."""
    if one != other:
        fail(f"operands of {one} and {other} chunks", rank=rank, thread_block=thread_block, operation=operation)


class BaseBuffer:
    """A rank's memory: slicing it gives chunks."""

    def __init__(self, rank: int, buffer_type: BufferType, offset: int, size: int) -> None:
        self.rank = rank
        self.buffer_type = buffer_type
        self.offset = offset
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice) -> Chunk:
        """``buffer[start:stop]``: chunks, counted from the start of this buffer."""
        what = f"the {self.buffer_type.name} buffer"
        if not isinstance(key, slice):
            fail(f"{what} is indexed by a slice such as [2:3], not by {key!r}", rank=self.rank)
        if key.step not in (None, 1):
            fail(f"{what} is sliced in steps of 1, not {key.step}", rank=self.rank)
        start = 0 if key.start is None else whole(key.start, "the start of a slice", rank=self.rank)
        stop = self.size if key.stop is None else whole(key.stop, "the end of a slice", rank=self.rank)
        if start < 0 or stop < 0:
            fail(f"{what} has no negative chunks: [{start}:{stop}]", rank=self.rank)
        if start >= stop:
            fail(f"[{start}:{stop}] of {what} has no chunk", rank=self.rank)
        if stop > self.size:
            fail(f"[{start}:{stop}] is beyond the {self.size} chunks of {what}", rank=self.rank)
        return Chunk(self.rank, self.buffer_type, self.offset + start, stop - start)


class Buffer(BaseBuffer):
    """Scratch memory of a rank, taken from it when this is made."""

    def __init__(self, rank: int, size: int) -> None:
        program = get_program()
        rank = checked_rank(program, rank, "Buffer")
        size = whole(size, "the size of a buffer", rank=rank)
        if size < 1:
            fail(f"a scratch buffer needs at least one chunk, not {size}", rank=rank)
        taken = program.buffer_size(rank, BufferType.scratch)
        if taken + size > MOST_CHUNKS:
            fail(f"a rank's scratch has at most {MOST_CHUNKS} chunks; {taken} are taken, {size} more asked", rank=rank)
        super().__init__(rank, BufferType.scratch, program.recorder.allocate(rank, size), size)
