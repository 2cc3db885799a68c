"""`tutti tune --device cuda`, and what calls on GPUs then take, without a GPU.

The plug-in chooses as the real one does, and computes on CPUs (host_plugin.cc).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launching import launch
from test_devices import RANK, tutti_command

from tutti import _core
from tutti.cli.tune_plans import built_in_plans

QUICK = ("tune", "--device", "cuda", "--ranks", "2", "--sizes", "64,40000", "--minutes", "0.001")


@pytest.fixture(scope="module")
def table(plugin: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run has written of all-reduces and all-gathers."""
    file = tmp_path_factory.mktemp("tuned") / "table.json"
    code, text = tutti_command(plugin, *QUICK, "-c", "all_reduce,all_gather", "-o", file)
    assert code == 0 and "wrong: 0" in text, text
    return file


def content_of(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content


@pytest.fixture
def choosing(table: Path, tmp_path: Path) -> Any:
    """Writes a table of all-reduces of 40000 bytes alone, that chooses for them, whatever was the fastest."""

    def write(algorithm: str, gpus: str | None = None) -> Path:
        content = content_of(table)
        cells = {(cell["collective"], cell["bytes"]): cell for cell in content["cells"]}
        cell = cells["all_reduce", 40_000]
        content |= {"plans": [], "cells": [{**cell, "choice": algorithm, "gpus": gpus or cell["gpus"]}]}
        file = tmp_path / "table.json"
        file.write_text(json.dumps(content))
        return file

    return write


def test_measures_kernels_and_plans(table: Path) -> None:
    content = content_of(table)
    _core.check_tuning_table(table.read_text())
    cells = {(cell["collective"], cell["bytes"]): cell for cell in content["cells"]}
    assert set(cells) == {(name, size) for name in ("all_reduce", "all_gather") for size in (64, 40_000)}
    for cell in cells.values():
        assert (cell["gpus"], cell["tensors"], cell["default"]) == ("no GPU", "private", "ll_one_shot")
    large = {entry["algorithm"] for entry in cells["all_reduce", 40_000]["measured"]}
    assert {"ll_one_shot", "ll128_two_shot", "bulk_two_shot", "plan:ring"} <= large and "copy_engine" not in large
    gathered = {entry["algorithm"] for entry in cells["all_gather", 40_000]["measured"]}
    assert {"ll_one_shot", "bulk_one_shot"} <= gathered and "ll_two_shot" not in gathered


def explained(plugin: str, file: Path | str, device: str = "cuda", ranks: int = 2) -> str:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TUTTI_TUNING_PATH", str(file))
        code, text = tutti_command(plugin, "explain", "all_reduce", "40000", "--device", device, "-n", str(ranks))
    assert code == 0, text
    return text


def test_calls_take_what_the_table_says(plugin: str, table: Path, choosing: Any) -> None:
    chosen = explained(plugin, choosing("bulk_one_shot"))
    assert "-> bulk_one_shot@" in chosen and "by the tuning table" in chosen, chosen
    assert "40000 bytes, f32, private" in chosen
    assert "by the tuning table" not in explained(plugin, "none")
    assert "by the tuning table" not in explained(plugin, choosing("bulk_one_shot"), ranks=3)
    assert "-> staged" in explained(plugin, choosing("bulk_one_shot"), "cpu"), "measured on GPUs only"
    other = explained(plugin, choosing("bulk_one_shot", "NVIDIA H300, peer memory"))
    assert "by the tuning table" not in other, other


def test_a_plan_of_the_table_runs(plugin: str, choosing: Any) -> None:
    file: Path = choosing("plan:ring")
    ring = next(p for p in built_in_plans("all_reduce", 2, file.parent) if p.algorithm == "plan:ring")
    entry = {"name": ring.algorithm, "collective": "all_reduce", "ranks": 2, "sha256": ring.sha256}
    file.write_text(json.dumps({**content_of(file), "plans": [{**entry, "file": ring.file.name}]}))
    text = explained(plugin, file)
    assert f"-> plan:ring: runs the plan of {ring.file}, by the tuning table; " in text, text
    environment = {"TUTTI_PLUGIN_PATH": plugin, "TUTTI_TUNING_PATH": str(file)}
    launch(2, "runs_the_ring", script=RANK, env_of=lambda _: environment)


def test_a_table_of_one_rank_only_is_not_used(plugin: str, choosing: Any) -> None:
    tables = (str(choosing("bulk_one_shot")), "none")
    outputs = launch(
        2,
        "runs_as_untuned",
        script=RANK,
        env_of=lambda rank: {"TUTTI_PLUGIN_PATH": plugin, "TUTTI_TUNING_PATH": tables[rank]},
    )
    assert f"(TUTTI_TUNING_PATH) is {tables[0]} on rank 0 and none on rank 1: none is used" in outputs[0], outputs


def test_what_cannot_be_measured_is_refused(plugin: str) -> None:
    code, text = tutti_command(plugin, "tune", "--device", "cuda", "--tensors", "mapped")
    assert code == 2 and "private tensors on GPUs only" in text, text
    code, text = tutti_command(plugin, "tune", "--device", "metal")
    assert code == 2 and "--device is cpu or cuda, not metal" in text, text
