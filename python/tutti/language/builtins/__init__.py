"""Programs that come with Tutti. Each is a function of an AlgoSpec, and an example of how to write one.

:data:`BUILTINS` has them by the name of their collective and their own.
"""

from __future__ import annotations

from tutti.language.builtins.all_pairs import one_shot_all_reduce, two_shot_all_reduce
from tutti.language.builtins.binomial import binomial_broadcast, binomial_gather, binomial_reduce, binomial_scatter
from tutti.language.builtins.bruck import bruck_all_gather, bruck_all_to_all
from tutti.language.builtins.common import Builder
from tutti.language.builtins.halving import rabenseifner_all_reduce, recursive_doubling_all_reduce
from tutti.language.builtins.pairwise import pairwise_all_to_all
from tutti.language.builtins.ring import ring_all_reduce
from tutti.language.builtins.switch import switch_all_reduce

__all__ = [
    "BUILTINS",
    "Builder",
    "binomial_broadcast",
    "binomial_gather",
    "binomial_reduce",
    "binomial_scatter",
    "bruck_all_gather",
    "bruck_all_to_all",
    "one_shot_all_reduce",
    "pairwise_all_to_all",
    "rabenseifner_all_reduce",
    "recursive_doubling_all_reduce",
    "ring_all_reduce",
    "switch_all_reduce",
    "two_shot_all_reduce",
]

BUILTINS: dict[tuple[str, str], Builder] = {
    ("allreduce", "ring"): ring_all_reduce,
    ("allreduce", "recursive_doubling"): recursive_doubling_all_reduce,
    ("allreduce", "rabenseifner"): rabenseifner_all_reduce,
    ("allreduce", "one_shot"): one_shot_all_reduce,
    ("allreduce", "two_shot"): two_shot_all_reduce,
    ("allreduce", "switch"): switch_all_reduce,
    ("allgather", "bruck"): bruck_all_gather,
    ("alltoall", "bruck"): bruck_all_to_all,
    ("alltoall", "pairwise"): pairwise_all_to_all,
    ("broadcast", "binomial"): binomial_broadcast,
    ("reduce", "binomial"): binomial_reduce,
    ("gather", "binomial"): binomial_gather,
    ("scatter", "binomial"): binomial_scatter,
}
