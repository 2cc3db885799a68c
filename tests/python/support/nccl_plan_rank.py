"""One rank of an example for GPUs without any: RANK SIZE FOLDER. NCCL is a stand-in, device memory the host's.

What the example asks of torch.distributed's backend "nccl" is asked of the library under NCCL's name directly, which is
preloaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import tutti

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TYPES = {torch.float32: 7, torch.bfloat16: 9}  # ncclFloat32, ncclBfloat16


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_char * 128)]


class Group:
    """As much of the backend as the example needs."""

    def __init__(self) -> None:
        self.nccl = ctypes.CDLL(None)
        self.comm = ctypes.c_void_p()

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self.nccl, name)(*arguments)
        assert result == 0, (name, result)

    def init(self, backend: str, device_id: torch.device) -> None:
        assert backend == "nccl"
        assert device_id.type == "cuda"
        name, identity = FOLDER / "id", UniqueId()
        if RANK == 0:
            self.call("ncclGetUniqueId", ctypes.byref(identity))
            name.with_suffix(".new").write_bytes(bytes(identity))
            name.with_suffix(".new").rename(name)
        while not name.exists():
            time.sleep(0.01)
        identity = UniqueId.from_buffer_copy(name.read_bytes())
        self.call("ncclCommInitRank", ctypes.byref(self.comm), SIZE, identity, RANK)

    def all_reduce(self, x: torch.Tensor, op: Any) -> None:
        assert op == dist.ReduceOp.SUM
        at = ctypes.c_void_p(x.data_ptr())
        self.call("ncclAllReduce", at, at, ctypes.c_size_t(x.numel()), TYPES[x.dtype], 0, self.comm, None)

    def barrier(self) -> None:
        one = torch.ones(1)
        self.all_reduce(one, dist.ReduceOp.SUM)
        assert one.item() == SIZE

    def destroy(self) -> None:
        self.call("ncclCommDestroy", self.comm)


def main() -> None:
    """The example as it is, its imports included."""
    os.environ.update(RANK=str(RANK), WORLD_SIZE=str(SIZE), LOCAL_RANK=str(RANK))
    group = Group()
    changes: dict[str, Any] = {
        "init_process_group": group.init,
        "all_reduce": group.all_reduce,
        "barrier": group.barrier,
        "destroy_process_group": group.destroy,
    }
    for name, function in changes.items():
        setattr(dist, name, function)
    torch.cuda.set_device = lambda device: None  # type: ignore[assignment]
    tutti.RawGpuBuffer = tutti.RawBuffer  # type: ignore[assignment,misc]  # torch of the host takes no other
    sys.path.insert(0, str(EXAMPLES))
    import dsl_with_nccl_api

    if os.environ.get("NO_PLAN_ON") == str(RANK):
        dsl_with_nccl_api.give_plan = lambda rank, ranks: None
    dsl_with_nccl_api.main()


if __name__ == "__main__":
    main()
