"""`tutti plan`: verdicts, what is printed, how it ends."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import commands
import pytest

from tutti import _core
from tutti.plans import runs
from tutti.plans.graph import graph_of

pytestmark = pytest.mark.tutti_only

PLANS = Path(__file__).resolve().parents[2] / "cpp" / "plan" / "plans"
VERDICTS = json.loads((PLANS / "verdicts.json").read_text())
invoke = partial(commands.invoke, "plan")


@pytest.mark.parametrize("name", VERDICTS)
def test_check_gives_the_expected_verdict(name: str) -> None:
    outcome = VERDICTS[name]["outcome"]
    code, output = invoke("check", str(PLANS / f"{name}.json"))
    assert f": {outcome}, over" in output
    assert code == (1 if outcome == "rejected" else 0)
    strict, _ = invoke("check", "--strict", str(PLANS / f"{name}.json"))
    assert strict == (0 if outcome == "proven" else 1)


@pytest.mark.parametrize("name", [name for name, verdict in VERDICTS.items() if verdict["outcome"] != "rejected"])
def test_what_is_proven_also_runs(name: str) -> None:
    code, output = invoke("check", "--run", str(PLANS / f"{name}.json"))
    assert code == 0, output
    assert "runs: right at " in output or "runs: none: no size is small enough" in output, output


def test_runs_are_around_the_units_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.loads((PLANS / "pipeline_with_credits.json").read_text())
    for gpu in text["gpus"]:
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                if "iter_context" in op:
                    op["iter_context"]["unit_size"] = 1024
    chunks = min(text["gpus"][0][f"{side}_chunks"] for side in ("input", "output"))
    sizes = runs.block_sizes(text)
    for length in (1008, 1024, 1040, 1536, 2064):
        assert {length * chunks, length * chunks - 4} <= set(sizes)
    right = runs.try_plan(json.dumps(text))
    assert right["sizes"] == sizes and right["fault"] is None and right["not_run"] is None
    # A proven plan never runs wrong, so an executor that does is made up.
    monkeypatch.setattr(_core, "run_plan", lambda *_, **__: {"fault": "rank 0: element 1 is wrong"})
    code, output = invoke("check", "--run", str(PLANS / "ring_all_reduce_3.json"))
    assert code == 1
    assert "runs: wrong: 4 B a rank, order 1: rank 0: element 1 is wrong" in output
    code, output = invoke("check", "--run", "--generate", "ring", "--ranks", "64")
    assert code == 0 and "runs: none: 64 ranks" in output


def test_a_repaired_plan_is_proven() -> None:
    verdict = _core.check_plan((PLANS / "relaxed_signal_publishes.json").read_text())
    assert verdict["outcome"] == "proven after repair"
    assert {repair["kind"] for repair in verdict["repairs"]} == {"signal", "wait"}
    assert _core.check_plan(verdict["repaired"], strict=True)["outcome"] == "proven"


def test_a_size_limit_is_a_repair() -> None:
    file = PLANS / "pipeline_without_credits.json"
    code, output = invoke("check", str(file))
    assert code == 0
    assert "repair: max_message_size becomes 67108864, past which loops would use scratch anew" in output
    verdict = _core.check_plan(file.read_text())
    assert [(repair["kind"], repair["bytes"]) for repair in verdict["repairs"]] == [("size", 1 << 26)]
    assert _core.plan_info(verdict["repaired"])["max_message_bytes"] == 1 << 26


def test_a_fault_names_its_operations() -> None:
    text = json.loads((PLANS / "lanes_not_joined.json").read_text())
    text["gpus"][0]["threadblocks"][0]["ops"][2]["origin"] = "bcast.py:7"
    fault = _core.check_plan(json.dumps(text))["fault"]
    assert fault["kind"] == "race"
    assert any(site["origin"] == "bcast.py:7" for site in fault["sites"])
    assert "bcast.py:7" in fault["message"]


def test_check_says_where_no_result_was_checked(tmp_path: Path) -> None:
    known = PLANS / "ring_all_reduce_3.json"
    file = tmp_path / "custom.json"
    file.write_text(json.dumps(json.loads(known.read_text()) | {"collective": "custom"}))
    for plan, says in ((known, False), (file, True)):
        code, output = invoke("check", str(plan))
        assert code == 0
        assert ("note: its collective says nothing of results, so none was checked" in output) == says, output


def test_check_prints_json() -> None:
    code, output = invoke("check", "--json", str(PLANS / "both_wait_first.json"))
    verdict = json.loads(output)
    assert code == 1
    assert verdict["fault"]["kind"] == "deadlock"
    assert {site["rank"] for site in verdict["fault"]["sites"]} == {0, 1}


def test_what_is_no_plan_is_refused_with_its_path(tmp_path: Path) -> None:
    plan = json.loads((PLANS / "ring_all_reduce_3.json").read_text())
    plan["gpus"][1]["threadblocks"][0]["ops"][3]["src_buff"][0]["index"] = 99
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(plan))
    for command in (("check",), ("show",), ("export", "--mscclpp")):
        code, output = invoke(*command, str(file))
        assert code == 2
        assert "/gpus/1/threadblocks/0/ops/3/src_buff/0/index" in output


def test_show_lists_the_blocks() -> None:
    code, output = invoke("show", str(PLANS / "ring_all_reduce_3.json"))
    assert code == 0
    assert "allreduce among 3 ranks" in output
    assert "4 put" in output


def test_what_a_plan_calls_itself_stays_in_a_line(tmp_path: Path) -> None:
    plan = json.loads((PLANS / "ring_all_reduce_3.json").read_text())
    plan |= {"name": "a\n\x1b[2Jb\u202e", "source": "c\rd"}
    (tmp_path / "p.json").write_text(json.dumps(plan))
    code, output = invoke("show", str(tmp_path / "p.json"))
    assert code == 0
    assert output.splitlines()[:2] == [
        "a\\n\\x1b[2Jb\\u202e: allreduce among 3 ranks, protocol Simple, sum",
        "made by c\\rd",
    ]


def test_export_is_a_plan_that_mscclpp_reads(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    code, output = invoke("export", "--mscclpp", str(PLANS / "packet_all_reduce_3.json"), "-o", str(target))
    assert output == f"wrote {target}\n"
    plan = json.loads(target.read_text())
    assert code == 0
    assert "version" not in plan
    assert _core.check_plan(target.read_text(), strict=True)["outcome"] == "proven"


def test_show_draws_what_orders_a_rank(tmp_path: Path) -> None:
    plan = str(PLANS / "pipeline_without_credits.json")
    code, output = invoke("show", plan, "--graph", "0")
    assert code == 0
    row = {
        name: next(i for i, line in enumerate(output.splitlines()) if name in line) for name in ("sem_rel", "sem_acq")
    }
    assert row["sem_rel"] < row["sem_acq"]
    assert "thread block 1" in output
    target = tmp_path / "graph.svg"
    assert invoke("show", plan, "--graph", "0", "--svg", str(target)) == (0, f"wrote {target}\n")
    picture = ElementTree.fromstring(target.read_text())
    boxes = list(picture.iter("{http://www.w3.org/2000/svg}rect"))
    ops = [op for block in json.loads(Path(plan).read_text())["gpus"][0]["threadblocks"] for op in block["ops"]]
    assert len(boxes) == 1 + sum(len(op.get("ops", [op])) for op in ops)
    assert sum("url(#semaphore)" in path.get("marker-end", "") for path in picture.iter()) == 1
    assert invoke("show", plan, "--graph", "1")[0] == 2


def test_the_graph_joins_blocks_at_barriers_and_names_peers() -> None:
    meet = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
    copy = {"name": "copy"}
    operand = [{"type": "i", "index": 0, "size": 1}]
    copy.update(src_buff=operand, dst_buff=[{"type": "o", "index": 0, "size": 1}])  # type: ignore[call-overload]
    blocks = [{"ops": [copy, copy, meet, copy]}, {"ops": [meet, copy]}]
    plan = {"gpus": [{"threadblocks": blocks, "channels": [], "semaphores": []}]}
    graph = graph_of(plan, 0)
    rows = {(where.block, where.op): node.row for where, node in graph.nodes.items()}
    assert rows == {(0, 0): 0, (0, 1): 1, (0, 2): 2, (0, 3): 3, (1, 0): 2, (1, 1): 3}
    ring = json.loads((PLANS / "ring_all_reduce_3.json").read_text())
    node = graph_of(ring, 1).nodes
    assert {peer for entry in node.values() for peer in entry.sends} == {0, 2}
    assert {peer for entry in node.values() for peer in entry.receives} == {0, 2}


def no_plans(folder: Path) -> dict[Path, str]:
    """Files that have no end, or are none, and what is said of them."""
    os.mkfifo(folder / "pipe")
    (folder / "large").touch()
    os.truncate(folder / "large", 3 << 30)  # without a block on the disk
    refused = "is no regular file"
    large = "has more than the 64 MB that are read"
    return {Path("/dev/zero"): refused, folder / "pipe": refused, folder / "large": large, folder: "is a directory"}


@pytest.mark.parametrize(
    "command",
    [
        "check",
        "show",
        "run",
        "simulate --size 64K --topology nvswitch",
        "simulate --size 64K --topology",
        "step",
        "shrink",
        "fold",
        "import",
        "diff",
    ],
)
def test_files_without_an_end_are_refused(command: str, tmp_path: Path) -> None:
    """Nothing waits for a writer or fills the memory, whatever takes a file."""
    good = str(PLANS / "ring_all_reduce_3.json")
    for file, text in no_plans(tmp_path).items():
        name, *options = command.split()
        before = [good] if name == "diff" or options[-1:] == ["--topology"] else []
        code, output = invoke(name, *before, *options, str(file))
        assert code == 2, (file, output)
        assert text.lower() in output.lower(), (file, output)
