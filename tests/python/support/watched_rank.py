"""Runs the script of a rank, the first argument, with the arguments after it; one that has lost a wake-up ends with 90.

A script's processes are no pool's (rank_worker.py), which asks its ranks after each call.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys

LOST_WAKE_UPS = 90


def ask() -> None:
    core = sys.modules.get("tutti._core")
    lost = 0 if core is None else core.rescued_waits()
    if lost:
        print(f"{lost} wake-ups were lost", flush=True)
        os._exit(LOST_WAKE_UPS)


if __name__ == "__main__":
    atexit.register(ask)  # the first, which runs last
    sys.argv.pop(0)
    sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120: as Python has it of a script
    runpy.run_path(sys.argv[0], run_name="__main__")
