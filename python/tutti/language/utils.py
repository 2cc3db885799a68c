"""What an algorithm is made for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tutti.language.checks import bounded, flag, text, whole
from tutti.language.collectives import Collective
from tutti.language.errors import fail
from tutti.language.limits import MOST_RANKS
from tutti.language.vocabulary import ReplicationPolicy

__all__ = ["AlgoSpec", "ReplicationPolicy"]


@dataclass(frozen=True)
class AlgoSpec:
    """All that a function needs to write the program of an algorithm.

    Where the numbers of ranks are 0 they are the collective's, all on one host. ``in_place`` is as the collective says.
    """

    name: str
    collective: Collective
    nranks_per_node: int = 0
    world_size: int = 0
    in_place: bool | None = None
    instances: int = 1
    protocol: str = "Simple"
    instr_fusion: bool = True
    auto_sync: bool = True
    replication_policy: ReplicationPolicy = ReplicationPolicy.interleaved
    reuse_resources: bool = False
    num_threads_per_block: int = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: int = 16
    min_message_size: int = 0
    max_message_size: int = 2**64 - 1
    tags: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.collective, Collective):
            fail(f"the collective is such as AllReduce(2, 1), not {self.collective!r}", operation="AlgoSpec")
        size = whole(self.world_size, "world_size", operation="AlgoSpec") or self.collective.num_ranks
        if size != self.collective.num_ranks:
            fail(f"{size} ranks, but the collective is made for {self.collective.num_ranks}", operation="AlgoSpec")
        per_node = bounded(self.nranks_per_node, 0, MOST_RANKS, "nranks_per_node", operation="AlgoSpec") or size
        in_place = self.collective.inplace
        if self.in_place is not None and flag(self.in_place, "in_place", operation="AlgoSpec") != in_place:
            reason = f"in_place is {self.in_place}, but the collective is made with inplace={in_place}"
            fail(reason, operation="AlgoSpec")
        if not isinstance(self.tags, dict):
            fail(f"tags are a dictionary, not {self.tags!r}", operation="AlgoSpec")
        for name in self.tags:
            text(name, "the name of a tag", operation="AlgoSpec")
        object.__setattr__(self, "world_size", size)
        object.__setattr__(self, "nranks_per_node", per_node)
        object.__setattr__(self, "in_place", in_place)
