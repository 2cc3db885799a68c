"""bench/torchcomms: its runner measures, writes JSON, and draws a report in which the sizes of each algorithm show."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torchcomms_interface import NEEDS_TORCHCOMMS, STAND_IN

BENCH = Path(__file__).resolve().parents[3] / "bench" / "torchcomms"
pytestmark = [
    pytest.mark.tutti_only,
    NEEDS_TORCHCOMMS,
    pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"),
]


def test_the_runner(tmp_path: Path) -> None:
    """Two sizes that different algorithms take, by Tutti alone: the stand-in has no other backend."""
    names = tmp_path / "names"
    names.mkdir()
    if STAND_IN:  # under the name that programs know
        (names / "torchcomms.py").write_text(
            "from torchcomms_stand_in import *\nfrom torchcomms_stand_in import new_comm\n"
        )
    path = os.pathsep.join([str(names), STAND_IN, *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "out"
    few = ["--backends", "tutti", "--sizes", "64,1M", "--rounds", "2", "--calls", "2"]
    done = subprocess.run(
        ["bash", str(BENCH / "run.sh"), str(out), "2", *few],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert (measured["about"]["ranks"], measured["about"]["device"], measured["about"]["rounds"]) == (2, "cpu", 2)
    records = measured["records"]
    collectives = ["all_reduce", "all_gather_single", "reduce_scatter_single", "all_to_all_single", "broadcast"]
    assert list(dict.fromkeys(record["collective"] for record in records)) == collectives
    implementations = {record["implementation"] for record in records}
    assert implementations == {"tutti", "tutti (c10d)", "tutti (c10d, the group itself)"}
    assert len(records) == 2 * (2 * len(collectives) + 1)  # two sizes; the group itself has one collective
    for record in records:
        assert record["bytes"] in (64, 1 << 20) and record["algorithm"]
        assert 0 < record["min_us"] <= record["p50_us"] <= record["p99_us"] and record["bus_gb_s"] > 0

    report = (out / "report.md").read_text(encoding="utf-8")
    for collective in collectives:
        assert (out / f"{collective}.png").read_bytes().startswith(b"\x89PNG")
        assert f"## {collective}" in report and f"![{collective}]({collective}.png)" in report
    small, large = (
        next(r["algorithm"] for r in records if r["collective"] == "all_reduce" and r["bytes"] == size)
        for size in (64, 1 << 20)
    )
    assert f"| 64 | {small} |" in report and f"| 1M | {large} |" in report and small != large


def test_regions_of_algorithms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stretch of sizes that one algorithm takes is shaded once in each part of the figure, and named."""
    monkeypatch.syspath_prepend(str(BENCH))
    report = __import__("report")
    sizes = [(4, "slots"), (64, "slots"), (1024, "staged"), (4096, "slots")]
    records = [
        {"bytes": size, "algorithm": name, "implementation": "tutti", "p50_us": 1.0, "bus_gb_s": 1.0}
        for size, name in sizes
    ]
    records += [{**record, "implementation": "gloo", "algorithm": ""} for record in records]
    stretches = [("slots", 4, 64), ("staged", 1024, 1024), ("slots", 4096, 4096)]
    assert report.regions(records) == stretches
    seen: list[Any] = []
    monkeypatch.setattr(report.pyplot, "close", seen.append)
    report.draw("all_reduce", records, tmp_path / "figure.png")
    above, below = seen[0].axes
    assert [text.get_text() for text in above.texts] == [name for name, _, _ in stretches]
    for axes in (above, below):
        edges = [(patch.get_extents().width > 0, patch.get_alpha()) for patch in axes.patches]
        assert edges == [(True, 0.1)] * len(stretches)
    assert [line.get_label() for line in above.lines] == ["tutti", "gloo"]
