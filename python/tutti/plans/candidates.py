"""Smaller plans out of a plan: without some operations, ranks, chunks, or what is no longer used.

Every function returns a new plan, or None where there is nothing to take away. The results may be no plans at all or
behave otherwise: whoever asks for them finds that out with the core.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from tutti.plans.resolved import (
    MEMORY,
    PORT,
    SIGNALS,
    SWITCH,
    WAITS,
    Json,
    Resolver,
    Where,
    channel_kind,
    operations,
)
from tutti.plans.tidy import tidied

Unit = frozenset[Where]  # operations that only make sense together

# Rank blocks of input and output, as a multiple of a block's chunks: 0 stands for one block a rank.
_BLOCKS = {"allgather": (1, 0), "gather": (1, 0), "reducescatter": (0, 1), "scatter": (0, 1), "alltoall": (0, 0)}


def by_meeting(plan: Json) -> list[Unit]:
    """A signal with the wait that it ends, what meets at a barrier, else one operation alone."""
    resolver = Resolver(plan)
    counts: dict[tuple[Any, ...], int] = {}
    return _parted(plan, lambda where, operation: _meeting(where, operation, resolver, counts))


def _meeting(where: Where, operation: Json, resolver: Resolver, counts: dict[tuple[Any, ...], int]) -> tuple[Any, ...]:
    """What the operations of a unit have in common; the k-th signal of a channel has it with the k-th wait."""
    name, kind = operation["name"], channel_kind(operation)
    if name in (*SIGNALS, *WAITS) and len(operation["channel_ids"]) == 1:
        wire = resolver.wire(where, kind, operation["channel_ids"][0])
        forward = (where.rank == wire.low) == (name in SIGNALS)
        end: tuple[Any, ...] = ("channel", wire, forward)
        side = name in SIGNALS
    elif name in ("sem_acquire", "sem_release") and len(operation["semaphore_ids"]) == 1:
        end = ("semaphore", where.rank, operation["semaphore_ids"][0])
        side = name == "sem_release"
    elif name == "barrier":
        end = ("barrier", where.rank, operation["barrier_id"])
        side = where.block  # type: ignore[assignment]
    else:
        return ("alone", where)
    number = counts.get((end, side), 0)
    counts[end, side] = number + 1
    return (*end, number)


def by_rank(plan: Json) -> list[Unit]:
    """A partition to begin with: the operations of each rank."""
    return _parted(plan, lambda where, _: where.rank)


def by_block(plan: Json) -> list[Unit]:
    """The operations of each thread block."""
    return _parted(plan, lambda where, _: (where.rank, where.block))


def by_pair(plan: Json) -> list[Unit]:
    """What two ranks do with each other; the rest by thread block."""
    resolver = Resolver(plan)
    return _parted(plan, lambda where, operation: _talk(where, operation, resolver))


def singly(plan: Json) -> list[Unit]:
    """Each operation alone."""
    return _parted(plan, lambda where, _: where)


def _parted(plan: Json, key: Callable[[Where, Json], Any]) -> list[Unit]:
    parts: dict[Any, list[Where]] = {}
    for where, operation in operations(plan):
        parts.setdefault(key(where, operation), []).append(where)
    return [frozenset(part) for part in parts.values()]


def _talk(where: Where, operation: Json, resolver: Resolver) -> Any:
    kind = channel_kind(operation)
    for own in operation.get("channel_ids", ()):
        if kind in (MEMORY, PORT):
            wire = resolver.wire(where, kind, own)
            return wire.low, wire.high
    for entry in (*operation.get("src_buff", ()), *operation.get("dst_buff", ())):
        if "buffer_id" in entry:
            other = resolver.remote(where, kind, entry["buffer_id"])[0]
            return min(where.rank, other), max(where.rank, other)
    return where.rank, where.block


def without(plan: Json, removed: Iterable[Where]) -> Json:
    """The plan without these operations; a pipeline without a body goes too. Channels and buffers stay."""
    gone = set(removed)
    gpus = []
    for rank, gpu in enumerate(plan["gpus"]):
        blocks = []
        for block, entry in enumerate(gpu["threadblocks"]):
            kept = []
            for op, operation in enumerate(entry["ops"]):
                if Where(rank, block, op) in gone:
                    continue
                if "ops" in operation:
                    body = [o for k, o in enumerate(operation["ops"]) if Where(rank, block, op, k) not in gone]
                    if not body:
                        continue
                    operation = {**operation, "ops": body}
                kept.append(operation)
            blocks.append({**entry, "ops": kept})
        gpus.append({**gpu, "threadblocks": blocks})
    return {**plan, "gpus": gpus}


def without_collective(plan: Json) -> Json | None:
    """The same operations with no promise about the result, so that ranks and chunks can go one by one."""
    if plan["collective"] == "test":
        return None
    return {key: value for key, value in plan.items() if key != "root"} | {"collective": "test"}


def without_rank(plan: Json, rank: int) -> Json | None:
    """The plan without a rank, and without all operations of others that reach it; None for the last one."""
    if len(plan["gpus"]) == 1 or plan.get("root") == rank:
        return None
    resolver = Resolver(plan)
    touching = [where for where, op in operations(plan) if where.rank == rank or _reaches(where, op, resolver, rank)]
    out = tidied(without(plan, touching))
    del out["gpus"][rank]

    def moved(peer: int) -> int:
        return peer - (peer > rank)

    for number, gpu in enumerate(out["gpus"]):
        gpu["id"] = number
        for entry in gpu["remote_buffers"]:
            entry["rank"] = moved(entry["rank"])
        for entry in gpu["channels"]:
            if entry["channel_type"] == SWITCH:
                for group in entry["rank_groups"]:
                    group["ranks"] = [moved(peer) for peer in group["ranks"]]
            else:
                entry["connected_to"] = [moved(peer) for peer in entry["connected_to"]]
    if "root" in out:
        out["root"] = moved(out["root"])
    return out


def with_rank_merged(plan: Json, rank: int) -> Json | None:
    """The plan without a rank that does nothing itself: what others read and write there they do at yet another one."""
    ranks = len(plan["gpus"])
    if ranks < 3 or any(block["ops"] for block in plan["gpus"][rank]["threadblocks"]):
        return None
    out = copy.deepcopy(plan)
    scratch = max(gpu["scratch_chunks"] for gpu in out["gpus"])
    for number, gpu in enumerate(out["gpus"]):
        gpu["scratch_chunks"] = scratch
        for entry in gpu["remote_buffers"]:
            if entry["rank"] == rank:
                entry["rank"] = next(other for other in range(ranks) if other not in (number, rank))
    return without_rank(out, rank)


def _reaches(where: Where, operation: Json, resolver: Resolver, rank: int) -> bool:
    kind = channel_kind(operation)
    if kind in (MEMORY, PORT) and any(
        resolver.peer(where, kind, own) == rank for own in operation.get("channel_ids", ())
    ):
        return True
    for entry in (*operation.get("src_buff", ()), *operation.get("dst_buff", ())):
        if "buffer_id" in entry and resolver.remote(where, kind, entry["buffer_id"])[0] == rank:
            return True
        if "switch_channel_id" in entry and rank in resolver.group(where, entry["switch_channel_id"])[1]:
            return True
    return False


def without_chunk(plan: Json, chunk: int) -> Json | None:
    """The plan for rank blocks of a chunk less. None if an operation would have to leave out its middle."""
    ranks = len(plan["gpus"])
    gone: dict[str, set[int]] = {}
    for side, buffer, blocks in zip(("input", "output"), "io", _BLOCKS.get(plan["collective"], (1, 1)), strict=True):
        most = max(gpu[f"{side}_chunks"] for gpu in plan["gpus"])
        size = most // (blocks or ranks)
        if most and (size < 2 or chunk >= size):
            return None
        gone[buffer] = {chunk + block * size for block in range(blocks or ranks)}
    out = copy.deepcopy(plan)
    resolver = Resolver(plan)
    dropped = []
    for where, operation in operations(out):
        lost = _lost(where, operation, resolver, gone)
        if lost is None:
            return None
        if lost == "all":
            dropped.append(where)
    for gpu in out["gpus"]:
        for side, buffer in (("input", "i"), ("output", "o")):
            gpu[f"{side}_chunks"] -= sum(index < gpu[f"{side}_chunks"] for index in gone[buffer])
    return without(out, dropped)


def _lost(where: Where, operation: Json, resolver: Resolver, gone: dict[str, set[int]]) -> str | None:
    """Takes chunks out of an operation's operands: "none", "some" or "all"; None if that cannot be."""
    kind = channel_kind(operation)
    operands = [*operation.get("src_buff", ()), *operation.get("dst_buff", ())]
    if not operands or "dst_chunk" in operation:
        return "none" if not operands else None
    buffers = [_buffer(entry, where, kind, resolver) for entry in operands]
    size = operands[0]["size"]
    lost = {
        place
        for entry, buffer in zip(operands, buffers, strict=True)
        for place in range(entry["size"])
        if entry["index"] + place in gone.get(buffer, ())
    }
    if len({entry["size"] for entry in operands}) != 1 and lost:
        return None
    if len(lost) == size:
        return "all"
    if lost and lost not in (set(range(len(lost))), set(range(size - len(lost), size))):
        return None
    ahead = len(lost) if 0 in lost else 0
    for entry, buffer in zip(operands, buffers, strict=True):
        first = entry["index"] + ahead
        entry["size"] -= len(lost)
        entry["index"] = first - sum(index < first for index in gone.get(buffer, ()))
    return "some" if lost else "none"


def _buffer(entry: Json, where: Where, kind: str, resolver: Resolver) -> str:
    if "buffer_id" in entry:
        return resolver.remote(where, kind, entry["buffer_id"])[1]
    if "switch_channel_id" in entry:
        return resolver.group(where, entry["switch_channel_id"])[0]
    return str(entry["type"])
