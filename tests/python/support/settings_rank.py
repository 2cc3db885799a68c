"""One rank of the tests of settings on arrays of GPUs: on real ones, or where the plug-in's device memory is the host's
(host_plugin.cc). Its arguments name what it does.

Prints what is raised after "refused: "; else its results are right.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from device_rank import ByDlpack
from group_tasks import run_apart

import tutti
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

ON_GPUS = os.environ.get("SETTINGS_ON") == "cuda"
COUNTS = (1, 1000, 300_000)


def array(value: float, count: int) -> Any:
    if not ON_GPUS:
        return ByDlpack(np.full(count, value, np.float32))
    import torch

    return torch.full((count,), value, device="cuda")


def host(of: Any) -> Any:
    return of.cpu().numpy() if ON_GPUS else of.array


def calls(comm: tutti.Communicator) -> None:
    """Of two ranks, each size several times: from the second on compiled plans may run, on the ranks that have some."""
    n, me = comm.size, comm.rank
    for count in COUNTS:
        for _ in range(3):
            assert (host(comm.all_reduce(array(me + 1.0, count))) == n * (n + 1) / 2).all()
            gathered = host(comm.all_gather(array(me, count), array(-1, count * n)))
            assert (gathered == np.repeat(np.arange(n), count)).all()
            assert (host(comm.broadcast(array(me, count), root=n - 1)) == n - 1).all()
        mine, got = array(me, count), array(-1, count)
        for sends in (me == 0, me != 0):
            if sends:
                comm.send(mine, 1 - me)
            else:
                comm.recv(got, 1 - me)
        assert (host(got) == 1 - me).all()


def given(comm: tutti.Communicator) -> None:
    """An algorithm, and a function that chooses it, given to one rank alone before its first call on a GPU."""
    of = BUILTINS["allreduce", "ring"]
    builder = tutti.AlgorithmCollectionBuilder(comm)
    ring = tutti.compile(of, AlgoSpec(name="my_ring", collective=AllReduce(comm.size, 1)), comm.rank)
    if comm.rank in [int(rank) for rank in os.environ["GIVEN_ON"].split(",")]:
        builder.add_algorithm_builder(ring)
    if str(comm.rank) == os.environ.get("CHOOSES_ON"):
        builder.set_algorithm_selector(lambda known, request: known["allreduce"]["my_ring"])
    builder.build()
    calls(comm)


def prepare(rank: int) -> None:
    if ON_GPUS:
        import torch

        torch.cuda.set_device(rank % torch.cuda.device_count())


if __name__ == "__main__":
    try:
        run_apart(globals(), timeout=60, prepare=prepare)
    except RuntimeError as error:
        print("refused:", error)
        print("done")
