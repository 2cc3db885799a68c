"""Programs started from outside: registration by entry point, order of imports, torchrun and its restarts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tutti_only

USE = """
import torch.distributed as dist, torch, sys
assert "tutti._torch" not in sys.modules and "tutti.dist.backend" not in sys.modules, "loaded before the first group"
dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert dist.get_backend() == "tutti" and tensor.tolist() == [1.0] * 3
dist.destroy_process_group()
print("done")
"""

BROKEN = """
import torch, torch.distributed as dist
import tutti.dist.autoload as autoload
dist.Backend._plugins = None  # anything may be wrong with the torch at hand
autoload.register()
print("done")
"""


def run_program(code: str, **env: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


@pytest.mark.parametrize(
    "first", ["", "import torch\nimport tutti", "import tutti\nimport torch"], ids=["not imported", "torch", "tutti"]
)
def test_import_order(first: str) -> None:
    assert "done" in run_program(first + USE)


def test_without_autoload_the_import_registers() -> None:
    assert "done" in run_program("import tutti" + USE, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_autoload_never_raises() -> None:
    assert "done" in run_program(BROKEN)


ELASTIC = """
import os, sys, signal, torch, torch.distributed as dist
dist.init_process_group("tutti")
tensor = torch.ones(4)
dist.all_reduce(tensor)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 0 and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(tensor)
assert tensor[0] == 4, tensor
sys.stdout.write(f"rank {dist.get_rank()} attempt {attempt} done\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""


def test_torchrun_restarts(tmp_path: Path) -> None:
    """A rank dies; the agent starts all again in the same job, over the same store."""
    script = tmp_path / "elastic.py"
    script.write_text(ELASTIC)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=1"]
    command += ["--monitor-interval=0.1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(script)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    for rank in (0, 1):
        assert f"rank {rank} attempt 1 done" in finished.stdout
