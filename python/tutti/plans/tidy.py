"""Takes out of a plan what none of its operations uses."""

from __future__ import annotations

import copy

from tutti.plans.resolved import MEMORY, PORT, SWITCH, Json, Resolver, Where, Wire, channel_kind, operations


class _Use:
    """What the operations of a plan use; a wire that one end uses is used by both."""

    def __init__(self, plan: Json) -> None:
        self.plan = plan
        self.resolver = Resolver(plan)
        self.wires: set[Wire] = set()
        self.groups: set[tuple[str, tuple[int, ...]]] = set()
        self.remotes: set[tuple[int, int, int, str, int]] = set()  # rank, block, number in the block, kind, buffer
        self.semaphores: set[tuple[int, int]] = set()
        self.scratch: dict[int, set[int]] = {}  # rank: chunks
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
            for rank, buffer in self.reached(where, kind, entry):
                if buffer == "s":
                    chunks = range(entry["index"], entry["index"] + entry["size"])
                    self.scratch.setdefault(rank, set()).update(chunks)
            if "buffer_id" in entry:
                self.remotes.add((where.rank, where.block, entry["buffer_id"], kind, 0))
            elif "switch_channel_id" in entry:
                self.groups.add(self.resolver.group(where, entry["switch_channel_id"]))

    def reached(self, where: Where, kind: str, entry: Json) -> list[tuple[int, str]]:
        """The ranks and the buffer of an operand."""
        if "buffer_id" in entry:
            return [self.resolver.remote(where, kind, entry["buffer_id"])]
        if "switch_channel_id" in entry:
            buffer, ranks = self.resolver.group(where, entry["switch_channel_id"])
            return [(rank, buffer) for rank in ranks]
        return [(where.rank, entry["type"])]

    def chunks_before(self, rank: int, index: int) -> int:
        """How many chunks of a rank's scratch in front of this one are used."""
        return sum(chunk < index for chunk in self.scratch[rank])


def tidied(plan: Json, keep_blocks: bool = False) -> Json:
    """A new plan. Each thread block gets tables of its own that list what it uses, in order of the old numbers.

    Thread blocks without operations go, unless they are to be kept: a rank without any is over before all others, so
    another fault may be found first.
    """
    use = _Use(plan)
    out = copy.deepcopy(plan)
    _close_gaps(out, use)
    for rank, gpu in enumerate(out["gpus"]):
        _tidy_rank(gpu, rank, use, keep_blocks)
    return out


def _close_gaps(out: Json, use: _Use) -> None:
    """Counts chunks of scratch anew, without those that are not used; a group's are left, being one number for all."""
    shared: set[int] = set()
    for where, operation in operations(out):
        for entry in (*operation.get("src_buff", ()), *operation.get("dst_buff", ())):
            if "switch_channel_id" in entry:
                shared.update(rank for rank, _ in use.reached(where, channel_kind(operation), entry))
    for rank in shared & use.scratch.keys():
        use.scratch[rank] = set(range(max(use.scratch[rank]) + 1))
    for where, operation in operations(out):
        for entry in (*operation.get("src_buff", ()), *operation.get("dst_buff", ())):
            (rank, buffer), *more = use.reached(where, channel_kind(operation), entry)
            if buffer == "s" and not more and "switch_channel_id" not in entry:
                entry["index"] = use.chunks_before(rank, entry["index"])


def _tidy_rank(gpu: Json, rank: int, use: _Use, keep_blocks: bool) -> None:
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
        if not block["ops"] and not keep_blocks:
            continue
        _tidy_block(block, Where(rank, number, 0), use, kept, semaphores, remote_ids)
        blocks.append({**block, "id": len(blocks)})
    gpu["threadblocks"] = blocks
    gpu["remote_buffers"] = [use.plan["gpus"][rank]["remote_buffers"][number].copy() for number in remote_ids]
    gpu["semaphores"] = [gpu["semaphores"][number] for number in semaphores]
    gpu["scratch_chunks"] = len(use.scratch.get(rank, ()))
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
