"""Short ways to write a program and to look at what it became."""

from __future__ import annotations

from typing import Any

from tutti.language import (
    BaseBuffer,
    Collective,
    CollectiveProgram,
    Rank,
    TestCollective,
)


def program(collective: Collective | None = None, **settings: Any) -> CollectiveProgram:
    collective = collective or TestCollective(2, 4, 4)
    return CollectiveProgram("test", collective, collective.num_ranks, **settings)


def operations(built: CollectiveProgram, rank: int = 0, block: int = 0) -> list[dict[str, Any]]:
    return built.to_dict(origin=False)["gpus"][rank]["threadblocks"][block]["ops"]


def names(built: CollectiveProgram, rank: int = 0, block: int = 0) -> list[str]:
    return [operation["name"] for operation in operations(built, rank, block)]


def chunks(rank: int) -> tuple[BaseBuffer, BaseBuffer]:
    return Rank(rank).get_input_buffer(), Rank(rank).get_output_buffer()
