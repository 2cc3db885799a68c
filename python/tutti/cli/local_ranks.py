"""Ranks as processes of this machine, which report what they measure to the process that started them."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tutti import _core
from tutti._interrupts import interrupts_later


class LocalRanks:
    """The processes, and the queue of their reports: pairs of a kind ("result", "done", "failed") and a content."""

    def __init__(self, processes: list[Any], reports: Any) -> None:
        self._processes = processes
        self._reports = reports

    def results(self, silence_s: float) -> Iterator[Any]:
        """The contents of the results, until all ranks are done.

        RuntimeError with the trace of a rank that failed, if one died, or if none reported for ``silence_s``.
        """
        done, heard = 0, time.monotonic()
        while done < len(self._processes):
            try:
                kind, content = self._reports.get(timeout=0.5)
            except queue.Empty:
                self._raise_if_dead()
                if time.monotonic() - heard > silence_s:
                    raise RuntimeError(f"no result for {silence_s} s") from None
                continue
            heard = time.monotonic()
            if kind == "failed":
                raise RuntimeError(content)
            if kind == "done":
                done += 1
            else:
                yield content

    def _raise_if_dead(self) -> None:
        for rank, process in enumerate(self._processes):
            if process.exitcode not in (None, 0):
                raise RuntimeError(f"rank {rank} died with exit code {process.exitcode}")


@contextmanager
def local_ranks(
    context: Any, size: int, body: Callable[..., None], arguments: Callable[[int, str, Any], tuple[Any, ...]]
) -> Iterator[LocalRanks]:
    """Starts ``size`` processes, ended when the block is left, also by Ctrl-C, which they themselves do not hear.

    Each calls ``body`` with what ``arguments`` gives for its rank, a temporary folder and the queue of reports.
    ``context`` is a start method of ``multiprocessing`` or ``torch.multiprocessing``. ValueError, before any starts, if
    a setting of the environment is none.
    """
    _core.config()
    reports = context.Queue()
    with tempfile.TemporaryDirectory(prefix="tutti-ranks-") as folder:
        processes = [
            context.Process(target=body, args=arguments(rank, folder, reports), daemon=True) for rank in range(size)
        ]
        started = []
        try:
            for process in processes:
                with interrupts_later():
                    process.start()
                    started.append(process)
            yield LocalRanks(processes, reports)
            for process in processes:
                process.join(timeout=10)
        finally:
            with interrupts_later():  # a second one leaves nothing behind, either
                for process in started:
                    if process.is_alive():
                        process.kill()
                    process.join()
