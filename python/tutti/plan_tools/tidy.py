"""Takes out of a plan what none of its operations uses."""

from __future__ import annotations

import copy

from tutti.plan_tools.resolved import MEMORY, PORT, SWITCH, Json, Resolver, Where, Wire, channel_kind, operations


class _Use:
    """What the operations of a plan use; a wire that one end uses is used by both."""

    def __init__(self, plan: Json) -> None:
        self.plan = plan
        self.resolver = Resolver(plan)
        self.wires: set[Wire] = set()
        self.groups: set[tuple[str, tuple[int, ...]]] = set()
        self.remotes: set[tuple[int, int, int, str, int]] = set()  # rank, block, number in the block, kind, buffer
        self.semaphores: set[tuple[int, int]] = set()
        self.scratch: dict[int, int] = {}  # rank: chunks
        for where, operation in operations(plan):
            self._note(where, operation)

    def _note(self, where: Where, operation: Json) -> None:
        kind = channel_kind(operation)
        if kind in (MEMORY, PORT):
            self.wires.update(self.resolver.wire(where, kind, own) for own in operation.get("channel_ids", ()))
        elif kind == SWITCH:
            self.groups.update(self.resolver.group(where, own) for own in operation.get("channel_ids", ()))
        self.semaphores.update((where.rank, number) for number in operation.get("semaphore_ids", ()))
        for entry in (*operation.get("src_buff", ()), *operation.get("dst_buff", ())):
            end = entry["index"] + entry["size"]
            if "buffer_id" in entry:
                rank, buffer = self.resolver.remote(where, kind, entry["buffer_id"])
                self._reach(rank, buffer, end)
                self.remotes.add((where.rank, where.block, entry["buffer_id"], kind, 0))
            elif "switch_channel_id" in entry:
                group = self.resolver.group(where, entry["switch_channel_id"])
                self.groups.add(group)
                for rank in group[1]:
                    self._reach(rank, group[0], end)
            else:
                self._reach(where.rank, entry["type"], end)

    def _reach(self, rank: int, buffer: str, end: int) -> None:
        if buffer == "s":
            self.scratch[rank] = max(self.scratch.get(rank, 0), end)


def tidied(plan: Json) -> Json:
    """A new plan. Each thread block gets tables of its own that list what it uses, in order of the old numbers."""
    use = _Use(plan)
    out = copy.deepcopy(plan)
    for rank, gpu in enumerate(out["gpus"]):
        _tidy_rank(gpu, rank, use)
    return out


def _tidy_rank(gpu: Json, rank: int, use: _Use) -> None:
    resolver = use.resolver
    kept = {
        kind: [number for number, wire in enumerate(resolver.wires[rank][kind]) if wire in use.wires]
        for kind in (MEMORY, PORT)
    }
    kept[SWITCH] = [number for number, group in enumerate(resolver.groups[rank]) if group in use.groups]
    semaphores = [number for number in range(len(gpu.get("semaphores", ()))) if (rank, number) in use.semaphores]
    remote_ids: list[int] = []
    blocks: list[Json] = []
    for number, block in enumerate(gpu["threadblocks"]):
        if not block["ops"]:
            continue
        _tidy_block(block, Where(rank, number, 0), use, kept, semaphores, remote_ids)
        blocks.append({**block, "id": len(blocks)})
    gpu["threadblocks"] = blocks
    gpu["remote_buffers"] = [use.plan["gpus"][rank]["remote_buffers"][number].copy() for number in remote_ids]
    gpu["semaphores"] = [gpu["semaphores"][number] for number in semaphores]
    gpu["scratch_chunks"] = use.scratch.get(rank, 0)
    gpu["channels"] = [
        {"channel_type": kind, "connected_to": [resolver.peers[rank][kind][number] for number in kept[kind]]}
        for kind in (MEMORY, PORT)
        if kept[kind]
    ] + [
        {
            "channel_type": SWITCH,
            "buffer_type": resolver.groups[rank][number][0],
            "rank_groups": [
                {"size": len(resolver.groups[rank][number][1]), "ranks": [*resolver.groups[rank][number][1]]}
            ],
        }
        for number in kept[SWITCH]
    ]


def _tidy_block(
    block: Json, where: Where, use: _Use, kept: dict[str, list[int]], semaphores: list[int], remote_ids: list[int]
) -> None:
    """Renumbers one thread block's operations; appends what it newly needs to the rank's ``remote_ids``."""
    all_ops = [op for operation in block["ops"] for op in (operation, *operation.get("ops", ()))]
    channels: dict[str, dict[int, int]] = {MEMORY: {}, PORT: {}, SWITCH: {}}  # kind: old number -> new number
    remotes: dict[str, dict[int, int]] = {MEMORY: {}, PORT: {}}
    for operation in all_ops:
        kind = channel_kind(operation)
        operands = [*operation.get("src_buff", ()), *operation.get("dst_buff", ())]
        if kind in channels:
            table = channels[kind]
            operation.update(
                {
                    key: [table.setdefault(own, len(table)) for own in operation[key]]
                    for key in ("channel_ids",)
                    if key in operation
                }
            )
        for entry in operands:
            if "switch_channel_id" in entry:
                table = channels[SWITCH]
                entry["switch_channel_id"] = table.setdefault(entry["switch_channel_id"], len(table))
            elif "buffer_id" in entry:
                entry["buffer_id"] = remotes[kind].setdefault(entry["buffer_id"], len(remotes[kind]))
        if "semaphore_ids" in operation:
            operation["semaphore_ids"] = [semaphores.index(number) for number in operation["semaphore_ids"]]
    block["channels"] = [
        {
            "channel_type": kind,
            "channel_ids": [kept[kind].index(use.resolver.channel_id(where, kind, own)) for own in table],
        }
        for kind, table in channels.items()
        if table
    ]
    block["remote_buffer_refs"] = [
        {"access_channel_type": kind, "remote_buffer_ids": [_place(remote_ids, where, kind, own, use) for own in table]}
        for kind, table in remotes.items()
        if table
    ]


def _place(remote_ids: list[int], where: Where, kind: str, own: int, use: _Use) -> int:
    block = use.plan["gpus"][where.rank]["threadblocks"][where.block]
    ids = [
        number
        for entry in block.get("remote_buffer_refs", ())
        if entry["access_channel_type"] == kind
        for number in entry["remote_buffer_ids"]
    ]
    if ids[own] not in remote_ids:
        remote_ids.append(ids[own])
    return remote_ids.index(ids[own])
