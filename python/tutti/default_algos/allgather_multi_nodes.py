"""All-gather among ranks of several hosts."""

from __future__ import annotations

from tutti.language.builtins import pat_all_gather
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["allgather_multi_nodes"]


def allgather_multi_nodes(spec: AlgoSpec) -> CollectiveProgram:
    """In a logarithmic number of steps, any number of ranks: see ``pat_all_gather``."""
    return pat_all_gather(spec)
