"""One rank in a storm: signals, forks and want of descriptors at random moments of calls, messages, plans and groups.

Its arguments are the face and the number of rounds; STORM_SEED is the seed. All ranks draw the same calls; each its own
disturbances. Every result is checked, every child must end well, and each rank prints how much there was. STORM_VICTIM,
unless it is -1, dies at a random moment: the others raise what names it, go on without it and do as many rounds again.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import re
import resource
import signal
import sys
import threading
import time
from typing import Any

from storm_faces import FOLDER, HEARD_S, MAPPED, SEED, VICTIM

# What each face needs is imported for it alone.
FACES = {"arrays": "storm_faces.Arrays", "torch": "storm_torch.Torch", "c": "storm_c.C", "comms": "storm_comms.Comms"}
FACES |= {"nccl": "storm_nccl.Nccl", "cuda": "storm_cuda.Cuda", "models": "storm_models.Models"}
FACES |= {"storeless": "storm_comms.Storeless"}
FACE, ROUNDS = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["RANK"])
WITH_TORCH = ("torch", "comms", "storeless", "cuda", "models")
DRY = FACE != "cuda"  # CUDA's driver and PyTorch's caches take descriptors too, and say of their want what they say
COUNTS = (1, 7, 1000, 5000, 60_000, 300_000)


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
        self.forks_in_handlers = FACE not in WITH_TORCH or RANK % 2 == 0
        forks_aside = FACE not in WITH_TORCH or not self.forks_in_handlers
        self.over = threading.Event()
        self.counts = {"signals": 0, "forks": 0, **({"dry spells": 0} if DRY else {}), "looks": 0}
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
            for body in (
                self.send_signals,
                *([self.fork_aside] if forks_aside else []),
                *([self.take_descriptors] if DRY else []),
                self.look,
            )
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

    def look(self, chooser: random.Random) -> None:
        while not self.over.wait(chooser.uniform(0, 0.03)):
            try:
                self.rank.look(chooser)
            except Exception as error:
                self.failed.append(f"a look at the group: {error!r}")
                return
            finally:
                self.counts["looks"] += 1

    def end(self) -> None:
        if self.over.is_set():
            return
        while not all(self.counts.values()):  # where the calls were over before the first of one kind
            self.over.wait(0.01)
        self.over.set()
        for thread in self.threads:
            thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not self.failed, f"seed {SEED}: {self.failed}"


class Death:
    """The end of this process at a random moment, whatever it does then; it notes when."""

    def __init__(self) -> None:
        chooser = random.Random(f"{SEED} death")
        self.way = chooser.choice(("SIGKILL", "SIGABRT", "SIGSEGV", "exit"))
        self.note = os.open(FOLDER / "death", os.O_CREAT | os.O_WRONLY)  # now: later there may be no descriptor
        self.timer = threading.Timer(chooser.uniform(0, 1.5), self.die)
        self.timer.daemon = True
        self.timer.start()

    def die(self) -> None:
        os.write(self.note, f"{time.time()}".encode())
        if self.way == "exit":
            os._exit(1)
        os.kill(os.getpid(), getattr(signal, self.way))


def calls_of(rank: Any, calls: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        for _ in range(calls.randrange(1, 8)):
            rank.of = []
            getattr(rank, calls.choice(rank.kinds))(calls.choice(COUNTS))
        rank.await_all()
        rank.unchanged()
        rank.given.clear()


def ranks_named_in(text: str) -> set[int]:
    """Alone, or among others: "ranks 1 and 2 did not come", where another has heard of the death sooner."""
    lists = re.findall(r"\branks? (\d+(?:(?:, | and )\d+)*)", text)
    return {int(rank) for ranks in lists for rank in re.findall(r"\d+", ranks)}


def calls_until_the_death(rank: Any, storm: Storm, calls: random.Random) -> None:
    """Those that survive raise soon, name the dead rank, and go on without it, which they need not wait for."""
    try:
        while True:
            calls_of(rank, calls, 1)
    except (RuntimeError, TimeoutError) as error:
        text, heard = str(error), time.time()
    rank.unchanged()
    rank.forget()
    rank.hold()
    storm.end()  # what there may be no descriptors for is not what is asked here
    died = float((FOLDER / "death").read_text())
    assert heard - died < HEARD_S, f"seed {SEED}: heard after {heard - died:.1f} s: {text}"
    # Who has heard of it before, by a part of the group, shrinks that now; and the dead one may have made an id.
    places = {VICTIM, rank.of.index(VICTIM)} if VICTIM in rank.of else {VICTIM}
    told = any(what in text for what in ("the group is being shrunk", "the process that made the group's id"))
    assert told or places & ranks_named_in(text), f"seed {SEED}: {text}"
    members = rank.survive()
    assert time.time() - heard < HEARD_S, f"seed {SEED}: shrunk after {time.time() - heard:.1f} s: {text}"
    print(f"heard after {heard - died:.1f} s, shrunk after {time.time() - heard:.1f} s: {text}")
    assert VICTIM not in members and len(members) == rank.size, f"seed {SEED}: {members}"
    rank.unchanged()
    rank.hosts = [rank.hosts[member] for member in members]
    rank.begin_anew()
    calls_of(rank, random.Random(SEED + 3), ROUNDS)


def main() -> None:
    module, name = FACES[FACE].split(".")
    rank = getattr(importlib.import_module(module), name)()
    storm = Storm(rank)
    begun = time.monotonic()
    calls = random.Random(SEED)
    if RANK == VICTIM:
        death = Death()
    try:
        if VICTIM < 0:
            calls_of(rank, calls, ROUNDS)
        else:
            calls_until_the_death(rank, storm, calls)
    finally:
        with contextlib.suppress(BaseException) if sys.exc_info()[0] else contextlib.nullcontext():
            storm.end()
    if RANK == VICTIM:
        death.timer.join()
    metrics = rank.metrics()
    if metrics is not None:
        assert metrics["rescued_waits"] == 0, metrics["rescued_waits"]
        print(sorted({row["algorithm"] for row in metrics["rows"]}))
        mapped = MAPPED and len(set(rank.hosts)) == 1  # between hosts all is staged
        # Models: where nothing is to be mapped, buffers of FSDP2's are; few calls may go before and behind a death.
        if FACE != "models" or (mapped and VICTIM < 0):
            assert (metrics["mapped_calls"] > 0) == mapped, (
                f"seed {SEED}: {metrics['mapped_calls']} calls needed no copy"
            )
    rank.close()
    rank.ended()
    groups = f"groups formed {rank.formed[True]}, not {rank.formed[False]}"
    print(f"{storm.counts} in {time.monotonic() - begun:.1f} s; {groups}")
    print("done")


main()
