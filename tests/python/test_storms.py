"""Signals, forks and want of descriptors at once, at random moments of calls, messages and plans.

TUTTI_TEST_STORM_ROUNDS says how long (default 30 rounds of one to seven calls), --seed which.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from test_communicator import free_port, launch
from test_plan_hosts import two_level

from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce

RANK = Path(__file__).with_name("storm_rank.py")
ROUNDS = os.environ.get("TUTTI_TEST_STORM_ROUNDS", "30")


@pytest.mark.tutti_only
@pytest.mark.parametrize("groups", [(2,), (3,), (1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("face", ["arrays", "torch"])
def test_data_stay_right_and_nothing_hangs(face: str, groups: tuple[int, ...], seed: int, tmp_path: Path) -> None:
    """By a plan where one takes the call: a ring on one host, one of two levels on two."""
    size = sum(groups)
    if len(groups) == 1:
        ring = ring_all_reduce(AlgoSpec("ring", AllReduce(size, 1, True), min_message_size=4096))
        (tmp_path / "allreduce.json").write_text(ring.to_json())
    else:
        two_level(tmp_path, "allreduce", groups, True)
    outputs = launch(
        size,
        *(face, str(seed), ROUNDS),
        script=RANK,
        meet={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
        env_of=lambda rank: {
            "TUTTI_HOST_ID": f"host{int(rank >= groups[0])}",
            "TUTTI_PLAN_PATH": str(tmp_path),
            "TUTTI_CACHE_DIR": "none",
        },
    )
    for output in outputs:
        disturbed = re.search(r"'signals': (\d+), 'forks': (\d+), 'dry spells': (\d+)", output)
        assert disturbed and all(int(count) > 0 for count in disturbed.groups()), output
        assert "plan:" in output, output
