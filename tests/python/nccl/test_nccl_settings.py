"""Each variable of the library under NCCL's name, different on one rank: Tutti runs the calls on all ranks, or leaves
them to NCCL on all, and the report of each rank names what differs and both values. Above a stand-in for NCCL.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from launching import SUPPORT, ended
from test_nccl_shim import rows_of

from tutti import _core
from tutti.cli import nccl
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

pytestmark = pytest.mark.tutti_only
PROGRAM = SUPPORT / "nccl_settings_rank.py"
OURS = ["Tutti", "Tutti", "Tutti", "NCCL"]  # the last is beyond the limit
LEFT = ["NCCL"] * 4
RING = "a plan of two ranks"  # stands for its file
# Nobody is waited for: who waits fails by the time limit of the test.
PATIENT = {"TUTTI_NCCL_PATIENCE_MS": "600000"}
LIMIT = "TUTTI_NCCL_MAX_BYTES (or TUTTI_NCCL_LEAVE) of all_reduce"
Said = tuple[str, ...]


def run(folder: Path, common: dict[str, str], *own: dict[str, str]) -> tuple[list[list[str]], list[str]]:
    """By whom each rank's calls were run, and their reports."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "NCCL_"))},
        "LD_PRELOAD": str(nccl.library()),
        "TUTTI_NCCL": "1",
        "TUTTI_NCCL_REPORT": "1",
        **common,
    }
    ends = ended(len(own), lambda rank: [PROGRAM, rank, len(own), folder], lambda rank: {**environment, **own[rank]})
    assert all(code == 0 for code, *_ in ends), ends
    return [out.partition("ran by ")[2].split() for _, out, _ in ends], [errors for *_, errors in ends]


# What one rank has, what the other has (empty: unset), and of what both reports say the parts; nothing: Tutti runs.
SETTINGS: list[tuple[str, str, str, Said]] = [
    ("TUTTI_NCCL_MAX_BYTES", "all_reduce=1MB", "", (f"{LIMIT} is ", "unset on rank", "1048576 on rank")),
    ("TUTTI_NCCL_MAX_BYTES", "1MB", "2MB", (f"{LIMIT} is ", "2097152 on rank", "1048576 on rank")),
    ("TUTTI_NCCL_LEAVE", "all_reduce", "", (f"{LIMIT} is ", "unset on rank", "0 on rank")),
    ("TUTTI_NCCL_LEAVE", "broadcast", "", ("(or TUTTI_NCCL_LEAVE) of broadcast is ", "unset on rank", "0 on rank")),
    ("MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION", "allreduce", "", (f"{LIMIT} is ", "unset on rank", "0 on rank")),
    ("TUTTI_NCCL_MAX_BYTES", "much", "", ("TUTTI_NCCL_MAX_BYTES=much: must be ",)),
    ("TUTTI_CUDA_ALGORITHM", "ll_one_shot", "", ("TUTTI_CUDA_ALGORITHM is ", "ll_one_shot on rank", "unset on rank")),
    ("TUTTI_CUDA_TRANSPORT", "peer", "host", ("TUTTI_CUDA_TRANSPORT is ", "peer on rank", "host on rank")),
    ("TUTTI_PLAN_PATH", RING, "", ("TUTTI_PLAN_PATH is ", " (with the plans ", "unset on rank")),
    ("MSCCLPP_EXECUTION_PLAN_DIR", RING, "", ("TUTTI_PLAN_PATH is ", " (with the plans ", "unset on rank")),
    ("TUTTI_PLAN_PATH", "/no/such/file", "", ("/no/such/file",)),
    ("TUTTI_PLUGIN_PATH", "/no/such/folder", "", ("libtutti_cuda.so",)),
    ("TUTTI_HOST_ID", "another", "", ("its ranks lie on several hosts",)),
    ("NCCL_P2P_DISABLE", "1", "", ("NCCL_P2P_DISABLE=1",)),
    ("NCCL_P2P_LEVEL", "LOC", "", ("NCCL_P2P_LEVEL=LOC",)),
    ("TUTTI_NCCL_PATIENCE_MS", "300000", "600000", ()),
    ("TUTTI_CUDA_MAX_BLOCKS", "3", "", ()),
    ("TUTTI_CUDA_COMPILE", "off", "wait", ()),
    ("TUTTI_CUDA_WATCHDOG", "end", "log", ()),
    ("TUTTI_NVRTC", "/no/such/file", "", ()),
    ("TUTTI_TUNING_PATH", "none", "", ()),
    ("TUTTI_CACHE_DIR", "none", "", ()),
    ("TUTTI_SECRET", "a secret", "", ()),  # theirs goes by NCCL's id
    ("TUTTI_LOG_LEVEL", "error", "warning", ()),
    ("TUTTI_FLIGHT_RECORDER_ENTRIES", "0", "", ()),
    ("NCCL_HOSTID", "another", "", ()),
    ("NCCL_ALGO", "Ring", "Tree", ()),
    ("NCCL_PROTO", "LL", "", ()),
    ("NCCL_MAX_CTAS", "1", "", ()),
    ("NCCL_BUFFSIZE", "1048576", "", ()),
    ("NCCL_CUMEM_ENABLE", "0", "1", ()),
    ("NCCL_SHM_DISABLE", "1", "", ()),
]
# Tried below; and what has no part in it.
APART = {"TUTTI_NCCL", "TUTTI_NCCL_REPORT", "TUTTI_NCCL_LIB_PATH", "MSCCLPP_NCCL_LIB_PATH"}
OF_THE_HOST = {
    "TUTTI_ALGORITHM", "TUTTI_ARENA_BYTES", "TUTTI_CROSS_MEMORY", "TUTTI_HEARTBEAT_MS", "TUTTI_SHARED_ALLOCATOR",
    "TUTTI_SHARED_THRESHOLD", "TUTTI_SOCKET_IFNAME", "TUTTI_SPINS", "TUTTI_STAGE_BYTES",
}  # fmt: skip


def test_every_variable_is_tried() -> None:
    tried = {name for name, *_ in SETTINGS}
    known = rows_of("TUTTI") | {row.name for row in _core.config()}
    assert known - tried - APART - OF_THE_HOST == set()


def at_home(plugin: str, stand_in: str, folder: Path) -> dict[str, str]:
    return {
        **PATIENT,
        "TUTTI_NCCL_LIB_PATH": stand_in,
        "TUTTI_PLUGIN_PATH": plugin,
        "TUTTI_CACHE_DIR": str(folder / "cache"),
    }


@pytest.mark.parametrize(("name", "value", "others", "said"), SETTINGS)
def test_one_rank_has_another(
    tmp_path: Path, plugin: str, stand_in: str, name: str, value: str, others: str, said: Said
) -> None:
    if value == RING:
        value = str(tmp_path / "ring.json")
        spec = AlgoSpec(name="ring", collective=AllReduce(2, 1))
        Path(value).write_text(BUILTINS["allreduce", "ring"](spec).to_json())
    for odd in range(2):
        folder = tmp_path / str(odd)
        folder.mkdir()
        own = [{name: value} if rank == odd else ({name: others} if others else {}) for rank in range(2)]
        who, reports = run(folder, at_home(plugin, stand_in, tmp_path), *own)
        assert who == [LEFT if said else OURS] * 2, reports
        for report in reports:
            assert all(part in report for part in said), report
            assert ("communicators left to NCCL" in report) == bool(said), report


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize(("name", "value"), [("TUTTI_NCCL", "0"), ("TUTTI_NCCL_MAX_BYTES", "0")])
def test_one_rank_is_to_leave_all_to_nccl(
    tmp_path: Path, plugin: str, stand_in: str, name: str, value: str, odd: int
) -> None:
    """One that is not told to use Tutti does not answer: the other says so once its patience is over."""
    own = [{name: value} if rank == odd else {} for rank in range(2)]
    hasty = {**at_home(plugin, stand_in, tmp_path), "TUTTI_NCCL_PATIENCE_MS": "1000"}
    who, reports = run(tmp_path, hasty, *own)
    assert who == [LEFT] * 2, reports
    # Rank 0 makes the id, by which the others would meet it.
    silent = "comes from NCCL_COMM_ID" if odd == 0 else "did not answer"
    wanted = silent if name == "TUTTI_NCCL" else re.escape(LIMIT)
    assert re.search(wanted, reports[1 - odd]), reports


@pytest.mark.parametrize("odd", [0, 1])
def test_one_rank_does_not_report(tmp_path: Path, plugin: str, stand_in: str, odd: int) -> None:
    own = [{"TUTTI_NCCL_REPORT": "0"} if rank == odd else {} for rank in range(2)]
    who, reports = run(tmp_path, at_home(plugin, stand_in, tmp_path), *own)
    assert who == [OURS] * 2, reports
    assert reports[odd] == "" and "3 by Tutti" in reports[1 - odd], reports


@pytest.mark.parametrize("name", ["TUTTI_NCCL_LIB_PATH", "MSCCLPP_NCCL_LIB_PATH"])
def test_one_rank_has_another_file_of_nccls(tmp_path: Path, plugin: str, stand_in: str, name: str) -> None:
    """What NCCL makes of two of its releases is its own; a file of another place changes nothing here."""
    copy = tmp_path / "libnccl.so.2"
    copy.write_bytes(Path(stand_in).read_bytes())
    common = at_home(plugin, stand_in, tmp_path)
    del common["TUTTI_NCCL_LIB_PATH"]
    who, reports = run(tmp_path, common, {name: str(copy)}, {"TUTTI_NCCL_LIB_PATH": stand_in})
    assert who == [OURS] * 2, reports
