"""The built-in programs compute what their collectives say, whatever the order in which thread blocks take turns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from interpreter import Value, results

from tutti.language import (
    AlgoSpec,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Gather,
    ProgramError,
    Reduce,
    ReduceScatter,
    ReplicationPolicy,
    Scatter,
)
from tutti.language.builtins import BUILTINS, one_shot_all_reduce, pairwise_all_to_all, ring_all_reduce

KINDS: dict[str, Any] = {
    kind.name: kind for kind in (AllReduce, AllGather, AllToAll, Broadcast, Reduce, Gather, Scatter, ReduceScatter)
}
# For what else an algorithm refuses, see test_builtin_plans.py.
UNSUPPORTED = {"swing": (1, 3, 5, 7, 13), "torus_bucket": (1, 2, 3, 5, 7, 13)}
RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 16)


def expected(collective: Collective, rank: int, parts: int) -> list[Value] | None:
    """What the output of ``rank`` holds, cell by cell; ``parts`` is how many cells a chunk of the program became."""
    n, width = collective.num_ranks, collective.chunk_factor * parts
    cells = range(n * width)
    root = collective.root
    everyone = range(n)
    if collective.name == "allreduce" or (collective.name == "reduce" and rank == root):
        return [tuple((one, cell) for one in everyone) for cell in cells]
    if collective.name == "allgather" or (collective.name == "gather" and rank == root):
        return [((cell // width, cell % width),) for cell in cells]
    if collective.name == "alltoall":
        return [((cell // width, rank * width + cell % width),) for cell in cells]
    if collective.name == "broadcast":
        return [((root, cell),) for cell in cells]
    if collective.name == "reducescatter":
        return [tuple((one, rank * width + cell) for one in everyone) for cell in range(width)]
    if collective.name == "scatter":
        return [((root, rank * width + cell),) for cell in range(width)]
    return None


def check(spec: AlgoSpec, algorithm: str, seed: int = 0) -> None:
    plan = json.loads(BUILTINS[spec.collective.name, algorithm](spec).to_json())
    machine = results(plan, seed)
    divided = spec.instances if spec.replication_policy == ReplicationPolicy.interleaved else 1
    for rank in range(spec.world_size):
        wanted = expected(spec.collective, rank, divided * machine.cells)
        if wanted is not None:
            assert [cell for chunk in machine.output(rank) for cell in chunk] == wanted, f"rank {rank}"


def spec_of(kind: str, ranks: int, factor: int = 1, inplace: bool = False, root: int = 0, **more: Any) -> AlgoSpec:
    rooted = {"root": root} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    return AlgoSpec(name="test", collective=KINDS[kind](ranks, factor, inplace, **rooted), **more)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("kind", "algorithm"), list(BUILTINS))
def test_result(kind: str, algorithm: str, ranks: int) -> None:
    if ranks in UNSUPPORTED.get(algorithm, ()):
        with pytest.raises(ProgramError):
            BUILTINS[kind, algorithm](spec_of(kind, ranks))
        return
    for seed, factor in enumerate((1, 2)):
        check(spec_of(kind, ranks, factor, root=ranks // 2), algorithm, seed)


@pytest.mark.parametrize(("kind", "algorithm"), [key for key in BUILTINS if key != ("alltoall", "pairwise")])
def test_result_in_place(kind: str, algorithm: str) -> None:
    for ranks in {1, 2, 4, 5, 8}.difference(UNSUPPORTED.get(algorithm, ())):
        for root in {0, ranks - 1}:
            check(spec_of(kind, ranks, 2, inplace=True, root=root), algorithm, ranks)


@pytest.mark.parametrize("policy", list(ReplicationPolicy))
@pytest.mark.parametrize(("kind", "algorithm"), list(BUILTINS))
def test_result_of_several_instances(kind: str, algorithm: str, policy: ReplicationPolicy) -> None:
    for ranks, instances in ((4, 2), (6, 3)):
        for seed in range(3):
            check(spec_of(kind, ranks, 2, instances=instances, replication_policy=policy), algorithm, seed)


@pytest.mark.parametrize(("kind", "algorithm"), list(BUILTINS))
def test_result_without_fusion(kind: str, algorithm: str) -> None:
    check(spec_of(kind, 6, instr_fusion=False), algorithm)


def test_roots() -> None:
    for kind in ("broadcast", "reduce", "gather", "scatter"):
        for ranks in (2, 3, 6, 7):
            for root in range(ranks):
                check(spec_of(kind, ranks, root=root), "binomial")


def test_operations_name_the_lines_of_the_program() -> None:
    plan = json.loads(ring_all_reduce(spec_of("allreduce", 3)).to_json())
    origins = {operation["origin"] for operation in plan["gpus"][0]["threadblocks"][0]["ops"]}
    assert origins
    assert all(origin.startswith("ring.py:") for origin in origins)


@pytest.mark.parametrize(
    ("build", "spec", "reason"),
    [
        (ring_all_reduce, spec_of("allgather", 4), "made for AllReduce, not allgather"),
        (pairwise_all_to_all, spec_of("alltoall", 4, inplace=True), "cannot work in place"),
        (one_shot_all_reduce, spec_of("allreduce", 65), "at most 64 ranks"),
    ],
)
def test_refusals_give_the_reason(build: Any, spec: AlgoSpec, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        build(spec)
