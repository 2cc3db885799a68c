"""tutti.Communicator on GPUs: ranks are processes, on as many GPUs as there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launching import SUPPORT, launch
from test_devices import tutti_command

from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RANK = SUPPORT / "cuda_rank.py"
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "customized_comm.py"


@pytest.mark.parametrize(
    "task", ["every_collective", "graphs", "messages", "algorithms", "kernels", "buffers", "signals"]
)
def test_on_gpus(task: str) -> None:
    launch(2, task, script=RANK)


def test_the_example() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(EXAMPLE), "--device", "cuda"]
    done = subprocess.run([*command, "--bytes", "4096", "1048576"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all-reduce of") == 2 and done.stdout.count("all-gather of") == 2, done.stdout


def test_a_plan_runs_and_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "ring.json"
    file.write_text(BUILTINS["allreduce", "ring"](AlgoSpec(name="ring", collective=AllReduce(2, 1))).to_json())
    code, text = tutti_command(None, "plan", "run", file, "--device", "cuda", "--size", "4KB,3MB")
    assert code == 0 and text.count("right; 2 ranks, on GPUs") == 2, text
    code, text = tutti_command(None, "explain", "all_reduce", "4KB", "--device", "cuda", plans=file)
    assert code == 0 and "-> plan:ring: runs the plan of" in text and "would work; a plan is preferred" in text, text
