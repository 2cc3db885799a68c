"""One rank in a storm: signals, forks and want of descriptors at random moments of calls, messages and plans.

Its arguments are the seed and the number of rounds. All ranks draw the same calls; each its own disturbances.
Every result is checked, every child must end well, and rank 0 prints how much there was.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
from forked_calls import refused

import tutti

SEED, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT_S = 50.0
COUNTS = (1, 7, 1000, 5000, 60_000, 300_000)


class Rank:
    def __init__(self) -> None:
        self.comm = tutti.Communicator(timeout=LIMIT_S)

    def all_reduce(self, count: int) -> None:
        same(self.comm.all_reduce(np.full(count, RANK + 1.0, np.float32)), SIZE * (SIZE + 1) / 2)

    def broadcast(self, count: int) -> None:
        same(self.comm.broadcast(np.full(count, RANK + 1.0), root=count % SIZE), count % SIZE + 1)

    def all_gather(self, count: int) -> None:
        same(self.comm.all_gather(np.full(count, RANK + 1.0), np.empty(SIZE * count)), *(r + 1 for r in range(SIZE)))

    def all_to_all(self, count: int) -> None:
        x = np.repeat(np.arange(SIZE), count) + 10.0 * RANK
        same(self.comm.all_to_all(x, np.empty(SIZE * count)), *(10 * r + RANK for r in range(SIZE)))

    def messages(self, count: int) -> None:
        x, out = np.full(count, float(RANK)), np.empty(count)
        for send in (True, False) if RANK == 0 else (False, True):
            if send:
                self.comm.send(x, (RANK + 1) % SIZE)
            else:
                assert self.comm.recv(out, (RANK - 1) % SIZE) == (RANK - 1) % SIZE
        same(out, (RANK - 1) % SIZE)

    def barrier(self, count: int) -> None:
        self.comm.barrier()

    def in_child(self, what: int) -> None:
        if what == 0:
            refused(lambda: self.comm.all_reduce(np.ones(3)))
            refused(lambda: self.comm.send(np.ones(3), (RANK + 1) % SIZE))
        elif what == 1:
            self.comm.abort("the child's")
            self.comm.close()

    def report(self) -> str:
        metrics = self.comm.metrics()
        assert metrics["rescued_waits"] == 0, metrics["rescued_waits"]
        return str(sorted({row["algorithm"] for row in metrics["rows"]}))

    def close(self) -> None:
        self.comm.close()


def same(got: Any, *wanted: float) -> None:
    blocks = np.asarray(got).reshape(len(wanted), -1)
    assert (blocks == np.array(wanted).reshape(-1, 1)).all(), f"seed {SEED}: {blocks[:, :4]} for {wanted}"


class Storm:
    """What disturbs the rank until it is over: signals from a thread and a timer, forks in handlers and from another
    thread, and a limit on descriptors that is for moments at what is open."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.over = threading.Event()
        self.counts = {"signals": 0, "forks": 0, "dry spells": 0}
        self.failed: list[str] = []
        self.chooser = random.Random(f"{SEED} {RANK}")
        for number, handler in (
            (signal.SIGUSR1, self.fork_in_handler),
            (signal.SIGALRM, self.count),
            (signal.SIGCHLD, self.count),
        ):
            signal.signal(number, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
        self.threads = [
            threading.Thread(target=body, args=(random.Random(f"{SEED} {RANK} {body.__name__}"),))
            for body in (self.send_signals, self.fork_aside, self.take_descriptors)
        ]
        for thread in self.threads:
            thread.start()

    def count(self, *_: Any) -> None:
        self.counts["signals"] += 1

    def fork_in_handler(self, *_: Any) -> None:
        self.counts["signals"] += 1
        if self.chooser.random() < 0.1:
            self.await_child(self.fork(self.chooser.randrange(3)))

    def send_signals(self, chooser: random.Random) -> None:
        while not self.over.wait(chooser.uniform(0, 0.01)):
            os.kill(os.getpid(), chooser.choice((signal.SIGUSR1, signal.SIGCHLD, signal.SIGALRM)))

    def fork_aside(self, chooser: random.Random) -> None:
        while not self.over.wait(chooser.uniform(0, 0.1)):
            self.await_child(self.fork(chooser.randrange(3)))

    def fork(self, what: int) -> int:
        self.counts["forks"] += 1
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(30)
                self.rank.in_child(what)
                code = 0
            except BaseException as error:
                os.write(2, f"child of rank {RANK}, seed {SEED}: {error!r}\n".encode())
            finally:
                os._exit(code)
        return pid

    def await_child(self, pid: int) -> None:
        """Bounded: a child that hangs dies of its alarm."""
        _, status = os.waitpid(pid, 0)
        if status != 0:
            self.failed.append(f"a child ended with {status}")

    def take_descriptors(self, chooser: random.Random) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        while not self.over.wait(chooser.uniform(0, 0.1)):
            left = chooser.randrange(4)
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + left, hard))
            self.over.wait(chooser.uniform(0, 0.1))
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            self.counts["dry spells"] += 1

    def end(self) -> None:
        while not all(self.counts.values()):  # where the calls were over before the first of one kind
            self.over.wait(0.01)
        self.over.set()
        for thread in self.threads:
            thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not self.failed, f"seed {SEED}: {self.failed}"


def main() -> None:
    rank = Rank()
    storm = Storm(rank)
    calls = random.Random(SEED)
    begun = time.monotonic()
    try:
        for _ in range(ROUNDS):
            for _ in range(calls.randrange(1, 8)):
                kind = calls.choice(
                    ("all_reduce", "all_reduce", "broadcast", "all_gather", "all_to_all", "messages", "barrier")
                )
                getattr(rank, kind)(calls.choice(COUNTS))
    finally:
        with contextlib.suppress(BaseException) if sys.exc_info()[0] else contextlib.nullcontext():
            storm.end()
    algorithms = rank.report()
    rank.close()
    print(f"{storm.counts} in {time.monotonic() - begun:.1f} s; {algorithms}")
    print("done")


main()
