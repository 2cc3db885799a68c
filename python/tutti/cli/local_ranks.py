"""Ranks as processes of this machine, which report what they measure to the process that started them."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tutti import _core
from tutti._interrupts import interrupts_later


class Reports(Protocol):
    """Where lines for the parent go."""

    def put(self, obj: tuple[str, Any], /) -> None:
        """Sends one line."""


class TooLarge(RuntimeError):
    """What a rank is asked for takes more memory than it gets."""


class LocalRanks:
    """The processes, and the queue of their reports: pairs of a kind and a content.

    Kinds are "result", "done" with the rank, "failed" with a trace, and "too large" with what was.
    """

    def __init__(self, processes: list[Any], reports: Any) -> None:
        self._processes = processes
        self._reports = reports

    def results(self, silence_s: float) -> Iterator[Any]:
        """The contents of the results, until all ranks are done.

        RuntimeError with the trace of a rank that failed, if one ended too early, or if none reported for
        ``silence_s``; TooLarge.
        """
        done: set[int] = set()
        gone: dict[int, int] = {}
        heard = time.monotonic()
        while len(done) < len(self._processes):
            try:
                kind, content = self._reports.get(block=not gone, timeout=0.5)
            except queue.Empty:
                # What a rank has said before it ended is in the queue by then: it is read first.
                if gone:
                    rank, code = next(iter(gone.items()))
                    raise RuntimeError(f"rank {rank} died with exit code {code}") from None
                gone = self._ended_without(done)
                if time.monotonic() - heard > silence_s:
                    raise RuntimeError(f"no result for {silence_s} s") from None
                continue
            heard = time.monotonic()
            if kind == "failed":
                raise RuntimeError(content)
            if kind == "too large":
                raise TooLarge(content)
            if kind == "done":
                done.add(content)
                gone.pop(content, None)
            else:
                yield content

    def _ended_without(self, done: set[int]) -> dict[int, int]:
        """The exit codes of the ranks that have ended and are not done."""
        codes = {rank: process.exitcode for rank, process in enumerate(self._processes) if rank not in done}
        return {rank: code for rank, code in codes.items() if code is not None}


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
