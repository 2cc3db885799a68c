"""Writes a draft as the plan's objects, in which a thread block numbers its channels and remote buffers itself."""

from __future__ import annotations

from typing import Any

from tutti.language.errors import Origin
from tutti.language.limits import MOST_NAME_BYTES
from tutti.language.operations import (
    Barrier,
    Group,
    Local,
    Loop,
    Notice,
    Operation,
    Place,
    Remote,
    SemaphoreUse,
    Transfer,
)
from tutti.language.passes.draft import Block, RankDraft
from tutti.language.vocabulary import ChannelType, Instruction

Plan = dict[str, Any]

_NAME_THE_RANK = {  # the format has the rank beside local chunks here, although it can only be the executing one
    Instruction.group_load_reduce,
    Instruction.group_store,
    Instruction.group_store_packet,
}


def plan_of(draft: RankDraft, *, origin: bool) -> Plan:
    """A rank of the plan."""
    numbers = {(remote.rank, remote.buffer): number for number, remote in enumerate(draft.remote_buffers)}
    pairs = [
        {"channel_type": kind.value, "connected_to": [channel.peer for channel in channels]}
        for kind, channels in draft.pair_channels.items()
    ]
    groups = [
        {
            "channel_type": ChannelType.switch.value,
            "buffer_type": channel.buffer.value,
            "rank_groups": [{"size": len(channel.ranks), "ranks": list(channel.ranks)}],
        }
        for channel in draft.group_channels
    ]
    return {
        "id": draft.id,
        "input_chunks": draft.input_chunks,
        "output_chunks": draft.output_chunks,
        "scratch_chunks": draft.scratch_chunks,
        "threadblocks": [_BlockWriter(draft.id, block, numbers, origin).write() for block in draft.blocks],
        "channels": pairs + groups,
        "remote_buffers": [
            {
                "rank": remote.rank,
                "type": remote.buffer.value,
                "access_channel_types": [kind.value for kind in remote.access],
            }
            for remote in draft.remote_buffers
        ],
        "semaphores": [{"init_value": initial} for initial in draft.semaphores],
    }


class _BlockWriter:
    """Writes one thread block."""

    def __init__(self, rank: int, block: Block, numbers: dict[Any, int], origin: bool) -> None:
        self._rank = rank
        self._block = block
        self._origin = origin
        self._channels = {kind: _places(listed) for kind, listed in block.channels.items()}
        remotes = {kind: _places(listed) for kind, listed in block.remotes.items()}
        self._buffers = {
            (kind, key): places[number]
            for kind, places in remotes.items()
            for key, number in numbers.items()
            if number in places
        }

    def write(self) -> Plan:
        return {
            "id": self._block.id,
            "ops": [self._operation(operation) for operation in self._block.operations],
            "channels": [
                {"channel_type": kind.value, "channel_ids": list(listed)}
                for kind, listed in self._block.channels.items()
            ],
            "remote_buffer_refs": [
                {"access_channel_type": kind.value, "remote_buffer_ids": list(listed)}
                for kind, listed in self._block.remotes.items()
            ],
        }

    def _operation(self, operation: Operation) -> Plan:
        written: Plan = {"name": operation.name.value}
        if isinstance(operation, Transfer):
            written |= self._transfer(operation)
        elif isinstance(operation, Notice):
            written["channel_ids"] = self._channel_ids(operation)
            written["channel_type"] = operation.channel_type.value
        elif isinstance(operation, SemaphoreUse):
            written["semaphore_ids"] = list(operation.semaphores)
        elif isinstance(operation, Barrier):
            written["barrier_id"] = operation.id
            written["num_threadblocks"] = operation.blocks
        elif isinstance(operation, Loop):
            written["iter_context"] = {"unit_size": operation.unit, "num_chunks": operation.chunks}
            written["ops"] = [self._operation(inner) for inner in operation.body]
        if self._origin and operation.origins:
            written["origin"] = _text_of(operation.origins)
        return written

    def _transfer(self, operation: Transfer) -> Plan:
        kind = operation.channel_type
        written: Plan
        if operation.name == Instruction.group_load_reduce:
            written = self._group_reduction(operation)
        else:
            written = {
                "src_buff": [self._place(place, operation) for place in operation.sources],
                "dst_buff": [self._place(place, operation) for place in operation.destinations],
            }
            if kind == ChannelType.port or operation.name == Instruction.get:
                written["channel_ids"] = self._channel_ids(operation)
        if kind != ChannelType.none:
            written["channel_type"] = kind.value
        if operation.reduce_op is not None:
            written["reduce_op"] = operation.reduce_op.value
        if operation.share is not None:
            written["tbg_info"] = {"tb_id": operation.share.part, "tbg_size": operation.share.parts}
        return written

    def _group_reduction(self, operation: Transfer) -> Plan:
        group, target = operation.sources[0], operation.destinations[0]
        assert isinstance(group, Group) and isinstance(target, Local)
        return {
            "buffer_type": group.buffer.value,
            "buffer_offset": group.index,
            "size": group.size,
            "dst_chunk": self._place(target, operation),
            "channel_ids": self._channel_ids(operation),
        }

    def _channel_ids(self, operation: Transfer | Notice) -> list[int]:
        places = self._channels[operation.channel_type]
        return [places[channel] for channel in operation.channels]

    def _place(self, place: Place, operation: Transfer) -> Plan:
        extent = {"index": place.index, "size": place.size}
        if isinstance(place, Local):
            owner = {"rank": self._rank} if operation.name in _NAME_THE_RANK else {}
            return {**owner, "type": place.buffer.value, **extent}
        if isinstance(place, Remote):
            return {"buffer_id": self._buffers[operation.channel_type, (place.rank, place.buffer)], **extent}
        return {"switch_channel_id": self._channel_ids(operation)[0], **extent}


def _text_of(origins: tuple[Origin, ...]) -> str:
    """The lines, as many as the reader takes; names of files may be no text, and as long as one likes."""
    encoded = ", ".join(dict.fromkeys(map(str, origins))).encode(errors="replace")
    if len(encoded) > MOST_NAME_BYTES:
        more = ", …".encode()
        cut = encoded[: MOST_NAME_BYTES - len(more)]
        encoded = (cut.rpartition(b", ")[0] or cut) + more
    return encoded.decode(errors="ignore")


def _places(listed: tuple[int, ...]) -> dict[int, int]:
    return {number: place for place, number in enumerate(listed)}
