"""Cuts operations so that what they touch is the same range or nothing in common, before instances divide the ranges.

An instance takes its part of every range. If one operation writes chunks 0 to 4 and another reads chunk 2, "its part"
of the one and of the other are different bytes, and the instance would read what another instance has yet to write. So
both are cut at the borders of chunk 2, and the operands that belong to the same elements, on whatever rank, are cut
alike. Most programs use their ranges consistently and are left as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tutti.language.operations import Loop, Operation, Place, Transfer
from tutti.language.passes.draft import RankDraft, Spot, Spots
from tutti.language.vocabulary import ENTRY_BY_ENTRY, BufferType, Instruction

_SIGNALLING = {Instruction.put_with_signal, Instruction.put_with_signal_and_flush}


def partition(drafts: Sequence[RankDraft], *, inplace: bool) -> tuple[RankDraft, ...]:
    """The drafts with their transfers cut where others need it."""
    cuts = _Cuts(drafts, inplace=inplace)
    if not cuts.found:
        return tuple(drafts)
    return tuple(
        replace(
            draft,
            blocks=tuple(
                replace(block, operations=tuple(_cut(cuts, draft, block.operations))) for block in draft.blocks
            ),
        )
        for draft in drafts
    )


def entries_of(operation: Transfer) -> Iterator[Transfer]:
    """The operation as ones whose operands all belong to the same elements."""
    if operation.name not in ENTRY_BY_ENTRY or len(operation.sources) == 1:
        yield operation
        return
    for source, target, channel in zip(operation.sources, operation.destinations, operation.channels, strict=True):
        yield replace(operation, sources=(source,), destinations=(target,), channels=(channel,))


class _Cuts:
    """Where ranges begin and end, in every buffer of every rank."""

    def __init__(self, drafts: Sequence[RankDraft], *, inplace: bool) -> None:
        self._spots = Spots(drafts, inplace)
        self._cuts: defaultdict[tuple[int, BufferType], set[int]] = defaultdict(set)
        alike = {  # spots of operands of the same elements, and their length; each once
            (tuple(self.spots(draft, entry)), entry.sources[0].size)
            for draft in drafts
            for block in draft.blocks
            for transfer in _transfers(block.operations)
            for entry in entries_of(transfer)
        }
        for spots, size in alike:
            for rank, buffer, start in spots:
                self._cuts[rank, buffer] |= {start, start + size}
        wide = [(spots, size) for spots, size in alike if size > 1]
        self.found = any(len(self.within(spots, size)) > 2 for spots, size in wide)
        changed = self.found
        while changed:
            changed = False
            for spots, size in wide:
                shared = self.within(spots, size)
                for rank, buffer, start in spots:
                    new = {start + offset for offset in shared}
                    changed = changed or not new <= self._cuts[rank, buffer]
                    self._cuts[rank, buffer] |= new

    def spots(self, draft: RankDraft, entry: Transfer) -> Iterator[Spot]:
        """Where the operands are."""
        for place in (*entry.sources, *entry.destinations):
            yield from self._spots.of(draft.id, entry, place)

    def within(self, spots: Sequence[Spot], size: int) -> list[int]:
        """The cuts of any of the ranges, counted from its start, both ends among them."""
        offsets = {0, size}
        for rank, buffer, start in spots:
            cuts = self._cuts[rank, buffer]
            offsets |= {offset for offset in range(1, size) if start + offset in cuts}
        return sorted(offsets)


def _transfers(operations: Sequence[Operation]) -> Iterator[Transfer]:
    for operation in operations:
        if isinstance(operation, Loop):
            yield from _transfers(operation.body)
        elif isinstance(operation, Transfer):
            yield operation


def _cut(cuts: _Cuts, draft: RankDraft, operations: Sequence[Operation]) -> Iterator[Operation]:
    for operation in operations:
        if isinstance(operation, Loop):
            yield replace(operation, body=tuple(_cut(cuts, draft, operation.body)))
        elif isinstance(operation, Transfer):
            pieces = [piece for entry in entries_of(operation) for piece in _pieces(cuts, draft, entry)]
            entries = sum(1 for _ in entries_of(operation))
            yield from pieces if len(pieces) > entries else [operation]
        else:
            yield operation


def _pieces(cuts: _Cuts, draft: RankDraft, entry: Transfer) -> Iterator[Operation]:
    """The pieces of an operation. Of a put with a signal only the last one signals, after the others in its channel."""
    borders = cuts.within(list(cuts.spots(draft, entry)), entry.sources[0].size)
    for first, last in pairwise(borders):

        def piece(place: Place, first: int = first, last: int = last) -> Place:
            return replace(place, index=place.index + first, size=last - first)

        silent = entry.name in _SIGNALLING and last < borders[-1]
        yield replace(
            entry,
            name=Instruction.put if silent else entry.name,
            sources=tuple(map(piece, entry.sources)),
            destinations=tuple(map(piece, entry.destinations)),
        )
