"""The library under NCCL's name, preloaded into programs of NCCL's that know nothing of Tutti."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launching import SUPPORT, ended, free_port
from typer.testing import CliRunner

from tutti.cli import nccl
from tutti.cli.app import app

pytestmark = pytest.mark.tutti_only
GPUS = torch.cuda.device_count()
on_gpus = pytest.mark.skipif(GPUS < 2, reason="there are no two GPUs")
sizes = pytest.mark.parametrize("size", sorted({2, max(2, min(GPUS, 4))}))
PROGRAM = SUPPORT / "nccl_rank.py"
ARRAYS = SUPPORT / "nccl_arrays.py"
ROOT = Path(__file__).resolve().parents[3]


def run(case: str, *, preload: bool = True, size: int = 2, **settings: str) -> tuple[list[object], str]:
    """What the ranks print, and what they report."""
    port = free_port()
    environment = {**os.environ, "TUTTI_NCCL": "1", "TUTTI_NCCL_REPORT": "1", "NCCL_NVLS_ENABLE": "0", **settings}
    if preload:
        environment["LD_PRELOAD"] = str(nccl.library())
    ends = ended(size, lambda rank: [PROGRAM, rank, size, port, case], lambda rank: environment)
    errors = "\n".join(err for *_, err in ends)
    assert all(code == 0 for code, *_ in ends), errors[-6000:]
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ends], errors


def calls(report: str, collective: str) -> tuple[int, int]:
    """How many Tutti and NCCL ran, over all ranks."""
    found = re.findall(rf"  {collective}: (\d+) by Tutti \(.*?\), (\d+) by NCCL", report)
    return sum(int(a) for a, _ in found), sum(int(b) for _, b in found)


def test_the_library_is_installed_and_found() -> None:
    for words in ([], ["--by-name"]):
        found = CliRunner().invoke(app, ["nccl", "--path", *words])
        assert found.exit_code == 0
        path = Path(found.stdout.strip())
        assert path.is_file()
        shown = CliRunner().invoke(app, ["nccl", *words])
        assert f"{path}" in shown.stdout
        assert "LD_PRELOAD" in shown.stdout


def test_a_program_without_nccl_does_not_notice() -> None:
    """Preloading reaches every program that a script starts."""
    environment = {**os.environ, "LD_PRELOAD": str(nccl.library()), "TUTTI_NCCL_REPORT": "1"}
    done = subprocess.run(["/bin/echo", "as ever"], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("as ever\n", "")


def rows_of(prefix: str) -> set[str]:
    """The variables in the first column of the page's tables, in rows that begin with one of this prefix."""
    page = (ROOT / "docs/nccl.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith(f"| `{prefix}_")]
    return {name for row in rows for name in re.findall(r"`([A-Z0-9_]+)`", row)}


def test_the_page_lists_every_variable() -> None:
    settings = (ROOT / "src/nccl/settings.cc").read_text()
    read = set(re.findall(r'"((?:TUTTI|MSCCLPP)_[A-Z_]+)"', settings))
    assert read == rows_of("TUTTI")
    assert len(read) >= 8
    # And what the peer's library of this kind reads, whether it means anything here or not.
    assert {name for name in read if name.startswith("MSCCLPP_")} <= rows_of("MSCCLPP")
    # And those of NCCL's.
    sources = "".join(path.read_text() for path in (ROOT / "src/nccl").glob("*.cc"))
    nccls = set(re.findall(r'"(NCCL_[A-Z0-9_]+)"', sources))
    assert {"NCCL_P2P_DISABLE", "NCCL_COMM_BLOCKING"} <= nccls <= rows_of("NCCL")


@pytest.mark.skipif("TUTTI_TEST_MSCCLPP" not in os.environ, reason="TUTTI_TEST_MSCCLPP names no checkout of MSCCL++")
def test_the_page_lists_every_variable_of_mscclpp() -> None:
    theirs = (Path(os.environ["TUTTI_TEST_MSCCLPP"]) / "src/core/env.cpp").read_text()
    read = set(re.findall(r'readEnv<[^>]*>\("(MSCCLPP_[A-Z_]+)"', theirs))
    assert len(read) >= 20
    assert read <= rows_of("MSCCLPP")


@on_gpus
@sizes
def test_collectives_have_the_values(size: int) -> None:
    results, report = run("collectives", size=size)
    assert results == ["done"] * size
    for collective in ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"):
        assert calls(report, collective)[0] > 0, report
    assert "an operation that is not known" not in report
    assert "larger than the limit" in report


@on_gpus
@sizes
def test_groups_of_calls_and_of_ranks(size: int) -> None:
    results, report = run("groups", size=size)
    assert results == ["done"] * size
    assert calls(report, "all_reduce")[0] >= size * 30, report
    assert calls(report, "send") == (0, size), report


@on_gpus
@sizes
def test_calls_in_graphs(size: int) -> None:
    results, report = run("graphs", size=size)
    assert results == ["done"] * size
    assert calls(report, "all_reduce")[0] >= size * 52, report
    assert calls(report, "all_reduce")[1] >= size * 2, report


@on_gpus
@sizes
def test_ddp_has_the_losses_of_nccl(size: int) -> None:
    ours, report = run("ddp", size=size)
    theirs, _ = run("ddp", preload=False, size=size)
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


def run_arrays(library: str, **settings: str) -> str:
    """One process with all GPUs, of a library of arrays that is not PyTorch; what it reports."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    environment = {
        **os.environ,
        "TUTTI_NCCL": "1",
        "TUTTI_NCCL_REPORT": "1",
        "NCCL_NVLS_ENABLE": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "LD_PRELOAD": str(nccl.library()),
        **settings,
    }
    command = [sys.executable, str(ARRAYS), library]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stdout + done.stderr[-6000:]
    return done.stderr


@on_gpus
def test_cupy_runs_on_it() -> None:
    report = run_arrays("cupy")
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        assert calls(report, collective)[0] > 0, report


@on_gpus
def test_jax_opens_it_by_name() -> None:
    report = run_arrays("jax", LD_PRELOAD=str(nccl.library(by_name=True)))
    assert calls(report, "all_gather")[0] > 0, report  # XLA has kernels of its own for sums over so few GPUs
