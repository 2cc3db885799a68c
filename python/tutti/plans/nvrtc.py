"""NVIDIA's run-time compiler, which makes kernels of plans: where it lies, what it makes for, what it says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

_PLACES = ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12")


def find() -> str:
    """Its path if it came with pip (nvidia-cuda-nvrtc, which PyTorch brings along).

    "" if it is not among the installed packages: then the library looks where it would.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for place in _PLACES:
            if (file := Path(folder) / place).exists():
                return str(file)
    return ""


def resources(log: str) -> str:
    """Registers and spills of the kernel, as ptxas has logged them; "" if it has not."""
    of_kernel = log[log.find("tutti_plan") :]
    used = re.search(r"Used (\d+) registers", of_kernel)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", of_kernel)
    if used is None or spilled is None:
        return ""
    return f"{used[1]} registers, spills {spilled[1]} bytes and loads {spilled[2]} back"


def most_cluster(architecture: str) -> int:
    """How many blocks of such a GPU may form a cluster."""
    number = re.search(r"\d+", architecture)
    return 8 if number is not None and int(number[0]) >= 90 else 1
