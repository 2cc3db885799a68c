"""CUDA tensors that all ranks have registered: what is refused everywhere, and calls without copies on GPUs."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from rank_pool import RankPool
from rank_worker import Context
from torch import nn

import tutti

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
RANKS = max(2, GPUS)
DEVICE = {"TUTTI_TEST_DEVICE": "cuda"}
on_gpu = pytest.mark.skipif(GPUS == 0, reason="there is no GPU")
COUNT = 1 << 19  # 2 MB of float32: calls from 1 MB on run without copies


def refused(ctx: Context) -> None:
    with pytest.raises(ValueError, match="peer_tensors takes dense CUDA tensors"):
        tutti.peer_tensors(torch.ones(3))
    for call in (tutti.register_tensors, tutti.unregister_tensors):
        with pytest.raises(ValueError, match="at least one tensor"):
            call([])
        with pytest.raises(ValueError, match=f"{call.__name__} takes dense CUDA tensors"):
            call([torch.ones(3)])
        with pytest.raises(ValueError, match="takes dense CUDA tensors"):
            call(iter([torch.ones(3).to_sparse()]))
    with pytest.raises(ValueError, match="not meta tensors"):
        tutti.empty(3, device="meta")
    with pytest.raises(ValueError, match="a group for CUDA tensors only"):
        tutti.zeros(3, group=dist.group.WORLD)
    assert tutti.cuda_direct_calls() == 0
    assert tutti.is_mapped(tutti.zeros(1000, device="cpu"))


def test_arguments_that_cannot_be_meant(world: World) -> None:
    world(2).call(refused)


def without_backend(ctx: Context) -> None:
    ctx.init(f"{ctx.generation}.gloo", backend="cpu:gloo")
    for call in (tutti.register_tensors, tutti.unregister_tensors):
        with pytest.raises(ValueError, match="does not use the backend 'tutti' for CUDA tensors"):
            call([torch.ones(3)])


def test_groups_of_other_backends(fresh_world: World) -> None:
    fresh_world(2).call(without_backend)


def without_gpu(ctx: Context) -> None:
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        tutti.mem_pool()
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        tutti.empty(3, device="cuda")


@pytest.mark.skipif(GPUS > 0, reason="there is a GPU")
def test_without_a_gpu_pools_say_so(world: World) -> None:
    world(2).call(without_gpu)


def test_functions_of_the_pool() -> None:
    """What PyTorch calls by address: memory where there is a GPU, and nothing worse than none where there is not."""
    from tutti import _torch

    try:
        library = ctypes.CDLL(_torch.cuda_library())
    except ValueError as error:
        assert "TUTTI_PLUGIN_PATH" in str(error)
        pytest.skip("built without nvcc")
    allocate, free = library.tutti_cuda_pool_malloc, library.tutti_cuda_pool_free
    allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    allocate.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    memory = allocate(1 << 20, 0, None)
    assert (memory is not None) == (GPUS > 0)
    assert allocate(0, 0, None) is None
    free(memory, 1 << 20, 0, None)
    free(1, 1 << 20, 0, None)  # not the pool's


def run(world: World, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    return world(RANKS, **DEVICE).call(function, *arguments, timeout_s=120)


def expect_direct(ctx: Context, call: Callable[[], Any], calls: int = 1) -> None:
    before = tutti.cuda_direct_calls()
    call()
    assert tutti.cuda_direct_calls() - before == calls


def check_all(ctx: Context, whole: torch.Tensor, part: torch.Tensor) -> None:
    """Each collective that has a way without copies, in `whole` (n parts); `part` is this rank's alone."""
    total = sum(range(1, ctx.size + 1))
    whole.fill_(ctx.rank + 1)
    expect_direct(ctx, lambda: dist.all_reduce(whole))
    assert whole.eq(total).all()
    whole.fill_(ctx.rank + 1)
    expect_direct(ctx, lambda: dist.all_reduce(whole, async_op=True).wait())
    assert whole.eq(total).all()
    whole.fill_(ctx.rank + 1)
    expect_direct(ctx, lambda: dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.MAX))
    assert part.eq(ctx.size).all()
    part.fill_(ctx.rank)
    expect_direct(ctx, lambda: dist.all_gather_into_tensor(whole, part))
    assert all(piece.eq(rank).all() for rank, piece in enumerate(whole.chunk(ctx.size)))
    whole.fill_(ctx.rank + 1)
    expect_direct(ctx, lambda: dist.all_reduce(whole.narrow(0, 8, COUNT)))  # a view needs no registration
    assert whole[8 : 8 + COUNT].eq(total).all() and whole[:8].eq(ctx.rank + 1).all()
    expect_direct(ctx, lambda: dist.all_reduce(whole[:100]), calls=0)  # too small to gain
    expect_direct(ctx, lambda: dist.all_reduce(torch.ones(COUNT, device="cuda")), calls=0)


def registered(ctx: Context, kind: str) -> None:
    # The ranks' memory lies differently.
    keep = [torch.ones(100_000 * (1 + ctx.rank), device="cuda")]
    count = ctx.size * COUNT
    if kind == "empty":
        whole = tutti.empty(count, device="cuda")
    elif kind == "pool":
        with torch.cuda.use_mem_pool(tutti.mem_pool()):
            whole = torch.empty(count, device="cuda")
    elif kind in ("symmetric", "rendezvoused"):
        whole = symmetric_memory.empty(count, device=torch.device("cuda", torch.cuda.current_device()))
        if kind == "rendezvoused":
            symmetric_memory.rendezvous(whole, dist.group.WORLD)
    else:
        whole = torch.empty(count, device="cuda")
    if kind != "empty":
        assert not tutti.is_mapped(whole)
        tutti.register_tensors([whole, whole[3:]])  # one storage
    assert tutti.is_mapped(whole) and tutti.is_mapped(whole[5:])
    check_all(ctx, whole, torch.empty(COUNT, device="cuda"))
    tutti.unregister_tensors([whole[1:]])
    assert not tutti.is_mapped(whole)
    expect_direct(ctx, lambda: dist.all_reduce(whole), calls=0)
    with pytest.raises(ValueError, match="not registered"):
        tutti.unregister_tensors([whole])
    del keep


@on_gpu
@pytest.mark.parametrize("kind", ["empty", "pool", "torch", "symmetric"])
def test_registered_tensors_are_not_copied(world: World, kind: str) -> None:
    """The kind "symmetric" is what PyTorch's symmetric memory allocates."""
    run(world, registered, kind)


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs: PyTorch's rendezvous wants one for each rank")
def test_symmetric_memory_that_peers_map_is_not_copied(world: World) -> None:
    run(world, registered, "rendezvoused")


@on_gpu
def test_expandable_segments_can_be_registered(fresh_world: World) -> None:
    """A tensor that lies in several physical allocations."""
    ranks = fresh_world(RANKS, env={**DEVICE, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    ranks.call(expanded, timeout_s=120)


def expanded(ctx: Context) -> None:
    tensor = torch.full((12 << 20,), float(ctx.rank), device="cuda")  # 48 MB, in segments of 20
    tutti.register_tensors([tensor])
    expect_direct(ctx, lambda: dist.all_reduce(tensor))
    assert tensor.eq(sum(range(ctx.size))).all()


def graphed(ctx: Context) -> None:
    tensor = tutti.zeros(COUNT, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        expect_direct(ctx, lambda: dist.all_reduce(tensor))
    for step in range(5):
        tensor.fill_(step + ctx.rank)
        graph.replay()
        assert tensor.eq(sum(step + rank for rank in range(ctx.size))).all(), step
    torch.cuda.synchronize()


@on_gpu
def test_graphs_replay_in_registered_memory(world: World) -> None:
    run(world, graphed)


def reached(ctx: Context) -> None:
    """Every rank reads and writes the others' tensors by itself, also through views."""
    whole = torch.full((2, 1000), float(ctx.rank), device="cuda")
    with pytest.raises(ValueError, match="peer_tensors: the tensor is not registered"):
        tutti.peer_tensors(whole)
    tutti.register_tensors([whole])
    dist.barrier()
    row = whole[1, ::2]
    peers = tutti.peer_tensors(row)
    assert [p.shape for p in peers] == [row.shape] * ctx.size and peers[ctx.rank].data_ptr() == row.data_ptr()
    total = torch.stack(peers).sum(0)
    dist.barrier()  # all have read
    peers[(ctx.rank + 1) % ctx.size].fill_(100.0 + ctx.rank)
    dist.barrier()
    assert total.eq(sum(range(ctx.size))).all()
    assert row.eq(100.0 + (ctx.rank - 1) % ctx.size).all() and whole[1, 1::2].eq(ctx.rank).all()
    tutti.unregister_tensors([whole])


@on_gpu
def test_tensors_of_peers(world: World) -> None:
    run(world, reached)


def differing(ctx: Context) -> None:
    with pytest.raises(ValueError, match="range 0 has"):
        tutti.empty(1000 + ctx.rank, device="cuda")
    tensor = torch.ones(COUNT, device="cuda")
    dist.all_reduce(tensor)
    assert tensor.eq(ctx.size).all()


@on_gpu
def test_sizes_that_differ_are_refused_by_all(world: World) -> None:
    run(world, differing)


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 8)).cuda()


def trained(ctx: Context, mapped: bool) -> list[float]:
    ddp = nn.parallel.DistributedDataParallel(
        model(), device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = torch.randn(8, ctx.size, 16, 64, generator=torch.Generator().manual_seed(3)).cuda()
    losses = []

    def train(step: int) -> None:
        optimizer.zero_grad()
        loss = ddp(data[step, ctx.rank]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))

    if not mapped:
        for step in range(8):
            train(step)
        return losses
    with torch.cuda.use_mem_pool(tutti.mem_pool()):
        for step in range(2):  # the second step lays the buckets anew
            train(step)
    gradients = [parameter.grad for parameter in ddp.parameters() if parameter.grad is not None]
    tutti.register_tensors(gradients)
    before = tutti.cuda_direct_calls()
    for step in range(2, 8):
        train(step)
    assert tutti.cuda_direct_calls() - before >= 6, "no bucket was reduced without a copy"
    tutti.unregister_tensors(gradients)
    return losses


@on_gpu
def test_ddp_reduces_registered_buckets(world: World) -> None:
    mapped, copied = run(world, trained, True), run(world, trained, False)
    assert all(m == pytest.approx(c, rel=1e-5) for m, c in zip(mapped, copied, strict=True))


def allocated(ctx: Context) -> None:
    """Tensors that the group allocates: registered, used again together, and never while one rank needs them."""
    backend, device = tutti.get_communicator(device="cuda"), torch.device("cuda", torch.cuda.current_device())

    def allocate(count: int) -> torch.Tensor:
        return backend.allocate_tensor(count, dtype=torch.float32, device=device)

    def expect_sum(tensor: torch.Tensor) -> None:
        tensor.fill_(ctx.rank + 1)
        expect_direct(ctx, lambda: dist.all_reduce(tensor))
        assert tensor.eq(sum(range(1, ctx.size + 1))).all()

    first = allocate(COUNT)
    assert tutti.is_mapped(first) and first.numel() == COUNT and first.dtype == torch.float32
    expect_sum(first)
    place = first.data_ptr()
    second = allocate(COUNT)  # while the first is in use
    assert second.data_ptr() != place
    del second
    kept = first[3:] if ctx.rank == 0 else None  # one rank alone needs it longer
    del first
    third = allocate(COUNT)
    assert third.data_ptr() != place
    del kept, third
    assert allocate(COUNT).data_ptr() == place  # again: the first one that is free on all ranks
    # Calls that nobody waits for hold their buffer up on the GPU.
    for step in range(50):
        tensor = allocate(COUNT)
        tensor.fill_(step)
        work = dist.all_reduce(tensor, async_op=True)
        if step % 2 == 0:
            work.wait()
            assert tensor.eq(step * ctx.size).all(), step
        del work, tensor
    assert not tutti.is_mapped(allocate(1000))  # gains nothing
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        other = allocate(COUNT)
    assert other.data_ptr() != place  # a stream of its own
    differing = allocate(COUNT + 1000 * ctx.rank)
    assert differing.numel() == COUNT + 1000 * ctx.rank and not tutti.is_mapped(differing)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = allocate(COUNT)
        inside.fill_(1)
        dist.all_reduce(inside)
    assert not tutti.is_mapped(inside)
    graph.replay()
    assert inside.eq(ctx.size).all()
    torch.cuda.synchronize()


@on_gpu
def test_tensors_that_the_group_allocates(world: World) -> None:
    run(world, allocated)


def held_buffers(ctx: Context, group: dist.ProcessGroup) -> None:
    """Where registered memory begins, and that the group keeps as much as was ever used at one time."""
    backend, device = tutti.get_communicator(group, device="cuda"), torch.device("cuda", torch.cuda.current_device())

    def allocate(nbytes: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return backend.allocate_tensor(nbytes // dtype.itemsize, dtype=dtype, device=device)

    before = torch.cuda.memory_allocated()
    below, at_least = allocate((1 << 20) - 1), allocate(1 << 20)
    assert not tutti.is_mapped(below) and tutti.is_mapped(at_least)
    assert not tutti.is_mapped(allocate((1 << 20) - 4, torch.float32))
    large = [allocate(64 << 20, torch.float32) for _ in range(3)]
    places = [tensor.data_ptr() for tensor in large]
    assert len(set(places)) == 3
    dist.all_reduce(large[1].fill_(1), group=group)
    assert large[1].eq(ctx.size).all()
    del below, at_least, large
    held = torch.cuda.memory_allocated() - before
    assert (193 << 20) <= held < (194 << 20), held
    again = [allocate(64 << 20, torch.float32) for _ in range(2)]
    assert [tensor.data_ptr() for tensor in again] == places[:2]
    assert torch.cuda.memory_allocated() - before == held


def bounds(ctx: Context) -> None:
    """What the group holds, it holds until its end."""
    group = dist.new_group(list(range(ctx.size)))
    gc.collect()
    before = torch.cuda.memory_allocated()
    held_buffers(ctx, group)
    registered = torch.empty(8 << 20, device="cuda")
    tutti.register_tensors([registered], group=group)
    del registered  # the group holds it: peers may have it mapped
    assert torch.cuda.memory_allocated() >= before + (225 << 20)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@on_gpu
def test_buffers_of_a_group_end_with_it(world: World) -> None:
    run(world, bounds)


def full(ctx: Context) -> None:
    """Rank 0's GPU has no memory for a buffer: it says so, and the others get ordinary memory. Then it has."""
    backend, device = tutti.get_communicator(device="cuda"), torch.device("cuda", torch.cuda.current_device())
    wanted = 1 << 30

    def allocate() -> torch.Tensor:
        return backend.allocate_tensor(wanted, dtype=torch.uint8, device=device)

    dist.all_reduce(torch.ones(10, device="cuda"))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if ctx.rank == 0:
        filler = torch.empty(torch.cuda.mem_get_info()[0] - wanted // 2, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            allocate()
        del filler
        torch.cuda.empty_cache()
    else:
        assert not tutti.is_mapped(allocate())
    tensor = allocate()
    assert tutti.is_mapped(tensor)
    tensor.fill_(1)
    expect_direct(ctx, lambda: dist.all_reduce(tensor))
    assert tensor.eq(ctx.size).all()


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_a_rank_without_memory_for_a_buffer(fresh_world: World) -> None:
    fresh_world(RANKS, env=DEVICE).call(full, timeout_s=120)


def unreachable(ctx: Context) -> None:
    """GPUs that do not reach each other: all memory is ordinary, and calls copy."""
    backend, device = tutti.get_communicator(device="cuda"), torch.device("cuda", torch.cuda.current_device())
    tensor, plain = tutti.zeros(COUNT, device="cuda"), torch.ones(COUNT, device="cuda")
    with pytest.raises(RuntimeError, match="pinned host memory"):
        tutti.register_tensors([plain])
    for memory in (
        tensor,
        plain,
        *(backend.allocate_tensor(COUNT, dtype=torch.float32, device=device) for _ in range(2)),
    ):
        assert not tutti.is_mapped(memory)
        memory.fill_(ctx.rank + 1)
        expect_direct(ctx, lambda memory=memory: dist.all_reduce(memory), calls=0)
        assert memory.eq(sum(range(1, ctx.size + 1))).all()


@on_gpu
def test_memory_is_ordinary_where_gpus_do_not_reach_each_other(fresh_world: World) -> None:
    fresh_world(RANKS, env={**DEVICE, "TUTTI_CUDA_TRANSPORT": "host"}).call(unreachable, timeout_s=120)


def sharded(ctx: Context, from_group: bool) -> tuple[list[float], int]:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(64, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 8)).cuda()
    fully_shard(net[2])
    fully_shard(net)
    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.set_allocate_memory_from_process_group_for_comm(from_group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.randn(8, ctx.size, 16, 64, generator=torch.Generator().manual_seed(3)).cuda()
    before, losses = tutti.cuda_direct_calls(), []
    for step in range(8):
        optimizer.zero_grad()
        loss = net(data[step, ctx.rank]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, tutti.cuda_direct_calls() - before


@on_gpu
def test_fsdp2_with_buffers_of_the_group(world: World) -> None:
    for (ours, direct), (plain, copied) in zip(run(world, sharded, True), run(world, sharded, False), strict=True):
        assert ours == pytest.approx(plain, rel=1e-5)
        assert direct >= 16 and copied == 0  # of the large layer: each step gathers and reduce-scatters
