"""Forked children of a rank: every object of Tutti is dead and harmless in them, and the rank goes on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from launching import SUPPORT, WATCHED, free_port

RANK = SUPPORT / "fork_rank.py"
RANKS = 2


@pytest.mark.tutti_only
@pytest.mark.parametrize(("face", "hosts"), [("torch", 1), ("torch", 2), ("numpy", 1)])
def test_children_are_harmless(face: str, hosts: int) -> None:
    """With calls under way and without: exit, destruction, abort and calls in children of all kinds."""
    told = os.pipe()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "MASTER"))}
    environment |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WATCHED), str(RANK), face, str(told[1 - rank])],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "TUTTI_HOST_ID": f"host{rank % hosts}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[told[1 - rank]],
        )
        for rank in range(RANKS)
    ]
    for end in told:
        os.close(end)
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        assert process.returncode == 0 and output.endswith("done\n"), f"rank {rank}: {output}"
