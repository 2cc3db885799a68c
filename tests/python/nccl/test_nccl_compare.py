"""bench/cuda/nccl_compare.py without GPUs: what it reads and makes of it, and that its workloads run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.tutti_only
BENCH = Path(__file__).resolve().parents[3] / "bench" / "cuda"
LINES = """# nThread 2 nGpus 1 minBytes 8 maxBytes 1048576 step: 8(factor) warmup iters: 5 iters: 20 validation: 1
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1   {us}    0.14    0.14      0     7.21    0.14    0.14      0
     1048576        262144     float     sum      -1    25.11   41.75   41.75      0    24.98   41.98   41.98  {wrong}
        1024           256     float    prod      -1     7.30    0.14    0.14    N/A     7.21    0.14    0.14    N/A
        1024           256     float    none       0     7.30    0.14    0.14      0      N/A     N/A     N/A    N/A
        1024           256     float              -1     7.30    0.14    0.14      0     7.21    0.14    0.14      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 20.9
"""
REPORT = """tutti: NCCL's calls in process 1, above NCCL 2.28.9 (/usr/lib/libnccl.so.2)
  communicators on Tutti, peer memory: 2
  all_reduce: 120 by Tutti (480.0 KB, 3 by plans), 12 by NCCL: larger than the limit 12
  send: 0 by Tutti (0 B), 4 by NCCL: a message between two ranks 4
"""


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nccl_compare", BENCH / "nccl_compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nccl_compare"] = module
    spec.loader.exec_module(module)
    return module


def test_lines_of_nccl_tests(compare: ModuleType) -> None:
    lines = compare.parse(LINES.format(us="  7.30", wrong="     3"))
    assert [(m.bytes, m.type, m.op, m.us, m.wrong) for m in lines] == [
        (1024, "float", "sum", 7.3, 0),
        (1 << 20, "float", "sum", 25.11, 3),
        (1024, "float", "prod", 7.3, 0),
        (1024, "float", "none", 7.3, 0),
        (1024, "float", "", 7.3, 0),  # hypercube_perf has no operation
    ]


def test_a_program_beside_itself(compare: ModuleType) -> None:
    texts = LINES.format(us="  9.00", wrong="     0"), LINES.format(us="  4.50", wrong="     0") + REPORT
    nccl, tutti = (compare.Run(0, 1, text, compare.parse(text)) for text in texts)
    rows = compare.compared("all_reduce_perf", nccl, tutti)
    assert (rows[0].what, rows[0].nccl, rows[0].tutti) == ("all_reduce_perf 1024 B, us", 9.0, 4.5)
    assert rows[-1].note == "5 lines, 0 wrong; 120 calls by Tutti, 16 by NCCL"
    assert not any(row.bad for row in rows)
    assert "| all_reduce_perf 1048576 B, us | 25.1 | 25.1 | 1.00 |" in compare.table(rows)
    # Wrong results, and a program that has died, are.
    text = LINES.format(us="  4.50", wrong="     1")
    assert compare.compared("x", nccl, compare.Run(0, 1, text, compare.parse(text)))[-1].bad
    assert "with Tutti it failed" in compare.compared("x", nccl, compare.Run(139, 1, "", []))[-1].note
    assert "WRONG" in compare.table(compare.compared("x", nccl, compare.Run(139, 1, "", [])))


def test_a_program_that_does_not_end(compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 7, REPORT.encode(), None)  # bytes, whatever was asked for

    monkeypatch.setattr(subprocess, "run", stopped)
    run = compare.Comparison(tmp_path, 100).run("hangs", ["hangs"], False, 7)
    assert (run.code, run.calls()) == (124, (120, 16))
    assert compare.compared("hangs", run, run)[-1].bad
    assert "stopped after 7 s" in (tmp_path / "hangs.nccl.log").read_text()


def test_losses_beside_each_other(compare: ModuleType) -> None:
    def run(values: list[float], ms: float) -> object:
        return compare.Run(0, 1, json.dumps({"values": values, "ms": ms}) + "\n" + REPORT)

    row = compare.compared_workload("ddp", run([2.0, 1.0], 8), run([2.0, 1.0001], 6))
    assert (row.nccl, row.tutti, row.bad) == (8, 6, False)
    assert "values differ by 1.0e-04 at most; 120 calls by Tutti, 16 by NCCL" in row.note
    assert compare.compared_workload("ddp", run([2.0, 1.0], 8), run([2.0, 1.1], 6)).bad
    assert compare.compared_workload("ddp", run([2.0], 8), compare.Run(1, 1, "")).bad


def test_one_gpu_is_not_enough(compare: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--gpus", "1"]) == 2
    assert "two GPUs are needed" in capsys.readouterr().err


def test_what_is_not_installed_is_said(compare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "build" / "all_reduce_perf"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncat <<'END'\n" + LINES.format(us="  4.50", wrong="     0") + "END\n")
    program.chmod(0o755)
    where = ["--nccl-tests", str(tmp_path), "--out", str(tmp_path)]
    code = compare.main(["--gpus", "2", *where, "--only", "all_reduce_perf", "gather_perf"])
    text = capsys.readouterr().out
    assert code == 0
    assert "5 lines, 0 wrong" in text
    assert "gather_perf |  |  |  | not installed" in text
    assert (tmp_path / "table.md").read_text() == text
    assert (tmp_path / "all_reduce_perf.tutti.log").is_file()


@pytest.mark.parametrize("workload", ["ddp", "fsdp2", "tensor-parallel"])
def test_workloads_run_on_cpus(workload: str) -> None:
    size = ["--steps", "3", "--width", "64", "--layers", "2"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*launcher, str(BENCH / "nccl_workloads.py"), workload, "--backend", "tutti", "--device", "cpu", *size]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"values"')))
    assert len(answer["values"]) == 3
    assert answer["ms"] > 0
