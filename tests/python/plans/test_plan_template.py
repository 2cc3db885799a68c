"""Plans that are not written out: generated families, templates, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import commands
import pytest

from tutti import _core
from tutti.language import AlgoSpec, AllGather, AllReduce, AllToAll
from tutti.language.builtins import BUILTINS
from tutti.topology import ring

COLLECTIVES = {"allreduce": AllReduce, "allgather": AllGather, "alltoall": AllToAll}
invoke = partial(commands.invoke, "plan")


def builtin(kind: str, name: str, ranks: int) -> Any:
    spec = AlgoSpec(name=name, collective=COLLECTIVES[kind](ranks, 1, False), world_size=ranks)
    return BUILTINS[kind, name](spec)


@pytest.mark.parametrize("family", list(_core.plan_families()))
def test_every_family_is_listed_generated_proven_and_simulated(family: str) -> None:
    assert family in invoke("generate", "--list")[1]
    options = ("--generate", family, "--ranks", "16", "--ranks-per-host", "4")
    code, output = invoke("check", *options)
    assert code == 0, output
    assert output.startswith(f"{family} of 16 ranks: proven")
    code, output = invoke("simulate", *options, "--topology", "nvswitch", "--size", "1MB")
    assert code == 0, output
    assert "16 ranks on nvswitch 16" in output


def test_a_family_says_for_how_many_ranks_it_is() -> None:
    code, output = invoke("check", "--generate", "recursive-doubling", "--ranks", "12")
    assert code == 2
    assert "a power of two of ranks, not 12" in output
    assert invoke("check", "--generate", "moebius", "--ranks", "12")[0] == 2
    assert invoke("check")[0] == 2  # neither a file nor a family
    assert invoke("generate")[0] == 2


def test_a_ring_of_thousands_is_simulated_and_says_how() -> None:
    ranks = ("--ranks", "2048")
    code, output = invoke("simulate", "-g", "ring", *ranks, "--topology", "ring", "--size", "1MB")
    assert code == 0, output
    assert "rounds of 2048 ranks; from then on every round delays all ranks by the same time" in output
    code, output = invoke("check", "-g", "ring", *ranks)
    assert code == 2
    assert "too many to hold" in output
    code, output = invoke("simulate", "-g", "ring", *ranks, "--topology", "ring", "--size", "1MB", "--budget", "0")
    assert code == 1
    assert "went over budget" in output
    assert "(estimate)" in output


def test_a_template_is_a_plan_file(tmp_path: Path) -> None:
    folded, whole, again = tmp_path / "ring.json", tmp_path / "whole.json", tmp_path / "again.json"
    assert invoke("generate", "ring", "--ranks", "8", "-o", folded) == (0, f"wrote {folded}\n")
    assert invoke("generate", "ring", "--ranks", "8", "--write-out", "-o", whole)[0] == 0
    assert len(json.loads(folded.read_text())["gpus"]) == 1
    assert len(json.loads(whole.read_text())["gpus"]) == 8
    for file in (folded, whole):
        assert invoke("check", file)[0] == 0
        assert invoke("run", file, "--size", "4KB", "--repeat", "1")[0] == 0
        assert invoke("show", file)[0] == 0
    assert invoke("diff", folded, whole)[0] == 0
    assert invoke("fold", whole, "-o", again)[0] == 0
    assert json.loads(again.read_text()) == json.loads(folded.read_text())
    simulated = [_core.simulate_plan(f.read_text(), json.dumps(ring(8)), 1 << 20)["time_us"] for f in (folded, whole)]
    assert simulated[0] == simulated[1]


@pytest.mark.parametrize(
    ("kind", "name", "dims"),
    [
        ("allreduce", "ring", [8]),
        ("allreduce", "recursive_doubling", [2, 2, 2]),
        ("allreduce", "rabenseifner", [2, 2, 2]),
        ("allgather", "ring", [8]),
        ("alltoall", "pairwise", [8]),
    ],
)
def test_programs_whose_ranks_are_alike_become_templates(kind: str, name: str, dims: list[int]) -> None:
    program = builtin(kind, name, 8)
    template = program.to_template()
    assert json.loads(template)["template"]["dims"] == dims
    assert len(template) < len(program.to_json()) / 4
    # What the template stands for is the program's plan: folded again it is the same, and it is proven.
    assert json.loads(_core.fold_plan(_core.write_out_plan(template))) == json.loads(template)
    assert _core.check_plan(template, strict=True)["outcome"] == "proven"
    assert _core.ranks_of_plan(template) == 8


def test_a_program_whose_ranks_are_not_alike_is_named() -> None:
    with pytest.raises(ValueError, match=r"/gpus/1.*ops/\d+: .* is not rank 0's, moved here"):
        builtin("allreduce", "two_shot", 4).to_template()
    program = builtin("allreduce", "ring", 4)
    with pytest.raises(ValueError, match="dims for 5 ranks, the plan has 4"):
        program.to_template((5,))
    for blocks in ({"input_blocks": 3}, {"output_blocks": -9}):
        with pytest.raises(ValueError, match="name it too"):
            program.to_template(**blocks)
    plan = program.to_dict()
    put = next(op for op in plan["gpus"][2]["threadblocks"][0]["ops"] if op["name"] == "put")
    put["src_buff"][0]["index"] = 0
    with pytest.raises(ValueError, match=r"/gpus/2/threadblocks/0/ops/3: source 0 of this put \(.*\.py:\d+\)"):
        _core.fold_plan(json.dumps(plan), [4], 4, 4)


def test_a_wrong_template_is_rejected_like_any_plan(tmp_path: Path) -> None:
    template = json.loads(_core.generate_plan("ring", 8))
    template["template"]["dims"] = [8, 2]  # two rings that never meet
    file = tmp_path / "apart.json"
    file.write_text(json.dumps(template))
    code, output = invoke("check", file)
    assert code == 1
    assert "rank 8's is missing" in output
    template["template"]["dims"] = [5]
    file.write_text(json.dumps(template))
    code, output = invoke("check", file)
    assert code == 2
    assert "/template" in output
