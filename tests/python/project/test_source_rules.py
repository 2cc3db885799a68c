"""What the pages say never happens, and what no run could show: rules that the sources themselves keep."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ENDINGS = {".cc", ".cu", ".cuh", ".h"}
DEVICE_CODE = ("src/algorithm", "src/executor/cuda", "src/channel/cuda", "src/device/cuda", "include/tutti")
pytestmark = pytest.mark.tutti_only


def code(path: Path) -> str:
    """Without comments."""
    return re.sub(r"//.*", "", path.read_text())


def files_with(pattern: str, *folders: str) -> set[str]:
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in ENDINGS]
    return {str(path.relative_to(ROOT)) for path in paths if re.search(pattern, code(path))}


def test_no_library_code_ends_the_process() -> None:
    """But for what is told to, and a child of the probes that ends itself."""
    names = "abort|terminate|exit|_exit|_Exit|quick_exit|raise"
    assert files_with(rf"(std|[^\w:]):*::({names})\(|__builtin_trap|__trap", "src", "include") == {
        "src/communicator/failure_watch.cc",  # TUTTI_CUDA_WATCHDOG=end
        "src/torchcomms/failure.cc",  # the hint tutti.abort_process
        "src/tools/probe_child.cc",
    }
    for path in (ROOT / "python" / "tutti").rglob("*.py"):
        assert not re.search(r"\bos\.(_exit|abort|kill)\b", path.read_text()), path.name
        assert "sys.exit" not in path.read_text() or path.parent.name == "cli", path.name


def test_every_wait_of_kernels_has_a_limit() -> None:
    """Whoever polls without a bound on the loop does it by what looks at the deadline, or is listed with its limit."""
    without_bound = r"\bwhile \(|for \([^;]*;\s*(!ready\(\))?\s*;"
    limits = {
        "include/tutti/device/wait.cuh": "give_up(control, awaited, started)) return false;",
        "src/algorithm/cuda/ll128.cuh": "!device::give_up(world.control, awaited, started)",
        "src/algorithm/cuda/messages.cuh": "} while (k * args.piece_bytes < mine.bytes());",
        "src/algorithm/cuda/probe.cuh": "device::clock_ns() - start > timeout_ns) return false;",
        "src/algorithm/cuda/twin.cuh": "device::clock_ns() - started > args.limit_ns) return;",
        "src/executor/cuda/plan_wait.cuh": "must_end(control, awaited, started)) return false;",
        "src/algorithm/cuda/cluster_team.cuh": "mbarrier.try_wait",  # as a barrier of threads: of one thread block's
    }
    cuh = {name for name in files_with(without_bound, *DEVICE_CODE) if name.endswith((".cuh", ".cu"))}
    assert cuh == set(limits)
    for name, limit in limits.items():
        assert limit in (ROOT / name).read_text(), name


def test_copies_have_streams_of_the_highest_priority() -> None:
    """Those of ports and of copy engines: streams of another one may stand behind a kernel that waits for the copy."""
    for name in ("src/channel/cuda/stream_engine.cc", "src/communicator/cuda/copy_streams.cc"):
        text = code(ROOT / name)
        assert "= make_urgent_stream()" in text and "cudaStreamCreate" not in text, name
    made = re.findall(r"cudaStreamCreate\w*\([^;]*", code(ROOT / "src/device/cuda/cuda_check.cc"))
    assert made and all(re.search(r"WithPriority\(.*, greatest\)", one, re.DOTALL) for one in made)


def test_multicast_of_the_hardware_is_never_used() -> None:
    option = (ROOT / "cmake" / "TuttiCuda.cmake").read_text()
    assert re.search(r"option\(TUTTI_MULTICAST .* OFF\)", option)
    only = "include/tutti/device/multicast.cuh"
    header = code(ROOT / only)
    assert "#if !defined(TUTTI_MULTICAST)\n#define TUTTI_MULTICAST 0\n" in header
    assert header.index("#if TUTTI_MULTICAST &&") < header.index("multimem")
    assert files_with(r"multimem", "src", "include") == {only}
    assert files_with(r"multicast_(store|sum_f32)|cuMulticast\w+\(", "src", "include") == {only}


def test_nothing_has_a_name_in_dev_shm() -> None:
    """Shared memory has none at all where the system has files without a name."""
    assert files_with(r"\bshm_open\(", "src", "include") == {"src/base/mapping.cc"}
    text = code(ROOT / "src/base/mapping.cc")
    assert text.index("memfd_create(") < text.index("#else") < text.index("shm_open(")
    assert files_with(r"/dev/shm", "src", "include") == set()
