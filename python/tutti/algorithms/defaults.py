"""The algorithms that come with Tutti, for any number of ranks: each is compiled when a communicator first runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tutti import _core
from tutti.algorithms.algorithm import Algorithm, Family
from tutti.algorithms.collection import AlgorithmCollection
from tutti.language import collectives
from tutti.language.builtins import BUILTINS
from tutti.language.utils import AlgoSpec

__all__ = ["default_algorithms"]

_COLLECTIVES: dict[str, type[collectives.Collective]] = {
    kind.name: kind
    for kind in (
        collectives.AllReduce,
        collectives.AllGather,
        collectives.ReduceScatter,
        collectives.AllToAll,
        collectives.Broadcast,
        collectives.Reduce,
        collectives.Gather,
        collectives.Scatter,
    )
}

# The names of MSCCL++'s default algorithms, and the program that does the same thing.
_PEER_NAMES = {
    "default_allreduce_nvls_packet": ("allreduce", "one_shot"),
    "default_allreduce_nvls_warp_pipeline": ("allreduce", "switch"),
    "default_allreduce_nvls_block_pipeline": ("allreduce", "switch"),
    "default_allreduce_nvls_zero_copy": ("allreduce", "switch"),
    "default_allreduce_packet": ("allreduce", "two_shot"),
    "default_allreduce_allpair_packet": ("allreduce", "one_shot"),
    "default_allreduce_fullmesh": ("allreduce", "rabenseifner"),
    "default_allreduce_rsag": ("allreduce", "rabenseifner"),
    "default_allreduce_rsag_pipeline": ("allreduce", "ring"),
    "default_allreduce_rsag_zero_copy": ("allreduce", "rabenseifner"),
    "default_allgather_fullmesh": ("allgather", "pat"),
    "default_allgather_fullmesh2": ("allgather", "ring"),
}


def _program(name: str, collective: str, algorithm: str) -> Family:
    def make(ranks: int) -> _core.UserAlgorithm:
        spec = AlgoSpec(name=name, collective=_COLLECTIVES[collective](ranks, 1))
        text = BUILTINS[collective, algorithm](spec).to_json(indent=None)
        return _core.plan_algorithm(text, f"tutti's {algorithm}", ranks, 0)

    return Family(name, collective, make, "plan")


def _library(collective: str, name: str) -> Family:
    plain = collective.replace("_", "")
    make: Callable[[int], _core.UserAlgorithm] = lambda ranks: _core.library_algorithm(collective, name)  # noqa: E731
    return Family(name, plain, make, "library")


@cache
def _families() -> list[Family]:
    """What has been compiled serves all groups of the process."""
    programs = [_program(f"{name}_{collective}", collective, name) for collective, name in BUILTINS]
    peers = [_program(name, *place) for name, place in _PEER_NAMES.items()]
    library = [
        _library(collective, name)
        for collective in _core.collectives()
        if collective != "barrier"
        for name in _core.library_algorithm_names(collective)
    ]
    return [*programs, *peers, *library]


def default_algorithms() -> AlgorithmCollection:
    """Every program of :data:`tutti.language.builtins.BUILTINS` as ``NAME_COLLECTIVE`` (``ring_allreduce``), under
    MSCCL++'s names those that do what these do there, and the library's own under the names of ``tutti explain``. The
    caller's own, to limit and to add to.
    """
    return AlgorithmCollection(Algorithm(native_handle=family) for family in _families())
