"""First pass: sorts the record by rank and thread block, gathers loops, and numbers what thread blocks reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tutti.language.operations import Loop, Notice, Operation, Remote, Transfer
from tutti.language.passes.draft import Block, RankDraft, RemoteBuffer
from tutti.language.recorder import Recorded, Recorder
from tutti.language.vocabulary import BufferType, ChannelType


class _Numbering:
    """Gives numbers to things in the order of their first mention."""

    def __init__(self) -> None:
        self.by_type: dict[ChannelType, dict[int, None]] = {}

    def mention(self, channel_type: ChannelType, number: int) -> None:
        self.by_type.setdefault(channel_type, {})[number] = None

    def listed(self) -> dict[ChannelType, tuple[int, ...]]:
        return {kind: tuple(numbers) for kind, numbers in self.by_type.items()}


class _RemoteBuffers:
    """The buffers of other ranks that a rank reaches."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, BufferType], int] = {}
        self._access: list[dict[ChannelType, None]] = []

    def number(self, place: Remote, channel_type: ChannelType) -> int:
        number = self._numbers.setdefault((place.rank, place.buffer), len(self._numbers))
        if number == len(self._access):
            self._access.append({})
        self._access[number][channel_type] = None
        return number

    def listed(self) -> tuple[RemoteBuffer, ...]:
        found = zip(self._numbers, self._access, strict=True)
        return tuple(RemoteBuffer(rank, buffer, tuple(access)) for (rank, buffer), access in found)


def lay_out(recorder: Recorder, sizes: Sequence[tuple[int, int]]) -> Iterator[RankDraft]:
    """A draft of every rank, with the operations as they were written."""
    by_rank: list[list[Recorded]] = [[] for _ in sizes]
    for entry in recorder.operations:
        by_rank[entry.rank].append(entry)
    for rank, (entries, (inputs, outputs)) in enumerate(zip(by_rank, sizes, strict=True)):
        resources = recorder.resources[rank]
        blocks, remote_buffers = _lay_out_rank(entries)
        yield RankDraft(
            id=rank,
            input_chunks=inputs,
            output_chunks=outputs,
            scratch_chunks=resources.scratch,
            blocks=blocks,
            pair_channels={kind: tuple(channels) for kind, channels in resources.pair_channels.items()},
            group_channels=tuple(resources.group_channels),
            remote_buffers=remote_buffers,
            semaphores=tuple(resources.semaphores),
            barriers=len(resources.barriers),
        )


def _lay_out_rank(entries: Sequence[Recorded]) -> tuple[tuple[Block, ...], tuple[RemoteBuffer, ...]]:
    count = max((entry.block for entry in entries), default=-1) + 1
    by_block: list[list[Recorded]] = [[] for _ in range(count)]
    channels = [_Numbering() for _ in range(count)]
    remotes = [_Numbering() for _ in range(count)]
    reached = _RemoteBuffers()
    for entry in entries:
        by_block[entry.block].append(entry)
        operation = entry.operation
        if isinstance(operation, Transfer | Notice):
            for channel in operation.channels:
                channels[entry.block].mention(operation.channel_type, channel)
        if isinstance(operation, Transfer):
            for place in (*operation.sources, *operation.destinations):
                if isinstance(place, Remote):
                    number = reached.number(place, operation.channel_type)
                    remotes[entry.block].mention(operation.channel_type, number)
    blocks = tuple(
        Block(number, _gather_loops(by_block[number]), channels[number].listed(), remotes[number].listed())
        for number in range(count)
    )
    return blocks, reached.listed()


def _gather_loops(entries: Sequence[Recorded]) -> tuple[Operation, ...]:
    """Operations written in the same loop are neighbours in their thread block, since loops do not nest."""
    operations: list[Operation] = []
    for frame, group in groupby(entries, key=lambda entry: entry.loop):
        body = tuple(entry.operation for entry in group)
        if frame is None:
            operations += body
        else:
            operations.append(Loop(origins=(frame.origin,), unit=frame.unit, chunks=frame.chunks, body=body))
    return tuple(operations)
