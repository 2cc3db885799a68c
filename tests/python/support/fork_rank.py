"""One rank that forks while it is in a group: its children may end, destroy and call, and it goes on.

Its arguments are the face, torch or numpy, and the descriptor by which rank 0 tells rank 1 to go on. Rank 0 begins
calls that cannot complete, forks in every way, and forks once more when rank 1 has come and nothing is under way.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from forked_calls import PARENTS, refused

import tutti

if sys.argv[1] == "torch":
    import torch
    import torch.distributed as dist

LONG = 1_000_000


class TorchRank:
    """A rank of torch.distributed, with its asynchronous calls."""

    def __init__(self) -> None:
        options = tutti.Options(overlap_futures=True)  # else to ask for a future waits for its call
        dist.init_process_group("tutti", timeout=timedelta(seconds=240), pg_options=options)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.works: list[Any] = []

    def begin(self) -> None:
        """What cannot complete before the others come: a collective, a receive, a long send."""
        peer = (self.rank + 1) % self.size
        self.sum, self.got = torch.full((LONG,), 1.0), torch.zeros(5)
        self.works.append(dist.all_reduce(self.sum, async_op=True))
        self.future = self.works[0].get_future()
        self.works.append(dist.irecv(self.got, peer))
        self.works.append(dist.isend(torch.full((LONG,), 2.0), peer))

    def join(self) -> None:
        """The part of rank 1 in them."""
        x, got = torch.full((LONG,), 1.0), torch.zeros(LONG)
        dist.all_reduce(x)
        dist.send(torch.full((5,), 3.0), 0)
        dist.recv(got, 0)
        assert got.eq(2.0).all() and x.eq(2.0).all()

    def end(self) -> None:
        for work in self.works:
            work.wait()
        if self.works:
            assert self.sum.eq(float(self.size)).all() and self.got.eq(3.0).all()
        self.works.clear()

    def go_on(self) -> None:
        x = torch.full((3,), 1.0)
        dist.all_reduce(x)
        assert x.eq(float(self.size)).all()

    def call_all(self) -> None:
        x, peer = torch.zeros(4), (self.rank + 1) % self.size
        refused(lambda: dist.all_reduce(x))
        refused(lambda: dist.all_reduce(x, async_op=True))
        refused(lambda: dist.broadcast(torch.zeros(LONG), 0))
        refused(lambda: dist.all_gather_object([None] * self.size, 1))
        refused(lambda: dist.barrier())
        refused(lambda: dist.send(x, peer))
        refused(lambda: dist.recv(x, peer))
        refused(lambda: dist.irecv(x, peer))
        refused(lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, x, peer)]))
        refused(lambda: dist.all_reduce(x))  # also after a batch, which must have ended
        store = dist.distributed_c10d._world.pg_map[dist.group.WORLD][1]
        refused(lambda: tutti.get_communicator().split_ranks(store, [0, 1]))
        refused(lambda: tutti.monitored_barrier(timeout=1))
        refused(lambda: tutti.get_metrics(), ValueError)
        refused(lambda: tutti.flight_record(), ValueError)
        refused(lambda: tutti.get_communicator().explain("all_reduce", 10), ValueError)
        # What only reads or sets something of the object answers.
        tutti.set_timeout(200)
        assert tutti.sequence_number() > 0 and self.rank in tutti.get_communicator().host_ranks
        kind, text = tutti.get_error()
        assert kind == "comm_error" and text is not None and PARENTS in text, (kind, text)
        for work in self.works:
            assert not work.is_completed()
            refused(work.wait)
        assert not self.works or not self.future.done()
        assert self.rank == dist.get_rank() and self.size == dist.get_world_size()

    def drop(self) -> None:
        self.works.clear()
        dist.destroy_process_group()

    def abort(self) -> None:
        tutti.abort(reason="the child's")

    def close(self) -> None:
        dist.destroy_process_group()


class NumpyRank:
    """A rank of tutti.Communicator, whose calls are made by threads."""

    def __init__(self) -> None:
        self.comm = tutti.Communicator(timeout=240)
        self.rank, self.size = self.comm.rank, self.comm.size
        self.store = self.comm.store
        self.threads: list[threading.Thread] = []
        self.failed: list[BaseException] = []

    def start(self, call: Callable[[], Any]) -> None:
        def body() -> None:
            try:
                call()
            except BaseException as error:
                self.failed.append(error)

        self.threads.append(threading.Thread(target=body, daemon=True))
        self.threads[-1].start()

    def begin(self) -> None:
        peer = (self.rank + 1) % self.size
        self.sum, self.got = np.ones(LONG), np.zeros(5)
        self.start(lambda: self.comm.all_reduce(self.sum))
        self.start(lambda: self.comm.recv(self.got, peer))

    def join(self) -> None:
        self.comm.all_reduce(np.ones(LONG))
        self.comm.send(np.full(5, 3.0), 0)

    def end(self) -> None:
        for thread in self.threads:
            thread.join()
        assert not self.failed, self.failed
        if self.threads:
            assert (self.sum == self.size).all() and (self.got == 3.0).all()
        self.threads.clear()

    def go_on(self) -> None:
        assert (self.comm.all_reduce(np.ones(3)) == self.size).all()

    def call_all(self) -> None:
        x, peer = np.zeros(4), (self.rank + 1) % self.size
        refused(lambda: self.comm.all_reduce(x))
        refused(lambda: self.comm.barrier())
        refused(lambda: self.comm.send(x, peer))
        refused(lambda: self.comm.recv(x))
        refused(lambda: self.comm.metrics())
        try:
            tutti.Communicator(self.store, self.rank, self.size, name="child's", timeout=5)
        except NotImplementedError as error:
            assert "disabled in this child" in str(error), error
        else:
            raise AssertionError("a group was made in a forked child")

    def drop(self) -> None:
        self.comm.close()
        del self.comm, self.store

    def abort(self) -> None:
        self.comm.abort("the child's")

    def close(self) -> None:
        self.comm.close()


def in_child(name: str, body: Callable[[], None], at_once: bool = False) -> None:
    """A child that runs `body` and leaves as a script does; it must say nothing and end well."""
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            signal.alarm(120)
            os.dup2(said.fileno(), 2)
            try:
                body()
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(3)
            if not at_once:
                raise SystemExit(0)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        text = said.read().decode()
    assert status == 0 and not text, f"{name}: the child ended with {status} and said: {text}"


def nothing() -> None:
    pass


class Items:
    """A data set of numbers."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index


def fork_in_every_way(rank: Any) -> None:
    in_child("exit", nothing)
    in_child("_exit", nothing, at_once=True)
    in_child("calls", rank.call_all)
    in_child("destroy", rank.drop)
    in_child("abort", rank.abort)
    in_child("grandchild", lambda: in_child("grandchild's calls", rank.call_all, at_once=True))
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=rank.call_all)
    worker.start()
    worker.join(120)
    assert worker.exitcode == 0, worker.exitcode
    if isinstance(rank, TorchRank):
        loader = torch.utils.data.DataLoader(Items(), num_workers=2, multiprocessing_context="fork")  # type: ignore[arg-type]
        assert sorted(int(item) for item in loader) == list(range(6))
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    subprocess.run(["true"], check=True, preexec_fn=nothing)  # forks, where the other does not


def fork_in_a_handler(told: int) -> None:
    """A handler that forks while a monitored barrier waits: the child's is refused, and the parent's goes on."""
    parent, began = os.getpid(), threading.Event()

    def fork(*_: Any) -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(120)
            return
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child ended with {status}"
        os.write(told, b"!")

    def send_when_it_sleeps() -> None:
        began.wait()
        while Path(f"/proc/self/task/{parent}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "S":
            began.wait(0.001)
        os.kill(parent, signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, fork)
    sender = threading.Thread(target=send_when_it_sleeps)
    sender.start()
    try:
        began.set()
        tutti.monitored_barrier(timeout=200)
    except (ValueError, RuntimeError) as error:
        if os.getpid() == parent:
            raise
        os._exit(0 if PARENTS in str(error) else 3)
    if os.getpid() != parent:
        os._exit(4)
    sender.join()


def main(face: str, told: int) -> None:
    rank: Any = TorchRank() if face == "torch" else NumpyRank()
    rank.go_on()
    if rank.rank == 0:
        rank.begin()
        fork_in_every_way(rank)
        os.write(told, b"!")
        rank.end()
        in_child("idle: exit", nothing)
        in_child("idle: destroy", rank.drop)
    else:
        assert os.read(told, 1) == b"!"
        rank.join()
    rank.go_on()
    if face == "torch":
        if rank.rank == 0:
            fork_in_a_handler(told)
        else:
            assert os.read(told, 1) == b"!"
            tutti.monitored_barrier(timeout=200)
        rank.go_on()
    rank.close()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
