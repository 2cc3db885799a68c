"""One rank in a storm: signals, forks and want of descriptors at random moments of calls, messages and plans.

Its arguments are the face (arrays or torch), the seed and the number of rounds. All ranks draw the same calls; each its
own disturbances. Every result is checked, every child must end well, and each rank prints how much there was.
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
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
from forked_calls import refused

import tutti

FACE, SEED, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT_S = 50.0
COUNTS = (1, 7, 1000, 5000, 60_000, 300_000)
BOTH = ("all_reduce", "all_reduce", "broadcast", "all_gather", "all_to_all", "messages", "barrier")
BOTH += ("reduce", "reduce_scatter", "gather", "scatter")
KINDS = {"arrays": BOTH, "torch": (*BOTH, "uneven")}

if FACE == "torch":
    import torch
    import torch.distributed as dist


class Torch:
    """A default group of ``torch.distributed``; calls may be waited for later."""

    def __init__(self) -> None:
        dist.init_process_group("tutti", timeout=timedelta(seconds=LIMIT_S))
        self.chooser = random.Random(SEED + 1)
        self.pending: list[tuple[Any, Callable[[], None]]] = []

    def all_reduce(self, count: int) -> None:
        x = torch.full((count,), RANK + 1.0)
        self.finish(dist.all_reduce(x, async_op=True), lambda: same(x, SIZE * (SIZE + 1) / 2))

    def broadcast(self, count: int) -> None:
        x = torch.full((count,), RANK + 1.0)
        self.finish(dist.broadcast(x, count % SIZE, async_op=True), lambda: same(x, count % SIZE + 1))

    def all_gather(self, count: int) -> None:
        out = [torch.empty(count) for _ in range(SIZE)]
        self.finish(
            dist.all_gather(out, torch.full((count,), RANK + 1.0), async_op=True),
            lambda: same(torch.cat(out), *(r + 1 for r in range(SIZE))),
        )

    def all_to_all(self, count: int) -> None:
        x, out = torch.arange(SIZE).repeat_interleave(count) + 10.0 * RANK, torch.empty(SIZE * count)
        work = dist.all_to_all_single(out, x, async_op=True)
        self.finish(work, lambda: same(out, *(10 * r + RANK for r in range(SIZE))))

    def uneven(self, count: int) -> None:
        """Rank r sends r + 1 parts to each, so it gets as many from each as that one's number says."""
        x, out = torch.full((SIZE * count * (RANK + 1),), float(RANK)), torch.empty(count * SIZE * (SIZE + 1) // 2)
        work = dist.all_to_all_single(
            out, x, [count * (r + 1) for r in range(SIZE)], [count * (RANK + 1)] * SIZE, async_op=True
        )
        self.finish(work, lambda: same(out, *(r for r in range(SIZE) for _ in range(r + 1))))

    def reduce(self, count: int) -> None:
        x, root = torch.full((count,), RANK + 1.0), count % SIZE
        work = dist.reduce(x, root, async_op=True)
        self.finish(work, lambda: same(x, SIZE * (SIZE + 1) / 2) if root == RANK else None)

    def reduce_scatter(self, count: int) -> None:
        x, out = torch.arange(SIZE).repeat_interleave(count) + 1.0 * RANK, torch.empty(count)
        work = dist.reduce_scatter_tensor(out, x, async_op=True)
        self.finish(work, lambda: same(out, SIZE * RANK + SIZE * (SIZE - 1) / 2))

    def gather(self, count: int) -> None:
        x, root = torch.full((count,), RANK + 1.0), count % SIZE
        out = [torch.empty(count) for _ in range(SIZE)] if root == RANK else None
        work = dist.gather(x, out, root, async_op=True)
        self.finish(work, lambda: same(torch.cat(out), *(r + 1 for r in range(SIZE))) if out else None)

    def scatter(self, count: int) -> None:
        out, root = torch.empty(count), count % SIZE
        parts = [torch.full((count,), r + 1.0) for r in range(SIZE)] if root == RANK else None
        work = dist.scatter(out, parts, root, async_op=True)
        self.finish(work, lambda: same(out, RANK + 1))

    def messages(self, count: int) -> None:
        x, out = torch.full((count,), float(RANK)), torch.empty(count)
        receive, send = dist.irecv(out, (RANK - 1) % SIZE), dist.isend(x, (RANK + 1) % SIZE)
        self.finish(send, lambda: same(x, RANK))
        self.finish(receive, lambda: same(out, (RANK - 1) % SIZE))

    def barrier(self, count: int) -> None:
        self.finish(dist.barrier(async_op=True), lambda: None)

    def finish(self, work: Any, check: Callable[[], None]) -> None:
        self.pending.append((work, check))
        if self.chooser.random() < 0.5:
            self.await_all()

    def await_all(self) -> None:
        while self.pending:
            work, check = self.pending.pop()
            work.wait()
            check()

    def in_child(self, what: int) -> None:
        if what == 0:
            refused(lambda: dist.all_reduce(torch.ones(3)))
            refused(lambda: dist.isend(torch.ones(3), (RANK + 1) % SIZE))
        elif what == 1:
            tutti.abort()
            dist.destroy_process_group()

    def metrics(self) -> Any:
        return tutti.get_metrics()

    def close(self) -> None:
        dist.destroy_process_group()


class Arrays:
    """``tutti.Communicator`` on arrays."""

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

    def reduce(self, count: int) -> None:
        x, root = np.full(count, RANK + 1.0), count % SIZE
        self.comm.reduce(x, root=root)
        if root == RANK:
            same(x, SIZE * (SIZE + 1) / 2)

    def reduce_scatter(self, count: int) -> None:
        x = np.repeat(np.arange(SIZE), count) + 1.0 * RANK
        same(self.comm.reduce_scatter(x, np.empty(count)), SIZE * RANK + SIZE * (SIZE - 1) / 2)

    def gather(self, count: int) -> None:
        root = count % SIZE
        out = np.empty(SIZE * count) if root == RANK else None
        self.comm.gather(np.full(count, RANK + 1.0), out, root)
        if out is not None:
            same(out, *(r + 1 for r in range(SIZE)))

    def scatter(self, count: int) -> None:
        root = count % SIZE
        parts = np.repeat(np.arange(SIZE) + 1.0, count) if root == RANK else None
        same(self.comm.scatter(parts, np.empty(count), root), RANK + 1)

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

    def await_all(self) -> None:
        pass

    def metrics(self) -> Any:
        return self.comm.metrics()

    def close(self) -> None:
        self.comm.close()


def same(got: Any, *wanted: float) -> None:
    blocks = np.asarray(got).reshape(len(wanted), -1)
    assert (blocks == np.array(wanted).reshape(-1, 1)).all(), f"seed {SEED}: {blocks[:, :4]} for {wanted}"


class Storm:
    """What disturbs the rank until it is over: signals from a thread and a timer, forks in handlers and from another
    thread, and a limit on descriptors that is for moments at what is open.

    With torch a rank forks in handlers or from a thread, not both. Modules that it imports hold locks of Python's
    (logging's, concurrent.futures') around a fork: a fork in a handler of a thread that has one of them would wait for
    the other thread's fork, which waits for the first. Nor does a handler fork within a fork.
    """

    def __init__(self, rank: Any) -> None:
        self.rank = rank
        self.forking = False
        self.forks_in_handlers = FACE == "arrays" or RANK % 2 == 0
        forks_aside = FACE == "arrays" or not self.forks_in_handlers
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
            for body in (self.send_signals, *([self.fork_aside] if forks_aside else []), self.take_descriptors)
        ]
        for thread in self.threads:
            thread.start()

    def count(self, *_: Any) -> None:
        self.counts["signals"] += 1

    def fork_in_handler(self, *_: Any) -> None:
        self.counts["signals"] += 1
        if self.forks_in_handlers and not self.forking and self.chooser.random() < 0.1:
            self.forking = True
            self.await_child(self.fork(self.chooser.randrange(3)))
            self.forking = False

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
    rank = Torch() if FACE == "torch" else Arrays()
    storm = Storm(rank)
    calls = random.Random(SEED)
    begun = time.monotonic()
    try:
        for _ in range(ROUNDS):
            for _ in range(calls.randrange(1, 8)):
                getattr(rank, calls.choice(KINDS[FACE]))(calls.choice(COUNTS))
            rank.await_all()
    finally:
        with contextlib.suppress(BaseException) if sys.exc_info()[0] else contextlib.nullcontext():
            storm.end()
    metrics = rank.metrics()
    assert metrics["rescued_waits"] == 0, metrics["rescued_waits"]
    algorithms = sorted({row["algorithm"] for row in metrics["rows"]})
    rank.close()
    print(f"{storm.counts} in {time.monotonic() - begun:.1f} s; {algorithms}")
    print("done")


main()
