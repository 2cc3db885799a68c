"""Whether a plan fits on a GPU, from the numbers of an architecture; no GPU is needed."""

from __future__ import annotations

from typing import Any

from tutti._units import format_bytes

USUAL = "h200"

_PROCESSORS = {"a100": 108, "h100": 132, "h200": 132, "b200": 148}  # multiprocessors
_MOST_BLOCKS = 256  # of a plan (docs/executor.md)
_REGISTERS, _WARP, _UNIT = 65536, 32, 8  # of a multiprocessor; a thread has a multiple of 8
_WARPS_TOGETHER = 4  # registers are given to so many at a time


def fit(text: str, gpu: str) -> dict[str, Any]:
    """What a plan needs on a GPU of this name, and what that has. ``ValueError`` for others.

    ``refused``, ``blocks``, ``threads``, ``segment_bytes``, ``memory_bytes`` and ``records`` as ``_core.plan_on_gpu``;
    ``gpu``, ``processors``, ``most_blocks`` (at once) and ``registers`` (of a thread, at most).
    """
    from tutti import _core

    name = gpu.lower()
    if name not in _PROCESSORS:
        raise ValueError(f"the numbers of {gpu!r} are not known; those of {', '.join(_PROCESSORS)} are")
    most = min(_MOST_BLOCKS, _PROCESSORS[name])
    found = _core.plan_on_gpu(text, most)
    return {
        **found,
        "gpu": name,
        "processors": _PROCESSORS[name],
        "most_blocks": most,
        "registers": _registers(found["threads"]) if found["refused"] is None else None,
    }


def _registers(threads: int) -> int:
    """That a block of so many threads leaves to each, alone on its multiprocessor."""
    warps = -(-threads // _WARP)
    given = -(-warps // _WARPS_TOGETHER) * _WARPS_TOGETHER
    return min(255, _REGISTERS // (given * _WARP) // _UNIT * _UNIT)


def line_of(found: dict[str, Any]) -> str:
    """The same in a sentence."""
    if found["refused"] is not None:
        return f"on {found['gpu']}: refused: {found['refused']}"
    blocks = f"{found['blocks']} thread block{'s' if found['blocks'] != 1 else ''}"
    return (
        f"on {found['gpu']}: fits: {blocks} of {found['threads']} threads, of {found['most_blocks']} that may wait for "
        f"each other on its {found['processors']} multiprocessors; {found['registers']} registers a thread at most; "
        f"{format_bytes(found['memory_bytes'])} that peers map; segments of {format_bytes(found['segment_bytes'])} a "
        f"rank block in {found['records']} records"
    )
