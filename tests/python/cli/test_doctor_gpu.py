"""What ``tutti doctor`` says of GPUs: here, and on machines that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from tutti.cli import doctor_gpu
from tutti.cli.doctor_finding import Finding, Verdict

pytestmark = pytest.mark.tutti_only


def gpu(reach: list[str], **changes: Any) -> dict[str, Any]:
    return {
        "name": "NVIDIA H200",
        "capability": "9.0",
        "processors": 132,
        "memory_bytes": 150_000_000_000,
        "virtual_memory": True,
        "posix_descriptors": True,
        "ipc": True,
        "multicast": True,
        "reach": reach,
        **changes,
    }


def machine(devices: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    found = {"plugin_problem": "", "problem": "", "driver_version": 13000, "runtime_version": 13000, "devices": devices}
    return {**found, **changes}


def findings(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], **environment: str) -> dict[str, Finding]:
    for name in ("TUTTI_CUDA_TRANSPORT", "LOCAL_WORLD_SIZE", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(doctor_gpu, "report", lambda quick: found)
    result = {finding.check: finding for finding in doctor_gpu.findings(quick=True)}
    for finding in result.values():
        assert finding.meaning
        assert finding.verdict is Verdict.GOOD or (finding.verdict is Verdict.SLOWER and finding.remedy)
    return result


def test_this_machine() -> None:
    """Whatever there is, it is said, and nothing of it is fatal."""
    found = doctor_gpu.findings(quick=True)
    assert found
    assert all(finding.verdict is not Verdict.BROKEN and finding.meaning for finding in found)
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        (only,) = found
        assert only.check == "GPUs"
        assert "libtutti_cuda" in only.found or "none that can be used" in only.found, only.found


def test_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, machine([], plugin_problem="device 'cuda': no libtutti_cuda.so in /lib"))
    assert "no libtutti_cuda.so in /lib" in found["GPUs"].found
    assert "CPU tensors can" in found["GPUs"].meaning


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, machine([], problem="libcuda.so.1: cannot open shared object file"))
    assert "libcuda.so.1" in found["GPUs"].found


def test_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, {"crash": "the driver gave no answer within 90 s"})
    assert "no answer" in found["GPUs"].found


def test_two_gpus_over_nvlink(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, machine([gpu(["atomic", "atomic"]), gpu(["atomic", "atomic"])]))
    compiler = found.pop("compiler of plans")  # of the machine at hand
    assert "NVRTC" in compiler.found
    assert {"GPU driver", "GPU 0", "GPU 1", "GPU links", "GPU transport"} == set(found)
    assert all(finding.verdict is Verdict.GOOD for finding in found.values())
    assert "CUDA 13.0" in found["GPU driver"].found
    for said in ("NVIDIA H200", "sm_90", "132 multiprocessors", "CUDA IPC", "multicast is there, and not used"):
        assert said in found["GPU 0"].found
    assert found["GPU links"].found == "every pair: direct, with atomics (as over NVLink)"
    assert "peer memory" in found["GPU transport"].found


def test_gpus_that_cannot_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [gpu(["atomic", "mapped", "none"]), gpu(["mapped", "atomic", "none"]), gpu(["none", "none", "atomic"])]
    found = findings(monkeypatch, machine(devices))
    assert found["GPU links"].found == "direct (PCIe): 0-1; none: 0-2 1-2"
    assert found["GPU links"].verdict is Verdict.SLOWER
    assert "pinned host memory" in found["GPU transport"].found


def test_memory_that_cannot_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, machine([gpu(["atomic"], posix_descriptors=False)]))
    assert "no descriptors for other processes" in found["GPU 0"].found
    assert found["GPU 0"].verdict is Verdict.SLOWER
    assert "cannot be exported" in found["GPU transport"].found


def test_what_a_group_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [gpu(["atomic", "atomic"]), gpu(["atomic", "atomic"])]
    found = findings(monkeypatch, machine(two, transport="peer memory"))
    assert found["GPU transport"].found == "peer memory (a group of 2 ranks was made)"
    found = findings(monkeypatch, machine(two, trial_problem="rank 1: out of memory"))
    assert "out of memory" in found["GPU transport"].found
    assert found["GPU transport"].verdict is Verdict.SLOWER
    found = findings(monkeypatch, machine(two), TUTTI_CUDA_TRANSPORT="host")
    assert found["GPU transport"].found == "host memory, by TUTTI_CUDA_TRANSPORT"
    assert found["GPU transport"].verdict is Verdict.SLOWER


def test_ranks_that_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, machine([gpu(["atomic"])]), LOCAL_WORLD_SIZE="4")
    assert "4 ranks on 1 GPUs, CUDA_DEVICE_MAX_CONNECTIONS=(8)" in found["GPU sharing"].found
    assert "GPU sharing" not in findings(monkeypatch, machine([gpu(["atomic"])]), LOCAL_WORLD_SIZE="1")
