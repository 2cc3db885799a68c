"""Every example runs and finds itself right; the demo's pieces do what its table says."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool
from running_examples import EXAMPLES, launch

from tutti import _core

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]


@pytest.mark.parametrize("name", ["minimal_ddp.py", "fsdp2.py", "comm_hooks.py", "zero_redundancy.py", "checkpoint.py"])
def test_example(fresh_world: World, name: str) -> None:
    import torch

    if name == "comm_hooks.py" and torch.cuda.is_available():
        pytest.skip("this torch's PowerSGD synchronises a CUDA device whatever the gradients' device")
    launch(fresh_world, name, 2)


def test_device_mesh(fresh_world: World) -> None:
    launch(fresh_world, "device_mesh.py", 4)


def test_tensor_parallel(fresh_world: World, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    small = ("--tokens", "8", "--hidden", "64", "--layers", "2", "--rounds", "1", "--save-stats", str(stats))
    launch(fresh_world, "tensor_parallel.py", 2, *small)
    found = json.loads(stats.read_text())
    assert (found["steps"], found["same"]) == (8, [8])
    assert set(found["tokens_per_s"]) == {"tutti", "gloo"}


def train(fresh_world: World, backend: str, *options: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        stats = Path(folder) / "stats.json"
        arguments = ("--backend", backend, "--params", "0.1", "--epochs", "2", "--save-stats", str(stats))
        launch(fresh_world, "ddp_train.py", 2, *arguments, *options)
        result: dict[str, Any] = json.loads(stats.read_text())
        return result


def test_training_is_the_same_on_every_backend(fresh_world: World) -> None:
    tutti = train(fresh_world, "tutti")
    gloo = train(fresh_world, "gloo")
    shared = train(fresh_world, "tutti", "--shared-allocator", "--gradient-as-bucket-view")
    losses = [epoch["loss"] for epoch in gloo["epochs"]]
    assert [epoch["loss"] for epoch in tutti["epochs"]] == pytest.approx(losses, rel=1e-6)
    assert [epoch["loss"] for epoch in shared["epochs"]] == pytest.approx(losses, rel=1e-6)
    assert tutti["epochs"][-1]["accuracy"] > 0.5
    assert tutti["metrics"]["mapped_calls"] == 0
    assert shared["metrics"]["mapped_calls"] > 0
    for stats in (tutti, gloo, shared):
        assert stats["communication"]["all_reduces"] > 0
        assert 0 < stats["communication"]["share_of_time"] <= 1


def test_throughput_plot(tmp_path: Path) -> None:
    stats = {
        "backend": "tutti",
        "ranks": 2,
        "parameters": 1000000,
        "samples_per_s": 100.0,
        "epochs": [{"loss": 1.0}, {"loss": 0.5}],
        "communication": {"all_reduce_p50_us": 10.0},
    }
    single = {key: value for key, value in stats.items() if key != "communication"} | {"samples_per_s": 80.0}
    (tmp_path / "ddp.json").write_text(json.dumps(stats))
    (tmp_path / "one.json").write_text(json.dumps(single))
    finished = subprocess.run(
        [
            *(sys.executable, str(EXAMPLES / "benchmark_throughput.py")),
            *("--baseline", "one.json", "--ddp", "mine=ddp.json", "-o", "bench"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "1.25x of one process" in finished.stdout
    assert (tmp_path / "bench_throughput.png").stat().st_size > 0


def test_the_demo_says_what_bounds_its_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    demo = importlib.import_module("demo")
    baseline = {"optimizer_share": 0.25}  # two ranks: half of three quarters, and the quarter
    monkeypatch.setattr(_core, "usable_cores", lambda: 2)
    assert demo.bounds_of_scaling(baseline, 0.3).endswith("would reach 1.60x.")
    assert "The load average was 9.0" in demo.bounds_of_scaling(baseline, 9.0)
    monkeypatch.setattr(_core, "usable_cores", lambda: 1)
    assert "take turns" in demo.bounds_of_scaling(baseline, 0.3)


def test_faults_tell_the_story() -> None:
    """Under Tutti no scene hangs, passes in silence or gives a wrong result; the exit code says so."""
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / "faults.py"), "--backends", "tutti", "--timeout", "2"],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "rank 1" in finished.stdout
