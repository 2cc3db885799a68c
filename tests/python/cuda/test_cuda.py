"""The backend on CUDA tensors: the sweep of the CPU's, streams, graphs, training. Skipped without a GPU.

Ranks take the GPUs in turn. With one GPU its ranks share it: right, but slow, so sweeps are thinned out.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conformance import COLLECTIVES, run_sweep
from rank_pool import RankPool
from rank_worker import Context
from torch import nn

import tutti
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

pytestmark = [
    pytest.mark.tutti_only,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
World = Callable[..., RankPool]

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
SIZES = sorted({2, max(2, GPUS)})
EVERY = 12 if GPUS > 1 else 60
DEVICE = {"TUTTI_TEST_DEVICE": "cuda"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_sweep(world: World, seed: int, collective: str, size: int) -> None:
    run_sweep(world(size, **DEVICE), collective, seed, EVERY)


def run(world: World, function: Callable[..., Any], *arguments: Any, size: int = SIZES[-1]) -> list[Any]:
    return world(size, **DEVICE).call(function, *arguments, timeout_s=120)


def overlapped(ctx: Context) -> None:
    tensors = [torch.full((1000 + i,), float(ctx.rank + i), device="cuda") for i in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        total = sum(rank + i for rank in range(ctx.size))
        assert tensor.add(1).eq(total + 1).all(), i  # on the current stream, with nothing awaited by the host


def test_wait_orders_streams(world: World) -> None:
    run(world, overlapped)


def dropped(ctx: Context) -> None:
    for i in range(200):
        tensor = torch.full((1 << 18,), float(i), device="cuda")
        dist.all_reduce(tensor, async_op=True)  # nobody waits, and the memory is free for others
        del tensor
        torch.full((1 << 18,), -1.0, device="cuda")
    tensor = torch.ones(5, device="cuda")
    dist.all_reduce(tensor)
    assert tensor.eq(ctx.size).all()


def test_work_that_nobody_waits_for(world: World) -> None:
    run(world, dropped)


def other_stream(ctx: Context) -> None:
    stream = torch.cuda.Stream()
    for count in (10, 100_000):
        first = torch.full((count,), 1.0, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            dist.all_reduce(first)
            first.mul_(2)
        second = torch.full((count,), 3.0, device="cuda")
        dist.all_reduce(second)
        torch.cuda.current_stream().wait_stream(stream)
        assert first.eq(2 * ctx.size).all()
        assert second.eq(3 * ctx.size).all()


def test_calls_on_two_streams(world: World) -> None:
    run(world, other_stream)


def brief_stream(ctx: Context) -> None:
    """Streams that are not PyTorch's, and end as soon as a call on them returns."""
    import tutti.ops

    runtime = torch.cuda.cudart()
    tensor = torch.ones(1 << 20, device="cuda")
    ones = torch.ones(1 << 12, device="cuda", dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    for _ in range(6):
        torch.cuda.synchronize()
        handle = ctypes.c_void_p()
        assert int(runtime.cudaStreamCreate(ctypes.addressof(handle))) == 0
        assert handle.value is not None
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            tensor.div_(ctx.size).add_(1)
            dist.all_reduce(tensor)
            tensor.add_(0)  # behind the call
            sums = tutti.ops.all_reduce_quantized(ones)
        assert int(runtime.cudaStreamDestroy(handle.value)) == 0
        dist.all_reduce(tensor.new_zeros(10))  # on another stream, behind it
    torch.cuda.synchronize()
    assert tensor.eq(7 * ctx.size).all(), tensor
    assert sums.sub(ctx.size).abs().max() < 0.1 * ctx.size


def test_streams_that_end_behind_a_call(world: World) -> None:
    run(world, brief_stream)


def graphed(ctx: Context) -> None:
    inputs = [torch.zeros(count, device="cuda", dtype=torch.bfloat16) for count in (8, 5000, 300_000)]
    gathered = torch.zeros(ctx.size * 8, device="cuda", dtype=torch.bfloat16)
    for tensor in inputs:
        dist.all_reduce(tensor)  # the group's communicator is made outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for tensor in inputs:
            dist.all_reduce(tensor)
        work = dist.all_gather_into_tensor(gathered, inputs[0], async_op=True)
        work.wait()
    for step in range(20):
        for tensor in inputs:
            tensor.fill_(step + ctx.rank)
        graph.replay()
        total = sum(step + rank for rank in range(ctx.size))
        for tensor in inputs:
            assert tensor.eq(total).all(), step
        assert gathered.eq(total).all(), step
        eager = torch.full((33,), float(step), device="cuda")  # between replays
        dist.all_reduce(eager)
        assert eager.eq(step * ctx.size).all()


def test_graphs_replay_with_other_data(world: World) -> None:
    run(world, graphed)


def captured_at_once(ctx: Context) -> None:
    """A group whose first call on GPUs is captured."""
    group = dist.new_group(list(range(ctx.size)))
    tensor = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor, group=group)
    for step in range(3):
        tensor.fill_(step + ctx.rank)
        graph.replay()
        assert tensor.eq(sum(step + rank for rank in range(ctx.size))).all(), step
    torch.cuda.synchronize()
    dist.destroy_process_group(group)


def test_the_first_call_of_a_group_may_be_captured(world: World) -> None:
    run(world, captured_at_once)


def batched(ctx: Context) -> None:
    left, right = (ctx.rank - 1) % ctx.size, (ctx.rank + 1) % ctx.size
    for count in (1, 1000, 1 << 20):
        source = torch.full((count,), float(ctx.rank), device="cuda")
        from_left, from_right = torch.zeros_like(source), torch.zeros_like(source)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, from_left, left),
                dist.P2POp(dist.isend, source, right),
                dist.P2POp(dist.isend, source, left),
                dist.P2POp(dist.irecv, from_right, right),
            ]
        )
        for work in works:
            work.wait()
        assert from_left.eq(left).all()
        assert from_right.eq(right).all()


def test_batches_of_messages(world: World) -> None:
    run(world, batched)


def scaled(ctx: Context) -> None:
    tensor = torch.full((100,), 2.0, device="cuda")
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    assert tensor.eq(ctx.size).all()
    tensor = torch.full((100,), 2.0, device="cuda")
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(torch.full((1,), 0.25)))  # read here
    assert tensor.eq(0.5 * ctx.size).all()


def test_factors(world: World) -> None:
    run(world, scaled)


def scaled_by_tensor(ctx: Context) -> None:
    """Factors in GPU memory: read when the call runs, whatever becomes of their tensors meanwhile."""

    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        factor = torch.full((1,), 0.25, device="cuda", dtype=dtype.to_real())
        for count in (100, 300_000):
            tensor = torch.full((count,), 2.0, device="cuda", dtype=dtype)
            dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
            assert tensor.eq(0.5 * ctx.size).all(), (dtype, count)
    # Every rank its own, and dropped as soon as the call is issued.
    works = []
    for i in range(20):
        tensor = torch.ones(1000, device="cuda")
        factor = torch.full((1,), float(i + ctx.rank), device="cuda")
        works.append((tensor, dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor), async_op=True)))
        del factor
        torch.full((1,), -1.0, device="cuda")
    for i, (tensor, work) in enumerate(works):
        work.wait()
        assert tensor.eq(sum(i + rank for rank in range(ctx.size))).all(), i
    # The factor lies in the tensor that the call writes.
    tensor = torch.full((200_000,), 0.5, device="cuda")
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(tensor[7]))
    assert tensor.eq(0.25 * ctx.size).all()
    tensors = [torch.full((count,), 0.5, device="cuda") for count in (50_000, 3)]
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist._make_nccl_premul_sum(tensors[0][0])
    tutti.get_communicator(device="cuda").allreduce_coalesced(tensors, options).wait()
    assert all(tensor.eq(0.25 * ctx.size).all() for tensor in tensors)
    with pytest.raises(TypeError, match="it must be Float, not Double"):
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(torch.ones(1, device="cuda", dtype=torch.float64)))


def test_factors_in_gpu_memory(world: World) -> None:
    run(world, scaled_by_tensor)


def graphed_factor(ctx: Context) -> None:
    tensor, factor = torch.zeros(3000, device="cuda"), torch.zeros(1, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
    for step in range(5):
        tensor.fill_(2)
        factor.fill_(0.5 * step + ctx.rank)
        graph.replay()
        assert tensor.eq(2 * sum(0.5 * step + rank for rank in range(ctx.size))).all(), step
    torch.cuda.synchronize()


def test_graphs_replay_with_other_factors(world: World) -> None:
    run(world, graphed_factor)


def mixed(ctx: Context) -> None:
    ctx.init(f"{ctx.generation}.mixed", backend="cpu:tutti,cuda:tutti")
    for device in ("cpu", "cuda", "cpu"):
        tensor = torch.ones(10, device=device)
        dist.all_reduce(tensor)
        assert tensor.eq(ctx.size).all()
    dist.barrier()
    objects = [None] * ctx.size
    dist.all_gather_object(objects, ctx.rank)
    assert objects == list(range(ctx.size))


def test_both_devices_of_one_group(fresh_world: World) -> None:
    fresh_world(2, env=DEVICE).call(mixed, timeout_s=120)


def of_parts(ctx: Context) -> None:
    pairs = [[rank, rank + 1] for rank in range(0, ctx.size - 1, 2)]
    part = tutti.split_group(pairs)
    whole, members = tutti.shrink()
    assert members == list(range(ctx.size))
    for group in (part, whole):
        if group is None:
            continue
        ranks = dist.get_process_group_ranks(group)
        for device in ("cuda", "cpu"):
            tensor = torch.full((1000,), ctx.rank + 1.0, device=device)
            dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor.cpu(), torch.full((1000,), sum(rank + 1.0 for rank in ranks)))


def test_parts_of_a_group_take_its_devices(fresh_world: World) -> None:
    fresh_world(SIZES[-1], env=DEVICE).call(of_parts, timeout_s=120)


def refused(ctx: Context) -> None:
    with pytest.raises(ValueError, match="one device"):
        dist.all_gather([torch.zeros(3) for _ in range(ctx.size)], torch.zeros(3, device="cuda"))
    with pytest.raises(ValueError, match="avg makes no sense for bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool, device="cuda"), op=dist.ReduceOp.AVG)
    total = torch.full((3,), -(ctx.rank + 2), dtype=torch.int32, device="cuda")
    dist.all_reduce(total, op=dist.ReduceOp.AVG)  # cut towards zero
    assert total.eq(-int(sum(range(2, ctx.size + 2)) / ctx.size)).all()
    if GPUS > 1:
        with pytest.raises(ValueError, match="a rank of a group has one device"):
            dist.all_reduce(torch.ones(3, device=f"cuda:{(torch.cuda.current_device() + 1) % GPUS}"))
    tensor = torch.ones(3, device="cuda")
    dist.all_reduce(tensor)
    assert tensor.eq(ctx.size).all()


def test_refused_calls_leave_the_group_usable(world: World) -> None:
    run(world, refused)


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(32, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 8)).cuda()


def losses_of(ctx: Context, wrapped: nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    data = torch.randn(steps, ctx.size, 16, 32, generator=torch.Generator().manual_seed(3)).cuda()
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = wrapped(data[step, ctx.rank]).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        found.append(float(total))
    return found


def trained(ctx: Context, backend: str, how: str) -> list[float]:
    ctx.init(f"{ctx.generation}.{backend}.{how}", backend=backend)
    torch.backends.cuda.matmul.allow_tf32 = False
    if how == "ddp":
        wrapped: nn.Module = nn.parallel.DistributedDataParallel(model(), device_ids=[torch.cuda.current_device()])
    elif how == "compiled":
        ddp = nn.parallel.DistributedDataParallel(model(), device_ids=[torch.cuda.current_device()])
        wrapped = torch.compile(ddp, backend="aot_eager")  # type: ignore[assignment]
    else:
        from torch.distributed.fsdp import fully_shard

        wrapped = model()
        for layer in wrapped:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(wrapped)
    return losses_of(ctx, wrapped, 12)


@pytest.mark.parametrize("how", ["ddp", "compiled", "fsdp2"])
def test_training_has_the_losses_of_nccl(fresh_world: World, how: str) -> None:
    ranks = fresh_world(SIZES[-1], env=DEVICE)
    ours = ranks.call(trained, "tutti", how, timeout_s=200)
    assert all(losses == ours[0] for losses in ours)
    assert ours[0][-1] < ours[0][0]
    if GPUS < 2:
        pytest.skip("trained, but not compared with NCCL, which takes one rank a GPU")
    theirs = ranks.call(trained, "nccl", how, timeout_s=200)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)


def warm_up(ctx: Context) -> None:
    dist.all_reduce(torch.ones(1000, device="cuda"))
    torch.cuda.synchronize()


def bereaved(ctx: Context) -> str:
    """A call whose peer does not come: it ends on the GPU by itself, and the next one says why."""
    tensor = torch.ones(1000, device="cuda")
    try:
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        dist.all_reduce(tensor)
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def test_a_dead_rank_is_named(fresh_world: World) -> None:
    ranks = fresh_world(2, env=DEVICE, group_timeout_s=600)
    ranks.call(warm_up, timeout_s=60)
    ranks.send_signal(1, 9)
    outcome = ranks.begin(bereaved, ranks=[0]).wait(60, [0])[0]
    assert outcome.kind == "ok", outcome
    assert "rank 1" in outcome.value
    assert "died" in outcome.value


def aborting(ctx: Context) -> None:
    tutti.abort(reason="by a test")


def test_an_abort_of_another_rank_is_told(fresh_world: World) -> None:
    ranks = fresh_world(2, env=DEVICE, group_timeout_s=600)
    ranks.call(warm_up, timeout_s=60)
    waits = ranks.begin(bereaved, ranks=[0])
    ranks.begin(aborting, ranks=[1]).results(60)
    outcome = waits.wait(60, [0])[0]
    assert outcome.kind == "ok", outcome
    assert "rank 1" in outcome.value
    assert "by a test" in outcome.value


def observed(ctx: Context) -> None:

    dist.all_reduce(torch.ones(1000, device="cuda"))
    torch.cuda.synchronize()  # the GPU counts when a call ends
    before = tutti.get_metrics()["device_calls"]
    tutti.reset_metrics()
    for _ in range(3):
        dist.all_reduce(torch.ones(1000, device="cuda"))
    torch.cuda.synchronize()
    metrics = tutti.get_metrics()
    (row,) = [row for row in metrics["rows"] if row["device"] == "cuda"]
    assert (row["collective"], row["calls"], row["bytes"], row["timed_calls"]) == ("all_reduce", 3, 12_000, 0), row
    assert metrics["device_calls"] == before + 3
    record = json.loads(tutti.flight_record(device="cuda"))
    for entry in record["entries"][-3:]:
        assert entry["state"] == "completed" and entry["device"] == "cuda" and not entry["captured"], entry
        assert entry["input_sizes"] == [[1000]] and entry["profiling_name"] == "gloo:all_reduce", entry
    both = json.loads(tutti.flight_record())
    assert len(both["entries"]) >= len(record["entries"]) and len(both["pg_config"]) >= 2


def test_calls_can_be_seen(world: World) -> None:
    run(world, observed)


def impatient(ctx: Context) -> list[str]:
    """Rank 0 calls alone; the group would wait for minutes."""

    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=2)
    options.asyncOp = True
    work = tutti.get_communicator().allreduce([torch.ones(1000, device="cuda")], options)
    said = []
    with pytest.raises(RuntimeError, match="has not completed on the GPU") as early:
        work.wait(timedelta(milliseconds=100))
    said.append(str(early.value))
    with pytest.raises(RuntimeError) as late:
        work.wait(timedelta(seconds=60))
    said.append(str(late.value))
    (entry,) = [e for e in json.loads(tutti.flight_record(device="cuda"))["entries"] if e["failed"]]
    said.append(entry["call"])
    return said


def test_a_call_has_its_own_timeout(fresh_world: World) -> None:
    ranks = fresh_world(2, env=DEVICE)
    ranks.call(warm_up, timeout_s=60)
    outcome = ranks.begin(impatient, ranks=[0]).wait(90, [0])[0]
    assert outcome.kind == "ok", outcome
    early, late, call = outcome.value
    assert "100 ms" in early
    assert "rank 1 did not come to all_reduce f32[1000] sum" in late
    assert "f32[1000]" in call


def planned(ctx: Context) -> None:
    builder = tutti.AlgorithmCollectionBuilder(dist.group.WORLD)

    def ran() -> set[str]:
        rows = {row["algorithm"] for row in tutti.get_metrics()["rows"] if row["device"] == "cuda"}
        tutti.reset_metrics()
        return rows

    def sum_up(count: int) -> None:
        tensor = torch.full((count,), ctx.rank + 1.0, device="cuda")
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full_like(tensor, ctx.size * (ctx.size + 1) / 2))

    for name in ("ring", "two_shot"):
        spec = AlgoSpec(name=f"my_{name}", collective=AllReduce(ctx.size, 1))
        builder.add_algorithm_builder(tutti.compile(BUILTINS["allreduce", name], spec, ctx.rank))
    builder.build()
    sum_up(1000)
    assert ran() == {"plan:my_ring"}
    builder.set_algorithm_selector(lambda known, _: known["allreduce"]["my_two_shot"])
    builder.build()
    sum_up(100_000)
    assert ran() == {"plan:my_two_shot"}
    builder.reset()
    builder.build()
    sum_up(1000)
    assert not ran() & {"plan:my_ring", "plan:my_two_shot"}


def test_plans_that_a_program_gives(fresh_world: World) -> None:
    """Before the group has a communicator on GPUs and after."""
    fresh_world(SIZES[-1], env=DEVICE).call(planned, timeout_s=120)
