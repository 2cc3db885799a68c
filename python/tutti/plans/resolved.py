"""Plans whose ids are resolved: which channel meets which, and operations in words that no renaming changes.

A plan is taken as its JSON object (docs/plan-format.md), already read once by the core: nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]

MEMORY, PORT, SWITCH = "memory", "port", "switch"
SIGNALS = ("signal", "rlxsignal", "pws", "pwsf")
WAITS = ("wait", "rlxwait")


class Where(NamedTuple):
    """An operation: ``inner`` counts within a pipeline and is -1 outside of one."""

    rank: int
    block: int
    op: int
    inner: int = -1


class Wire(NamedTuple):
    """The ``number``-th channel of a kind between two ranks, the same for both ends; ``low`` is the smaller rank."""

    kind: str
    low: int
    high: int
    number: int


def operations(plan: Json) -> Iterator[tuple[Where, Json]]:
    """All operations in the order of ranks and thread blocks; a pipeline comes before its body."""
    for rank, gpu in enumerate(plan["gpus"]):
        for block, entry in enumerate(gpu["threadblocks"]):
            for op, operation in enumerate(entry["ops"]):
                yield Where(rank, block, op), operation
                for inner, body in enumerate(operation.get("ops", ())):
                    yield Where(rank, block, op, inner), body


def channel_kind(operation: Json) -> str:
    """Of an operation's channels: those on groups may leave it out."""
    return str(operation.get("channel_type", SWITCH if operation["name"] in ("glre", "glres", "gstore") else "none"))


class Resolver:
    """What the numbers in a plan's thread blocks stand for."""

    def __init__(self, plan: Json) -> None:
        self.gpus: list[Json] = plan["gpus"]
        self.peers = [{kind: _peers(gpu, kind) for kind in (MEMORY, PORT)} for gpu in self.gpus]
        self.wires = [
            {kind: _wires(rank, kind, peers[kind]) for kind in peers} for rank, peers in enumerate(self.peers)
        ]
        self.groups = [_groups(gpu) for gpu in self.gpus]

    def operation(self, where: Where) -> Json:
        """The operation at a place of the plan."""
        operation: Json = self._block(where)["ops"][where.op]
        return operation if where.inner < 0 else operation["ops"][where.inner]

    def channel_id(self, where: Where, kind: str, own: int) -> int:
        """The rank's channel behind a thread block's number."""
        return _table(self._block(where), "channels", "channel_type", "channel_ids", kind)[own]

    def wire(self, where: Where, kind: str, own: int) -> Wire:
        """The channel behind a thread block's number."""
        return self.wires[where.rank][kind][self.channel_id(where, kind, own)]

    def peer(self, where: Where, kind: str, own: int) -> int:
        """The rank at the other end of a thread block's channel."""
        return self.peers[where.rank][kind][self.channel_id(where, kind, own)]

    def group(self, where: Where, own: int) -> tuple[str, tuple[int, ...]]:
        """Buffer and ranks of a switch channel."""
        return self.groups[where.rank][self.channel_id(where, SWITCH, own)]

    def remote(self, where: Where, kind: str, own: int) -> tuple[int, str]:
        """Rank and buffer behind a thread block's number of a remote buffer."""
        ids = _table(self._block(where), "remote_buffer_refs", "access_channel_type", "remote_buffer_ids", kind)
        entry = self.gpus[where.rank]["remote_buffers"][ids[own]]
        return entry["rank"], entry["type"]

    def _block(self, where: Where) -> Json:
        block: Json = self.gpus[where.rank]["threadblocks"][where.block]
        return block


# Names a channel: (where, kind, the thread block's number) -> text.
Naming = Callable[[Where, str, int], str]


def describe(operation: Json, where: Where, plan: Resolver, name_channel: Naming, name_id: Callable[..., str]) -> str:
    """``"put i[0:1] -> rank 1 o[0:1]"``: one line, with every operand and channel.

    ``name_id(where, what, number)`` names semaphores and barriers.
    """
    kind = channel_kind(operation)
    parts = [operation["name"]]
    if "reduce_op" in operation:
        parts.append(operation["reduce_op"])
    sources = [_operand(entry, where, kind, plan) for entry in operation.get("src_buff", ())]
    targets = [_operand(entry, where, kind, plan) for entry in operation.get("dst_buff", ())]
    if sources or targets:
        parts.append(", ".join(sources) + " -> " + ", ".join(targets))
    if operation["name"] not in ("put", "ppkt", "rppkt") or kind == PORT:
        channels = [name_channel(where, kind, own) for own in operation.get("channel_ids", ())]
        if channels and kind in (MEMORY, PORT):
            parts.append(f"through {kind} channel {', '.join(channels)}")
    for key, what in (("semaphore_ids", "semaphore"),):
        if operation.get(key):
            parts.append(", ".join(name_id(where, what, number) for number in operation[key]))
    if operation["name"] == "barrier":
        parts.append(f"{name_id(where, 'barrier', operation['barrier_id'])} of {operation['num_threadblocks']}")
    parts += _settings(operation)
    return " ".join(parts)


def _settings(operation: Json) -> list[str]:
    parts = []
    if "tbg_info" in operation:
        parts.append(f"(part {operation['tbg_info']['tb_id']} of {operation['tbg_info']['tbg_size']})")
    if operation.get("fence"):
        parts.append("(fence)")
    if "iter_context" in operation:
        context = operation["iter_context"]
        parts.append(f"(units of {context['unit_size']} bytes, {context['num_chunks']} chunks)")
    for key in ("buffer_offset", "size", "dst_chunk"):
        if key in operation:
            parts.append(f"{key} {operation[key]}")
    return parts


def _operand(entry: Json, where: Where, kind: str, plan: Resolver) -> str:
    chunks = f"[{entry['index']}:{entry['index'] + entry['size']}]"
    if "buffer_id" in entry:
        rank, buffer = plan.remote(where, kind, entry["buffer_id"])
        return f"rank {rank} {buffer}{chunks}"
    if "switch_channel_id" in entry:
        buffer, ranks = plan.group(where, entry["switch_channel_id"])
        return f"group {','.join(map(str, ranks))} {buffer}{chunks}"
    return f"{entry['type']}{chunks}"


def _peers(gpu: Json, kind: str) -> list[int]:
    entries = [entry for entry in gpu.get("channels", ()) if entry["channel_type"] == kind]
    return [peer for entry in entries for peer in entry["connected_to"]]


def _wires(rank: int, kind: str, peers: list[int]) -> list[Wire]:
    seen: dict[int, int] = {}
    wires = []
    for peer in peers:
        number = seen.get(peer, 0)
        seen[peer] = number + 1
        wires.append(Wire(kind, min(rank, peer), max(rank, peer), number))
    return wires


def _groups(gpu: Json) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (entry.get("buffer_type", entry.get("buff")), tuple(group["ranks"]))
        for entry in gpu.get("channels", ())
        if entry["channel_type"] == SWITCH
        for group in entry["rank_groups"]
    ]


def _table(block: Json, table: str, kind_key: str, ids_key: str, kind: str) -> list[int]:
    return [number for entry in block.get(table, ()) if entry[kind_key] == kind for number in entry[ids_key]]
