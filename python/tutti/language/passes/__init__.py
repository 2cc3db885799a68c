"""From the record of a program to what its plan says, in passes that each make a new draft of every rank.

    lay_out     who executes what, with which resources
    fuse        operations of a thread block that one operation does
    state_sync  the joints that the program asked for, as operations
    join        the joints that dependences ask for
    partition   transfers cut so that instances can divide them
    replicate   the instances

The order matters: fusing first leaves fewer dependences to join, and instances repeat what is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tutti.language.operations import Operation
from tutti.language.passes.dependences import join_dependent
from tutti.language.passes.draft import RankDraft, Spots
from tutti.language.passes.fusion import fuse
from tutti.language.passes.layout import lay_out
from tutti.language.passes.pairing import check_pairs
from tutti.language.passes.partition import partition
from tutti.language.passes.replication import OperationCount, check_instances, replicate
from tutti.language.passes.synchronisation import state_sync
from tutti.language.recorder import Recorder
from tutti.language.vocabulary import ReplicationPolicy

BlockPass = Callable[[tuple[Operation, ...]], tuple[Operation, ...]]


@dataclass(frozen=True, slots=True)
class Settings:
    """Which passes a program wants, and how."""

    fuse: bool
    join_dependent: bool
    instances: int
    policy: ReplicationPolicy
    inplace: bool


def compile_record(recorder: Recorder, sizes: Sequence[tuple[int, int]], settings: Settings) -> tuple[RankDraft, ...]:
    """The finished draft of every rank. ``sizes`` are the chunks of each rank's input and output."""
    check_instances(recorder, sizes, settings.instances, settings.policy)
    check_pairs(recorder)
    laid_out = tuple(lay_out(recorder, sizes))
    spots = Spots(laid_out, settings.inplace)
    drafts = tuple(_compile_blocks(draft, settings, spots) for draft in laid_out)
    if settings.instances > 1 and settings.policy == ReplicationPolicy.interleaved:
        drafts = partition(drafts, inplace=settings.inplace)
    count = OperationCount()
    return tuple(replicate(draft, settings.instances, settings.policy, count) for draft in drafts)


def _compile_blocks(draft: RankDraft, settings: Settings, spots: Spots) -> RankDraft:
    """The passes that see one thread block at a time."""
    passes: list[BlockPass] = [partial(fuse, draft.id, spots=spots)] if settings.fuse else []
    passes.append(state_sync)
    if settings.join_dependent:
        passes.append(partial(join_dependent, draft.id, spots=spots))
    blocks = []
    for block in draft.blocks:
        operations = block.operations
        for one in passes:
            operations = one(operations)
        blocks.append(replace(block, operations=operations))
    return replace(draft, blocks=tuple(blocks))
