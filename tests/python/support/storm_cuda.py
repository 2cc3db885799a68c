"""CUDA tensors through ``torch.distributed`` under storm_rank.py: what ranks draw of them beside what tensors of the
host can do. Ranks share GPUs where there are fewer.

A call of a GPU is over long before its kernel: what failed there is raised by the first wait after it has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from forked_calls import refused
from storm_faces import SEED, VICTIM, Face, same
from storm_torch import Torch

import tutti

REGISTERED = 1 << 20  # elements: enough that registering them gains something


class Cuda(Torch):
    kinds = (*Face.kinds, "uneven", "coalesced", "batch", "objects", "functional")
    kinds += ("graph", "registered", "aside", "many", "types")
    if VICTIM >= 0:  # these end with what a rank has read at once, whether or not a peer has died
        kinds = tuple(k for k in kinds if k not in ("part", "smaller", "objects", "graph", "registered"))

    def __init__(self) -> None:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.set_default_device("cuda")
        super().__init__()
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        self.for_children = torch.ones(3)

    def empty(self, count: int, dtype: Any = None) -> Any:
        return torch.empty(count)

    def full(self, count: int, *values: float | None, dtype: Any = None) -> Any:
        return torch.tensor(values or (self.rank + 1.0,), dtype=torch.float32).repeat_interleave(count)

    def give(self, x: torch.Tensor) -> torch.Tensor:
        self.given.append((x, x.clone()))
        return x

    def unchanged(self) -> None:
        assert all(torch.equal(x, copy) for x, copy in self.given), f"seed {SEED}: what calls read has changed"

    def hold(self) -> None:
        """Memory of the host's is not what is asked for here."""

    def finish(self, work: Any, check: Callable[[], None]) -> None:
        def when_over() -> None:
            torch.cuda.synchronize()
            work.wait()
            check()

        super().finish(work, when_over)

    def graph(self, count: int) -> None:
        """Replayed with other data each time, beside eager calls."""
        self.await_all()
        x, out = self.full(count), torch.empty(self.size * count)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(x, group=self.group)
            dist.all_gather_into_tensor(out, x + self.rank, group=self.group)
        for k in range(4):
            x.fill_(self.rank + 1 + k)
            graph.replay()
            total = self.sum + k * self.size
            same(x, total)
            same(out, *(total + r for r in range(self.size)))
            self.all_reduce(count)
        self.await_all()

    def registered(self, count: int) -> None:
        """In memory that peers use where it lies, beside what is registered and given up meanwhile."""
        with torch.cuda.use_mem_pool(tutti.mem_pool()):
            x = self.full(REGISTERED + count)
        other = self.full(2 * REGISTERED, 0)
        tutti.register_tensors([x, other])
        assert tutti.is_mapped(x) and tutti.is_mapped(other)
        self.begin("all_reduce", x, check=lambda: same(x, self.sum))
        self.begin("broadcast", other, group_src=0)
        self.await_all()
        tutti.unregister_tensors([other])
        part = torch.empty(REGISTERED)
        whole = self.full(self.size * REGISTERED)
        tutti.register_tensors([whole])
        self.begin("reduce_scatter_tensor", part, whole, check=lambda: same(part, self.sum))
        self.await_all()
        tutti.unregister_tensors([x, whole])

    def aside(self, count: int) -> None:
        """On streams of the caller's."""
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.all_reduce(count)
                self.messages(count)

    def many(self, count: int) -> None:
        """More messages at once than a launch holds."""
        others = [r for r in range(self.size) if r != self.rank]
        count = min(count, 5000)
        out = [(r, torch.empty(count)) for r in others for _ in range(90)]
        todo = [dist.P2POp(dist.irecv, to, group=self.group, group_peer=r) for r, to in out]
        sent = self.full(count)
        todo += [dist.P2POp(dist.isend, sent, group=self.group, group_peer=r) for r, _ in out]
        works = dist.batch_isend_irecv(todo)
        for work in works:
            self.finish(work, lambda: [same(to, r + 1) for r, to in out] and None)

    def types(self, count: int) -> None:
        """Small whole numbers, which every type holds; and tensors with gaps."""
        dtype = self.shared.choice(
            (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8)
        )
        op, wanted = self.shared.choice(
            ((dist.ReduceOp.SUM, self.sum), (dist.ReduceOp.MAX, self.size), (dist.ReduceOp.MIN, 1))
        )
        x = torch.full((count, 2), self.rank + 1, dtype=dtype)
        column = x[:, 0] if self.shared.random() < 0.3 else x
        self.begin("all_reduce", column, op, check=lambda: same(column.double(), wanted))

    def in_child(self, what: int) -> None:
        dist.distributed_c10d._world.pg_coalesce_state.clear()
        tensor = self.for_children  # a child makes none on a GPU
        if what == 0:
            for call in (lambda: dist.all_reduce(tensor), lambda: dist.isend(tensor, (self.rank + 1) % self.size)):
                try:
                    refused(call)
                except AssertionError as error:  # by PyTorch, before it asks a backend
                    assert "CUDA error: initialization error" in str(error), error
        elif what == 1:
            tutti.abort()
            dist.destroy_process_group()

    def check_record(self, record: dict[str, Any], metrics: Any) -> None:
        """Each communicator of a group, those of its pairs too, numbers its records itself."""
        super().check_record({"entries": []}, metrics)

    def metrics(self) -> Any:
        """None: what is mapped is counted otherwise here."""
        metrics = tutti.get_metrics()
        assert metrics["rescued_waits"] == 0, metrics["rescued_waits"]
        print(sorted({row["algorithm"] for row in metrics["rows"]}))

    def close(self) -> None:
        torch.cuda.synchronize()
        print(f"without copies: {tutti.cuda_direct_calls()}")
        super().close()
