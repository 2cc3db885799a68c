"""Stores of the user's own that break: a clear error on every rank, at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import tutti

pytestmark = pytest.mark.tutti_only


class DictStore:
    """A right one, of the threads of this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> Any:
        with self.changed:
            return self.values[key]

    def wait(self, keys: tuple[str, ...], limit: timedelta) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: all(key in self.values for key in keys), limit.total_seconds()):
                raise LookupError(f"nobody has set {keys}")

    def add(self, key: str, amount: int) -> Any:
        with self.changed:
            total = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(total).encode()
            self.changed.notify_all()
            return total


class Wrong(DictStore):
    """One that breaks on rank 1; its rank 0 uses the right one below it."""

    def __init__(self, below: DictStore) -> None:
        self.below = below

    def set(self, key: str, value: bytes) -> None:
        self.below.set(key, value)

    def get(self, key: str) -> Any:
        return self.below.get(key)

    def wait(self, keys: tuple[str, ...], limit: timedelta) -> None:
        self.below.wait(keys, limit)

    def add(self, key: str, amount: int) -> Any:
        return self.below.add(key, amount)


class GivesStr(Wrong):
    def get(self, key: str) -> Any:
        return self.below.get(key).decode(errors="replace")


class GivesNone(Wrong):
    def get(self, key: str) -> Any:
        return None


class GivesMemory(Wrong):
    """Another type that holds bytes will do."""

    def get(self, key: str) -> Any:
        return memoryview(bytearray(self.below.get(key)))


class RaisesInWait(Wrong):
    def wait(self, keys: tuple[str, ...], limit: timedelta) -> None:
        raise ConnectionError("the store is not there")


class RaisesInSet(Wrong):
    def set(self, key: str, value: bytes) -> None:
        raise ConnectionError("the store is not there")


class RaisesInGet(Wrong):
    def get(self, key: str) -> Any:
        raise ConnectionError("the store is not there")


class GivesOwn(Wrong):
    """What this rank has put there itself, for every key."""

    def set(self, key: str, value: bytes) -> None:
        self.own = value
        super().set(key, value)

    def get(self, key: str) -> Any:
        return self.own


class GivesAnother(Wrong):
    def get(self, key: str) -> Any:
        return self.below.get(key.removesuffix("1:1") + "1:0" if key.endswith("1:1") else key)


class GivesNoise(Wrong):
    def get(self, key: str) -> Any:
        return bytes(range(256)) if key.endswith("1:0") else super().get(key)


def form(store_of: Callable[[int], Any]) -> list[BaseException | None]:
    """What forming a group and one call raise on two ranks, which are threads."""
    name = uuid.uuid4().hex
    raised: list[BaseException | None] = [None, None]

    def rank_main(rank: int) -> None:
        try:
            comm = tutti.Communicator(store_of(rank), rank, 2, name=name, timeout=600)  # the watchdog comes first
            assert (comm.all_reduce(np.ones(3)) == 2).all()
            comm.close()
        except BaseException as error:
            raised[rank] = error

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.parametrize(
    ("store", "error", "text"),
    [
        (GivesStr, ValueError, "gives str, not bytes"),
        (GivesNone, ValueError, "gives NoneType, not bytes"),
        (RaisesInWait, ConnectionError, "the store is not there"),
        (RaisesInGet, ConnectionError, "the store is not there"),
        (GivesOwn, RuntimeError, "the store gives what rank 1 put there for what rank 0 did"),
        (GivesAnother, RuntimeError, "the store does not give back what rank 1 put there"),
        (GivesNoise, RuntimeError, "rank 0 speaks another version of Tutti than rank 1"),
    ],
)
def test_one_that_breaks_is_an_error_at_once(store: type[Wrong], error: type[Exception], text: str) -> None:
    """On its rank by its own words, and on the other, which is told."""
    below = DictStore()
    raised = form(lambda rank: store(below) if rank == 1 else below)
    assert isinstance(raised[1], error), raised
    assert text in str(raised[1])
    assert raised[0] is not None
    assert "rank 1" in str(raised[0])


def test_one_that_cannot_be_written_raises_its_own_error() -> None:
    """Nothing can be told to the other rank, which is not here."""
    with pytest.raises(ConnectionError, match="the store is not there"):
        tutti.Communicator(RaisesInSet(DictStore()), 1, 2, name=uuid.uuid4().hex, timeout=600)


@pytest.mark.parametrize("store", [Wrong, GivesMemory])
def test_a_right_one_serves(store: type[Wrong]) -> None:
    below = DictStore()
    assert form(lambda rank: store(below)) == [None, None]


ALONE = """
import datetime, sys
import torch.distributed as dist
import tutti

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
if sys.argv[1] == "torch":
    dist.init_process_group("tutti", store=store, rank=0, world_size=2, timeout=datetime.timedelta(seconds=2))
    dist.barrier()
else:
    tutti.Communicator(store, 0, 2, name="alone", timeout=2)
"""


@pytest.mark.parametrize("face", ["torch", "arrays"])
def test_a_wait_for_a_late_rank_is_silent(face: str) -> None:
    """PyTorch's client of a store warns of each wait that times out; Tutti looks twice a second for who is missing."""
    ended = subprocess.run([sys.executable, "-c", ALONE, face], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "rank 1" in ended.stderr.splitlines()[-1], ended.stderr
    assert "waitForInput" not in ended.stderr, ended.stderr
