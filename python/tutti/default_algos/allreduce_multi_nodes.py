"""All-reduce among ranks of several hosts."""

from __future__ import annotations

from tutti.language.builtins import two_level_all_reduce
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["allreduce_multi_nodes"]


def allreduce_multi_nodes(spec: AlgoSpec, thread_block_group_size: int = 1) -> CollectiveProgram:
    """Within hosts of ``spec.nranks_per_node`` ranks, between them, and back: see ``two_level_all_reduce``.

    ``thread_block_group_size`` divides copies among thread blocks of a GPU; ``spec.instances`` does that here.
    """
    if thread_block_group_size < 1:
        raise ValueError(f"a group has at least one thread block, not {thread_block_group_size}")
    return two_level_all_reduce(spec)
