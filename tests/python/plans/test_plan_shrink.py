"""`tutti plan shrink`: small plans with the fault of the large one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tutti import _core
from tutti.cli.app import app
from tutti.language import AllReduce, CollectiveProgram, MemoryChannel, Rank, TestCollective
from tutti.language.builtins import BUILTINS
from tutti.language.utils import AlgoSpec
from tutti.plans.resolved import operations
from tutti.plans.shrinking import Shrinker, signature, tagged, untagged

pytestmark = pytest.mark.tutti_only

PLANS = Path(__file__).resolve().parents[2] / "cpp" / "plan" / "plans"
VERDICTS = json.loads((PLANS / "verdicts.json").read_text())
FAULTY = [name for name, verdict in VERDICTS.items() if verdict["outcome"] != "proven"]


def load(name: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((PLANS / f"{name}.json").read_text())
    return plan


def count(plan: dict[str, Any]) -> int:
    return sum(1 for _ in operations(plan))


def fault_of(plan: dict[str, Any]) -> dict[str, Any]:
    fault: dict[str, Any] = _core.check_plan(json.dumps(plan), True)["fault"]
    return fault


def ring(ranks: int) -> dict[str, Any]:
    spec = AlgoSpec("ring", AllReduce(ranks, ranks, True), ranks, ranks)
    plan: dict[str, Any] = BUILTINS["allreduce", "ring"](spec).to_dict()
    assert _core.check_plan(json.dumps(plan), True)["outcome"] == "proven"
    return plan


def drop(plan: dict[str, Any], rank: int, name: str, nth: int) -> dict[str, Any]:
    """The plan without the nth operation of that name of a rank."""
    plan = copy.deepcopy(plan)
    found = [(block, op) for block in plan["gpus"][rank]["threadblocks"] for op in block["ops"] if op["name"] == name]
    block, op = found[nth]
    block["ops"].remove(op)
    return plan


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_stays_and_nothing_more_can_go(name: str) -> None:
    plan = load(name)
    small = Shrinker(plan).run()
    assert small.complete
    assert small.verdict["fault"]["kind"] == fault_of(plan)["kind"] == fault_of(small.plan)["kind"]
    assert count(small.plan) <= count(plan)
    again = Shrinker(small.plan).run()
    assert again.plan == small.plan


def test_a_lost_signal_is_found_among_many() -> None:
    plan = drop(ring(6), 4, "signal", 2)
    fault = fault_of(plan)
    assert fault["kind"] == "deadlock"
    small = Shrinker(plan).run()
    assert small.verdict["fault"]["kind"] == "deadlock"
    assert count(small.plan) * 10 <= count(plan)
    named = {site["origin"] for site in fault["sites"]}
    assert {site["origin"] for site in small.verdict["fault"]["sites"]} == named


def test_a_missing_wait_leaves_the_race_of_the_same_operations() -> None:
    plan = ring(4)
    waits = [op for block in plan["gpus"][2]["threadblocks"] for op in block["ops"] if op["name"] == "wait"]
    for nth in range(len(waits)):
        broken = drop(drop(plan, 2, "wait", nth), 1, "signal", nth)
        fault = fault_of(broken)
        if fault is None or fault["kind"] != "race":
            continue
        small = Shrinker(broken).run()
        assert count(small.plan) * 2 < count(broken)
        assert sorted(site["name"] for site in small.verdict["fault"]["sites"]) == sorted(
            site["name"] for site in fault["sites"]
        )
        return
    pytest.fail("no pair of signal and wait matters")


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", ["put", "wait", "nop"])
def test_no_rank_and_no_chunk_is_left_that_nothing_uses(name: str, rank: int) -> None:
    small = Shrinker(drop(ring(4), rank, name, 1)).run()
    assert small.complete
    used: dict[int, set[int]] = {number: set() for number in range(len(small.plan["gpus"]))}
    for where, operation in operations(small.plan):
        for entry in (*operation.get("src_buff", ()), *operation.get("dst_buff", ())):
            remote = "buffer_id" in entry
            gpu = small.plan["gpus"][where.rank]
            buffers = [
                number
                for ref in gpu["threadblocks"][where.block]["remote_buffer_refs"]
                for number in ref["remote_buffer_ids"]
            ]
            at = gpu["remote_buffers"][buffers[entry["buffer_id"]]] if remote else {"rank": where.rank, **entry}
            if at["type"] == "s":
                used[at["rank"]].update(range(entry["index"], entry["index"] + entry["size"]))
    for number, gpu in enumerate(small.plan["gpus"]):
        assert gpu["threadblocks"], f"rank {number} does nothing"
        assert gpu["input_chunks"] == gpu["output_chunks"] == 1
        assert used[number] == set(range(gpu["scratch_chunks"]))


@pytest.mark.parametrize("races", [True, False])
def test_the_fault_is_the_one_that_check_names(races: bool, tmp_path: Path) -> None:
    with CollectiveProgram("writes its input", TestCollective(2, 2, 1), 2) as program:
        for rank in (0, 1):
            source = Rank(rank).get_input_buffer()
            Rank(rank).copy(source[0:1], source[1:2], tb=0)
            if races:
                Rank(rank).copy(Rank(rank).get_output_buffer()[0:1], source[0:1], tb=rank)
                MemoryChannel(1 - rank, rank).put(Rank(1 - rank).get_output_buffer()[0:1], source[1:2], tb=0)
    plan = program.to_dict()
    checked = _core.check_plan(json.dumps(plan))
    assert checked["outcome"] == ("rejected" if races else "proven after repair")
    small = Shrinker(plan).run()
    assert small.verdict["fault"]["kind"] == checked["fault"]["kind"] == ("race" if races else "input")
    assert _core.check_plan(json.dumps(small.plan))["fault"]["kind"] == checked["fault"]["kind"]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    result = CliRunner().invoke(app, ["plan", "shrink", str(file), "-o", str(tmp_path / "small.json")])
    assert result.exit_code == 0
    assert checked["fault"]["message"] in result.output


def test_the_same_plan_gives_the_same_result() -> None:
    plan = drop(ring(4), 1, "put", 1)
    first, second = Shrinker(plan).run(), Shrinker(plan).run()
    assert first.plan == second.plan
    assert first.checks == second.checks


def test_another_fault_of_the_kind_may_be_smaller() -> None:
    plan = drop(ring(4), 2, "signal", 1)
    assert count(Shrinker(plan, kind_only=True).run().plan) <= count(Shrinker(plan).run().plan)


def test_checks_are_bounded() -> None:
    small = Shrinker(drop(ring(4), 2, "signal", 1), most_checks=7).run()
    assert not small.complete
    assert small.checks == 7
    assert small.verdict["fault"]["kind"] == "deadlock"


def test_tags_name_operations_and_can_be_taken_off() -> None:
    plan = load("relaxed_signal_publishes")
    plan["gpus"][0]["threadblocks"][0]["ops"][0]["origin"] = "mine.py:3"
    marked, origins = tagged(plan)
    assert untagged(marked, origins) == plan
    kind, _, *named = signature(_core.check_plan(json.dumps(marked), True)) or ("", "")
    assert kind == "race"
    assert any(name.startswith("#") for name in named)


def test_the_command_writes_a_plan_that_loads(tmp_path: Path) -> None:
    target = tmp_path / "small.json"
    runner = CliRunner(env={"COLUMNS": "160"})
    result = runner.invoke(app, ["plan", "shrink", str(PLANS / "both_wait_first.json"), "-o", str(target)])
    assert result.exit_code == 0, result.output
    assert "before: 2 ranks" in result.output
    assert "after " in result.output
    assert result.output.count("deadlock: these wait for each other") == 2
    assert fault_of(json.loads(target.read_text()))["kind"] == "deadlock"
    proven = runner.invoke(app, ["plan", "shrink", str(PLANS / "ring_all_reduce_3.json")])
    assert (proven.exit_code, "proven as it stands" in proven.output) == (2, True)
