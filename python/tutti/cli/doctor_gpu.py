"""The GPUs in ``tutti doctor``: what CUDA offers, and how ranks on GPUs would reach each other.

CUDA is asked in a process of its own (``python -m tutti.cli.doctor_gpu quick|full``): the other checks fork, which a
process that has initialised CUDA must not, and a driver that hangs must not take the report with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tutti._units import format_bytes
from tutti.cli.doctor_finding import Finding, Verdict

LIMIT_S = 90


def report(quick: bool) -> dict[str, Any]:
    """What ``tutti._core.cuda_report`` says; with ``"transport"`` or ``"trial_problem"`` of a group unless ``quick``.

    ``"crash"`` alone: the process that asked did not answer.
    """
    command = [sys.executable, "-m", "tutti.cli.doctor_gpu", "quick" if quick else "full"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"crash": f"the driver gave no answer within {LIMIT_S} s"}
    if asked.returncode != 0:
        said = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        return {"crash": said}
    answer: dict[str, Any] = json.loads(asked.stdout)
    return answer


def _driver(found: dict[str, Any]) -> str:
    cuda = f"for CUDA {found['driver_version'] // 1000}.{found['driver_version'] % 1000 // 10}"
    try:
        return f"{Path('/sys/module/nvidia/version').read_text().strip()}, {cuda}"
    except OSError:
        return cuda


def _device(index: int, device: dict[str, Any]) -> Finding:
    major, minor = device["capability"].split(".")
    found = (
        f"{device['name']}, sm_{major}{minor}, {device['processors']} multiprocessors, "
        f"{format_bytes(device['memory_bytes'])}; "
    )
    offers = {
        "virtual memory": device["virtual_memory"],
        "descriptors for other processes": device["posix_descriptors"],
        "CUDA IPC": device["ipc"],
    }
    found += ", ".join(f"{'' if there else 'no '}{what}" for what, there in offers.items())
    found += "; multicast " + ("is there, and not used" if device["multicast"] else "is not there")
    if device["virtual_memory"] and device["posix_descriptors"]:
        return Finding(f"GPU {index}", Verdict.GOOD, found, "its memory can be mapped by other ranks")
    return Finding(
        f"GPU {index}",
        Verdict.SLOWER,
        found,
        "its memory cannot be mapped by other processes: their ranks exchange data through the host's memory",
        "a driver for CUDA 12 or later; no virtual GPU without memory management",
    )


def _links(devices: list[dict[str, Any]]) -> Finding | None:
    if len(devices) < 2:
        return None
    names = {"atomic": "direct, with atomics (as over NVLink)", "mapped": "direct (PCIe)", "none": "none"}
    pairs: dict[str, list[str]] = {}
    for i, device in enumerate(devices):
        for j in range(i + 1, len(devices)):
            back = devices[j]["reach"][i]
            way = min(device["reach"][j], back, key=["none", "mapped", "atomic"].index)
            pairs.setdefault(way, []).append(f"{i}-{j}")
    if len(pairs) == 1:
        found = f"every pair: {names[next(iter(pairs))]}"
    else:
        found = "; ".join(f"{names[way]}: {' '.join(those)}" for way, those in pairs.items())
    if "none" not in pairs:
        return Finding("GPU links", Verdict.GOOD, found, "GPUs write into each other's memory")
    return Finding(
        "GPU links",
        Verdict.SLOWER,
        found,
        "groups over such a pair exchange data through the host's memory, at a tenth of the speed",
        "nvidia-smi topo -p2p n says why; in a virtual machine or container, allow peer access (ACS, IOMMU)",
    )


def _transport(found: dict[str, Any]) -> Finding:
    forced = os.environ.get("TUTTI_CUDA_TRANSPORT", "")
    devices = found["devices"]
    if "trial_problem" in found:
        return Finding(
            "GPU transport",
            Verdict.SLOWER,
            found["trial_problem"],
            "a group over all GPUs could not be made: CUDA tensors cannot be used",
            "the text names the rank and the call of CUDA that failed; free memory on the GPUs, or choose some by "
            "CUDA_VISIBLE_DEVICES",
        )
    if "transport" in found:
        seen = f"{found['transport']} (a group of {max(2, min(8, len(devices)))} ranks was made)"
    elif forced:
        seen = f"{forced} memory, by TUTTI_CUDA_TRANSPORT"
    elif not all(device["virtual_memory"] and device["posix_descriptors"] for device in devices):
        seen = "pinned host memory: a GPU's memory cannot be exported"
    elif any("none" in device["reach"] for device in devices):
        seen = "pinned host memory for groups over GPUs that cannot reach each other, else peer memory"
    else:
        seen = "peer memory, if it passes the probe of each group"
    if "peer memory" in seen and "pinned" not in seen:
        return Finding("GPU transport", Verdict.GOOD, seen, "ranks write into each other's GPU memory")
    return Finding(
        "GPU transport",
        Verdict.SLOWER,
        seen,
        "ranks exchange data through the host's memory, at a tenth of the speed",
        "unset TUTTI_CUDA_TRANSPORT" if forced else "see GPU links",
    )


def _sharing(devices: int) -> Finding | None:
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    local = int(said) if said.isdecimal() else 0
    if local <= devices:
        return None
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    return Finding(
        "GPU sharing",
        Verdict.SLOWER,
        f"{local} ranks on {devices} GPUs, CUDA_DEVICE_MAX_CONNECTIONS={queues or '(8)'}",
        "processes that share a GPU take turns, which is slow; rank threads of one process need a hardware queue each",
        "a rank a GPU; for rank threads, CUDA_DEVICE_MAX_CONNECTIONS=32",
    )


def _compiler() -> Finding:
    """Whether plans can be compiled."""
    from tutti import _core
    from tutti.plans import nvrtc

    try:
        found = _core.nvrtc_info(nvrtc.find())
    except NotImplementedError as error:
        return Finding(
            "compiler of plans",
            Verdict.SLOWER,
            str(error).partition(":")[0],
            "plans on GPUs are interpreted, which is slower than compiled (TUTTI_CUDA_COMPILE)",
            "pip install nvidia-cuda-nvrtc",
        )
    return Finding(
        "compiler of plans", Verdict.GOOD, f"NVRTC {found['version']}, {found['path']}", "plans on GPUs can be compiled"
    )


def findings(quick: bool) -> list[Finding]:
    """What there is of GPUs. Nothing here is fatal: CPU tensors need no GPU."""
    found = report(quick)
    if "crash" in found:
        return [Finding("GPUs", Verdict.SLOWER, found["crash"], "CUDA tensors cannot be used", "look at nvidia-smi")]
    if found["plugin_problem"]:
        return [
            Finding(
                "GPUs",
                Verdict.SLOWER,
                f"the CUDA part of Tutti is not here: {found['plugin_problem']}",
                "CUDA tensors cannot be used; CPU tensors can",
                "without a GPU nothing; else install the wheel tutti-comms-cuda, or build where nvcc is found",
            )
        ]
    if found["problem"]:
        return [
            Finding(
                "GPUs",
                Verdict.SLOWER,
                f"none that can be used: {found['problem']}",
                "CUDA tensors cannot be used; CPU tensors can",
                "without a GPU nothing; else install NVIDIA's driver, or start the container with --gpus all",
            )
        ]
    devices = found["devices"]
    result = [Finding("GPU driver", Verdict.GOOD, _driver(found), "the CUDA part of Tutti and the driver are there")]
    result += [_device(index, device) for index, device in enumerate(devices)]
    others = (_links(devices), _transport(found), _sharing(len(devices)), _compiler())
    return result + [finding for finding in others if finding is not None]


def _ask(quick: bool) -> dict[str, Any]:
    from tutti import _core

    answer = _core.cuda_report()
    if answer["devices"] and not quick:
        try:
            answer["transport"] = _core.try_cuda_group()
        except Exception as error:
            answer["trial_problem"] = str(error)
    return answer


if __name__ == "__main__":
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    print(json.dumps(_ask(sys.argv[1] == "quick")))
