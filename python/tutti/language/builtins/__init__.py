"""Programs that come with Tutti. Each is a function of an AlgoSpec, and an example of how to write one.

:data:`BUILTINS` has them by the name of their collective and their own.
"""

from __future__ import annotations

from tutti.language.builtins.all_pairs import one_shot_all_reduce, two_shot_all_reduce
from tutti.language.builtins.bine import (
    bine_all_gather,
    bine_all_reduce,
    bine_broadcast,
    bine_gather,
    bine_reduce,
    bine_reduce_scatter,
    bine_scatter,
)
from tutti.language.builtins.binomial import binomial_broadcast, binomial_gather, binomial_reduce, binomial_scatter
from tutti.language.builtins.bruck import bruck_all_gather, bruck_all_to_all
from tutti.language.builtins.common import Builder
from tutti.language.builtins.double_tree import double_tree_all_reduce
from tutti.language.builtins.halving import rabenseifner_all_reduce, recursive_doubling_all_reduce
from tutti.language.builtins.multiplying import recursive_multiplying_all_reduce
from tutti.language.builtins.pairwise import pairwise_all_to_all
from tutti.language.builtins.pat import pat_all_gather, pat_reduce_scatter
from tutti.language.builtins.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from tutti.language.builtins.scatter_gather import scatter_all_gather_broadcast
from tutti.language.builtins.swing import swing_all_reduce
from tutti.language.builtins.switch import switch_all_reduce
from tutti.language.builtins.torus import torus_bucket_all_reduce
from tutti.language.builtins.two_level import (
    two_level_all_gather,
    two_level_all_reduce,
    two_level_broadcast,
    two_level_reduce,
    two_level_reduce_scatter,
)

__all__ = [
    "BUILTINS",
    "Builder",
    "bine_all_gather",
    "bine_all_reduce",
    "bine_broadcast",
    "bine_gather",
    "bine_reduce",
    "bine_reduce_scatter",
    "bine_scatter",
    "binomial_broadcast",
    "binomial_gather",
    "binomial_reduce",
    "binomial_scatter",
    "bruck_all_gather",
    "bruck_all_to_all",
    "double_tree_all_reduce",
    "one_shot_all_reduce",
    "pairwise_all_to_all",
    "pat_all_gather",
    "pat_reduce_scatter",
    "rabenseifner_all_reduce",
    "recursive_doubling_all_reduce",
    "recursive_multiplying_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "scatter_all_gather_broadcast",
    "swing_all_reduce",
    "switch_all_reduce",
    "torus_bucket_all_reduce",
    "two_level_all_gather",
    "two_level_all_reduce",
    "two_level_broadcast",
    "two_level_reduce",
    "two_level_reduce_scatter",
    "two_shot_all_reduce",
]

BUILTINS: dict[tuple[str, str], Builder] = {
    ("allreduce", "ring"): ring_all_reduce,
    ("allreduce", "recursive_doubling"): recursive_doubling_all_reduce,
    ("allreduce", "bine"): bine_all_reduce,
    ("allreduce", "rabenseifner"): rabenseifner_all_reduce,
    ("allreduce", "one_shot"): one_shot_all_reduce,
    ("allreduce", "two_shot"): two_shot_all_reduce,
    ("allreduce", "switch"): switch_all_reduce,
    ("allreduce", "recursive_multiplying"): recursive_multiplying_all_reduce,
    ("allreduce", "double_tree"): double_tree_all_reduce,
    ("allreduce", "two_level"): two_level_all_reduce,
    ("allreduce", "swing"): swing_all_reduce,
    ("allreduce", "torus_bucket"): torus_bucket_all_reduce,
    ("allgather", "ring"): ring_all_gather,
    ("allgather", "bine"): bine_all_gather,
    ("allgather", "pat"): pat_all_gather,
    ("allgather", "bruck"): bruck_all_gather,
    ("allgather", "two_level"): two_level_all_gather,
    ("reducescatter", "ring"): ring_reduce_scatter,
    ("reducescatter", "bine"): bine_reduce_scatter,
    ("reducescatter", "pat"): pat_reduce_scatter,
    ("reducescatter", "two_level"): two_level_reduce_scatter,
    ("alltoall", "bruck"): bruck_all_to_all,
    ("alltoall", "pairwise"): pairwise_all_to_all,
    ("broadcast", "binomial"): binomial_broadcast,
    ("broadcast", "bine"): bine_broadcast,
    ("broadcast", "scatter_all_gather"): scatter_all_gather_broadcast,
    ("broadcast", "two_level"): two_level_broadcast,
    ("reduce", "bine"): bine_reduce,
    ("reduce", "binomial"): binomial_reduce,
    ("reduce", "two_level"): two_level_reduce,
    ("gather", "bine"): bine_gather,
    ("gather", "binomial"): binomial_gather,
    ("scatter", "bine"): bine_scatter,
    ("scatter", "binomial"): binomial_scatter,
}
