"""Plans of two levels: within hosts, and between them."""

from __future__ import annotations

from pathlib import Path

from tutti.language import AlgoSpec, AllGather, AllReduce, Broadcast, Collective, Reduce, ReduceScatter
from tutti.language.builtins import BUILTINS

KINDS: dict[str, type[Collective]] = {
    "allreduce": AllReduce,
    "allgather": AllGather,
    "reducescatter": ReduceScatter,
    "broadcast": Broadcast,
    "reduce": Reduce,
}


def host_of(groups: tuple[int, ...], rank: int) -> int:
    return next(host for host in range(len(groups)) if rank < sum(groups[: host + 1]))


def two_level(folder: Path, kind: str, groups: tuple[int, ...], in_place: bool) -> None:
    spec = AlgoSpec("two_level", KINDS[kind](sum(groups), 1, in_place), tags={"groups": groups})
    program = BUILTINS[kind, "two_level"](spec)
    (folder / f"{kind}.json").write_text(program.to_json())
