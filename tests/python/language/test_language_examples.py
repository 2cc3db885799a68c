"""The programs of examples/plans print plans that compute their collectives."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from interpreter import results

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "plans"


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(name: str, *arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        plan: dict[str, Any] = json.loads(capsys.readouterr().out)
        return plan

    return run


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("place", [(), ("--in-place",)])
def test_pipelined_broadcast(printed: Any, ranks: int, place: tuple[str, ...]) -> None:
    plan = printed("pipelined_broadcast.py", "--ranks", str(ranks), *place)
    machine = results(plan)
    for rank in range(ranks):
        assert machine.output(rank) == [[((0, chunk),)] for chunk in range(ranks)]
    if ranks > 2:
        loops = [block["ops"][-1] for block in plan["gpus"][1]["threadblocks"]]
        assert [[operation["name"] for operation in loop["ops"]] for loop in loops] == [
            ["wait", "nop", "sem_release", "nop"],
            ["nop", "sem_acquire", "nop", "put", "nop", "signal"],
        ]


@pytest.mark.parametrize(("ranks", "width"), [(2, 1), (4, 4), (4, 2), (8, 4), (9, 3), (12, 2)])
def test_two_level_all_reduce(printed: Any, ranks: int, width: int) -> None:
    plan = printed("two_level_all_reduce.py", "--ranks", str(ranks), "--ranks-per-host", str(width))
    for seed in range(3):
        machine = results(plan, seed)
        for rank in range(ranks):
            everyone = [[tuple((one, chunk) for one in range(ranks))] for chunk in range(ranks)]
            assert machine.output(rank) == everyone
