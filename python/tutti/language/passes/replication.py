"""Last pass: the instances of a program.

Instance i of n has its own thread blocks, channels, semaphores and barriers: number k becomes k n + i.

``interleaved`` divides every chunk into n, so a range of s chunks from c becomes, for instance i, s chunks from
c n + i s. Together the instances cover exactly what one covered.

``none`` leaves the chunks. The n thread blocks that stand for one then act as one that is n times as wide: they share
every transfer as a group of thread blocks does, and where it joins its lanes they meet at a barrier. What cannot be
shared (by switches, by ports, in loops) the first of them does alone; the others only give the signals that belong to
it, since the far side's instances wait for theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tutti.language.errors import fail
from tutti.language.limits import (
    MOST_ALL_OPERATIONS,
    MOST_BLOCKS,
    MOST_CHANNELS,
    MOST_CHUNKS,
    MOST_OPERATIONS,
    MOST_SEMAPHORES,
)
from tutti.language.operations import Barrier, Loop, Nop, Notice, Operation, Place, SemaphoreUse, Share, Transfer
from tutti.language.passes.draft import Block, RankDraft
from tutti.language.recorder import Recorder
from tutti.language.vocabulary import ChannelType, Instruction, ReplicationPolicy


def check_instances(
    recorder: Recorder, sizes: Sequence[tuple[int, int]], instances: int, policy: ReplicationPolicy
) -> None:
    """Refuses more instances than a rank of a plan can hold. One instance was checked as it was written."""

    def check(count: int, what: str, most: int, rank: int | None = None) -> None:
        if count * instances > most:
            reason = f"{instances} instances of {count} {what}; a rank has at most {most}"
            fail(reason, rank=rank, operation="CollectiveProgram")

    check(max((entry.block for entry in recorder.operations), default=0) + 1, "thread blocks", MOST_BLOCKS)
    for rank, ((inputs, outputs), resources) in enumerate(zip(sizes, recorder.resources, strict=True)):
        if policy == ReplicationPolicy.interleaved:
            check(inputs, "input chunks", MOST_CHUNKS, rank)
            check(outputs, "output chunks", MOST_CHUNKS, rank)
            check(resources.scratch, "scratch chunks", MOST_CHUNKS, rank)
        for kind, channels in resources.pair_channels.items():
            check(len(channels), f"{kind.value} channels", MOST_CHANNELS, rank)
        # Each stands for itself in a list that has one entry for each other kind.
        most_groups = MOST_CHANNELS - len(resources.pair_channels)
        check(len(resources.group_channels), "switch channels", most_groups, rank)
        check(len(resources.semaphores), "semaphores", MOST_SEMAPHORES, rank)


class OperationCount:
    """Operations of all ranks so far. Refuses more than a plan can hold, before the rest is made."""

    def __init__(self) -> None:
        self._all = 0

    def add(self, rank: int, block: Block) -> None:
        """Those of a finished thread block of ``rank``."""
        bodies = [len(loop.body) for loop in block.operations if isinstance(loop, Loop)]
        most = max([len(block.operations), *bodies])
        if most > MOST_OPERATIONS:
            reason = f"{most} operations; a thread block, or a loop, has at most {MOST_OPERATIONS}"
            fail(reason, rank=rank, thread_block=block.id, operation="CollectiveProgram")
        self._all += len(block.operations) + sum(bodies)
        if self._all > MOST_ALL_OPERATIONS:
            reason = f"{self._all} operations up to this rank; all ranks have at most {MOST_ALL_OPERATIONS}"
            fail(reason, rank=rank, operation="CollectiveProgram")


def replicate(draft: RankDraft, instances: int, policy: ReplicationPolicy, count: OperationCount) -> RankDraft:
    """The rank with all instances of its thread blocks, whose operations are counted."""
    if instances == 1:
        for block in draft.blocks:
            count.add(draft.id, block)
        return draft
    divided = instances if policy == ReplicationPolicy.interleaved else 1
    meeting = draft.barriers  # the numbers after those of the program's own barriers
    blocks = []
    for block in draft.blocks:
        for instance in range(instances):
            copy: _Divided | _Shared
            if policy == ReplicationPolicy.interleaved:
                copy = _Divided(instance, instances)
            else:
                copy = _Shared(instance, instances, meeting + block.id)
            blocks.append(_copy_block(block, copy))
            count.add(draft.id, blocks[-1])
    return replace(
        draft,
        input_chunks=draft.input_chunks * divided,
        output_chunks=draft.output_chunks * divided,
        scratch_chunks=draft.scratch_chunks * divided,
        blocks=tuple(blocks),
        pair_channels={
            kind: tuple(channel for channel in channels for _ in range(instances))
            for kind, channels in draft.pair_channels.items()
        },
        group_channels=tuple(channel for channel in draft.group_channels for _ in range(instances)),
        semaphores=tuple(initial for initial in draft.semaphores for _ in range(instances)),
    )


def _copy_block(block: Block, copy: _Divided | _Shared) -> Block:
    return Block(
        id=copy.number(block.id),
        operations=tuple(made for operation in block.operations for made in copy.operations(operation)),
        channels={kind: tuple(map(copy.number, numbers)) for kind, numbers in block.channels.items()},
        remotes=block.remotes,
    )


class _Instance(ABC):
    """What an instance does to operations under either policy: it has its own numbers."""

    def __init__(self, instance: int, instances: int) -> None:
        self.instance = instance
        self.instances = instances

    def number(self, number: int) -> int:
        return number * self.instances + self.instance

    def operations(self, operation: Operation) -> Iterator[Operation]:
        if isinstance(operation, Loop):
            yield replace(operation, body=tuple(made for one in operation.body for made in self.operations(one)))
        elif isinstance(operation, Barrier):
            yield replace(operation, id=self.number(operation.id))
        elif isinstance(operation, SemaphoreUse):
            yield replace(operation, semaphores=tuple(map(self.number, operation.semaphores)))
        elif isinstance(operation, Notice):
            yield replace(operation, channels=tuple(map(self.number, operation.channels)))
        elif isinstance(operation, Transfer):
            yield from self.transfer(replace(operation, channels=tuple(map(self.number, operation.channels))))
        else:
            yield operation

    @abstractmethod
    def transfer(self, operation: Transfer) -> Iterator[Operation]:
        """What this instance does of a transfer."""


class _Divided(_Instance):
    """Its part of every chunk is a chunk of its own."""

    def transfer(self, operation: Transfer) -> Iterator[Operation]:
        sources = tuple(map(self.part, operation.sources))
        yield replace(operation, sources=sources, destinations=tuple(map(self.part, operation.destinations)))

    def part(self, place: Place) -> Place:
        return replace(place, index=place.index * self.instances + self.instance * place.size)


class _Shared(_Instance):
    """It does its share of every operation. ``meeting`` is the barrier of the blocks that stand for one."""

    def __init__(self, instance: int, instances: int, meeting: int) -> None:
        super().__init__(instance, instances)
        self.meeting = meeting
        self.in_loop = False

    def operations(self, operation: Operation) -> Iterator[Operation]:
        if isinstance(operation, Loop):
            self.in_loop = True
            yield from super().operations(operation)
            self.in_loop = False
        elif isinstance(operation, Nop):
            yield Barrier(origins=operation.origins, id=self.meeting, blocks=self.instances)
        elif isinstance(operation, Barrier):
            # All instances of all its blocks: an instance alone may lag behind the others of its block.
            yield replace(operation, blocks=operation.blocks * self.instances)
        else:
            yield from super().operations(operation)

    def transfer(self, operation: Transfer) -> Iterator[Operation]:
        if self.in_loop or operation.channel_type in (ChannelType.port, ChannelType.switch):
            yield from [operation] if self.instance == 0 else self.signals_of(operation)
            return
        share = operation.share or Share(0, 1)
        parts = Share(share.part * self.instances + self.instance, share.parts * self.instances)
        yield replace(operation, share=parts)

    def signals_of(self, operation: Transfer) -> Iterator[Operation]:
        """The signals within an operation that another instance does."""
        if operation.name not in (Instruction.put_with_signal, Instruction.put_with_signal_and_flush):
            return
        signal = Notice(
            name=Instruction.signal,
            origins=operation.origins,
            channel_type=operation.channel_type,
            channels=operation.channels,
        )
        yield signal
        if operation.name == Instruction.put_with_signal_and_flush:
            yield replace(signal, name=Instruction.flush)
