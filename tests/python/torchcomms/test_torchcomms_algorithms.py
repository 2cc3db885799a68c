"""A program's own algorithms under TorchComms, on CPU and CUDA tensors: plans of the language, kernels, plug-ins.

They are given to the process's builder. Metrics say what has taken each call: none is left to Tutti unseen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

import pytest
import torch
from rank_pool import RankPool, unique_name
from rank_worker import Context
from test_torchcomms_life import handles_of
from torchcomms_interface import CPU, GPUS, NEEDS_TORCHCOMMS, call_on_gpus, device_of, interface, new_comm, same

import tutti
from tutti.dist import torchcomms as face
from tutti.language import AlgoSpec, AllGather, AllReduce
from tutti.language.builtins import BUILTINS

World = Callable[..., RankPool]
KERNELS = Path(__file__).resolve().parents[2] / "cpp/cuda/native_kernels.cu"
PLUGIN = Path(__file__).resolve().parents[1] / "support" / "plugins" / "algorithms.cc"
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]


def device_here(ctx: Context) -> torch.device:
    return device_of(ctx) if os.environ.get("TUTTI_TEST_DEVICE") == "cuda" else CPU


@contextlib.contextmanager
def given(*algorithms: Any) -> Iterator[Any]:
    """The process's builder, which holds these meanwhile."""
    builder = tutti.AlgorithmCollectionBuilder()
    try:
        for algorithm in algorithms:
            builder.add_algorithm_builder(algorithm)
        yield builder
    finally:
        tutti.AlgorithmCollectionBuilder.reset()


@contextlib.contextmanager
def groups_seen() -> Iterator[list[Any]]:
    """The groups behind communicators that are made meanwhile."""
    seen: list[Any] = []
    make_group = face.make_group

    def remember(*arguments: Any) -> Any:
        made = make_group(*arguments)
        seen.append(made[0])
        return made

    face.make_group = remember
    try:
        yield seen
    finally:
        face.make_group = make_group


def ran(group: Any, device: torch.device) -> set[str]:
    """The algorithms of its calls since this was asked last; a plan's name whether it was compiled or not."""
    rows = [row for row in group.metrics()["rows"] if row["device"] == device.type and row["calls"] > 0]
    group.reset_metrics()
    return {row["algorithm"].removesuffix("+compiled") for row in rows}


def taken_by(algorithm: str, group: Any, device: torch.device) -> None:
    names = ran(group, device)
    assert names == {algorithm}, f"{names} took calls that {algorithm} is for"


def plan(ctx: Context, program: str, **limits: int) -> tutti.Algorithm:
    spec = AlgoSpec(name=f"my_{program}", collective=AllReduce(ctx.size, 1), **limits)
    return tutti.compile(BUILTINS["allreduce", program], spec, ctx.rank)


def native(file: Path, *names: str) -> list[tutti.Algorithm]:
    module = tutti.compile_native(file.stem, file)
    made = [getattr(module, f"create_{name}")() for name in names]
    return [tutti.Algorithm.create_from_native_capsule(one) for one in made]


def add(ctx: Context, comm: Any, count: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
    """Sums, or averages, one synchronous and one not, of tensors whose elements are not all alike."""
    op, base = interface().ReduceOp, (torch.arange(count) % 5 + 1).to(dtype)
    tensor = (base * (ctx.rank + 1)).to(device)
    total = base * sum(range(1, ctx.size + 1))
    comm.all_reduce(tensor, op.SUM, False)
    same(tensor.cpu(), total)
    average = dtype.is_floating_point
    comm.all_reduce(tensor.copy_(base * (ctx.rank + 1)), op.AVG if average else op.SUM, True).wait()
    same(tensor.cpu(), total / ctx.size if average else total)


def replay(ctx: Context, comm: Any, device: torch.device) -> None:
    """A captured sum, replayed with other data."""
    tensor = torch.zeros(1000, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(tensor, interface().ReduceOp.SUM, False)
    for value in (1.0, 5.0):
        tensor.fill_(value + ctx.rank)
        graph.replay()
        same(tensor.cpu(), torch.tensor(value * ctx.size + sum(range(ctx.size))))
    torch.cuda.synchronize()
    del graph


def plans(ctx: Context, name: str) -> None:
    """Each takes the sizes that it is for; parts and reconfigured communicators have them, too."""
    device, limit = device_here(ctx), 64 << 10
    spec = AlgoSpec(name="my_gather", collective=AllGather(ctx.size, 1))
    gather = tutti.compile(BUILTINS["allgather", "ring"], spec, ctx.rank)
    two = (plan(ctx, "two_shot", max_message_size=limit), plan(ctx, "ring", min_message_size=limit + 1))
    with groups_seen() as groups, given(*two, gather):
        comm = new_comm(ctx, name, device=device)
        part = comm.split(list(range(ctx.size)), "part")
        again = new_comm(ctx, f"{name}.again", device=device, enable_reconfigure=True)
        again.reconfigure(1, handles_of(ctx, again, name, range(ctx.size))).wait()
    assert len(groups) == 3
    for one, group in zip((comm, part, again), groups, strict=True):
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            for count in (1, 1000, 100_003):
                add(ctx, one, count, device, dtype)
                small = count * dtype.itemsize <= limit
                taken_by("plan:my_two_shot" if small else "plan:my_ring", group, device)
        whole = torch.zeros(ctx.size * 1000, device=device)
        one.all_gather_single(whole, torch.full((1000,), float(ctx.rank), device=device), False)
        same(whole.cpu(), torch.arange(ctx.size).repeat_interleave(1000))
        taken_by("plan:my_gather", group, device)
        if device.type == "cuda":
            replay(ctx, one, device)
            taken_by("plan:my_two_shot", group, device)
    for one in (part, comm, again):
        one.finalize()


def selectors(ctx: Context, name: str) -> None:
    """A function of the program's chooses; one that raises fails the call, and what it says is raised."""
    device, op = device_here(ctx), interface().ReduceOp
    asked: list[Any] = []

    def select(algorithms: Any, request: Any) -> Any:
        asked.append(request.message_size)
        if request.message_size == 52:
            raise KeyError("nothing for thirteen")
        return algorithms["allreduce"]["my_two_shot" if request.message_size > 4000 else "my_ring"]

    with groups_seen() as groups, given(plan(ctx, "ring"), plan(ctx, "two_shot")) as builder:
        builder.set_algorithm_selector(select)
        comm = new_comm(ctx, name, device=device)
        for count, program in ((1000, "ring"), (1001, "two_shot"), (3, "ring")):
            add(ctx, comm, count, device)
            taken_by(f"plan:my_{program}", groups[0], device)
        assert {4000, 4004, 12} <= set(asked)
        tensor = torch.ones(13, device=device)
        for asynchronous in (False, True):
            with pytest.raises(RuntimeError, match=rf"(?s)all_reduce on communicator '{name}'.*nothing for thirteen"):
                comm.all_reduce(tensor, op.SUM, asynchronous).wait_blocking()
            same(tensor.cpu(), torch.tensor(1.0))
            if not asynchronous or device != CPU:  # a call that waits its turn on a thread has its place already
                add(ctx, comm, 1000, device)
        assert comm.is_aborted() == (device == CPU)
        if device != CPU:
            comm.finalize()


def kernels(ctx: Context, name: str) -> None:
    """Kernels of a ``.cu`` file take the sizes and collectives that they are for, in a graph, too."""
    device = device_here(ctx)
    with groups_seen() as groups, given(*native(KERNELS, "all_gather", "all_reduce")):
        comm = new_comm(ctx, name, device=device)
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for count in (1, 1000, 8000):
            add(ctx, comm, count, device, dtype)
            taken_by("native:kernel_all_reduce", groups[0], device)
    tensor = torch.full((1000,), ctx.rank + 1.0, device=device)
    comm.all_reduce(tensor, interface().ReduceOp.MAX, False)
    same(tensor.cpu(), torch.tensor(float(ctx.size)))
    taken_by("native:kernel_all_reduce", groups[0], device)
    add(ctx, comm, 100_003, device)  # more than it is for
    assert not any(algorithm.startswith("native:") for algorithm in ran(groups[0], device))
    for count in (1, 1000, 100_003):
        whole = torch.zeros(ctx.size * count, device=device)
        for asynchronous in (False, True):
            mine = torch.full((count,), ctx.rank + 1.0, device=device)
            comm.all_gather_single(whole.zero_(), mine, asynchronous).wait()
            same(whole.cpu(), torch.arange(1.0, ctx.size + 1).repeat_interleave(count))
        taken_by("native:kernel_all_gather", groups[0], device)
    if device.type == "cuda":
        replay(ctx, comm, device)
        taken_by("native:kernel_all_reduce", groups[0], device)
    comm.finalize()


def in_main_memory(ctx: Context, name: str) -> None:
    """What is for main memory alone takes a communicator's CPU tensors; on a GPU the next that can does."""
    device = device_here(ctx)
    with groups_seen() as groups, given(*native(PLUGIN, "reduce"), plan(ctx, "ring")):
        comm = new_comm(ctx, name, device=device)
    for count in (1, 1000):
        add(ctx, comm, count, device)
        taken_by("native:root_all_reduce" if device == CPU else "plan:my_ring", groups[0], device)
        add(ctx, comm, count, CPU)
        taken_by("native:root_all_reduce", groups[0], CPU)
        add(ctx, comm, count, device, torch.int32)  # which its .refusal does not take
        taken_by("plan:my_ring", groups[0], device)
    comm.finalize()


def different(ctx: Context, name: str) -> None:
    """Ranks that hold different algorithms all raise."""
    device = device_here(ctx)
    raises = pytest.raises(RuntimeError, match="different algorithms.*my_|different.*plans")
    with given(plan(ctx, "ring" if ctx.rank == 0 else "two_shot")), raises:
        comm = new_comm(ctx, name, device=device)
        comm.all_reduce(torch.ones(1000, device=device), interface().ReduceOp.SUM, True).wait_blocking()


def giving_up(ctx: Context, name: str) -> None:
    """A kernel that does not do its work fails the call, and is named."""
    device = device_here(ctx)
    with given(*native(KERNELS, "nothing")):
        comm = new_comm(ctx, name, device=device)
    with pytest.raises(RuntimeError) as raised:
        comm.all_reduce(torch.ones(1000, device=device), interface().ReduceOp.SUM, True).wait_blocking()
    said = str(raised.value)
    assert ("given up" if device.type == "cuda" else "kernel_nothing") in said, said
    assert comm.is_aborted()


def refused_by_the_compiler(ctx: Context, name: str) -> None:
    """A kernel that NVRTC does not take: the log has what it said, and the next that can takes the calls."""
    device = device_here(ctx)
    with NamedTemporaryFile("w", suffix=".cu") as file, TemporaryFile() as log:
        file.write(KERNELS.read_text() + "#if defined(__CUDACC__)\nint wrong = unknown;\n#endif\n")
        file.flush()
        with groups_seen() as groups, given(*native(Path(file.name), "all_reduce"), plan(ctx, "ring")):
            error = os.dup(2)
            os.dup2(log.fileno(), 2)
            try:
                comm = new_comm(ctx, name, device=device)
                add(ctx, comm, 1000, device)
            finally:
                os.dup2(error, 2)
                os.close(error)
        log.seek(0)
        said = log.read().decode()
    assert "is passed over" in said and 'identifier "unknown" is undefined' in said, said
    taken_by("plan:my_ring", groups[0], device)
    comm.finalize()


WHOLE = [plans, selectors, kernels, in_main_memory]
FAILING = [different, giving_up]


def one_after_another(ctx: Context, name: str) -> None:
    for function in WHOLE:
        function(ctx, f"{name}.{function.__name__}")


@pytest.mark.parametrize("function", [one_after_another, *FAILING])
def test_on_cpu_tensors(fresh_world: World, function: Callable[..., None]) -> None:
    fresh_world(2, open_group=False).call(function, unique_name("tc"), timeout_s=120)


@pytest.mark.skipif(GPUS == 0, reason="there is no GPU")
@pytest.mark.parametrize("function", [*WHOLE, *FAILING, refused_by_the_compiler])
def test_on_cuda_tensors(fresh_world: World, function: Callable[..., None]) -> None:
    call_on_gpus(fresh_world, 2, function)
