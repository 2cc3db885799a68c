"""Where the ranks of a communicator of TorchComms meet that was given no store: for a store of their own.

Rank 0 opens that store on a port of its own, and at ``MASTER_ADDR`` and ``MASTER_PORT``, for as long as they meet, one
that says which port. Another rank reads it there, lets that connection go and signs in at the store itself: it needs
one descriptor at a time. Who signs in last says there that all have met, and whose time is over that it gives up:
whichever of the two is said first holds for all. Where there may be another meeting of the name, those whose time is
not over yet go on to that: any try of one rank may meet any of another, whenever it has begun.
"""

from __future__ import annotations

import math
import os
import socket
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

_PATIENCE_S = 5.0  # for descriptors, memory and a port, which may be wanting for a moment; for others to have read
_NAMES_S = 30.0  # for a name to be looked up, with three name servers of which none answers
_ANSWER_S = 30.0  # at least, of what listens at a port: rank 0 looks up one name after another
_HOLD_S = 1.0  # a connection to a store that says nothing yet, and may be of a meeting that has ended
_LOOK_S = 0.05
_NEEDED = 8  # descriptors, for a store that one serves
_VERDICT, _ALL = "tutti/meeting/verdict", "all"  # have met, or why not
_FAILURES = (OSError, RuntimeError, MemoryError, ValueError)


def meet(rank: int, size: int, timeout: timedelta, text: str, once: bool) -> dist.Store:
    """A store of the ranks' own, once all have come; a launcher's own is used as it is.

    ``text`` names the meeting, which there is ``once`` only, or again where it has failed. What is raised names who has
    not come or what is wanting here.
    """
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port:
        raise ValueError("no store was given, and MASTER_ADDR and MASTER_PORT are not set: set them, or pass store=")
    if not port.isdecimal():
        raise ValueError(f"MASTER_PORT is '{port}': give it the number of a free port of {host}, the same on all ranks")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        own, why = _of_launcher(rank, size, timeout)
    else:
        meeting = _Meeting(host, int(port), rank, size, timeout, f"{text}/{size}")
        own, why = meeting.serve(once) if rank == 0 else meeting.join(once)
    if own is None:  # here: no frame that holds a store, and no error with such a frame, is raised
        raise RuntimeError(f"rank {rank} has no store in common with the others: {why}")
    return own


def _of_launcher(rank: int, size: int, timeout: timedelta) -> tuple[dist.Store | None, str]:
    import torch.distributed as dist

    try:
        return next(dist.rendezvous(f"env://?rank={rank}&world_size={size}", timeout=timeout))[0], ""
    except _FAILURES as error:
        return None, _want(1) or str(error)


def _want(needed: int) -> str:
    """Says so if there are not as many descriptors: what PyTorch's stores raise then often does not."""
    taken = []
    try:
        for _ in range(needed):
            taken.append(os.dup(2))
    except OSError as error:
        left = "no descriptor is left here" if needed == 1 else f"fewer than {needed} descriptors are left here"
        return f"{left} ({error.strerror}): raise ulimit -n, or destroy communicators not in use"
    finally:
        for descriptor in taken:
            os.close(descriptor)
    return ""


class _Meeting:
    """One try of one rank."""

    def __init__(self, host: str, port: int, rank: int, size: int, timeout: timedelta, text: str) -> None:
        self.host, self.port, self.rank, self.timeout, self.text = host, port, rank, timeout, text
        self.slots = [f"tutti/meeting/{r}" for r in range(size)]
        self.until = time.monotonic() + timeout.total_seconds()
        self.mine = uuid.uuid4().hex
        self.wanting = False  # what rank 0 needs to serve a store
        self.answered_in = 0.0  # seconds, by what was asked last

    def left(self, at_most: float = math.inf) -> float:
        return max(min(self.until - time.monotonic(), at_most), _LOOK_S)

    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def open(self, port: int, serves: bool) -> dist.TCPStore:
        """At MASTER_PORT a server is shared with PyTorch's own of this process, if there is one.

        It has more than a moment: PyTorch looks up a name of each connection's address, at both ends, and a name server
        that does not answer is asked for many seconds. But no more than half of the time that is left: where PyTorch
        cannot connect it goes on for nearly as long again.
        """
        import torch.distributed as dist

        if serves:
            longest = math.inf
        else:
            self.ask(port)
            longest = max(_NAMES_S, 4 * self.answered_in)
        store = dist.TCPStore(
            self.host,
            port,
            None,
            serves,
            timedelta(seconds=min(longest, max(self.left() / 2, min(self.left(), 1.0)))),
            wait_for_workers=False,
            multi_tenant=serves and port == self.port,
        )
        store.set_timeout(self.timeout)
        return store

    def ask(self, port: int) -> None:
        """Whether somebody is there who closes a connection that is closed here, as a store does.

        PyTorch's client waits for an answer for ever, and where it cannot connect it says much to the error output.
        """
        start = time.monotonic()
        with self.connection(port) as asked:
            asked.settimeout(self.left(max(_ANSWER_S, self.left() / 2)))
            asked.shutdown(socket.SHUT_WR)
            try:
                asked.recv(1)
            except TimeoutError:
                raise RuntimeError(f"what listens at {self.host}:{port} does not answer") from None
        self.answered_in = time.monotonic() - start

    def connection(self, port: int) -> socket.socket:
        host: Any = self.host.encode()  # for text Python would load a codec, which takes a descriptor
        return socket.create_connection((host, port), self.left(_PATIENCE_S))

    def reach_itself(self) -> None:
        """Else PyTorch tries to connect to its own server for as long as it may."""
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as server:
            try:
                self.connection(server.getsockname()[1]).close()
            except OSError as error:
                if want := _want(1):
                    raise RuntimeError(want) from None
                raise RuntimeError(
                    f"MASTER_ADDR is {self.host}, which does not lead to this machine: {error}"
                ) from None

    def serve(self, once: bool) -> tuple[dist.Store | None, str]:
        while True:
            own, why = self.serve_once()
            if own is not None or once or self.wanting or self.is_over():
                return own, why

    def serve_once(self) -> tuple[dist.Store | None, str]:
        own, why = self.patiently(self.open_own)
        if own is None:
            return None, why
        meeting, why = self.patiently(lambda: self.open(self.port, True))
        if meeting is None:
            return None, why
        try:
            meeting.set(self.text, str(own.port))
            why = self.sign_in(own)
            meeting.delete_key(self.text)  # PyTorch's own store of this process may keep it else
            del meeting
            if why == _ALL:
                return own, ""
            self.outlast(own)
        except _FAILURES as error:
            why = _want(_NEEDED) or str(error)
        return None, why

    def open_own(self) -> dist.TCPStore:
        self.reach_itself()
        return self.open(0, True)

    def patiently(self, opened: Callable[[], dist.TCPStore]) -> tuple[dist.TCPStore | None, str]:
        end = time.monotonic() + self.left(_PATIENCE_S)
        while True:
            why = _want(_NEEDED)  # a server without one for its own client would try for as long as it may
            if not why:
                try:
                    return opened(), ""
                except _FAILURES as error:
                    why = _want(_NEEDED) or str(error)
            if time.monotonic() + _LOOK_S >= end:  # too late for another reason than that
                self.wanting = True
                return None, why
            time.sleep(_LOOK_S)

    def join(self, once: bool) -> tuple[dist.Store | None, str]:
        why = ""
        wanting_since: float | None = None  # a descriptor
        while not self.is_over():
            try:
                port, wanting_since = self.port_of_own(), None
                if port is not None:
                    own = self.open(port, False)
                    why = self.sign_in(own)
                    if why == _ALL:
                        return own, ""
                    del own
                    if once or self.is_over():
                        return None, why
            except _FAILURES as error:
                want = _want(1)
                why = want or str(error)
                wanting_since = (wanting_since or time.monotonic()) if want else None
                if wanting_since is not None and time.monotonic() - wanting_since > _PATIENCE_S:
                    break
            time.sleep(self.left(_LOOK_S))
        if wanting_since is not None:
            return None, why
        absent = self.without(f"rank 0 has not come to {self.host}:{self.port}")
        return None, f"{absent}; at last: {why}" if why else absent

    def without(self, who: str) -> str:
        return f"{who} within {self.timeout.total_seconds():.3g} s: not started, dead or without descriptors: ulimit -n"

    def port_of_own(self) -> int | None:
        """None: rank 0 has not said it yet, or is at another meeting."""
        meeting = self.open(self.port, False)
        end = time.monotonic() + self.left(max(_HOLD_S, self.answered_in))
        while not meeting.check([self.text]):
            if time.monotonic() >= end:
                return None
            time.sleep(_LOOK_S)
        return int(meeting.get(self.text))

    def sign_in(self, own: dist.Store) -> str:
        """What holds for all."""
        signed = own.compare_set(self.slots[self.rank], "", self.mine).decode() == self.mine
        if own.check(self.slots):
            own.compare_set(_VERDICT, "", _ALL)
        pause = 0.001
        while not own.check([_VERDICT]):
            if self.is_over():
                self.give_up(own)
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_S)
        verdict = own.get(_VERDICT).decode()
        if not signed and verdict == _ALL:
            return "the ranks have met before, and not with this one"
        own.set(f"{self.slots[self.rank]}/read", "")
        return verdict

    def give_up(self, own: dist.Store) -> None:
        absent = [r for r, slot in enumerate(self.slots) if not own.check([slot])]
        why = f"rank {self.rank} has given up: " + self.without(f"ranks {absent} have not come")
        if self.rank != 0 or _want(1):  # then rank 0 has not taken everybody's connection, or may not have
            why += ", or rank 0 has none for them"
        own.compare_set(_VERDICT, "", why if absent else _ALL)

    def outlast(self, own: dist.Store) -> None:
        """Rank 0 keeps the store until all that have come have read why they have not met, or some seconds."""
        end = time.monotonic() + min(_PATIENCE_S, self.timeout.total_seconds())
        reads = [f"{slot}/read" for slot in self.slots if own.check([slot])]
        while not own.check(reads) and time.monotonic() < end:
            time.sleep(0.001)
