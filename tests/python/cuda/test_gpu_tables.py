"""The tables that bench/cuda/tables.py makes of measurements on GPUs; the measurements are made up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tutti_only

TABLES = Path(__file__).parents[3] / "bench" / "cuda" / "tables.py"

MEASURED = """\
# 2 x a GPU
mode,collective,ranks,bytes,implementation,algorithm,median_us,min_us,algbw_gbs,busbw_gbs
# transport: peer memory
graph,all_reduce,2,1024,tutti,ll_one_shot@1x64,2.81,2.7,1,1
graph,all_reduce,2,1024,tutti,copy_engine,24,20,1,1
graph,all_reduce,2,1024,nccl,default,5.84,5.7,1,1
graph,all_reduce,2,1024,nccl,windows,3.74,3.7,1,1
eager,all_reduce,2,1024,tutti,ll_one_shot@1x64,6.2,6,1,1
graph,all_reduce,2,268435456,tutti,bulk_two_shot@64x512,815.2,800,1,1
graph,all_reduce,2,268435456,tutti,direct@32,879,870,1,1
graph,all_reduce,2,268435456,tutti,copy_engine,775,770,1,1
graph,all_reduce,2,268435456,nccl,default,842,840,1,1
graph,all_to_all,2,2097152,tutti,copy_engine,25,24,1,1
graph,all_to_all,2,2097152,tutti,direct@64,12.25,12,1,1
"""
PEER = """\
collective,bytes,median_us,min_us
all_reduce,1024,2.522,2.5
all_reduce,2048,9,9
barrier,0,unsupported,unsupported
"""


def test_tables_and_plot(tmp_path: Path) -> None:
    measured, peer, image = tmp_path / "chosen.csv", tmp_path / "peer.csv", tmp_path / "plot.png"
    measured.write_text(MEASURED)
    peer.write_text(PEER)
    command = [sys.executable, str(TABLES), str(measured), "--peer", f"a peer={peer}", "--png", str(image)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert said.splitlines() == [
        "| all_reduce | Tutti | without copies | NCCL | NCCL, windows | a peer |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 1 KB | 2.8 |  | 5.8 | 3.7 | 2.5 |",
        "| 256 MB | 815 | 775* | 842 |  |  |",
        "",
        "| all_to_all | without copies |",
        "| --- | --- |",
        "| 2 MB | 12.2 |",
    ]
    assert image.stat().st_size > 1000
