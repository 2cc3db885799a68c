"""tutti.Communicator on arrays of GPUs, without a GPU: the plug-in's device memory is the host's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_rank import ByInterface
from launching import SUPPORT, launch

from tutti import _core, _devices
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

RANK = SUPPORT / "device_rank.py"


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_and_messages(plugin: str, ranks: int) -> None:
    environment = {"TUTTI_PLUGIN_PATH": plugin}
    launch(ranks, "every_collective", "messages", "ordered", script=RANK, env_of=lambda _: environment)


@pytest.mark.parametrize("task", ["refusals", "algorithms", "aborted", "captures", "producers", "forgotten", "buffers"])
def test_beside_them(plugin: str, task: str) -> None:
    launch(2, task, script=RANK, env_of=lambda _: {"TUTTI_PLUGIN_PATH": plugin})


def tutti_command(plugin: str | None, *words: str | Path, plans: Path | None = None) -> tuple[int, str]:
    """Exit status and output of ``tutti WORDS``, with this plug-in and these plans."""
    environment = {**os.environ, **({} if plugin is None else {"TUTTI_PLUGIN_PATH": plugin})}
    environment |= {} if plans is None else {"TUTTI_PLAN_PATH": str(plans)}
    done = subprocess.run(
        [sys.executable, "-m", "tutti", *map(str, words)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, " ".join(done.stdout.split())


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """The ring of three ranks as a file."""
    file = tmp_path / "ring.json"
    spec = AlgoSpec(name="ring", collective=AllReduce(3, 1))
    file.write_text(BUILTINS["allreduce", "ring"](spec).to_json())
    return file


def test_a_plan_runs_on_devices(plugin: str, ring: Path) -> None:
    code, text = tutti_command(plugin, "plan", "run", ring, "--device", "cuda", "--size", "4KB,100KB", "--repeat", "3")
    assert code == 0, text
    assert text.count("ring.json: right; 3 ranks, on GPUs") == 2
    code, text = tutti_command(plugin, "plan", "run", ring, "--device", "cuda", "--seed", "1")
    assert code == 2 and "no order" in text, text


def test_a_size_that_a_plan_does_not_serve_is_not_wrong(plugin: str, ring: Path) -> None:
    plan = json.loads(ring.read_text())
    ring.write_text(json.dumps({**plan, "min_message_size": 64 << 10}))
    code, text = tutti_command(plugin, "plan", "run", ring, "--device", "cuda", "--size", "64KB", "--repeat", "1")
    assert code == 0, text
    code, text = tutti_command(plugin, "plan", "run", ring, "--device", "cuda", "--size", "4KB")
    assert code == 2 and "wrong" not in text, text
    assert "aborted" not in text, text


def test_without_a_gpu_it_does_not(ring: Path, tmp_path: Path) -> None:
    code, text = tutti_command(str(tmp_path), "plan", "run", ring, "--device", "cuda")
    assert code == 2, text


def test_whether_a_plan_fits_needs_no_gpu(ring: Path, tmp_path: Path) -> None:
    code, text = tutti_command(None, "plan", "check", ring, "--device", "cuda")
    assert code == 0 and "on h200: fits: 1 thread block of" in text, text
    code, text = tutti_command(None, "plan", "check", ring, "--device", "cuda", "--gpu", "a100", "--json")
    assert code == 0 and '"processors": 108' in text, text
    nine = tmp_path / "nine.json"
    nine.write_text(BUILTINS["allreduce", "ring"](AlgoSpec(name="nine", collective=AllReduce(9, 1))).to_json())
    code, text = tutti_command(None, "plan", "check", nine, "--device", "cuda")
    assert code == 1 and 'refused: plan "nine" on GPUs: it has 9 ranks' in text, text
    code, text = tutti_command(None, "plan", "check", ring, "--device", "cuda", "--gpu", "abacus")
    assert code == 2 and "those of a100, h100, h200, b200 are" in text, text


def test_explain_asks_the_group_on_devices(plugin: str) -> None:
    code, text = tutti_command(plugin, "explain", "all_reduce", "4KB", "--device", "cuda")
    assert code == 0 and "2 ranks on this machine's GPUs: " in text and "-> " in text, text


def test_the_device_of_an_interface_is_that_of_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = np.ones((2, 3), np.float32)
    monkeypatch.setattr(_core, "device_of", {ones.ctypes.data: 3}.get)
    waits: list[tuple[int, int]] = []

    class Group:
        def synchronize(self, device: int, stream: int) -> None:
            waits.append((device, stream))

    taken: Any = _devices.take(Group(), ByInterface(ones), "array", True, 7)  # type: ignore[arg-type]
    assert (taken.device, taken.nbytes, waits) == (3, 24, [(3, 1)])
    assert _devices._device_of(None, ByInterface(ones)) == 3
