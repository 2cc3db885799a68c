"""All-gather among ranks of several hosts."""

from __future__ import annotations

from tutti.language.builtins import two_level_all_gather
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["allgather_multi_nodes"]


def allgather_multi_nodes(spec: AlgoSpec) -> CollectiveProgram:
    """Within hosts of ``spec.nranks_per_node`` ranks and between them in two steps: see ``two_level_all_gather``."""
    return two_level_all_gather(spec)
