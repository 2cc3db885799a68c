"""Interpreters that end while calls are under way: with the exit code that the program gave, and no more said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launching import SUPPORT, ended, free_port

RANK = SUPPORT / "exit_rank.py"
DAEMON = SUPPORT / "daemon_rank.py"
pytestmark = pytest.mark.tutti_only


def ends(way: str, host_of: list[str], script: Path = RANK) -> list[tuple[int, str, str]]:
    """Exit code, standard output and errors of each rank."""
    size = len(host_of)
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    environment = {**os.environ, **meet, "OMP_NUM_THREADS": "1"}
    return ended(
        size,
        lambda rank: [script, way],
        lambda rank: {**environment, "RANK": str(rank), "TUTTI_HOST_ID": host_of[rank]},
        90,
    )


def own(errors: str) -> str:
    """Without PyTorch's advice to destroy the group."""
    return "\n".join(line for line in errors.splitlines() if "destroy_process_group" not in line)


WAYS = ["calls", "dropped", "callback", "sends", "receives", "one", "handler", "group"]
CASES = [(way, "aa") for way in WAYS] + [(way, "ab") for way in ("calls", "sends", "one", "handler")]


@pytest.mark.parametrize(("way", "hosts"), CASES)
def test_calls_under_way_are_no_crash(way: str, hosts: str) -> None:
    for code, output, errors in ends(way, list(hosts)):
        assert (code, own(errors)) == (0, ""), (way, errors)
        assert output in ("ended\n", "")


def test_what_the_program_raises_is_all_that_is_said() -> None:
    for code, _, errors in ends("raises", ["a", "a"]):
        assert code == 1
        assert errors.rstrip().endswith("RuntimeError: the program's own"), errors
        assert errors.count("Traceback") == 1
        assert "terminate" not in errors


@pytest.mark.parametrize("face", ["numpy", "torch", "store"])
def test_daemon_threads_that_wait_are_no_crash(face: str) -> None:
    """Each finds some other moment of the end: a peer's, which ends before, or its own interpreter's."""
    for code, output, errors in ends(face, ["a"] * (2 if face == "torch" else 4), DAEMON):
        assert (code, output, own(errors)) == (0, "ended\n", ""), errors
