"""Where NVIDIA's run-time compiler lies when it came with pip (nvidia-cuda-nvrtc, which PyTorch brings along)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_PLACES = ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12")


def find() -> str:
    """Its path, or "" if there is none among the installed packages: then the library looks where it would."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for place in _PLACES:
            if (file := Path(folder) / place).exists():
                return str(file)
    return ""
