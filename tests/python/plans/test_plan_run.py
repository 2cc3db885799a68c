"""Plans that run: `tutti plan run`, and TUTTI_PLAN_PATH under scripts that know nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import commands
import pytest
from direct_plan import direct_all_reduce

pytestmark = pytest.mark.tutti_only

PLANS = Path(__file__).resolve().parents[2] / "cpp" / "plan" / "plans"
invoke = partial(commands.invoke, "plan", "run")

SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()
for count in (0, 1, 3, 1000, 4097, 100_003, 1_500_001):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = (torch.arange(count) % 5 + rank).to(dtype)
        dist.all_reduce(x)
        want = ((torch.arange(count) % 5) * size + size * (size - 1) // 2).to(dtype)
        assert torch.equal(x, want), (count, dtype)
x = torch.full((5000,), float(rank))
dist.all_reduce(x, op=dist.ReduceOp.AVG)
assert torch.equal(x, torch.full((5000,), (size - 1) / 2))
dist.all_reduce(x, op=dist.ReduceOp.MAX)
gathered = [torch.empty(7) for _ in range(size)]
dist.all_gather(gathered, torch.full((7,), float(rank)))
assert [int(t[0]) for t in gathered] == list(range(size))
if "metrics" in sys.argv:
    import tutti
    rows = tutti.get_metrics()["rows"]
    ran = sorted({row["algorithm"] for row in rows if row["collective"] == "all_reduce"})
    if rank == 0:
        print("ran:", ",".join(ran))
dist.destroy_process_group()
"""


def torchrun(script: Path, ranks: int, plans: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*command, str(script), *arguments],
        env={**os.environ, "TUTTI_PLAN_PATH": str(plans), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("how", [(), ("--threads",), ("--seed", "7")])
def test_a_right_plan_is_right_and_timed(how: tuple[str, ...]) -> None:
    for name in ("ring_all_reduce_3", "packet_all_reduce_3", "tree_all_reduce_7"):
        code, output = invoke(str(PLANS / f"{name}.json"), "--size", "4100", *how)
        assert code == 0, output
        assert ": right; " in output
        assert "a call: " in output


def test_a_wrong_plan_is_named_wrong() -> None:
    code, output = invoke(str(PLANS / "one_input_left_out.json"))
    assert code == 1
    assert "element" in output
    code, output = invoke(str(PLANS / "both_wait_first.json"))
    assert code == 1
    assert "rank 1 waits in thread block 0, operation 0 (wait) for a signal of rank 0" in output


def test_several_sizes_and_orders_run_one_after_the_other() -> None:
    ring = str(PLANS / "ring_all_reduce_3.json")
    code, output = invoke(ring, "--size", "4,4100,64KB", "--seed", "1,2", "--repeat", "1")
    assert code == 0, output
    lines = [line for line in output.splitlines() if ": right; " in line]
    assert [line.split("; ")[1] for line in lines] == [
        f"3 ranks, one thread, order {seed}, {size} of f32 a rank"
        for size in ("4 B", "4 KB", "64 KB")
        for seed in (1, 2)
    ]
    code, output = invoke(str(PLANS / "one_input_left_out.json"), "--size", "4KB,64KB", "--seed", "7")
    assert code == 1
    assert output.count(": wrong: ") == 1
    assert "that was with" in output and "order 7, 4 KB of f32 a rank" in output
    for bad in ("", "x", "1,,2", "-1"):
        assert invoke(ring, f"--seed={bad}")[0] == 2, bad


def test_a_size_that_a_plan_is_not_for_is_noted(tmp_path: Path) -> None:
    plan = json.loads((PLANS / "ring_all_reduce_3.json").read_text())
    for limits, inside, outside, note in (
        ({"min_message_size": 4096}, "4KB", "1KB", "1 KB a rank: it is for sizes from 4 KB\n"),
        (
            {"min_message_size": 1024, "max_message_size": 4096},
            "1KB",
            "8KB",
            "8 KB a rank: it is for sizes from 1 KB up to 4 KB\n",
        ),
        ({"max_message_size": 512}, "512", "1KB", "1 KB a rank: it is for sizes up to 512 B\n"),
    ):
        (tmp_path / "p.json").write_text(json.dumps(plan | limits))
        for command in (("run", "--repeat", "1"), ("simulate", "--topology", "ring")):
            words = ["plan", *command, str(tmp_path / "p.json"), "--size"]
            assert "note: " not in commands.invoke(*words, inside)[1]
            assert f"note: no group runs it on {note}" in commands.invoke(*words, outside)[1]


def test_what_a_plan_does_not_serve_is_refused() -> None:
    ring = str(PLANS / "ring_all_reduce_3.json")
    for arguments, reason in (
        (("--op", "max"), "another reduction"),
        (("--ranks", "4"), "for 3 ranks, not 4"),
        (("--size", "7"), "no whole number of f32"),
        (("--dtype", "f99"), "no element type"),
    ):
        code, output = invoke(ring, *arguments)
        assert (code, reason in output) == (2, True), output


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("in_place", [False, True])
def test_an_unchanged_script_runs_the_plan(tmp_path: Path, ranks: int, in_place: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    plans = tmp_path / "plans"
    plans.mkdir()
    for size in (2, 4):
        (plans / f"direct_{size}.json").write_text(json.dumps(direct_all_reduce(size, in_place)))
    done = torchrun(script, ranks, plans, "metrics")
    assert done.returncode == 0, done.stderr[-3000:]
    # MAX is none of the plan's business; nor is a call of nothing a plan's failure.
    ran = done.stdout.split("ran: ")[1].split()[0].split(",")
    assert "plan:direct" in ran
    assert len(ran) == 2, ran


def test_a_bad_plan_is_named_when_the_group_is_made(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    plan = direct_all_reduce(2, False)
    plan["gpus"][1]["threadblocks"][0]["ops"][3]["src_buff"][1]["index"] = 5
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(plan))
    done = torchrun(script, 2, file)
    assert done.returncode != 0
    assert f"ValueError: TUTTI_PLAN_PATH: {file}: plan: /gpus/1/threadblocks/0/ops/3/src_buff/1" in done.stderr
