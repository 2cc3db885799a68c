"""The main program of scripts whose tasks each have a group of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tutti


def run_apart(tasks: dict[str, Any], timeout: float, prepare: Callable[[int], None] = lambda rank: None) -> None:
    """The tasks that the arguments name, after ``prepare(rank)``."""
    first = tutti.Communicator(timeout=timeout)
    prepare(first.rank)
    for task in sys.argv[1:]:
        with tutti.Communicator(first.store, first.rank, first.size, name=task, timeout=timeout) as comm:
            tasks[task](comm)
    first.barrier()
    first.close()
    print("done")
