"""One rank that ends its interpreter while calls are under way, in the way that its argument says."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

WAY = sys.argv[1]
COUNT = 1 << 20


def reductions() -> list[Any]:
    return [dist.all_reduce(torch.ones(COUNT), async_op=True) for _ in range(4)]


def main() -> None:
    dist.init_process_group("tutti", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    dist.barrier()
    kept: list[Any] = []
    if WAY == "calls":
        kept = reductions()
    elif WAY == "dropped":
        reductions()
    elif WAY == "callback":  # which needs the interpreter
        kept = [work.get_future().then(lambda future: future.value()[0].sum()) for work in reductions()]
    elif WAY == "sends":  # nobody receives
        kept = [dist.isend(torch.ones(COUNT), 1 - rank) for _ in range(4)]
    elif WAY == "receives":  # nobody sends
        kept = [dist.irecv(torch.ones(COUNT), 1 - rank) for _ in range(4)]
    elif WAY == "raises":
        kept = reductions()
        raise RuntimeError("the program's own")
    elif WAY == "one":  # and the other has its call refused or ended, however far that is
        if rank == 0:
            sys.exit(0)
        try:
            for _ in range(100):
                dist.all_reduce(torch.ones(COUNT))
        except RuntimeError as error:
            assert "rank 0" in str(error), error
        else:
            raise AssertionError("rank 0 has ended")
    elif WAY == "handler":  # of a signal ends rank 0 wherever that waits, as a C program would
        signal.signal(signal.SIGALRM, lambda *_: ctypes.CDLL(None).exit(0))
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.1))
        try:
            for step in range(1_000_000):
                dist.all_reduce(torch.ones(1 + COUNT * (step % 3 == 2)))
                dist.broadcast(torch.ones(COUNT), 0)
                dist.recv(torch.ones(COUNT), 0) if rank else dist.send(torch.ones(COUNT), 1)
        except RuntimeError as error:
            assert "rank 0" in str(error), error
            # Between hosts, what is being sent to this rank may keep the words from it.
            assert os.environ["TUTTI_HOST_ID"] != "a" or "has left the group" in str(error), error
        else:
            raise AssertionError("rank 0 has ended")
    elif WAY == "group":  # destroyed, with works that outlive it
        kept = reductions()
        dist.destroy_process_group()
    sys.stdout.write("ended\n")
    sys.stdout.flush()
    globals()["KEPT"] = kept  # until the modules go
    sys.exit(0)


main()
