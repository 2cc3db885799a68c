"""One rank of a program of NCCL's without a GPU: RANK SIZE FOLDER. NCCL is a stand-in, which computes nothing; device
memory is the host's. Prints who ran each call, as the data says, once they are right.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

import numpy as np

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
FLOAT32, SUM = 7, 0


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_char * 128)]


def main() -> None:
    """Calls of several sizes, the last beyond what Tutti's kernels take."""
    nccl = ctypes.CDLL(None)
    name, identity, comm = FOLDER / "id", UniqueId(), ctypes.c_void_p()
    if RANK == 0:
        assert nccl.ncclGetUniqueId(ctypes.byref(identity)) == 0
        name.with_suffix(".new").write_bytes(bytes(identity))
        name.with_suffix(".new").rename(name)
    while not name.exists():
        time.sleep(0.01)
    identity = UniqueId.from_buffer_copy(name.read_bytes())
    assert nccl.ncclCommInitRank(ctypes.byref(comm), SIZE, identity, RANK) == 0
    state = ctypes.c_int(7)
    while state.value == 7:  # ncclInProgress: of a communicator that does not block
        assert nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)) == 0
    assert state.value == 0
    who = []
    for count in (1, 1000, 300_000, (16 << 20) // 4 + 1):
        data = np.full(count, RANK + 1, np.float32)
        at = ctypes.c_void_p(data.ctypes.data)
        assert nccl.ncclAllReduce(at, at, ctypes.c_size_t(count), FLOAT32, SUM, comm, None) == 0
        by_tutti = bool((data == SIZE * (SIZE + 1) / 2).all())
        assert by_tutti or bool((data == RANK + 1).all())
        who.append("Tutti" if by_tutti else "NCCL")
    # NCCL's calls would have kept the ranks together: rank 0 serves what the others still read.
    (FOLDER / f"called {RANK}").touch()
    while not all((FOLDER / f"called {rank}").exists() for rank in range(SIZE)):
        time.sleep(0.01)
    assert nccl.ncclCommDestroy(comm) == 0
    print("ran by", *who, flush=True)


if __name__ == "__main__":
    main()
