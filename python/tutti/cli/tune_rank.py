"""One rank of ``tutti tune``: measures the cells that it is given, in order, and reports each."""

from __future__ import annotations

import fcntl
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

from tutti import _core
from tutti.cli.local_ranks import Reports

PAUSE_S = 0.001  # between two looks into the folder


@dataclass(frozen=True)
class Cell:
    """One call, by all that its time depends on. ``bytes`` are of one rank's block; ``device`` is cpu or cuda."""

    ranks: int
    collective: str
    dtype: str
    mapped: bool
    bytes: int
    device: str = "cpu"


@dataclass(frozen=True)
class Candidate:
    """An algorithm by its name, and the file of the plan that it runs (empty for the library's own)."""

    algorithm: str
    plan_path: str = ""


@dataclass(frozen=True)
class Task:
    """A cell and what is to be tried in it."""

    cell: Cell
    candidates: tuple[Candidate, ...]


class FolderStore:
    """Where the ranks find each other: a folder, a file a key."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def _file(self, key: str) -> Path:
        return self.folder / quote(key, safe="")

    def set(self, key: str, value: bytes) -> None:
        """Gives ``key`` a value; other ranks see the whole of it or nothing."""
        temporary = self._file(f"{key} {os.getpid()}")
        temporary.write_bytes(value)
        temporary.replace(self._file(key))

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""
        return self._file(key).read_bytes()

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Returns when all keys are there; TimeoutError names the first that does not come."""
        end = time.monotonic() + timeout.total_seconds()
        for key in keys:
            while not self._file(key).exists():
                if time.monotonic() > end:
                    raise TimeoutError(key)
                time.sleep(PAUSE_S)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, which begins at 0, and returns it."""
        with open(self._file(f"{key} lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            value = amount + (int(self.get(key)) if self._file(key).exists() else 0)
            self.set(key, str(value).encode())
        return value

    def delete_key(self, key: str) -> None:
        """Forgets a key."""
        self._file(key).unlink(missing_ok=True)


def main(rank: int, size: int, folder: str, tasks: tuple[Task, ...], seconds: float, reports: Reports) -> None:
    """Body of the process: rank 0 reports every cell, any rank its failure."""
    try:
        own = _core.TuningRank(FolderStore(folder), rank, size, tasks[0].cell.device if tasks else "cpu")
        collective = ""
        for task in tasks:
            cell = task.cell
            if cell.collective != collective:
                own.forget_plans()
                collective = cell.collective
            candidates = [(candidate.algorithm, candidate.plan_path) for candidate in task.candidates]
            result = own.measure(cell.collective, cell.dtype, cell.bytes, cell.mapped, candidates, seconds)
            if rank == 0:
                reports.put(("result", (cell, {**result, "crowded": own.crowded(), "gpus": own.gpus()})))
        reports.put(("done", rank))
    except BaseException:
        reports.put(("failed", f"rank {rank}: {traceback.format_exc()}"))
        raise
