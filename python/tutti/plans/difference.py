"""What two plans do differently: settings, ranks, channels, operations. Renamed ids are no difference."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

from tutti.plans.alignment import Lines, align
from tutti.plans.resolved import MEMORY, PORT, Json, Resolver

SETTINGS: dict[str, Any] = {
    "collective": None,
    "protocol": None,
    "inplace": None,
    "reuse_resources": False,
    "use_double_scratch_buffer": False,
    "writes_input": False,
    "num_threads_per_block": 1024,
    "buffer_alignment": 16,
    "min_message_size": 0,
    "max_message_size": 2**64 - 1,
    "root": 0,
}


@dataclass
class BlockDifference:
    """Two thread blocks of a rank (None: there is none): their operations, kept, removed and added, in order."""

    rank: int
    first: int | None
    second: int | None
    lines: list[tuple[str, str]]  # " ", "-" or "+", and the operation


@dataclass
class Difference:
    """All that differs; nothing does if it is false."""

    settings: list[tuple[str, Any, Any]] = field(default_factory=list)
    resources: list[tuple[int, str, Any, Any]] = field(default_factory=list)  # rank, what, first, second
    blocks: list[BlockDifference] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.settings or self.resources or self.blocks)


def compare(first: Json, second: Json) -> Difference:
    """Compares two plans that have been read by the core. Names, sources and origins are not compared."""
    out = Difference()
    for key, default in SETTINGS.items():
        one, other = first.get(key, default), second.get(key, default)
        if one != other:
            out.settings.append((key, one, other))
    if len(first["gpus"]) != len(second["gpus"]):
        out.settings.append(("ranks", len(first["gpus"]), len(second["gpus"])))
    pairs = align(first, second)
    one, other = Lines(first, [(r, a) for r, a, _ in pairs]), Lines(second, [(r, b) for r, _, b in pairs])
    for rank in range(min(len(first["gpus"]), len(second["gpus"]))):
        before, after = _resources(first, rank), _resources(second, rank)
        for key in sorted(before.keys() | after.keys()):
            if before.get(key, 0) != after.get(key, 0):
                out.resources.append((rank, key, before.get(key, 0), after.get(key, 0)))
    for rank, a, b in pairs:
        lines = list(_edit(one.of(rank, a), other.of(rank, b)))
        if a is None or b is None or any(mark != " " for mark, _ in lines):
            out.blocks.append(BlockDifference(rank, a, b, lines))
    return out


def _resources(plan: Json, rank: int) -> dict[str, int]:
    gpu = plan["gpus"][rank]
    out = {f"{buffer} chunks": gpu[f"{buffer}_chunks"] for buffer in ("input", "output", "scratch")}
    resolver = Resolver(plan)
    counted = [f"{kind} channels to rank {peer}" for kind in (MEMORY, PORT) for peer in resolver.peers[rank][kind]]
    counted += [f"switch channels over {buffer} of ranks {ranks}" for buffer, ranks in resolver.groups[rank]]
    counted += [f"semaphores that start at {entry['init_value']}" for entry in gpu.get("semaphores", ())]
    for key in counted:
        out[key] = out.get(key, 0) + 1
    return out


def _edit(one: list[str], other: list[str]) -> list[tuple[str, str]]:
    out = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag == "equal":
            out += [(" ", line) for line in one[a:b]]
        else:
            out += [("-", line) for line in one[a:b]] + [("+", line) for line in other[c:d]]
    return out
