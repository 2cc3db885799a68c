"""One of the two processes that ``tutti doctor`` starts: ``python -m tutti.cli.doctor_rank FOLDER RANK``."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import tutti
from tutti._units import format_us

RANKS = 2
ELEMENTS = 1 << 18


def main(folder: str, rank: int) -> None:
    """Makes a group, reduces 1 MB, compares, and says what it took."""
    tutti.register()
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("tutti", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    tensor = torch.full((ELEMENTS,), float(rank + 1))
    dist.all_reduce(tensor)
    if not torch.equal(tensor, torch.full((ELEMENTS,), 3.0)):
        raise SystemExit("the sum of 1 MB over two ranks is wrong")
    calls = 50
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor)
    microseconds = (time.perf_counter() - start) / calls * 1e6
    if rank == 0:
        print(f"all_reduce of 1 MB: {format_us(microseconds)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
