"""CUDA tensors through ``torch.distributed`` under storm_rank.py: what ranks draw of them beside what tensors of the
host can do. Ranks share GPUs where there are fewer.

A call of a GPU is over long before its kernel: what failed there is raised by the first wait after it has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked_calls import refused
from storm_faces import LIMIT_S, SEED, VICTIM, Face, same
from storm_models import Serving, near
from storm_torch import Functional

import tutti
import tutti.ops

READ_AT_ONCE = ("objects", "graph", "registered", "operators", "serving", "served_graph", "peers", "kernel")
KERNELS = Path(__file__).resolve().parents[2] / "cpp/cuda/native_kernels.cu"
REGISTERED = 1 << 20  # elements: enough that registering them gains something


class WhenOver:
    """PyTorch forgets the work of a functional call at the first wait: that one must come when the kernel has ended."""

    def __init__(self, work: Functional) -> None:
        self.work = work

    def wait(self) -> None:
        torch.cuda.synchronize()
        self.work.wait()


class Cuda(Serving):
    kinds = (*Face.kinds, "uneven", "coalesced", "batch", "objects", "functional")
    kinds += (
        "graph",
        "registered",
        "aside",
        "many",
        "types",
        "operators",
        "serving",
        "served_graph",
        "peers",
        "kernel",
    )
    if VICTIM >= 0:  # these end with what a rank has read at once, whether or not a peer has died
        kinds = tuple(k for k in kinds if k not in ("part", "smaller", *READ_AT_ONCE))

    def __init__(self) -> None:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.set_default_device("cuda")
        super().__init__()
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        self.for_children = torch.ones(3)
        module = tutti.compile_native("kernels", KERNELS)
        self.summing = tutti.Algorithm.create_from_native_capsule(module.create_all_reduce())
        self.arrays: tutti.Communicator | None = None

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

        super().finish(WhenOver(work) if isinstance(work, Functional) else work, when_over)

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

    def served_graph(self, count: int) -> None:
        """An engine's sum and norm, replayed with other data."""
        self.await_all()
        rows = max(1, min(count, 60_000) // 64)
        x, residual, weight = (
            self.full(rows * 64).view(rows, 64),
            self.full(64 * rows, 2.0).view(rows, 64),
            torch.ones(64),
        )
        tutti.ops.all_reduce_add_rms_norm(x, residual, weight, 1e-6, self.group)  # makes the communicator
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y, s = tutti.ops.all_reduce_add_rms_norm(x, residual, weight, 1e-6, self.group)
            total = tutti.ops.all_reduce_quantized(x, self.group, "int8")
        for k in range(4):
            x.fill_(self.rank + 1 + k)
            graph.replay()
            wanted = self.sum + k * self.size
            same(s, wanted + 2)
            near(y, torch.ones_like(y))
            near(total, torch.full_like(total, wanted), 0.1)

    def peers(self, count: int) -> None:
        """Each rank reads the others' memory by itself, then writes into the next one's."""
        self.await_all()
        x = self.full(count)
        tutti.register_tensors([x], self.group)
        theirs = tutti.peer_tensors(x, self.group)
        dist.barrier(group=self.group)
        total = torch.stack(theirs).sum(0)
        dist.barrier(group=self.group)  # all have read
        theirs[(self.rank + 1) % self.size].fill_(100.0 + self.rank)
        dist.barrier(group=self.group)
        same(total, self.sum)
        same(x, 100.0 + (self.rank - 1) % self.size)
        tutti.unregister_tensors([x], self.group)

    def kernel(self, count: int) -> None:
        """A kernel of the program's own on memory of `RawGpuBuffer`, by a group of arrays of its own."""
        self.await_all()
        if self.arrays is None:
            self.arrays = tutti.CommGroup(torch_group=self.of_torch, timeout=LIMIT_S).communicator
        stream = torch.cuda.current_stream().cuda_stream
        buffer, out = (tutti.RawGpuBuffer(4 * min(count, 8000)) for _ in range(2))
        mine, got = (torch.utils.dlpack.from_dlpack(each.to_dlpack("torch.float32")) for each in (buffer, out))
        del buffer, out  # an array of it keeps the memory
        mine.fill_(self.rank + 1.0)
        self.summing.execute(self.arrays, mine, got, op=tutti.ReduceOp.SUM, stream=stream)
        same(got, self.sum)

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
        if self.arrays is not None:
            self.arrays.close()
        print(f"without copies: {tutti.cuda_direct_calls()}")
        super().close()
