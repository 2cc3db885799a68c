"""Reduce-scatter among ranks of several hosts."""

from __future__ import annotations

from tutti.language.builtins import two_level_reduce_scatter
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["reducescatter_multi_nodes"]


def reducescatter_multi_nodes(spec: AlgoSpec, thread_block_group_size: int = 1) -> CollectiveProgram:
    """Within hosts of ``spec.nranks_per_node`` ranks and between them in two steps: see ``two_level_reduce_scatter``.

    ``thread_block_group_size`` divides copies among thread blocks of a GPU; ``spec.instances`` does that here.
    """
    if thread_block_group_size < 1:
        raise ValueError(f"a group has at least one thread block, not {thread_block_group_size}")
    return two_level_reduce_scatter(spec)
