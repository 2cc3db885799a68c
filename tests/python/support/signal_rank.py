"""One rank whose waits are interrupted by signals. Its arguments are the face, a folder to meet in, and what it tries.

Rank 0 waits; a thread of its own sends it the signal once a call is known to be under way and the main thread to sleep.
Rank 1 comes only when it has been told that the handler ran: without a handler that runs while the call waits, both
run into their deadlines.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

import tutti

FACE, FOLDER, TASKS = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
RANK = int(os.environ["RANK"])
LIMIT_S = 60.0

if FACE == "torch":
    import torch
    import torch.distributed as dist


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(str(holds))
        threading.Event().wait(0.002)


def tell(what: str) -> None:
    (FOLDER / f"{what}.tmp").touch()
    (FOLDER / f"{what}.tmp").rename(FOLDER / what)


def await_told(what: str) -> None:
    until((FOLDER / what).exists)


def sleeps(thread: int) -> bool:
    text = Path(f"/proc/self/task/{thread}/stat").read_text(encoding="ascii")
    return text.rsplit(")", 1)[1].split()[0] == "S"


class Torch:
    """The calls of torch.distributed in one group."""

    def __init__(self, name: str, seconds: float = LIMIT_S) -> None:
        self.group = dist.new_group([0, 1], backend="tutti", timeout=timedelta(seconds=seconds))
        self.calls = {
            "all_reduce": self.all_reduce,
            "barrier": lambda: dist.barrier(group=self.group),
            "monitored_barrier": lambda: tutti.monitored_barrier(self.group),
            "recv": self.recv,
            "wait": self.wait,
            "irecv": self.irecv,
            "object": self.objects,
        }

    def all_reduce(self) -> None:
        x = torch.full((20_000,), float(RANK + 1))
        dist.all_reduce(x, group=self.group)
        assert x.eq(3.0).all()

    def recv(self) -> None:
        x = torch.full((3000,), float(RANK))
        if RANK == 0:
            dist.recv(x, 1, group=self.group)
            assert x.eq(1.0).all()
        else:
            dist.send(x, 0, group=self.group)

    def irecv(self) -> None:
        x = torch.full((3000,), float(RANK))
        if RANK == 0:
            work = dist.irecv(x, 1, group=self.group)
            assert work is not None
            work.wait()
            assert x.eq(1.0).all()
        else:
            dist.send(x, 0, group=self.group)

    def wait(self) -> None:
        x = torch.full((5,), float(RANK + 1))
        dist.all_reduce(x, group=self.group, async_op=True).wait()
        assert x.eq(3.0).all()

    def objects(self) -> None:
        got: list[Any] = [None, None]
        dist.all_gather_object(got, {"rank": RANK}, group=self.group)
        assert got == [{"rank": 0}, {"rank": 1}]

    def record(self) -> str:
        return tutti.flight_record(self.group)

    def sequence(self) -> int:
        return tutti.sequence_number(self.group)

    def abort(self, reason: str) -> None:
        tutti.abort(self.group, reason)

    def aborted(self) -> bool:
        return tutti.get_error(self.group)[0] != "success"

    def abort_seen(self) -> str:
        return str(tutti.get_error(self.group)[1])


class Numpy:
    """The calls of a tutti.Communicator."""

    def __init__(self, name: str, seconds: float = LIMIT_S) -> None:
        self.comm = tutti.Communicator(store, RANK, 2, name=name, timeout=seconds)
        self.calls = {"all_reduce": self.all_reduce, "barrier": self.comm.barrier, "recv": self.recv}

    def all_reduce(self) -> None:
        x = np.full(20_000, RANK + 1)
        self.comm.all_reduce(x)
        assert (x == 3).all()

    def recv(self) -> None:
        x = np.full(3000, RANK)
        if RANK == 0:
            assert self.comm.recv(x, 1) == 1
            assert (x == 1).all()
        else:
            self.comm.send(x, 0)

    def record(self) -> str:
        return str(self.comm._core.flight_record())

    def sequence(self) -> int:
        return int(self.comm._core.sequence)

    def abort(self, reason: str) -> None:
        self.comm.abort(reason)

    def aborted(self) -> bool:
        return any(entry["failed"] for entry in json.loads(self.record())["entries"])

    def abort_seen(self) -> str:
        try:
            self.comm.barrier()
        except RuntimeError as error:
            return str(error)
        raise AssertionError("the communicator goes on")


FACES: dict[str, Any] = {"torch": Torch, "numpy": Numpy}


def signal_under_way(group: Any, number: int) -> threading.Thread:
    """Sends the signal when the group's last call has begun and not ended, and the main thread sleeps."""

    def under_way() -> bool:
        entries = json.loads(group.record())["entries"]
        return bool(entries) and entries[-1]["state"] not in ("completed", "failed") and sleeps(os.getpid())

    return signal_when(under_way, number)


def signal_when(ready: Callable[[], bool], number: int) -> threading.Thread:
    def watch() -> None:
        until(ready)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def returning_handlers() -> None:
    """A handler runs while the call waits, writes the trace that the documents promise, and the call goes on."""
    group = FACES[FACE]("returning")
    for name, call in group.calls.items():
        if name == "monitored_barrier":
            continue  # its messages are not in the flight record
        if RANK == 1:
            await_told(f"handled {name}")
            call()
            continue

        def handle(*_: Any, name: str = name) -> None:
            if FACE == "torch":
                tutti.dump_flight_trace(FOLDER / "trace", group.group)
            tell(f"handled {name}")

        signal.signal(signal.SIGUSR1, handle)
        watch = signal_under_way(group, signal.SIGUSR1)
        call()
        watch.join()


def raising_handlers() -> None:
    """An exception of a handler ends the call; the group says why, and so does the peer's error."""

    def leave(*_: Any) -> None:
        sys.exit(3)

    signal.signal(signal.SIGTERM, leave)
    names = list(FACES[FACE]("names").calls)  # once: a name is used once in a store
    for number, raises in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        for name in names:
            if name == "monitored_barrier":
                continue
            group = FACES[FACE](f"{raises.__name__} {name}")
            group.calls["all_reduce"]()  # between hosts the reason takes a link that is there
            if RANK == 1:
                await_told(f"{raises.__name__} {name}")
                try:
                    group.calls[name]()  # may complete where rank 0 has given its part
                    group.calls["barrier"]()
                    group.calls["all_reduce"]()
                except RuntimeError as error:
                    text = f" gave up: it aborted the group: interrupted by {raises.__name__}"
                    assert "rank 0" in str(error) and text in str(error), error
                else:
                    raise AssertionError(f"{name}: the group goes on without rank 0")
                continue
            while not group.aborted():
                try:
                    watch = signal_under_way(group, number)
                    group.calls[name]()
                except raises:
                    watch.join()  # where torch issues a call and then waits, it may have come between: once more
                else:
                    raise AssertionError(f"{name}: no {raises.__name__}")
            tell(f"{raises.__name__} {name}")
            seen = group.abort_seen()
            assert f"interrupted by {raises.__name__}" in seen, f"{name}: {seen}"


def acting_handlers() -> None:
    """A handler reads, is refused a collective of the group that waits, and aborts it: then the call raises."""
    group = FACES[FACE]("acting")
    group.calls["all_reduce"]()
    if RANK == 1:
        await_told("acted")
        try:
            group.calls["all_reduce"]()
        except RuntimeError as error:
            assert "rank 0" in str(error) and "by a handler" in str(error), error
            return
        raise AssertionError("the group goes on without rank 0")
    raised: list[str] = []

    def handle(*_: Any) -> None:
        assert len(json.loads(group.record())["entries"]) == 2
        assert group.sequence() == 2
        assert not group.aborted()
        try:
            group.calls["barrier"]()
        except (RuntimeError, ValueError) as error:
            raised.append(str(error))
        group.abort("by a handler")

    signal.signal(signal.SIGUSR1, handle)
    watch = signal_under_way(group, signal.SIGUSR1)
    try:
        group.calls["all_reduce"]()
    except RuntimeError as error:
        assert "by a handler" in str(error), error
    else:
        raise AssertionError("it has completed without rank 1")
    watch.join()
    assert len(raised) == 1 and "a handler of a signal" in raised[0], raised
    tell("acted")


def waiting_behind() -> None:
    """Also while a call waits for its turn behind another thread's, whose peer does not come."""
    group = FACES[FACE]("behind")
    group.calls["all_reduce"]()
    if RANK == 1:
        await_told("behind")
        try:
            group.calls["all_reduce"]()  # may complete where rank 0 has given its part
            group.calls["barrier"]()
        except RuntimeError as error:
            assert "rank 0" in str(error) and "interrupted by KeyboardInterrupt" in str(error), error
            return
        raise AssertionError("the group goes on without rank 0")
    first: list[str] = []

    def call_first() -> None:
        try:
            group.calls["all_reduce"]()
        except RuntimeError as error:
            first.append(str(error))

    thread = threading.Thread(target=call_first)
    thread.start()
    until(lambda: json.loads(group.record())["entries"][-1]["state"] not in ("completed", "failed"))
    began = threading.Event()
    watch = signal_when(lambda: began.is_set() and sleeps(os.getpid()), signal.SIGINT)
    try:
        began.set()
        group.calls["barrier"]()
    except KeyboardInterrupt:
        tell("behind")
    else:
        raise AssertionError("no KeyboardInterrupt")
    watch.join()
    thread.join()
    assert len(first) == 1 and "interrupted by KeyboardInterrupt" in first[0], first


def forming() -> None:
    """A group that forms can be interrupted, too."""
    if RANK == 0:
        began = threading.Event()
        watch = signal_when(lambda: began.is_set() and sleeps(os.getpid()), signal.SIGINT)
        try:
            began.set()
            FACES[FACE]("forming")
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("it formed")
        watch.join()
        tell("interrupted")
    else:
        await_told("interrupted")


def planned() -> None:
    """The all-reduces of the other tasks run by the plan that the test has given."""
    group = FACES[FACE]("planned")
    group.calls["all_reduce"]()
    ran = {row["algorithm"] for row in tutti.get_metrics(group.group)["rows"]}
    assert any(name.startswith("plan:") for name in ran), ran


def storm() -> None:
    """Signals at any moment, whose handlers return: every result is right."""
    group = FACES[FACE]("storm")
    handled = 0

    def handle(*_: Any) -> None:
        nonlocal handled
        handled += 1

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, handle)
    over = threading.Event()
    chooser = random.Random(RANK)

    def send() -> None:
        while not over.wait(chooser.uniform(0, 0.002)):
            os.kill(os.getpid(), chooser.choice((signal.SIGUSR1, signal.SIGUSR2)))

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: handled > 0)
    for _ in range(30):
        for call in group.calls.values():
            call()
    over.set()
    thread.join()


def main() -> None:
    global store
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs behind
    if FACE == "torch":
        dist.init_process_group("tutti", timeout=timedelta(seconds=LIMIT_S))
    else:
        first = tutti.Communicator(timeout=LIMIT_S)
        store = first.store
    tasks = {
        "returning": returning_handlers,
        "raising": raising_handlers,
        "forming": forming,
        "storm": storm,
        "planned": planned,
        "acting": acting_handlers,
        "behind": waiting_behind,
    }
    for task in TASKS:
        tasks[task]()
    print("done")
    sys.stdout.flush()
    # Nobody leaves while the other still reads the store.
    tell(f"end {RANK}")
    await_told(f"end {1 - RANK}")


store: Any = None
main()
