"""`tutti plan diff`: what counts as a difference, and what does not."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import commands
import pytest

from tutti import _core
from tutti.plans.difference import compare

pytestmark = pytest.mark.tutti_only

PLANS = Path(__file__).resolve().parents[2] / "cpp" / "plan" / "plans"
NAMES = sorted(path.stem for path in PLANS.glob("*.json") if path.stem != "verdicts")
invoke = partial(commands.invoke, "plan", "diff")


def load(name: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((PLANS / f"{name}.json").read_text())
    return plan


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_does_what_it_does(name: str) -> None:
    plan = load(name)
    renamed = {**copy.deepcopy(plan), "name": "other", "source": "elsewhere.py"}
    for gpu in renamed["gpus"]:
        for block in gpu["threadblocks"]:
            for operation in block["ops"]:
                operation["origin"] = "elsewhere.py:1"
    assert not compare(plan, renamed)


def doubled_channels() -> dict[str, Any]:
    """Two ranks that signal each other over two channels, each from a thread block of its own."""
    gpus = []
    for rank in range(2):
        blocks = [
            {
                "id": number,
                "ops": [
                    {"name": name, "channel_type": "memory", "channel_ids": [0]}
                    for name in (["signal", "wait"][::step])
                ],
                "channels": [{"channel_type": "memory", "channel_ids": [number]}],
                "remote_buffer_refs": [],
            }
            for number, step in ((0, 1), (1, -1 if rank else 1))
        ]
        gpus.append(
            {
                "id": rank,
                "input_chunks": 1,
                "output_chunks": 1,
                "scratch_chunks": 0,
                "threadblocks": blocks,
                "channels": [{"channel_type": "memory", "connected_to": [1 - rank] * 2}],
                "remote_buffers": [],
                "semaphores": [],
            }
        )
    plan = load("both_wait_first")
    plan.update(collective="test", gpus=gpus)
    _core.plan_info(json.dumps(plan))
    return plan


def test_renamed_channels_blocks_and_buffers_are_no_difference() -> None:
    plan = doubled_channels()
    other = copy.deepcopy(plan)
    for gpu in other["gpus"]:  # channels 0 and 1 change places on both ranks, and so do the thread blocks
        for block in gpu["threadblocks"]:
            block["channels"][0]["channel_ids"] = [1 - block["channels"][0]["channel_ids"][0]]
        gpu["threadblocks"].reverse()
        for number, block in enumerate(gpu["threadblocks"]):
            block["id"] = number
    _core.plan_info(json.dumps(other))
    assert not compare(plan, other)
    packets = load("packet_all_reduce_3")
    other = copy.deepcopy(packets)
    for gpu in other["gpus"]:
        gpu["remote_buffers"].reverse()
        last = len(gpu["remote_buffers"]) - 1
        for block in gpu["threadblocks"]:
            for entry in block["remote_buffer_refs"]:
                entry["remote_buffer_ids"] = [last - number for number in entry["remote_buffer_ids"]]
    _core.plan_info(json.dumps(other))
    assert not compare(packets, other)


def test_channels_that_cross_are_a_difference() -> None:
    plan = doubled_channels()
    plan["gpus"][0]["threadblocks"][1]["ops"].append({"name": "nop"})  # else the other rank's blocks are alike
    other = copy.deepcopy(plan)
    for block in other["gpus"][1]["threadblocks"]:  # on one rank only: other thread blocks meet now
        block["channels"][0]["channel_ids"] = [1 - block["channels"][0]["channel_ids"][0]]
    _core.plan_info(json.dumps(other))
    assert compare(plan, other)


def test_settings_chunks_and_operations_are_named(tmp_path: Path) -> None:
    plan = load("ring_all_reduce_3")
    other = copy.deepcopy(plan)
    other["max_message_size"] = 4096
    other["gpus"][1]["scratch_chunks"] += 2
    del other["gpus"][2]["threadblocks"][0]["ops"][3]
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps(plan))
    second.write_text(json.dumps(other))
    code, output = invoke(first, second)
    assert code == 1
    assert f"max_message_size: {plan['max_message_size']} | 4096" in output
    scratch = plan["gpus"][1]["scratch_chunks"]
    assert f"rank 1: scratch chunks: {scratch} | {scratch + 2}" in output
    assert "rank 2, thread block 0:" in output
    assert [line for line in output.splitlines() if line.startswith("  - ")]
    assert not [line for line in output.splitlines() if line.startswith("  + ")]
    assert "rank 0, thread block" not in output
    code, output = invoke(first, second, "--json")
    difference = json.loads(output)
    assert (code, difference["same"]) == (1, False)
    assert difference["settings"] == [["max_message_size", plan["max_message_size"], 4096]]
    assert [block["rank"] for block in difference["blocks"]] == [2]


def test_ranks_and_blocks_that_only_one_has() -> None:
    difference = compare(load("ring_all_reduce_3"), load("tree_all_reduce_7"))
    assert ("ranks", 3, 7) in difference.settings
    assert {block.rank for block in difference.blocks if block.first is None} >= {3, 4, 5, 6}
    backwards = compare(load("tree_all_reduce_7"), load("ring_all_reduce_3"))
    assert {block.rank for block in backwards.blocks if block.second is None} >= {3, 4, 5, 6}


def test_exit_codes(tmp_path: Path) -> None:
    ring = PLANS / "ring_all_reduce_3.json"
    assert invoke(ring, ring) == (0, "both plans do the same\n")
    assert json.loads(invoke(ring, ring, "--json")[1])["same"] is True
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert invoke(ring, broken)[0] == 2
