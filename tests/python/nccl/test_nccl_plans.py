"""Plans of Python's under NCCL's name, above a stand-in for NCCL and a plug-in whose device memory is the host's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from launching import SUPPORT, ended

from tutti.cli import nccl

pytestmark = pytest.mark.tutti_only
PROGRAM = SUPPORT / "nccl_plan_rank.py"


def run(size: int, folder: Path, plugin: str, stand_in: str, **settings: str) -> tuple[list[int], str]:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(nccl.library()),
        "TUTTI_NCCL": "1",
        "TUTTI_NCCL_REPORT": "1",
        "TUTTI_NCCL_LIB_PATH": stand_in,
        "TUTTI_PLUGIN_PATH": plugin,
        **settings,
    }
    ends = ended(size, lambda rank: [PROGRAM, rank, size, folder], lambda rank: environment)
    return [code for code, *_ in ends], "\n".join(text for _, *texts in ends for text in texts)


@pytest.mark.parametrize("size", [2, 3])
def test_the_example_runs_its_plan(tmp_path: Path, plugin: str, stand_in: str, size: int) -> None:
    codes, text = run(size, tmp_path, plugin, stand_in)
    assert codes == [0] * size, text
    for rank in range(size):
        assert f"rank {rank}: both all-reduces are right" in text
    # The large one, which is beyond what Tutti's own kernels take, the small one, and the barrier's.
    found = re.findall(r"all_reduce: 3 by Tutti \(.*, 1 by plans\), 0 by NCCL", text)
    assert len(found) == size, text


def test_a_rank_without_the_plan_leaves_all_to_nccl(tmp_path: Path, plugin: str, stand_in: str) -> None:
    codes, text = run(2, tmp_path, plugin, stand_in, NO_PLAN_ON="1")
    assert all(codes), "the stand-in adds nothing up"
    assert len(re.findall(r"all_reduce: 0 by Tutti", text)) == 2, text
    assert "(AlgorithmCollectionBuilder) is switch_all_reduce, by a function (" in text, text
    assert " on rank 0 and none on rank 1" in text, text


def test_settings_leave_it_to_nccl(tmp_path: Path, plugin: str, stand_in: str) -> None:
    codes, text = run(2, tmp_path, plugin, stand_in, TUTTI_NCCL_MAX_BYTES="all_reduce=1MB")
    assert all(codes), "the stand-in adds nothing up"
    assert "larger than the limit" in text, text
