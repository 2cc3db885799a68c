"""An algorithm of the program's own takes the calls of a TorchComms communicator.

Run: torchrun --nproc-per-node=2 examples/torchcomms_algorithm.py

Needs torchcomms, and Tutti built with its headers (docs/torchcomms.md).
"""

from __future__ import annotations

import os

import torch
import torchcomms

import tutti
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce


def main() -> None:
    """Compiles a program, gives it to communicators that are made afterwards, and calls it."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    spec = AlgoSpec(name="my_ring", collective=AllReduce(size, 1), max_message_size=1 << 20)
    tutti.AlgorithmCollectionBuilder().add_algorithm_builder(tutti.compile(ring_all_reduce, spec, rank))

    comm = torchcomms.new_comm("tutti", torch.device("cpu"), name="mine")
    tensor = torch.full((1000,), float(rank))
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, async_op=False)
    assert float(tensor[0]) == sum(range(size))
    if rank == 0:
        print(f"my_ring has added the tensors of {size} ranks")
    comm.finalize()


if __name__ == "__main__":
    main()
