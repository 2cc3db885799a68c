"""Pools of rank processes that live across tests.

One fork server imports torch once; ranks are forked from it, so a rank costs tens of milliseconds instead of seconds.
Every wait for a rank is bounded: past the bound the stacks of all ranks are collected, the pool is killed, and the test
fails with them. A pool that saw a failure is thrown away.

Thread rule: one thread (the test's) uses a pool.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_any
from typing import Any

import rank_worker
from rank_worker import Raised, RankSpec

PRELOAD = ["torch", "torch.distributed", "torch.distributed.distributed_c10d", "numpy", "pytest", "hypothesis"]
# What training and tracing import besides: for runs with such tests.
PRELOAD_FOR_TRAINING = ["torch._dynamo", "torch._functorch.aot_autograd", "torch.distributed.optim"]

GRACE_S = 3.0  # for the other ranks, after one failed

_names = itertools.count()


def names_in_dev_shm() -> set[str]:
    """What anyone holds in /dev/shm by name, but for the semaphores of multiprocessing: tests that run beside this one
    make those."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


def unique_name(stem: str) -> str:
    """A name that nothing in this test run had before (store prefixes, group names)."""
    return f"{stem}.{os.getpid()}.{next(_names)}"


class RankError(AssertionError):
    """A rank raised, died or hung where the test did not expect it."""


@dataclass
class Outcome:
    """What became of one rank's call: kind is "ok", "raised", "died" (with the exit code) or "hung"."""

    kind: str
    value: Any
    seconds: float

    @property
    def error(self) -> Raised:
        """The exception; fails the test if there was none."""
        if self.kind != "raised":
            raise RankError(f"expected an exception, the call {self.kind}: {self.value}")
        return self.value  # type: ignore[no-any-return]


class Pending:
    """A call that runs on some ranks."""

    def __init__(self, pool: RankPool, number: int, ranks: list[int]) -> None:
        self.pool = pool
        self.number = number
        self.start = time.monotonic()
        self.waiting = set(ranks)
        self.outcomes: dict[int, Outcome] = {}

    def wait(self, timeout_s: float, ranks: Iterable[int] | None = None) -> dict[int, Outcome]:
        """The outcomes of `ranks` (default: all); what has not come after the time is "hung"."""
        wanted = set(self.waiting | set(self.outcomes)) if ranks is None else set(ranks)
        deadline = time.monotonic() + timeout_s
        while self.waiting & wanted:
            if not self._step(wanted, deadline - time.monotonic()):
                break
        for rank in self.waiting & wanted:
            self.outcomes[rank] = Outcome("hung", None, time.monotonic() - self.start)
        return {rank: self.outcomes[rank] for rank in sorted(wanted)}

    def _step(self, wanted: set[int], timeout_s: float) -> bool:
        """Takes what has come; false after the timeout."""
        if timeout_s <= 0:
            return False
        handles: dict[Any, int] = {}
        for rank in self.waiting & wanted:
            handles[self.pool.connections[rank]] = rank
            handles[self.pool.processes[rank].sentinel] = rank
        ready = wait_any(list(handles), timeout_s)
        for rank in {handles[handle] for handle in ready}:  # type: ignore[index]
            self._take(rank)
        return bool(ready)

    def _take(self, rank: int) -> None:
        seconds = time.monotonic() - self.start
        connection = self.pool.connections[rank]
        with contextlib.suppress(EOFError, OSError):
            while connection.poll():
                number, kind, value = connection.recv()
                if number == self.number:
                    self.outcomes[rank] = Outcome(kind, value, seconds)
                    self.waiting.discard(rank)
                    return
        process = self.pool.processes[rank]
        process.join(5)
        if process.exitcode is not None:
            self.outcomes[rank] = Outcome("died", process.exitcode, seconds)
            self.waiting.discard(rank)

    def results(self, timeout_s: float = 60.0) -> list[Any]:
        """What every rank returned. Anything else kills the pool and fails the test with all stacks."""
        deadline = time.monotonic() + timeout_s
        while self.waiting and all(outcome.kind == "ok" for outcome in self.outcomes.values()):
            if not self._step(self.waiting, deadline - time.monotonic()):
                break
        # One rank's failure usually explains the others' waiting: give those a moment, then look.
        outcomes = self.wait(min(GRACE_S, deadline - time.monotonic()))
        if all(outcome.kind == "ok" for outcome in outcomes.values()):
            return [outcome.value for outcome in outcomes.values()]
        report = self.pool.explain(outcomes)
        self.pool.kill()
        raise RankError(report)


class RankPool:
    """`size` rank processes with a default group over the backend under test."""

    def __init__(
        self,
        size: int,
        backend: str,
        store_port: int,
        store_host: str = "127.0.0.1",
        env: dict[str, str] | None = None,
        env_of: Callable[[int], dict[str, str]] | None = None,
        netns_of: Callable[[int], str] | None = None,
        host_of: Callable[[int], str] | None = None,
        group_timeout_s: float = 60.0,
        open_group: bool = True,
    ) -> None:
        self.size = size
        self.backend = backend
        self.group_timeout_s = group_timeout_s
        self.alive = True
        self.folder = tempfile.mkdtemp(prefix="tutti-ranks.")
        self.processes: list[Any] = []
        self.connections: list[Any] = []
        self._numbers = itertools.count()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        for rank in range(size):
            spec = RankSpec(
                rank=rank,
                size=size,
                backend=backend,
                store_host=host_of(rank) if host_of else store_host,
                store_port=store_port,
                stack_file=os.path.join(self.folder, f"stacks.{rank}"),
                env={**(env or {}), **(env_of(rank) if env_of else {})},
                netns=netns_of(rank) if netns_of else None,
            )
            ours, theirs = context.Pipe()
            process = context.Process(target=rank_worker.serve, args=(theirs, spec), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)
        if open_group:
            self.open_group()

    def open_group(self, timeout_s: float | None = None) -> None:
        """A new default group, whatever became of the old one."""
        limit = self.group_timeout_s if timeout_s is None else timeout_s
        self.call(rank_worker.open_group, unique_name("group"), limit)

    def pid(self, rank: int) -> int:
        return int(self.processes[rank].pid)

    def send_signal(self, rank: int, number: int) -> None:
        os.kill(self.pid(rank), number)

    def begin(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        each: Callable[[int], tuple[Any, ...]] | None = None,
        ranks: Iterable[int] | None = None,
    ) -> Pending:
        """Starts function(context, *arguments, *each(rank)) on the ranks (default: all)."""
        chosen = list(range(self.size)) if ranks is None else list(ranks)
        number = next(self._numbers)
        for rank in chosen:
            own = each(rank) if each else ()
            self.connections[rank].send((number, function.__module__, function.__name__, (*arguments, *own)))
        return Pending(self, number, chosen)

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        each: Callable[[int], tuple[Any, ...]] | None = None,
        ranks: Iterable[int] | None = None,
        timeout_s: float = 60.0,
    ) -> list[Any]:
        """Runs the function and returns what each rank returned."""
        return self.begin(function, *arguments, each=each, ranks=ranks).results(timeout_s)

    def explain(self, outcomes: dict[int, Outcome]) -> str:
        """A report of every rank: exception, exit code, or where it hangs."""
        lines = []
        hung = [rank for rank, outcome in outcomes.items() if outcome.kind == "hung"]
        for rank, outcome in outcomes.items():
            if outcome.kind == "raised":
                lines.append(f"--- rank {rank} raised after {outcome.seconds:.1f} s\n{outcome.value.trace}")
            elif outcome.kind == "died":
                crash = self._stacks(rank)
                lines.append(f"--- rank {rank} died with exit code {outcome.value}\n{crash}")
            elif outcome.kind == "ok":
                lines.append(f"--- rank {rank} returned after {outcome.seconds:.1f} s")
        for rank in hung:
            lines.append(f"--- rank {rank} hangs\n{self._ask_stacks(rank)}")
        return "\n".join(lines)

    def _stacks(self, rank: int) -> str:
        with open(os.path.join(self.folder, f"stacks.{rank}")) as stacks:
            return stacks.read()

    def _ask_stacks(self, rank: int) -> str:
        if self.processes[rank].exitcode is not None:
            return "(ended meanwhile)"
        self.send_signal(rank, signal.SIGUSR1)
        deadline = time.monotonic() + 5
        text = ""
        # Written line by line, the main thread's outermost frame last.
        while time.monotonic() < deadline and not text.endswith(" in <module>\n"):
            text = self._stacks(rank)
            self.processes[rank].join(0.02)
        native = os.environ.get("TUTTI_TEST_GDB")
        if native and shutil.which("gdb"):
            command = ["gdb", "-p", str(self.pid(rank)), "-batch", "-ex", "thread apply all bt 25"]
            text += subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
        return text

    def kill(self) -> None:
        """Ends every rank at once."""
        self.alive = False
        for process in self.processes:
            if process.exitcode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.join(10)
        for connection in self.connections:
            connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self, timeout_s: float = 20.0) -> None:
        """Lets every rank end its group and exit; who does not is killed and fails the test."""
        if not self.alive:
            return
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.send(None)
        deadline = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(0.01, deadline - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        report = ""
        if any(code != 0 for code in codes):
            hung = {rank: Outcome("hung", None, timeout_s) for rank, code in enumerate(codes) if code is None}
            report = f"ranks did not exit cleanly: {codes}\n" + self.explain(hung)
        self.kill()
        if report:
            raise RankError(report)
