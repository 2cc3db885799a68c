"""Messages between two ranks on CUDA tensors, first ones above all. Skipped without a GPU, as test_cuda.py is."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankError, RankPool
from rank_worker import Context
from test_cuda import DEVICE, GPUS, run

pytestmark = [
    pytest.mark.tutti_only,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
World = Callable[..., RankPool]


def crossed(ctx: Context) -> None:
    """Both send before they receive: more than any buffer holds."""
    if ctx.rank > 1:
        return
    source = torch.full((1 << 24,), float(ctx.rank), device="cuda")
    target = torch.zeros_like(source)
    works = [dist.isend(source, 1 - ctx.rank), dist.irecv(target, 1 - ctx.rank)]
    for work in works:
        work.wait()
    assert target.eq(1 - ctx.rank).all()


def test_messages_that_cross(world: World) -> None:
    run(world, crossed)


def batched(ctx: Context, each: int) -> None:
    """All sends before all receives, on every rank: more than a kernel, or a ring of scratch, holds."""
    peers = [rank for rank in range(ctx.size) if rank != ctx.rank]
    sources = {p: [torch.full((100 + i,), 1000.0 * ctx.rank + i, device="cuda") for i in range(each)] for p in peers}
    targets = {p: [torch.zeros(100 + i, device="cuda") for i in range(each)] for p in peers}
    operations = [dist.P2POp(dist.isend, tensor, peer) for peer in peers for tensor in sources[peer]]
    operations += [dist.P2POp(dist.irecv, tensor, peer) for peer in peers for tensor in targets[peer]]
    for _ in range(2):
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for peer in peers:
            for i, target in enumerate(targets[peer]):
                assert target.eq(1000.0 * peer + i).all(), (peer, i)
                target.zero_()


@pytest.mark.parametrize("each", [60, 200, 700])
def test_batches_of_any_size(world: World, each: int) -> None:
    run(world, batched, each, size=2)


def test_batches_among_all(world: World) -> None:
    run(world, batched, 200, size=max(2, GPUS))


def gathered(ctx: Context) -> None:
    """Rank 0 sends what lies in strides; the batch is long under way when one stream has waited for it and the stream
    that issued it takes memory again."""
    peer, elements = 1 - ctx.rank, 1 << 16
    issuing, waiting = torch.cuda.Stream(), torch.cuda.Stream()
    first, strided = torch.zeros(10, device="cuda"), torch.zeros(2 * elements, device="cuda")
    received = torch.zeros(elements, device="cuda")
    strided[::2] = torch.arange(elements, device="cuda")
    dist.all_reduce(torch.ones(3, device="cuda"))
    torch.cuda.synchronize()
    dist.barrier()
    for attempt in range(3):
        if ctx.rank == 1:
            time.sleep(0.3)  # the batch of rank 0 is held up behind this one's message
        kind = (dist.irecv, dist.isend)[ctx.rank]
        with torch.cuda.stream(issuing):
            works = dist.batch_isend_irecv([dist.P2POp(kind, first, peer)])
            tensor, other = (strided[::2], dist.isend) if ctx.rank == 0 else (received, dist.irecv)
            works += dist.batch_isend_irecv([dist.P2POp(other, tensor, peer)])
        with torch.cuda.stream(waiting):
            for work in works:
                work.wait()
        del works
        with torch.cuda.stream(issuing):
            taken = [torch.full((elements,), -1.0, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        del taken
        if ctx.rank == 1:
            assert received.eq(torch.arange(elements, device="cuda")).all(), attempt
            received.zero_()


def test_batches_own_what_they_gather(world: World) -> None:
    run(world, gathered, size=2)


def deserted(ctx: Context) -> str:
    """Rank 1 fails alone. What rank 0 issues on the pair afterwards would wait for nobody, and says so all the same."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    peer = 1 - ctx.rank
    first = torch.ones(10, device="cuda")
    dist.batch_isend_irecv([dist.P2POp((dist.isend, dist.irecv)[ctx.rank], first, peer, group=group)])[0].wait()
    torch.cuda.synchronize()
    if ctx.rank == 1:
        missing = torch.zeros(10, device="cuda")
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, missing, 0, group=group)])
        torch.cuda.synchronize()  # the kernel ends at the deadline; this says nothing
        with pytest.raises(RuntimeError, match="rank 0 did not come") as raised:
            works[0].wait()
        ctx.signal("deserted")
        return str(raised.value)
    ctx.await_signal("deserted", [1])
    target = torch.zeros(10, device="cuda")
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, target, 1, group=group)])
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="rank 0 did not come") as raised:
        works[0].wait()
    return str(raised.value)


def test_messages_after_a_peer_has_failed(fresh_world: World) -> None:
    said = fresh_world(2, env=DEVICE).call(deserted, timeout_s=120)
    assert "found by rank 1" in said[0] and "found by" not in said[1], said


def garbage(ctx: Context, how: str, said: str) -> None:
    """A program that asks Tutti for nothing after a failed call. Rank 0's standard error goes to the file `said`."""
    if ctx.rank == 0:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    loss = torch.ones(1, device="cuda")
    dist.all_reduce(loss, group=group)
    torch.cuda.synchronize()
    if ctx.rank == 0:
        dist.all_reduce(loss, group=group)  # rank 1 does not come
        loss.item()  # says nothing
        ctx.signal(f"garbage.{how}")
        time.sleep(30 if how == "end" else 2)


@pytest.mark.parametrize("how", ["log", "end"])
def test_the_watchdog_hears_of_what_nobody_asks_for(fresh_world: World, how: str, tmp_path: Path) -> None:
    ranks = fresh_world(2, env={**DEVICE, "TUTTI_CUDA_WATCHDOG": how})
    said = tmp_path / "stderr"
    if how == "log":
        ranks.call(garbage, how, str(said), timeout_s=120)
    else:
        with pytest.raises(RankError):  # rank 0 has ended
            ranks.call(garbage, how, str(said), timeout_s=60)
    text = said.read_text()
    assert "rank 1 did not come to all_reduce" in text and "what its calls have computed is undefined" in text, text
    assert ("TUTTI_CUDA_WATCHDOG=end ends this process" in text) == (how == "end"), text


def ringed(ctx: Context) -> None:
    """Every rank sends first, in a group in which no two ranks have exchanged anything."""
    group = dist.new_group(list(range(ctx.size)))
    left, right = (ctx.rank - 1) % ctx.size, (ctx.rank + 1) % ctx.size
    source = torch.full((1000,), float(ctx.rank), device="cuda")
    target = torch.zeros_like(source)
    works = [dist.isend(source, right, group=group), dist.irecv(target, left, group=group)]
    futures = [work.get_future() for work in works]  # wait for nobody
    for work in works:
        work.wait()
    assert target.add(1).eq(left + 1).all()
    for future in futures:
        future.wait()
    # A layout that is gathered and written back.
    source = torch.arange(64.0, device="cuda").view(8, 8).add(ctx.rank)
    target = torch.zeros_like(source)
    works = [dist.isend(source.t(), left, group=group), dist.irecv(target.t(), right, group=group)]
    for work in works:
        work.wait()
    assert target.eq(source - ctx.rank + right).all()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("size", sorted({2, 4, max(2, GPUS)}))
def test_first_messages_of_a_ring(world: World, size: int) -> None:
    run(world, ringed, size=size)


def strided(ctx: Context) -> None:
    """Layouts are written back by a kernel that no rank has run yet, behind a receive whose send comes later."""
    peer = 1 - ctx.rank
    source = torch.arange(64.0, device="cuda").view(8, 8)
    target = torch.zeros_like(source)
    for work in [dist.irecv(target, peer), dist.isend(source, peer)]:  # makes the pairs
        work.wait()
    torch.cuda.synchronize()
    target.zero_()
    for work in [dist.irecv(target.t(), peer), dist.isend(source.t(), peer)]:
        work.wait()
    assert target.eq(source).all()


def test_layouts_whose_kernels_are_not_loaded(fresh_world: World) -> None:
    fresh_world(2, env=DEVICE).call(strided, timeout_s=40)


def answered(ctx: Context) -> None:
    """Rank 1 takes a large message only when rank 0 has its answer to it, a first message in the other direction."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=20))
    if ctx.rank > 1:
        return
    large, small = torch.full((1 << 24,), 3.0, device="cuda"), torch.full((1000,), 5.0, device="cuda")
    torch.cuda.synchronize()
    step = (dist.isend, dist.irecv)[ctx.rank](small, 1 - ctx.rank, group=group)
    step.wait(timedelta(seconds=15))
    if ctx.rank == 0:
        under_way = dist.isend(large, 1, group=group)
        small.zero_()
        dist.irecv(small, 1, group=group).wait(timedelta(seconds=15))
        ctx.signal("answered")
        under_way.wait(timedelta(seconds=15))
        assert small.eq(5).all()
    else:
        dist.isend(small, 0, group=group).wait(timedelta(seconds=15))
        ctx.await_signal("answered", [0])
        large.zero_()
        dist.irecv(large, 0, group=group).wait(timedelta(seconds=15))
        assert large.eq(3).all()
    dist.destroy_process_group(group)


def test_a_message_under_way_holds_up_no_first_one(world: World) -> None:
    run(world, answered, size=2)


def elsewhere(ctx: Context) -> None:
    """Rank 1 takes a large message when both ranks have ended groups, made others and unregistered memory."""
    import tutti

    group = dist.new_group([0, 1], timeout=timedelta(seconds=20))
    ended = dist.new_group([0, 1])
    peer, count = 1 - ctx.rank, 1 << 24
    large, small = torch.full((count,), 3.0 - 3 * ctx.rank, device="cuda"), torch.ones(1000, device="cuda")
    for used in (group, ended):
        (dist.isend, dist.irecv)[ctx.rank](small, peer, group=used).wait()
        dist.all_reduce(small, group=used)
    mapped = tutti.empty(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(small, group=ended)
    torch.cuda.synchronize()
    if ctx.rank == 0:
        under_way = dist.isend(large, 1, group=group)
    graph.reset()
    dist.destroy_process_group(ended)
    tutti.unregister_tensors([mapped])
    for _ in range(3):
        fresh = dist.new_group([0, 1])
        small.fill_(1)
        dist.all_reduce(small, group=fresh)
        assert small.eq(2).all()
        dist.destroy_process_group(fresh)
    if ctx.rank == 0:
        assert not under_way.is_completed()
        ctx.signal("elsewhere")
        under_way.wait(timedelta(seconds=15))
    else:
        ctx.await_signal("elsewhere", [0])
        dist.irecv(large, 0, group=group).wait(timedelta(seconds=15))
        assert large.eq(3).all()
    torch.cuda.synchronize()
    dist.destroy_process_group(group)


def test_a_message_under_way_holds_up_no_other_group(world: World) -> None:
    run(world, elsewhere, size=2)


def at_home(ctx: Context) -> None:
    """Messages leave each process with one context, which takes half a gigabyte: that of its own GPU."""
    tensor = torch.zeros(1000, device="cuda")
    for receive in (ctx.rank == 1, ctx.rank == 0):
        (dist.isend, dist.irecv)[receive](tensor, 1 - ctx.rank).wait()
    torch.cuda.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    flags, active = ctypes.c_uint(), ctypes.c_int()
    for device in range(GPUS):
        assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
        assert bool(active.value) == (device == torch.cuda.current_device()), device


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_messages_make_no_context_on_another_gpu(fresh_world: World) -> None:
    fresh_world(2, env=DEVICE).call(at_home, timeout_s=60)


def followed(ctx: Context) -> None:
    """A first message, others at once behind it, and one that nobody waits for."""
    group = dist.new_group([0, 1])
    if ctx.rank > 1:
        return
    values = range(21)
    if ctx.rank == 0:
        dropped = torch.full((10,), -5.0, device="cuda")
        dist.isend(dropped, 1, group=group)
        del dropped
        torch.full((10,), -1.0, device="cuda")
        works = [dist.isend(torch.full((10 + i,), float(i), device="cuda"), 1, group=group) for i in values]
        for work in works:
            work.wait()
    else:
        first = torch.zeros(10, device="cuda")
        targets = [torch.zeros(10 + i, device="cuda") for i in values]
        works = [dist.irecv(target, 0, group=group) for target in [first, *targets]]
        works[-1].wait()  # one lane: the others lie before it
        assert first.eq(-5).all()
        for i, target in enumerate(targets):
            assert target.eq(i).all(), (i, target)
    torch.cuda.synchronize()
    dist.destroy_process_group(group)


def test_messages_behind_a_first_one(world: World) -> None:
    run(world, followed, size=2)


def given_up(ctx: Context, how: str) -> tuple[str, str]:
    """Rank 0 sends what rank 1 never receives. Returns what wait() said before and after the group's end."""
    import tutti

    group = dist.new_group([0, 1])
    if ctx.rank == 1:
        ctx.await_signal(f"given_up.{how}", [0])
        dist.destroy_process_group(group)
        return "", ""
    backend = tutti.get_communicator(group, device="cuda")
    work = dist.isend(torch.ones(10, device="cuda"), 1, group=group)
    assert not work.is_completed()
    with pytest.raises(RuntimeError, match="rank 1 has not come") as early:
        work.wait(timedelta(milliseconds=50))
    if how == "abort":
        backend.abort()
    else:
        dist.destroy_process_group(group)  # whether or not it is the last to hold the group
    with pytest.raises(RuntimeError) as late:
        work.wait(timedelta(seconds=20))  # the group's own timeout is minutes
    assert work.is_completed() and not work.is_success()
    if how == "abort":
        with pytest.raises(RuntimeError, match="abort"):
            dist.isend(torch.ones(10, device="cuda"), 1, group=group)
        del backend
        dist.destroy_process_group(group)
    ctx.signal(f"given_up.{how}")
    return str(early.value), str(late.value)


@pytest.mark.parametrize(
    ("how", "why"), [("abort", "ProcessGroup.abort()"), ("destroy", "has been shut down on this rank")]
)
def test_a_first_message_ends_with_its_group(fresh_world: World, how: str, why: str) -> None:
    early, late = fresh_world(2, env=DEVICE).call(given_up, how, timeout_s=120)[0]
    assert "50 ms" in early
    assert "from rank 0 to rank 1" in late and why in late, late


def captured_first(ctx: Context) -> None:
    """The first messages of a group cross in a capture: each waits for its peer's, which is captured as well."""
    group = dist.new_group([0, 1])
    peer = 1 - ctx.rank
    source, target = torch.ones(10, device="cuda"), torch.zeros(10, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        works = [dist.isend(source, peer, group=group), dist.irecv(target, peer, group=group)]
        for work in works:
            work.wait()
    assert target.eq(0).all()  # a capture runs nothing
    for value in (3.0, 5.0):
        source.fill_(value + ctx.rank)
        graph.replay()
        assert target.eq(value + peer).all()
    torch.cuda.synchronize()
    del graph
    dist.destroy_process_group(group)


def test_first_messages_are_captured(world: World) -> None:
    run(world, captured_first, size=2)


def captured_alone(ctx: Context) -> str:
    """The peer never names this rank: the capture ends with the reason at the group's timeout."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    said = ""
    if ctx.rank == 0:
        source = torch.ones(10, device="cuda")
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError) as raised, torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.isend(source, 1, group=group)
        said = str(raised.value)
        dist.all_reduce(source)  # the other group is as it was
    else:
        dist.all_reduce(torch.ones(10, device="cuda"))
    torch.cuda.synchronize()
    dist.destroy_process_group(group)
    return said


def test_a_captured_first_message_that_nobody_answers(world: World) -> None:
    said = run(world, captured_alone, size=2)[0]
    assert "the first message from rank 0 to rank 1" in said and "was not sent" in said, said
