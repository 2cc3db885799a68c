"""Python's signal handlers run while a call waits; what they raise ends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import SUPPORT, free_port, launch
from two_levels import two_level

RANK = SUPPORT / "signal_rank.py"


@pytest.mark.tutti_only
@pytest.mark.parametrize(("face", "hosts"), [("torch", 1), ("torch", 2), ("numpy", 1)])
def test_handlers_run_while_calls_wait(face: str, hosts: int, tmp_path: Path) -> None:
    """Handlers that return, a storm of them with every result checked, that raise, that abort; a group that forms."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    # The last leaves a group behind that only one rank has begun.
    tasks = ["returning", "storm", "raising", "acting", "behind", "forming"]
    launch(2, face, str(tmp_path), *tasks, hosts=hosts, script=RANK, meet=meet)


@pytest.mark.tutti_only
def test_handlers_run_while_plans_wait_for_other_hosts(tmp_path: Path) -> None:
    """All-reduces by a plan whose ranks lie on two hosts; the other calls as ever."""
    plans = tmp_path / "plans"
    plans.mkdir()
    two_level(plans, "allreduce", (1, 1), True)
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    tasks = ["planned", "returning", "raising"]
    settings = {"TUTTI_PLAN_PATH": str(plans)}
    launch(2, "torch", str(tmp_path), *tasks, hosts=2, script=RANK, meet=meet, env_of=lambda _: settings)
