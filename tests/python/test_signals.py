"""Python's signal handlers run while a call waits; what they raise ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_communicator import free_port, launch

RANK = Path(__file__).with_name("signal_rank.py")


@pytest.mark.tutti_only
@pytest.mark.parametrize(("face", "hosts"), [("torch", 1), ("torch", 2), ("numpy", 1)])
def test_handlers_run_while_calls_wait(face: str, hosts: int, tmp_path: Path) -> None:
    """Handlers that return, a storm of them with every result checked, handlers that raise, and a group that forms."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    tasks = ["returning", "storm", "raising", "forming"]  # the last leaves a group behind that only one rank has begun
    launch(2, face, str(tmp_path), *tasks, hosts=hosts, script=RANK, meet=meet)
