"""What a kernel that waits for a peer holds up, and until when. Skipped without a GPU, as test_cuda.py is."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context
from test_cuda import DEVICE, GPUS

import tutti

pytestmark = [
    pytest.mark.tutti_only,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
World = Callable[..., RankPool]
two_gpus = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs: processes that share one take turns")


def impatient(ctx: Context) -> str:
    """Rank 0 replays alone a call that was captured when the group's timeout was minutes, with a second of its own."""
    tensor = torch.ones(1000, device="cuda")
    dist.all_reduce(tensor)
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tutti.get_communicator().allreduce([tensor], options)
    if ctx.rank == 0:
        tensor.fill_(1)
        graph.replay()
        done = torch.cuda.Event()
        done.record()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert not done.query(), "the call had the deadline that it was captured with"
        ctx.signal("late")
    else:
        ctx.await_signal("late", [0])
        tensor.fill_(1)
        graph.replay()
    torch.cuda.synchronize()
    assert tensor.eq(ctx.size).all()
    ctx.meet("replayed")
    said = ""
    if ctx.rank == 0:
        tutti.set_timeout(2.0)
        graph.replay()
        torch.cuda.synchronize()  # says nothing
        with pytest.raises(RuntimeError) as raised:
            dist.all_reduce(tensor)
        said = str(raised.value)
    ctx.meet("over")
    return said


@two_gpus
def test_captured_calls_follow_the_groups_timeout(fresh_world: World) -> None:
    said = fresh_world(2, env=DEVICE).call(impatient, timeout_s=50)
    assert "rank 1 did not come to all_reduce f32[1000] sum" in said[0], said


def prepared(ctx: Context, timeout_s: float) -> tuple[dist.ProcessGroup, torch.Tensor]:
    """A group whose pairs have exchanged a message, and memory in PyTorch's cache: neither is made later."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=timeout_s))
    small = torch.full((1000,), 3.0, device="cuda")
    for receive in (ctx.rank == 1, ctx.rank == 0):
        (dist.isend, dist.irecv)[receive](small, 1 - ctx.rank, group=group).wait()
    del_later = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    del del_later
    torch.cuda.synchronize()
    dist.barrier()
    return group, small


def first_used(ctx: Context, how: str) -> bool:
    """An operation of PyTorch's that no program has used, between a receive and the send that answers it, on both
    ranks. Whether the messages have arrived."""
    group, sent = prepared(ctx, 5)
    received, data = torch.zeros_like(sent), torch.linspace(0, 1, 1000, device="cuda")
    if how == "before":
        torch.bucketize(data, data)
    torch.cuda.synchronize()
    ctx.meet("ready")
    work = dist.irecv(received, 1 - ctx.rank, group=group)
    places = torch.bucketize(data, data)
    try:
        dist.isend(sent, 1 - ctx.rank, group=group).wait()
        work.wait(timedelta(seconds=20))
    except RuntimeError:
        return False
    return bool(received.eq(3).all()) and int(places[-1]) == 999


@two_gpus
@pytest.mark.parametrize(
    ("loading", "how", "arrives"),
    [("EAGER", "between", True), ("LAZY", "before", True), ("LAZY", "between", False)],
)
def test_operations_used_for_the_first_time(fresh_world: World, loading: str, how: str, arrives: bool) -> None:
    ranks = fresh_world(2, env={**DEVICE, "CUDA_MODULE_LOADING": loading})
    assert ranks.call(first_used, how, timeout_s=100) == [arrives, arrives]


def ours(ctx: Context) -> None:
    """Every kind of call of Tutti's, none of which was made before, between a receive and its send."""
    import tutti.ops

    group, sent = prepared(ctx, 30)
    received, count = torch.zeros_like(sent), 3000
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
    inputs = [torch.ones(count, dtype=dtype, device="cuda") for dtype in kinds]
    large = torch.ones(4 << 20, device="cuda")
    mapped = tutti.zeros(1 << 20, device="cuda")
    wholes, parts = [t.new_zeros(2 * count) for t in inputs], [t.new_zeros(count // 2) for t in inputs]
    rows, weight = torch.ones(4, 1024, dtype=torch.bfloat16, device="cuda"), torch.ones(1024, device="cuda").bfloat16()
    many, residuals = rows.repeat(100, 1), rows.repeat(100, 1)
    residual = rows.clone()
    torch.cuda.synchronize()
    ctx.meet("ready")
    work = dist.irecv(received, 1 - ctx.rank, group=group)
    for tensor, whole, part in zip(inputs, wholes, parts, strict=True):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            dist.all_reduce(tensor, op=op)
        dist.all_gather_into_tensor(whole, tensor)
        dist.reduce_scatter_tensor(part, tensor)
        dist.broadcast(tensor, 0)
        dist.all_to_all_single(whole[:count], tensor)
    for tensor in (large, mapped):
        dist.all_reduce(tensor)
    sums = tutti.ops.all_reduce_quantized(large)
    tutti.ops.all_reduce_add_rms_norm(rows, residual, weight, 1e-6)
    tutti.ops.all_reduce_add_rms_norm(many, residuals, weight, 1e-6)
    dist.barrier()
    assert not work.is_completed()
    dist.isend(sent, 1 - ctx.rank, group=group).wait()
    work.wait(timedelta(seconds=25))
    assert received.eq(3).all()
    assert all(whole[:count].eq(2).all() for whole in wholes)  # of two sums, of which MAX makes one
    assert large.eq(2).all()
    assert sums.sub(4).abs().max() < 0.4
    dist.destroy_process_group(group)


@two_gpus
def test_tuttis_own_calls_may_be_first_ones(fresh_world: World) -> None:
    fresh_world(2, env={**DEVICE, "CUDA_MODULE_LOADING": "LAZY"}).call(ours, timeout_s=60)


def together(ctx: Context) -> None:
    """Calls of two groups, complete on the GPU, of which nobody has asked yet."""
    group = dist.new_group([0, 1])
    tensor = torch.full((1000,), ctx.rank + 1.0, device="cuda")
    dist.all_reduce(torch.ones(10, device="cuda"), group=group)
    work = dist.all_reduce(tensor, async_op=True)
    torch.cuda.synchronize()
    ctx.kept.update(group=group, tensor=tensor, work=work)


def leave_at_once(ctx: Context) -> None:
    os._exit(0)


def survived(ctx: Context) -> list[str]:
    """What rank 0 hears of two groups when rank 1 has died; its call that was complete has its result."""
    said = []
    tensor, work = ctx.kept["tensor"], ctx.kept["work"]
    for group in (ctx.kept["group"], dist.group.WORLD):
        if group is dist.group.WORLD:  # the other group has heard of the death
            work.wait(timedelta(seconds=20))
            assert work.is_success() and tensor.eq(3).all()
        with pytest.raises(RuntimeError) as raised:
            dist.all_reduce(torch.ones(10, device="cuda"), group=group, async_op=True).wait(timedelta(seconds=40))
        said.append(str(raised.value))
    return said


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_what_was_complete_when_a_rank_died_stays_so(fresh_world: World, how: str) -> None:
    ranks = fresh_world(2, env=DEVICE, group_timeout_s=600)
    ranks.call(together, timeout_s=60)
    if how == "killed":
        ranks.send_signal(1, signal.SIGKILL)
    else:
        assert ranks.begin(leave_at_once, ranks=[1]).wait(30)[1].kind == "died"
    outcome = ranks.begin(survived, ranks=[0]).wait(90, [0])[0]
    assert outcome.kind == "ok", outcome
    assert all("rank 1" in text and "died" in text for text in outcome.value), outcome.value


def drained(ctx: Context) -> None:
    """A barrier: the host waits for what its current stream holds, then for the other rank."""
    data = torch.ones(4096, 4096, device="cuda")
    dist.all_reduce(data[0])
    torch.cuda.synchronize()
    for attempt in range(3):
        key, done = f"{ctx.generation}/{attempt}", torch.cuda.Event()
        if ctx.rank == attempt % 2:
            for _ in range(200):
                data.matmul(data)
            done.record()
            assert not done.query()
            ctx.store("drained").set(key, b"1")
            dist.barrier()
            assert done.query(), "it has left before its stream was done"
        else:
            dist.barrier()
            assert ctx.store("drained").check([key]), "it has left before the other rank had come"


@two_gpus
def test_a_barrier_waits_for_the_stream_and_the_others(fresh_world: World) -> None:
    fresh_world(2, env=DEVICE).call(drained, timeout_s=50)


def alone(ctx: Context, how: str, group: dist.ProcessGroup, waits: threading.Event) -> None:
    """A wait on the host for what the other rank does later, or never."""
    tensor = torch.ones(1000, device="cuda")
    if how == "barrier":
        dist.all_reduce(tensor, group=group)
        waits.set()
        dist.barrier(group=group)  # waits for the stream first
        return
    if how == "work":
        work = dist.all_reduce(tensor, group=group, async_op=True)
    else:
        work = (dist.irecv, dist.isend)[ctx.rank](tensor, 1 - ctx.rank, group=group)
    assert work is not None
    waits.set()
    work.wait(timedelta(seconds=60))


def sleeps(thread: int) -> bool:
    text = Path(f"/proc/self/task/{thread}/stat").read_text(encoding="ascii")
    return text.rsplit(")", 1)[1].split()[0] == "S"


def signal_in(waits: threading.Event, number: int) -> threading.Thread:
    """Sends the signal once the main thread is in a wait: it has been seen asleep again and again."""

    def watch() -> None:
        assert waits.wait(30)
        seen = 0
        while seen < 10:
            seen = seen + 1 if sleeps(os.getpid()) else 0
            threading.Event().wait(0.002)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def returning(ctx: Context, how: str) -> None:
    """Rank 1 comes only when rank 0's handler has run."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=60))
    if how != "message":
        dist.all_reduce(torch.ones(10, device="cuda"), group=group)
        torch.cuda.synchronize()
    ctx.meet("ready")
    if ctx.rank == 0:
        before = signal.signal(signal.SIGUSR2, lambda *_: ctx.signal("handled"))
        waits = threading.Event()
        thread = signal_in(waits, signal.SIGUSR2)
        alone(ctx, how, group, waits)
        thread.join()
        signal.signal(signal.SIGUSR2, before)
    else:
        ctx.await_signal("handled", [0])
        alone(ctx, how, group, threading.Event())
    torch.cuda.synchronize()
    dist.destroy_process_group(group)


@two_gpus
@pytest.mark.parametrize("how", ["work", "barrier", "message"])
def test_handlers_of_signals_run_while_the_host_waits(fresh_world: World, how: str) -> None:
    fresh_world(2, env=DEVICE).call(returning, how, timeout_s=50)


class Stop(Exception):
    """What a handler raises."""


def raising(ctx: Context, how: str) -> str:
    """Rank 0's handler ends its call, and the group with it; the other rank hears why. Returns what it hears."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(10, device="cuda"), group=group)
    torch.cuda.synchronize()
    ctx.meet("ready")
    if ctx.rank == 0:

        def stop(*_: Any) -> None:
            raise Stop

        before = signal.signal(signal.SIGUSR2, stop)
        waits = threading.Event()
        thread = signal_in(waits, signal.SIGUSR2)
        with pytest.raises(Stop):
            alone(ctx, how, group, waits)
        thread.join()
        signal.signal(signal.SIGUSR2, before)
        ctx.signal("stopped")
        assert "interrupted by Stop" in str(tutti.get_error(group)[1])
        for device in ("cuda", "cpu"):
            with pytest.raises(RuntimeError, match="interrupted by Stop"):
                dist.all_reduce(torch.ones(10, device=device), group=group)
    ctx.await_signal("stopped", [0])
    said = ""
    if ctx.rank == 1:
        with pytest.raises(RuntimeError) as raised:
            dist.all_reduce(torch.ones(10, device="cuda"), group=group, async_op=True).wait(timedelta(seconds=40))
        said = str(raised.value)
    ctx.meet("heard")
    dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(10, device="cuda"))  # other groups go on
    torch.cuda.synchronize()
    return said


@two_gpus
@pytest.mark.parametrize("how", ["work", "barrier"])
def test_handlers_that_raise_end_the_group(fresh_world: World, how: str) -> None:
    said = fresh_world(2, env=DEVICE).call(raising, how, timeout_s=50)
    assert "rank 0" in said[1] and "interrupted by Stop" in said[1], said


def raising_at_a_message(ctx: Context) -> None:
    """A first message: the handler ends the wait for its peer, and the message goes on."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=60))
    ctx.meet("ready")
    if ctx.rank == 0:

        def stop(*_: Any) -> None:
            raise Stop

        before = signal.signal(signal.SIGUSR2, stop)
        waits = threading.Event()
        thread = signal_in(waits, signal.SIGUSR2)
        with pytest.raises(Stop):
            alone(ctx, "message", group, waits)
        thread.join()
        signal.signal(signal.SIGUSR2, before)
        assert tutti.get_error(group)[0] == "success"
        ctx.signal("stopped")
    else:
        ctx.await_signal("stopped", [0])
        dist.isend(torch.full((1000,), 3.0, device="cuda"), 0, group=group).wait(timedelta(seconds=30))
    ctx.meet("sent")
    dist.destroy_process_group(group)


@two_gpus
def test_a_handler_that_raises_leaves_a_first_message_under_way(fresh_world: World) -> None:
    fresh_world(2, env=DEVICE).call(raising_at_a_message, timeout_s=50)


def forked(ctx: Context) -> None:
    """A child lets go of works, their futures and what they hold, touches nothing of CUDA's, and says nothing."""
    tensors = [torch.ones(1000, device="cuda") for _ in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if ctx.rank == 0:
        works.append(dist.isend(tensors[0], 1))
    else:
        works.append(dist.irecv(torch.empty(1000, device="cuda"), 0))
    futures = [work.get_future() for work in works]
    for work in works[:2]:
        work.wait()
    torch.cuda.synchronize()
    time.sleep(0.2)  # until the message's thread has let go of it
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends it if it hangs
            os.dup2(said.fileno(), 2)
            del tensors, work, works, futures
            gc.collect()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        said.seek(0)
        text = said.read().decode()
    assert (status, text) == (0, "")
    ctx.meet("looked")


def test_a_forked_child_leaves_what_works_hold(fresh_world: World) -> None:
    fresh_world(2, env=DEVICE).call(forked, timeout_s=50)
