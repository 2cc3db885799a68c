"""One rank whose program ends while a daemon thread of its own waits in a call, by the face that its argument names."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

FACE = sys.argv[1]


def with_numpy() -> Callable[[], Any]:
    """Messages of a communicator."""
    import numpy as np

    import tutti

    comm = tutti.Communicator(timeout=20)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def talk(ready: threading.Event) -> None:
        while True:
            comm.recv(np.empty(4), left, tag=7)
            ready.set()

    return lambda: begin(talk, lambda: comm.send(np.ones(4), right, tag=7), comm.barrier)


def with_torch() -> Callable[[], Any]:
    """Messages of a group of torch's."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("tutti", timeout=timedelta(seconds=20))
    right, left = (dist.get_rank() + 1) % dist.get_world_size(), (dist.get_rank() - 1) % dist.get_world_size()

    def talk(ready: threading.Event) -> None:
        while True:
            dist.recv(torch.empty(4), left, tag=7)
            ready.set()

    return lambda: begin(talk, lambda: dist.send(torch.ones(4), right, tag=7), dist.barrier)


def with_a_store() -> Callable[[], Any]:
    """A group that forms over a store in Python, and whose other rank does not come."""
    import tutti

    asked = threading.Event()

    class Store:
        def __init__(self) -> None:
            self.known: dict[str, bytes] = {}

        def set(self, key: str, value: bytes | str) -> None:
            self.known[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            return self.known[key]

        def add(self, key: str, amount: int) -> int:
            self.known[key] = str(int(self.known.get(key, b"0")) + amount).encode()
            return int(self.known[key])

        def check(self, keys: list[str]) -> bool:
            asked.set()
            return all(key in self.known for key in keys)

        def delete_key(self, key: str) -> bool:
            return self.known.pop(key, None) is not None

    def form(ready: threading.Event) -> None:
        threading.Thread(target=lambda: (asked.wait(), ready.set()), daemon=True).start()
        tutti.Communicator(Store(), 0, 2, timeout=20)

    return lambda: begin(form, lambda: None, lambda: None)


def begin(talk: Callable[[threading.Event], None], send: Callable[[], Any], meet: Callable[[], Any]) -> None:
    ready = threading.Event()
    threading.Thread(target=talk, args=(ready,), daemon=True).start()
    send()
    assert ready.wait(20)
    meet()


threading.excepthook = lambda *_: None  # of the thread, which may hear that a peer has left
{"numpy": with_numpy, "torch": with_torch, "store": with_a_store}[FACE]()()
os.write(1, b"ended\n")
