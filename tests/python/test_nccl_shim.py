"""The library under NCCL's name, preloaded into programs of NCCL's that know nothing of Tutti."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tutti.cli import nccl
from tutti.cli.app import app

pytestmark = pytest.mark.tutti_only
GPUS = torch.cuda.device_count()
on_gpus = pytest.mark.skipif(GPUS < 2, reason="there are no two GPUs")
PROGRAM = Path(__file__).with_name("nccl_rank.py")


def run(case: str, *, preload: bool = True, size: int = 2, **settings: str) -> tuple[list[object], str]:
    """What the ranks print, and what they report."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "TUTTI_NCCL": "1", "TUTTI_NCCL_REPORT": "1", "NCCL_NVLS_ENABLE": "0", **settings}
    if preload:
        environment["LD_PRELOAD"] = str(nccl.library())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(size), str(port), case],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    errors = "\n".join(err for _, err in outputs)
    assert all(rank.returncode == 0 for rank in ranks), errors[-6000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs], errors


def calls(report: str, collective: str) -> tuple[int, int]:
    """How many Tutti and NCCL ran, over all ranks."""
    found = re.findall(rf"  {collective}: (\d+) by Tutti \(.*?\), (\d+) by NCCL", report)
    return sum(int(a) for a, _ in found), sum(int(b) for _, b in found)


def test_the_library_is_installed_and_found() -> None:
    result = CliRunner().invoke(app, ["nccl", "--path"])
    assert result.exit_code == 0
    path = Path(result.stdout.strip())
    assert path.is_file()
    result = CliRunner().invoke(app, ["nccl"])
    assert f"{path}" in result.stdout
    assert "LD_PRELOAD" in result.stdout


def test_a_program_without_nccl_does_not_notice() -> None:
    """Preloading reaches every program that a script starts."""
    environment = {**os.environ, "LD_PRELOAD": str(nccl.library()), "TUTTI_NCCL_REPORT": "1"}
    done = subprocess.run(["/bin/echo", "as ever"], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("as ever\n", "")


def exported(library: Path) -> set[str]:
    names = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in names.splitlines()}


def test_it_exports_what_nccl_exports() -> None:
    package = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if package is None or shutil.which("nm") is None:
        pytest.skip("there is no NCCL from PyPI, or no nm")
    (folder,) = package.submodule_search_locations or [""]
    theirs = {name for name in exported(Path(folder, "lib", "libnccl.so.2")) if re.match("p?nccl[A-Z]", name)}
    internal = {"ncclResetDebugInitInternal"}
    assert theirs - exported(nccl.library()) <= internal


def test_it_exports_nothing_else_and_both_names() -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    ours = exported(nccl.library())
    assert len(ours) == 192
    assert {name.removeprefix("p") for name in ours} == {name for name in ours if name.startswith("nccl")}


def test_the_page_lists_every_variable() -> None:
    root = Path(__file__).parents[2]
    settings = (root / "src/nccl/settings.cc").read_text()
    page = (root / "docs/nccl.md").read_text()
    read = set(re.findall(r'"((?:TUTTI|MSCCLPP)_[A-Z_]+)"', settings))
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith(("| `TUTTI_", "| `MSCCLPP_"))]
    assert read == {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    assert len(read) >= 8


@on_gpus
def test_collectives_have_the_values() -> None:
    results, report = run("collectives")
    assert results == ["done", "done"]
    for collective in ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"):
        assert calls(report, collective)[0] > 0, report
    assert "an operation that is not known" not in report
    assert "larger than the limit" in report


@on_gpus
def test_groups_of_calls_and_of_ranks() -> None:
    results, report = run("groups")
    assert results == ["done", "done"]
    assert calls(report, "all_reduce")[0] >= 2 * 30, report
    assert calls(report, "send") == (0, 2), report


@on_gpus
def test_calls_in_graphs() -> None:
    results, report = run("graphs")
    assert results == ["done", "done"]
    assert calls(report, "all_reduce")[0] >= 2 * 52, report
    assert calls(report, "all_reduce")[1] >= 2 * 2, report


@on_gpus
def test_ddp_has_the_losses_of_nccl() -> None:
    ours, report = run("ddp")
    theirs, _ = run("ddp", preload=False)
    assert calls(report, "all_reduce")[0] > 0, report
    for mine, its in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(its, rel=1e-4)


@on_gpus
def test_everything_can_be_left_to_nccl() -> None:
    results, report = run("groups", TUTTI_NCCL="0")
    assert results == ["done", "done"]
    assert "all left to it: TUTTI_NCCL=1 is not set" in report


@on_gpus
def test_groups_of_tuttis_may_stand_idle() -> None:
    results, report = run("groups", TUTTI_NCCL_MAX_BYTES="0")
    assert results == ["done", "done"]
    assert calls(report, "all_reduce")[0] == 0, report
