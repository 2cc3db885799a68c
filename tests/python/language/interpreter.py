"""Executes a plan with symbols for data, so a test can ask what every chunk holds at the end.

A value is the sorted list of the contributions that were added to it. Thread blocks take turns in a random order, an
operation at a time; one that must wait is tried again. Every chunk has several cells, so that a group of thread blocks
can divide it. It does what the operations mean and nothing about visibility: races that need two operations at once
are not its business.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

Value = tuple[Any, ...]
Operation = dict[str, Any]

PACKET_SOURCES = {"upkt": 0, "rppkt": 0, "gstorepkt": 0, "repkt": 1, "recpkt": 1, "respkt": 1, "recspkt": 1}
PACKET_DESTINATIONS = {"cpkt": 0, "ppkt": 0, "rppkt": 0, "gstorepkt": 0, "recpkt": 1, "respkt": 1, "recspkt": 1}
REDUCTIONS = {"re", "rre", "res", "rres", "repkt", "recpkt", "respkt", "recspkt", "glre", "glres"}


class Machine:
    """All ranks of a plan and their memory."""

    def __init__(self, plan: dict[str, Any], seed: int = 0) -> None:
        self.plan = plan
        self.random = random.Random(seed)
        operations = [
            operation for gpu in plan["gpus"] for block in gpu["threadblocks"] for operation in flat(block["ops"])
        ]
        self.cells = max((one["tbg_info"]["tbg_size"] for one in operations if "tbg_info" in one), default=1)
        self.memory: dict[tuple[int, str, int], Value] = {}
        self.packets: dict[tuple[int, str, int], Value] = {}
        self.tokens: defaultdict[Any, int] = defaultdict(int)
        self.arrived: defaultdict[Any, set[int]] = defaultdict(set)
        self.left: defaultdict[Any, set[int]] = defaultdict(set)
        for gpu in plan["gpus"]:
            for chunk in range(gpu["input_chunks"] * self.cells):
                self.memory[self.at(gpu["id"], "i", chunk)] = ((gpu["id"], chunk),)
            for number, semaphore in enumerate(gpu["semaphores"]):
                self.tokens["semaphore", gpu["id"], number] = semaphore["init_value"]

    def run(self) -> None:
        """Executes everything, or raises when nothing can go on."""
        waiting = [(gpu, block, list(flat(block["ops"]))) for gpu in self.plan["gpus"] for block in gpu["threadblocks"]]
        while waiting := [entry for entry in waiting if entry[2]]:
            self.random.shuffle(waiting)
            moved = False
            for gpu, block, operations in waiting:
                while operations and self.execute(gpu, block, operations[0]):
                    operations.pop(0)
                    moved = True
                    if self.random.random() < 0.5:
                        break
            if not moved:
                stuck = [(gpu["id"], block["id"], rest[0]) for gpu, block, rest in waiting]
                raise AssertionError(f"nothing can go on: {stuck[:4]}")
        leftover = {key: value for key, value in self.tokens.items() if value and key[0] != "semaphore"}
        assert not leftover, f"signals that nobody waited for: {leftover}"

    def output(self, rank: int, kind: str = "o") -> list[list[Value | None]]:
        """What a rank's buffer holds, chunk by chunk, each a list of its cells."""
        size = self.plan["gpus"][rank]["output_chunks" if kind == "o" else "input_chunks"]
        return [
            [self.memory.get(self.at(rank, kind, chunk * self.cells + cell)) for cell in range(self.cells)]
            for chunk in range(size)
        ]

    def execute(self, gpu: dict[str, Any], block: dict[str, Any], operation: Operation) -> bool:
        """Whether the operation could be done."""
        name, rank = operation["name"], gpu["id"]
        if name == "nop" or name == "flush":
            return True
        if name == "barrier":
            return self.barrier(rank, block["id"], operation)
        if name in ("sem_acquire", "sem_release"):
            keys = [("semaphore", rank, number) for number in operation["semaphore_ids"]]
            return self.take(keys) if name == "sem_acquire" else self.give(keys)
        if name in ("signal", "rlxsignal"):
            return self.give(self.channels(gpu, block, operation, sending=True))
        if name in ("wait", "rlxwait"):
            return self.take(self.channels(gpu, block, operation, sending=False))
        if not self.transfer(gpu, block, operation):
            return False
        if name in ("pws", "pwsf"):
            self.give(self.channels(gpu, block, operation, sending=True))
        return True

    def barrier(self, rank: int, block: int, operation: Operation) -> bool:
        key = (rank, operation["barrier_id"])
        if block not in self.left[key]:
            self.arrived[key].add(block)
            if len(self.arrived[key]) < operation["num_threadblocks"]:
                return False
            self.left[key], self.arrived[key] = self.arrived[key], set()
        self.left[key].discard(block)
        return True

    def take(self, keys: list[Any]) -> bool:
        if any(self.tokens[key] < keys.count(key) for key in keys):
            return False
        for key in keys:
            self.tokens[key] -= 1
        return True

    def give(self, keys: list[Any]) -> bool:
        for key in keys:
            self.tokens[key] += 1
        return True

    def channels(self, gpu: dict[str, Any], block: dict[str, Any], operation: Operation, *, sending: bool) -> list[Any]:
        """The far end of the k-th channel to a rank is that rank's k-th channel to this one."""
        kind = operation["channel_type"]
        ids = next(one for one in block["channels"] if one["channel_type"] == kind)["channel_ids"]
        peers = next(one for one in gpu["channels"] if one["channel_type"] == kind)["connected_to"]
        keys = []
        for local in operation["channel_ids"]:
            number = ids[local]
            peer = peers[number]
            order = peers[:number].count(peer)
            ends = (gpu["id"], peer) if sending else (peer, gpu["id"])
            keys.append(("channel", kind, *ends, order))
        return keys

    def transfer(self, gpu: dict[str, Any], block: dict[str, Any], operation: Operation) -> bool:
        name = operation["name"]
        sources, destinations = self.operands(gpu, block, operation)
        values: list[list[Value | None]] = []
        for number, places in enumerate(sources):
            packed = number >= PACKET_SOURCES.get(name, len(sources))
            store = self.packets if packed else self.memory
            values += [[store.get(place) for place in column] for column in places]
            if packed and any(value is None for column in values for value in column):
                return False
        width = len(values[0])
        for number, places in enumerate(destinations):
            store = self.packets if number >= PACKET_DESTINATIONS.get(name, len(destinations)) else self.memory
            if name in REDUCTIONS:
                columns = [add([column[at] for column in values]) for at in range(width)]
            else:
                columns = values[number if len(sources) == len(destinations) else 0]
            for column in places:
                for place, value in zip(column, columns, strict=True):
                    assert value is not None, f"rank {gpu['id']} reads what nobody wrote: {operation}"
                    store[place] = value
        return True

    def operands(self, gpu: dict[str, Any], block: dict[str, Any], operation: Operation) -> tuple[Any, Any]:
        """Lists of operands; each is a list of columns of cells, one per rank of a group."""
        if operation["name"] == "glre":
            group = {"switch_channel_id": operation["channel_ids"][0], "index": operation["buffer_offset"]}
            source = {**group, "size": operation["size"]}
            return [self.cells_of(gpu, block, operation, source)], [
                self.cells_of(gpu, block, operation, operation["dst_chunk"])
            ]
        return tuple(
            [self.cells_of(gpu, block, operation, place) for place in operation[side]]
            for side in ("src_buff", "dst_buff")
        )  # type: ignore[return-value]

    def cells_of(
        self, gpu: dict[str, Any], block: dict[str, Any], operation: Operation, place: dict[str, Any]
    ) -> list[list[tuple[int, str, int]]]:
        ranks, kind = [gpu["id"]], place.get("type")
        if "buffer_id" in place:
            access = operation["channel_type"]
            refs = next(one for one in block["remote_buffer_refs"] if one["access_channel_type"] == access)
            remote = gpu["remote_buffers"][refs["remote_buffer_ids"][place["buffer_id"]]]
            assert access in remote["access_channel_types"]
            ranks, kind = [remote["rank"]], remote["type"]
        if "switch_channel_id" in place:
            ids = next(one for one in block["channels"] if one["channel_type"] == "switch")["channel_ids"]
            groups = [one for one in gpu["channels"] if one["channel_type"] == "switch"]
            channel = groups[ids[place["switch_channel_id"]]]
            ranks, kind = channel["rank_groups"][0]["ranks"], channel["buffer_type"]
        assert kind is not None
        first, count = place["index"] * self.cells, place["size"] * self.cells
        share = operation.get("tbg_info", {"tb_id": 0, "tbg_size": 1})
        start, stop = (count * (share["tb_id"] + end) // share["tbg_size"] for end in (0, 1))
        for rank in ranks:
            self.check_bounds(rank, kind, place)
        return [[self.at(rank, kind, first + cell) for cell in range(start, stop)] for rank in ranks]

    def at(self, rank: int, kind: str, cell: int) -> tuple[int, str, int]:
        """Where a cell is: in place, the smaller of input and output is a part of the larger one."""
        gpu = self.plan["gpus"][rank]
        sizes = {"i": gpu["input_chunks"] * self.cells, "o": gpu["output_chunks"] * self.cells}
        if kind == "s" or not self.plan["inplace"] or 0 in sizes.values():
            return rank, kind, cell
        larger = "i" if sizes["i"] > sizes["o"] else "o"
        shift = 0 if sizes["i"] == sizes["o"] or kind == larger else rank * sizes[kind]
        return rank, larger, cell + shift

    def check_bounds(self, rank: int, kind: str, place: dict[str, Any]) -> None:
        size = self.plan["gpus"][rank][{"i": "input", "o": "output", "s": "scratch"}[kind] + "_chunks"]
        assert 0 <= place["index"] <= size - place["size"], f"beyond {size} chunks: {place}"


def flat(operations: list[Operation]) -> Any:
    """The operations, loops as one round of their body: chunks are not divided here."""
    for operation in operations:
        if operation["name"] == "pipeline":
            yield from flat(operation["ops"])
        else:
            yield operation


def add(values: list[Value | None]) -> Value:
    """The sum of symbols; nothing may be missing."""
    assert all(value is not None for value in values), "a reduction reads what nobody wrote"
    return tuple(sorted(part for value in values if value is not None for part in value))


def results(plan: dict[str, Any], seed: int = 0) -> Machine:
    """A machine that has executed the plan."""
    machine = Machine(plan, seed)
    machine.run()
    return machine
