"""Programs for several hosts, by the names that programs for MSCCL++ import. All others: tutti.language.builtins."""

from __future__ import annotations

from tutti.default_algos.allgather_multi_nodes import allgather_multi_nodes
from tutti.default_algos.allreduce_multi_nodes import allreduce_multi_nodes
from tutti.default_algos.reducescatter_multi_nodes import reducescatter_multi_nodes

__all__ = ["allgather_multi_nodes", "allreduce_multi_nodes", "reducescatter_multi_nodes"]
