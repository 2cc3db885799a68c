"""CUDA tensors of groups on several hosts: their calls are NCCL's.

The hosts are this machine, told apart by TUTTI_HOST_ID. With four GPUs two ranks share a host, with two each is alone.
With one GPU two ranks share it: each is alone on its host for NCCL, too, which refuses a GPU to two ranks of a host.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from conformance import COLLECTIVES, Case, Run, cases
from failures import check_survivors
from oracle import COMPLEX, FLOATS
from rank_pool import RankPool
from rank_worker import Context
from test_cuda import DEVICE, GPUS, batched, captured_at_once, dropped, graphed, overlapped, scaled, scaled_by_tensor
from test_cuda_messages import crossed
from torch import nn

import tutti
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

pytestmark = [
    pytest.mark.tutti_only,
    pytest.mark.skipif(GPUS == 0, reason="there is no GPU"),
]
World = Callable[..., RankPool]

SIZE = min(max(GPUS, 2), 4)
HERE = max(1, SIZE // 2)  # ranks of a host
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.uint32, torch.int64, torch.uint64]


def hosts(rank: int) -> dict[str, str]:
    names = {"TUTTI_HOST_ID": f"host{rank // HERE}"}
    return names if GPUS >= SIZE else names | {"NCCL_HOSTID": names["TUTTI_HOST_ID"]}


@pytest.fixture
def far(fresh_world: World) -> RankPool:
    return fresh_world(SIZE, env=DEVICE, env_of=hosts)


def served(case: Case) -> bool:
    """What NCCL computes, and as the oracle does."""
    if case.collective in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"):
        if case.dtype not in (torch.bool, *INTEGERS, *FLOATS, *COMPLEX):
            return False
        if case.op == "BXOR" or (case.op in ("BAND", "BOR") and case.dtype != torch.bool):
            return False
        if case.op == "PRODUCT" and case.dtype.is_complex:
            return False
        return not (case.op in ("MIN", "MAX") and case.exact and case.dtype.is_floating_point)  # NaN
    return True


def sweep_over_nccl(ctx: Context, collectives: list[str], seed: int, every: int) -> tuple[int, list[str]]:
    problems: list[str] = []
    number = 0
    for collective in collectives:
        chosen = [case for case in cases(collective, ctx.size, "tutti", seed, 1) if served(case)]
        for case in chosen[::every]:
            number += 1
            run = Run(case, ctx.rank, list(range(ctx.size)), None, roundings=ctx.size, repeats=2)
            run.start()
            if problem := run.finish():
                problems.append(f"{case}: {problem}")
    assert "nccl" in {row["algorithm"] for row in tutti.get_metrics()["rows"] if row["device"] == "cuda"}
    return number, problems[:12]


def test_sweep(far: RankPool, seed: int) -> None:
    for rank, (number, problems) in enumerate(far.call(sweep_over_nccl, list(COLLECTIVES), seed, 12, timeout_s=200)):
        assert number > 100, number
        assert not problems, f"rank {rank}: " + "\n".join(problems)


def as_elsewhere(ctx: Context) -> None:
    """What holds of CUDA calls on one host."""
    for check in (overlapped, dropped, batched, scaled, scaled_by_tensor, crossed, graphed, captured_at_once):
        check(ctx)


def test_streams_graphs_messages_and_factors(far: RankPool) -> None:
    far.call(as_elsewhere, timeout_s=200)


def refused(ctx: Context) -> str:
    short = torch.ones(3, dtype=torch.int16, device="cuda")
    with pytest.raises(ValueError, match="no sum of i16: use another type, or reduce on the CPU") as raised:
        dist.all_reduce(short)
    with pytest.raises(ValueError, match="avg makes no sense for bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool, device="cuda"), op=dist.ReduceOp.AVG)
    dist.broadcast(short, 0)  # moved, it is bytes
    tensor = torch.ones(3, device="cuda")
    dist.all_reduce(tensor)
    assert tensor.eq(ctx.size).all()
    return str(raised.value)


def test_what_nccl_cannot_reduce_leaves_the_group_usable(far: RankPool) -> None:
    assert all("NCCL, which runs this group's calls on GPUs" in text for text in far.call(refused, timeout_s=100))


def inspected(ctx: Context) -> None:
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    assert not tutti.is_mapped(tensor)
    with pytest.raises(RuntimeError, match="not registered: .*its ranks are on several hosts"):
        tutti.register_tensors([tensor])
    whole = tutti.zeros(1 << 20, device="cuda")
    dist.all_reduce(whole)
    assert whole.eq(0).all() and not tutti.is_mapped(whole)
    entries = json.loads(tutti.flight_record(device="cuda"))["entries"]
    assert [entry["state"] for entry in entries] == ["completed"] * len(entries)
    # Plans and algorithms of the program stay with what runs them.
    builder = tutti.AlgorithmCollectionBuilder(dist.group.WORLD)
    plan = tutti.compile(
        BUILTINS["allreduce", "ring"], AlgoSpec(name="far_ring", collective=AllReduce(ctx.size, 1)), ctx.rank
    )
    builder.add_algorithm_builder(plan)
    builder.build()
    dist.all_reduce(tensor)
    assert tensor.eq(ctx.size**2).all()


def test_records_and_memory(far: RankPool) -> None:
    far.call(inspected, timeout_s=100)


def of_parts(ctx: Context) -> set[str]:
    """The ranks of a host are a group that Tutti's own kernels serve; those of several are not."""
    near = tutti.split_group([list(range(first, first + HERE)) for first in range(0, ctx.size, HERE)])
    across = tutti.split_group([list(range(place, ctx.size, HERE)) for place in range(HERE)])
    whole, members = tutti.shrink()
    assert members == list(range(ctx.size))
    for group in (near, across, whole):
        assert group is not None
        ranks = dist.get_process_group_ranks(group)
        tensor = torch.full((1000,), ctx.rank + 1.0, device="cuda")
        dist.all_reduce(tensor, group=group)
        assert tensor.eq(sum(rank + 1.0 for rank in ranks)).all(), ranks
    return {row["algorithm"] for row in tutti.get_metrics(near)["rows"] if row["device"] == "cuda"}


def test_parts_of_one_host_run_on_own_kernels(far: RankPool) -> None:
    for algorithms in far.call(of_parts, timeout_s=100):
        assert "nccl" not in algorithms and algorithms


def late(ctx: Context, kind: str) -> tuple[str, float]:
    """Rank 0 alone makes a call of a group with a limit of two seconds."""
    group, other = dist.new_group(list(range(ctx.size)), timeout=timedelta(seconds=2)), HERE
    tensor = torch.ones(1000, device="cuda")
    dist.all_reduce(tensor, group=group)
    if ctx.rank == 0:
        dist.recv(tensor, other, group=group)
    elif ctx.rank == other:
        dist.send(tensor, 0, group=group)
    torch.cuda.synchronize()
    ctx.meet("ready")
    said, took = "", 0.0
    if ctx.rank == 0:
        start = time.monotonic()
        with pytest.raises(RuntimeError) as raised:
            for _ in range(2):  # the first may return before it is known
                if kind == "message":
                    dist.recv(tensor, other, group=group)
                else:
                    dist.all_reduce(tensor, group=group)
                torch.cuda.synchronize()
        said, took = str(raised.value), time.monotonic() - start
    ctx.meet("over")
    tensor = torch.ones(5, device="cuda")
    dist.all_reduce(tensor)  # the other group goes on
    assert tensor.eq(ctx.size).all()
    return said, took


@pytest.mark.parametrize("kind", ["all_reduce", "message"])
def test_a_rank_that_does_not_come(far: RankPool, kind: str) -> None:
    said, took = far.call(late, kind, timeout_s=100)[0]
    call = "recv byte" if kind == "message" else "all_reduce"
    assert re.search(rf"{call}.* over NCCL has not ended within 2000 ms", said), said
    assert 1.5 < took < 10, took


def until_lost(ctx: Context, victim: int) -> str:
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    ctx.meet("ready")
    try:
        for step in range(100_000):
            if ctx.rank == victim and step == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(tensor)
            if step % 10 == 0:
                torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error)
    return "it never ended"


def test_a_killed_rank_is_named_in_time(far: RankPool) -> None:
    victim = SIZE - 1
    survivors = [rank for rank in range(SIZE) if rank != victim]
    pending = far.begin(until_lost, victim)
    death = pending.wait(60, [victim])[victim]
    for outcome in pending.wait(30, survivors).values():
        assert outcome.kind == "ok", far.explain({0: outcome})
        assert f"rank {victim}" in outcome.value, outcome.value
        assert outcome.seconds - death.seconds < 5, outcome.seconds - death.seconds
    check_survivors(far, survivors)


def trained(ctx: Context) -> list[float]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(32, 200), nn.ReLU(), nn.Linear(200, 8)).cuda()
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    data = torch.randn(5, ctx.size, 16, 32, generator=torch.Generator().manual_seed(3)).cuda()
    losses = []
    for batch in data[:, ctx.rank]:
        optimizer.zero_grad()
        loss = F.mse_loss(wrapped(batch), batch[:, :8])
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        losses.append(float(total))
    # The same on one process, of all ranks' data.
    torch.manual_seed(7)
    alone = nn.Sequential(nn.Linear(32, 200), nn.ReLU(), nn.Linear(200, 8)).cuda()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step, batch in enumerate(data.flatten(1, 2)):
        optimizer.zero_grad()
        loss = F.mse_loss(alone(batch), batch[:, :8])
        loss.backward()
        optimizer.step()
        assert abs(float(loss) - losses[step]) < 1e-4, (step, float(loss), losses)
    return losses


def test_training_comes_to_the_losses_of_one_process(far: RankPool) -> None:
    losses = far.call(trained, timeout_s=100)
    assert all(each == losses[0] for each in losses)
    assert losses[0][-1] < losses[0][0]


def without(ctx: Context) -> str:
    with pytest.raises(ValueError) as raised:
        dist.all_reduce(torch.ones(3, device="cuda"))
    return str(raised.value)


def test_a_rank_without_nccl_is_named_by_all(fresh_world: World) -> None:
    pool = fresh_world(
        2,
        env=DEVICE,
        env_of=lambda rank: {"TUTTI_HOST_ID": str(rank), **({"TUTTI_NCCL_LIB_PATH": "/nowhere"} if rank else {})},
    )
    for text in pool.call(without, timeout_s=60):
        assert "its ranks are on several hosts, so its calls on GPUs are NCCL's, and rank 1 cannot use it" in text, text
        assert "TUTTI_NCCL_LIB_PATH=/nowhere" in text, text
