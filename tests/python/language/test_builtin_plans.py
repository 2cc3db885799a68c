"""Every built-in program is proven by the verifier, strictly, wherever it says that it works; elsewhere it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from explored_programs import texts
from test_language_builtins import spec_of

from tutti import _core, default_algos
from tutti.language import (
    AlgoSpec,
    AllGather,
    AllReduce,
    CollectiveProgram,
    ProgramError,
    Rank,
    ReduceScatter,
)
from tutti.language.builtins import BUILTINS, multiplying

pytestmark = pytest.mark.tutti_only


class Case(NamedTuple):
    """Which numbers of ranks an algorithm is for, and what it says about others."""

    supports: Callable[[int], bool] = lambda ranks: ranks >= 1
    refusal: str = ""
    in_place: bool = True


def composite(ranks: int) -> bool:
    return any(ranks % side == 0 for side in range(2, ranks))


CASES: dict[tuple[str, str], Case] = {
    ("allreduce", "ring"): Case(),
    ("allreduce", "recursive_doubling"): Case(),
    ("allreduce", "bine"): Case(),
    ("allreduce", "rabenseifner"): Case(),
    ("allreduce", "recursive_multiplying"): Case(),
    ("allreduce", "double_tree"): Case(),
    ("allreduce", "two_level"): Case(),
    ("allreduce", "swing"): Case(lambda ranks: ranks % 2 == 0, "even number of ranks"),
    ("allreduce", "torus_bucket"): Case(composite, "needs two dimensions"),
    ("allreduce", "one_shot"): Case(lambda ranks: ranks <= 64, "at most 64 ranks"),
    ("allreduce", "two_shot"): Case(lambda ranks: ranks <= 64, "at most 64 ranks"),
    ("allreduce", "switch"): Case(),
    ("allgather", "ring"): Case(),
    ("allgather", "bine"): Case(),
    ("allgather", "pat"): Case(),
    ("allgather", "bruck"): Case(),
    ("allgather", "two_level"): Case(),
    ("reducescatter", "ring"): Case(),
    ("reducescatter", "bine"): Case(),
    ("reducescatter", "pat"): Case(),
    ("reducescatter", "two_level"): Case(),
    ("alltoall", "bruck"): Case(),
    ("alltoall", "pairwise"): Case(in_place=False),
    ("broadcast", "bine"): Case(),
    ("broadcast", "scatter_all_gather"): Case(),
    ("broadcast", "two_level"): Case(),
    ("broadcast", "binomial"): Case(),
    ("reduce", "bine"): Case(),
    ("reduce", "binomial"): Case(),
    ("reduce", "two_level"): Case(),
    ("gather", "bine"): Case(),
    ("gather", "binomial"): Case(),
    ("scatter", "bine"): Case(),
    ("scatter", "binomial"): Case(),
}

# Small programs are tried in all ways, large ones in one.
SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9)
ALL_WAYS = [(instances, in_place) for instances in (1, 2) for in_place in (False, True)]
LARGE = [(13, 2, True), (16, 1, False), (22, 1, True), (64, 1, False)]
WAYS = [(ranks, *way) for ranks in SMALL for way in ALL_WAYS] + LARGE


def assert_proven(algorithm: str, spec: AlgoSpec) -> None:
    program = BUILTINS[spec.collective.name, algorithm](spec)
    verdict = _core.check_plan(program.to_json(indent=None, origin=False), strict=True)
    where = f"{algorithm}, {spec.world_size} ranks, {spec.instances} instances, in place: {spec.in_place}"
    assert verdict["outcome"] == "proven", f"{where}: {verdict['fault']}"
    assert verdict["same_bits"], f"{where}: ranks may get different bits"


def test_the_table_has_every_builtin() -> None:
    assert set(CASES) == set(BUILTINS)


@pytest.mark.parametrize(("kind", "algorithm"), list(CASES))
def test_proven_or_refused(kind: str, algorithm: str) -> None:
    case = CASES[kind, algorithm]
    for ranks, instances, in_place in WAYS:
        if in_place and not case.in_place:
            continue
        per_host = min(ranks, 5)  # the last host is smaller where 5 does not divide the ranks
        spec = spec_of(kind, ranks, 1, in_place, ranks // 2, instances=instances, nranks_per_node=per_host)
        if case.supports(ranks):
            assert_proven(algorithm, spec)
        else:
            with pytest.raises(ProgramError, match=case.refusal):
                BUILTINS[kind, algorithm](spec)


@pytest.mark.parametrize("algorithm", [name for kind, name in CASES if kind == "allreduce"])
def test_several_chunks_a_rank(algorithm: str) -> None:
    assert_proven(algorithm, spec_of("allreduce", 6, 3))
    assert_proven(algorithm, spec_of("allreduce", 10, 2, True))


def test_swing_reaches_all_at_even_numbers_of_ranks() -> None:
    for ranks in (2, 6, 10, 12, 14, 18, 20, 24, 26, 28, 34):
        assert_proven("swing", spec_of("allreduce", ranks))


@pytest.mark.parametrize("ranks_a_host", [1, 2, 3, 4, 7, 10])
def test_two_levels_of_hosts(ranks_a_host: int) -> None:
    assert_proven("two_level", spec_of("allreduce", 10, nranks_per_node=ranks_a_host))


@pytest.mark.parametrize("groups", [(1, 9), (5, 1, 4), (3, 3, 3, 1), (1,) * 10])
def test_two_levels_of_uneven_groups(groups: tuple[int, ...]) -> None:
    assert_proven("two_level", spec_of("allreduce", 10, tags={"groups": groups}))
    assert_proven("two_level", spec_of("allreduce", 10, 1, True, instances=2, tags={"groups": groups}))


@pytest.mark.parametrize("shape", [(12,), (3, 4), (6, 2), (2, 3, 2), (1, 12)])
def test_torus_shapes(shape: tuple[int, ...]) -> None:
    assert_proven("torus_bucket", spec_of("allreduce", 12, tags={"torus": shape}))


@pytest.mark.parametrize("radix", [2, 3, 5, 8, 16])
def test_radices(radix: int) -> None:
    for ranks in (7, 16, 30):
        assert_proven("recursive_multiplying", spec_of("allreduce", ranks, tags={"radix": radix}))


@pytest.mark.parametrize(
    ("algorithm", "tags", "reason"),
    [
        ("two_level", {"groups": (3, 4)}, "do not add up"),
        ("torus_bucket", {"torus": (3, 3)}, "no torus of 3 x 3"),
        ("recursive_multiplying", {"radix": 1}, "at least two ranks"),
        ("two_level", {"groups": 8}, "the sizes of groups come as a list"),
        ("two_level", {"groups": (4.0, 4.0)}, "each of the sizes of groups is a whole number"),
        ("torus_bucket", {"torus": 8}, "the sizes of a torus come as a list"),
        ("torus_bucket", {"torus": (2, "4")}, "each of the sizes of a torus is a whole number"),
    ],
)
def test_tags_that_do_not_fit_are_refused(algorithm: str, tags: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        BUILTINS["allreduce", algorithm](spec_of("allreduce", 8, tags=tags))


def test_no_more_ranks_meet_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a large radix is counted down from for minutes."""
    factors = multiplying._factors

    def watched(ranks: int, radix: int) -> list[int] | None:
        assert radix <= 4
        return factors(ranks, radix)

    monkeypatch.setattr(multiplying, "_factors", watched)
    build = BUILTINS["allreduce", "recursive_multiplying"]
    plans = [build(spec_of("allreduce", 4, tags={"radix": radix})).to_dict(origin=False) for radix in (4, 10**15)]
    assert plans[0] == plans[1]


def puts_of(algorithm: str, ranks: int, kind: str = "allreduce", **more: Any) -> int:
    """The puts that the busiest rank executes, unfused, as a measure of what it sends."""
    plan = BUILTINS[kind, algorithm](spec_of(kind, ranks, instr_fusion=False, **more)).to_dict(origin=False)
    blocks = [[block["ops"] for block in rank["threadblocks"]] for rank in plan["gpus"]]
    return max(sum(op["name"] == "put" for ops in rank for op in ops) for rank in blocks)


@pytest.mark.parametrize(
    ("kind", "algorithm", "blocks"),
    [
        ("allreduce", "swing", 2 * 15),
        ("allreduce", "torus_bucket", 2 * 15),
        ("allgather", "pat", 15),
        ("allgather", "ring", 15),
        ("reducescatter", "pat", 15),
        ("reducescatter", "ring", 15),
    ],
)
def test_a_rank_sends_as_many_blocks_as_is_said(kind: str, algorithm: str, blocks: int) -> None:
    assert puts_of(algorithm, 16, kind) == blocks


def test_the_programs_of_the_tests_in_cpp_are_those_of_the_language() -> None:
    for folder, files in texts().items():
        on_disk = {path.name: path.read_text() for path in folder.glob("*.json")}
        assert on_disk == files, "run tests/python/language/explored_programs.py"


# The spec of MSCCL++'s own multi-node programs: their authors write every join by hand, these programs none.
@pytest.mark.parametrize("ranks_per_host", [2, 4])
@pytest.mark.parametrize("name", default_algos.__all__)
def test_programs_for_hosts_take_the_spec_of_the_peer(name: str, ranks_per_host: int) -> None:
    kinds = {"allgather": AllGather, "allreduce": AllReduce, "reducescatter": ReduceScatter}
    ranks = 2 * ranks_per_host
    for instances in (1, 2):
        spec = AlgoSpec(
            name=name,
            collective=kinds[name.split("_")[0]](ranks, 1, True),
            nranks_per_node=ranks_per_host,
            world_size=ranks,
            in_place=True,
            instances=instances,
            protocol="LL",
            auto_sync=False,
            reuse_resources=True,
            use_double_scratch_buffer=True,
        )
        verdict = getattr(default_algos, name)(spec).check(strict=True)
        assert verdict["outcome"] == "proven", verdict["fault"]


def test_no_built_in_program_leaves_out_joins() -> None:
    for kind, algorithm in BUILTINS:
        program = BUILTINS[kind, algorithm](replace(spec_of(kind, 4, nranks_per_node=2), auto_sync=False))
        verdict = program.check()
        assert verdict["outcome"] != "rejected", (kind, algorithm, verdict["fault"])


def test_a_program_checks_simulates_and_runs_itself() -> None:
    program = BUILTINS["allreduce", "ring"](spec_of("allreduce", 4))
    assert program.check(strict=True) == _core.check_plan(program.to_json(), True)
    assert program.simulate("nvswitch", "64KB")["time_us"] > 0
    with pytest.raises(ValueError, match="none of"):
        program.simulate("no such place", 1 << 16)
    for seed in (None, 3):
        report = program.run("10KB", dtype="i32", seed=seed)
        assert report["checked"] and report["fault"] is None


# Who takes an all-reduce of one share for one of one chunk is told how many there are.
def test_an_output_that_nobody_writes_says_how_long_it_is() -> None:
    with CollectiveProgram("first_only", AllReduce(4, 1), 4) as program:
        for rank in range(4):
            Rank(rank).copy(Rank(rank).get_output_buffer()[0:1], Rank(rank).get_input_buffer()[0:1], tb=0)
    message = program.check()["fault"]["message"]
    assert message.startswith("chunk 0 of rank 0's output is wrong")
    for rank in program.to_dict()["gpus"]:
        assert rank["output_chunks"] == 4
    with CollectiveProgram("nothing", AllReduce(4, 1), 4) as program:
        pass
    assert program.check()["fault"]["message"].endswith("nothing was written there; the output has 4 chunks")
