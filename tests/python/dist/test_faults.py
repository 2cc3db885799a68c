"""A rank that dies, stops, leaves or never calls: the others raise in time, say why, and can go on."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conformance import COLLECTIVES, Case, Run
from failures import (
    DEADLINE_S,
    DEATH_S,
    SLACK_S,
    await_file,
    call_until_error,
    check_message,
    check_survivors,
    raised_in_time,
)
from rank_pool import Pending, RankPool, names_in_dev_shm, unique_name
from rank_worker import Context, Leave, raised

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]


@pytest.mark.parametrize("count", [2, 3000, 1_500_000])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_killed_rank(fresh_world: World, seed: int, collective: str, count: int) -> None:
    """SIGKILL at a random moment in every collective."""
    chooser = random.Random(f"{collective} {count} {seed}")
    size = 3
    victim = chooser.randrange(size)
    delay_s = chooser.uniform(0.001, 0.08)
    pool = fresh_world(size)
    survivors = [rank for rank in range(size) if rank != victim]
    pending = pool.begin(
        call_until_error, collective, count, seed, each=lambda rank: (delay_s if rank == victim else None,)
    )
    death = pending.wait(20, [victim])[victim]
    assert death.kind == "died", f"seed {seed}: {pool.explain({victim: death})}"
    messages = raised_in_time(pending.wait(10, survivors), death.seconds, DEATH_S + SLACK_S, pool)
    for message in messages.values():
        check_message(message, victim, collective)
    check_survivors(pool, survivors)


def call_or_stay_away(ctx: Context, collective: str, count: int, absent: int) -> dict[str, Any]:
    if ctx.rank == absent:
        return {"message": "", "done": 0}
    return call_until_error(ctx, collective, count, 1, None)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter_tensor", "all_to_all_single"])
def test_rank_that_never_calls(fresh_world: World, collective: str) -> None:
    pool = fresh_world(3)
    pool.open_group(DEADLINE_S)
    outcomes = pool.begin(call_or_stay_away, collective, 1000, 1).wait(20)
    messages = raised_in_time({rank: outcomes[rank] for rank in (0, 2)}, DEADLINE_S, SLACK_S, pool)
    assert min(outcomes[rank].seconds for rank in (0, 2)) >= DEADLINE_S * 0.9
    for message in messages.values():
        check_message(message, 1, collective)
        assert "timed out" in message
    check_survivors(pool, [0, 1, 2])  # the third is well: it only did not call


def call_marked(ctx: Context, collective: str, count: int, marker: str) -> dict[str, Any]:
    """As call_until_error; leaves a file once the first call has been made."""
    first = Run(
        Case(collective, torch.float32, "SUM", count, "contiguous", False, 0, True, 1), ctx.rank, list(range(ctx.size))
    )
    first.start()
    first.finish()
    with open(f"{marker}.{ctx.rank}", "w"):
        pass
    return call_until_error(ctx, collective, count, 1, None)


def stop_while_calling(pool: RankPool, victim: int, collective: str, count: int, folder: str) -> tuple[Pending, float]:
    """Starts calls and stops the victim in the middle of them; returns the time of the stop."""
    marker = os.path.join(folder, "running")
    pending = pool.begin(call_marked, collective, count, marker)
    await_file(f"{marker}.{victim}")
    pool.send_signal(victim, signal.SIGSTOP)
    return pending, time.monotonic() - pending.start


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_to_all_single", "send_recv"])
def test_stopped_rank(fresh_world: World, tmp_path: Any, collective: str) -> None:
    """The others raise at the deadline; the one that resumes learns of it too, and all can go on."""
    # In a ring of messages a rank waits for its neighbours only, who may be well themselves.
    size = 2 if collective == "send_recv" else 3
    others = [rank for rank in range(size) if rank != 1]
    pool = fresh_world(size)
    pool.open_group(DEADLINE_S)
    pending, stopped = stop_while_calling(pool, 1, collective, 1000, str(tmp_path))
    outcomes = pending.wait(20, others)
    messages = raised_in_time(outcomes, stopped, 2 * DEADLINE_S + SLACK_S, pool)
    assert any(re.search(r"\brank 1\b", message) for message in messages.values()), messages
    pool.send_signal(1, signal.SIGCONT)
    resumed = pending.wait(10, [1])
    assert resumed[1].kind == "ok", pool.explain(resumed)
    check_survivors(pool, list(range(size)))


def leave_or_call(ctx: Context, how: str) -> dict[str, Any]:
    """Rank 1 leaves the group in good order after one call."""
    dist.all_reduce(torch.ones(4))
    if ctx.rank == 1:
        if how == "exit":
            raise Leave
        if how == "return without destroying":
            os._exit(0)
        dist.destroy_process_group()
        return {"message": "", "done": 1}
    return call_until_error(ctx, "all_reduce", 1000, 1, None)


@pytest.mark.parametrize("how", ["exit", "return without destroying", "destroy"])
def test_rank_that_leaves(fresh_world: World, how: str) -> None:
    pool = fresh_world(3)
    outcomes = pool.begin(leave_or_call, how).wait(20)
    assert outcomes[1].kind in ("ok", "died") and outcomes[1].value in (0, {"message": "", "done": 1})
    messages = raised_in_time({rank: outcomes[rank] for rank in (0, 2)}, outcomes[1].seconds, DEATH_S + SLACK_S, pool)
    for message in messages.values():
        check_message(message, 1, "all_reduce")
    check_survivors(pool, [0, 2])


def wait_asynchronously(ctx: Context) -> dict[str, Any]:
    """An outstanding receive learns of the death, too; exceptions come through every way to ask."""
    if ctx.rank == 1:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    receive = dist.irecv(torch.empty(4), 1)
    dist.barrier()
    reduction = dist.all_reduce(torch.ones(1000), async_op=True)
    told = []
    for work in (receive, reduction):
        try:
            work.wait()
        except dist.DistBackendError as error:
            told.append(str(error))
    return {"message": " | ".join(told), "told": len(told), "exception": raised(reduction)}


def test_outstanding_calls_learn_of_a_death(fresh_world: World) -> None:
    pool = fresh_world(2)
    outcome = pool.begin(wait_asynchronously).wait(20)[0]
    raised_in_time({0: outcome}, 0, DEATH_S + SLACK_S, pool)
    assert outcome.value["told"] == 2 and outcome.value["exception"], outcome.value
    assert re.search(r"\brank 1\b", outcome.value["message"])


def abort_while_waiting(ctx: Context) -> dict[str, Any]:
    """abort() from another thread unblocks a wait; the peer learns of it."""
    group = dist.distributed_c10d._get_default_group()
    if ctx.rank == 0:
        threading.Timer(0.2, group.abort).start()
    try:
        dist.all_reduce(torch.ones(4)) if ctx.rank == 0 else dist.recv(torch.ones(4), 0)
    except dist.DistBackendError as error:
        return {"message": str(error)}
    return {"message": ""}


def test_abort_unblocks(fresh_world: World) -> None:
    pool = fresh_world(2)
    outcomes = pool.begin(abort_while_waiting).wait(20)
    messages = raised_in_time(outcomes, 0.2, DEATH_S + SLACK_S, pool)
    assert "abort" in messages[0] and re.search(r"\brank 0\b", messages[1]), messages
    check_survivors(pool, [0, 1])


def log_of_timeout(ctx: Context, path: str) -> str:
    """What this rank writes to its standard error while a call times out."""
    if ctx.rank == 2:
        return ""
    saved = os.dup(2)
    with open(f"{path}.{ctx.rank}", "w+") as log:
        os.dup2(log.fileno(), 2)
        try:
            dist.all_reduce(torch.ones(4))
        except dist.DistBackendError:
            pass
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        log.seek(0)
        return log.read()


def test_survivors_log_who_is_missing(fresh_world: World, tmp_path: Any) -> None:
    """One line a surviving rank, for those who ask for it: who has not arrived in which call."""
    pool = fresh_world(3, env={"TUTTI_LOG_LEVEL": "info"})
    pool.open_group(DEADLINE_S)
    logs = pool.call(log_of_timeout, str(tmp_path / "log"))
    for rank in (0, 1):
        lines = [line for line in logs[rank].splitlines() if "all_reduce" in line]
        assert len(lines) == 1, lines
        assert re.search(r"all_reduce #\d+", lines[0]) and re.search(r"\brank 2\b", lines[0]), lines


def shared_or_plain(mapped: bool, count: int, value: float) -> torch.Tensor:
    if not mapped:
        return torch.full((count,), value)
    import tutti

    tensor = tutti.empty(count)
    tensor.fill_(value)
    return tensor


COMPARED = 2_000_000


def reduce_then_reuse(ctx: Context, mapped: bool, marker: str) -> dict[str, Any]:
    """Reduces until an error; then ends the group and takes memory of the same size for something else."""
    tensor = shared_or_plain(mapped, COMPARED, 1.0)
    started = False
    try:
        while True:
            dist.all_reduce(tensor)
            if not started:
                with open(f"{marker}.{ctx.rank}", "w"):
                    started = True
    except dist.DistBackendError as error:
        message = str(error)
    if ctx.rank == 0:
        dist.destroy_process_group()
        del tensor
        ctx.kept["precious"] = [shared_or_plain(mapped, COMPARED, 42.0 + k) for k in range(4)]
    return {"message": message}


def still_precious(ctx: Context) -> bool:
    return all(bool((tensor == 42.0 + k).all()) for k, tensor in enumerate(ctx.kept["precious"]))


@pytest.mark.parametrize("mapped", [False, True], ids=["staged", "mapped"])
def test_stopped_rank_that_resumes_corrupts_nothing(fresh_world: World, tmp_path: Any, mapped: bool) -> None:
    """Stop it at several moments of its calls; let the other time out and reuse its memory; resume; compare."""
    for attempt in range(3):
        pool = fresh_world(2)
        pool.open_group(0.4)
        marker = str(tmp_path / f"running{attempt}")
        pending = pool.begin(reduce_then_reuse, mapped, marker)
        await_file(f"{marker}.1")
        pool.send_signal(1, signal.SIGSTOP)
        raised_in_time(pending.wait(20, [0]), 0, 15, pool)
        pool.send_signal(1, signal.SIGCONT)
        assert pending.wait(20, [1])[1].kind == "ok"
        assert pool.call(still_precious, ranks=[0]) == [True]
        check_survivors(pool, [0, 1])
        assert pool.call(still_precious, ranks=[0]) == [True]
        pool.kill()


LARGE = 24_000_000  # 96 MB: nearly all of a call's time its ranks write into each other's tensors


def call_then_refill(ctx: Context, collective: str, marker: str) -> dict[str, Any]:
    """Makes calls that write into a mapped tensor of rank 0 until an error; then goes on with the same tensor."""
    import tutti

    tensor = shared_or_plain(True, LARGE, 1.0)
    own = shared_or_plain(True, LARGE // 2, 1.0) if collective != "all_reduce" else None
    parts = list(tensor.chunk(2))
    arrays = tutti.Communicator.from_group(timeout=6.0) if collective == "gather" else None
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_gather": lambda: dist.all_gather_into_tensor(tensor, own),
        "gather": lambda: arrays.gather(own, tensor if ctx.rank == 0 else None, 0),  # of a list the root reads
        "scatter": lambda: dist.scatter(parts[0], [own, own] if ctx.rank == 1 else None, 1),
    }
    started = False
    try:
        while True:
            calls[collective]()
            if not started:
                with open(f"{marker}.{ctx.rank}", "w"):
                    started = True
    except (TimeoutError, RuntimeError) as error:  # DistBackendError is one
        message = str(error)
    mapped = tutti.is_mapped(tensor)
    tensor.fill_(42.0 + ctx.rank)
    ctx.kept["live"] = tensor
    return {"message": message, "mapped": mapped}


def still_live(ctx: Context) -> bool:
    return bool((ctx.kept["live"] == 42.0 + ctx.rank).all())


def reduce_live(ctx: Context, shrunk: bool, name: str) -> bool:
    """The tensor in a group of those that are left, which takes it for none that is mapped."""
    import tutti

    if shrunk:
        group, members = tutti.shrink(timeout=20)
        assert members == [0, 1]
    else:
        ctx.init(name, 20, rank=ctx.rank, size=ctx.size)
        group = None
    dist.all_reduce(ctx.kept["live"], group=group)
    assert tutti.get_metrics(group)["mapped_calls"] == 0
    return bool((ctx.kept["live"] == 85.0).all())


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "gather", "scatter"])
def test_stopped_rank_that_resumes_leaves_live_tensors_alone(
    fresh_world: World, collective: str, tmp_path: Any
) -> None:
    """As above, but the other goes on with the tensor of the failed call itself."""
    for attempt in range(2 if collective == "all_reduce" else 1):
        pool = fresh_world(2)
        pool.open_group(6.0)  # the first call touches new memory
        marker = str(tmp_path / f"running{attempt}")
        pending = pool.begin(call_then_refill, collective, marker)
        await_file(f"{marker}.1")
        pool.send_signal(1, signal.SIGSTOP)
        outcomes = pending.wait(20, [0])
        raised_in_time(outcomes, 0, 15, pool)
        pool.send_signal(1, signal.SIGCONT)
        outcomes |= pending.wait(20, [1])
        assert [outcomes[rank].kind for rank in (0, 1)] == ["ok", "ok"], pool.explain(outcomes)
        assert pool.call(still_live) == [True, True]
        assert not outcomes[0].value["mapped"], "a tensor of a failed call is never mapped again"
        assert pool.call(reduce_live, attempt == 0, unique_name("survivors")) == [True, True]
        pool.kill()


class Scribbler(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A data set whose worker process changes a tensor of its parent in place."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        for tensor in self.tensors:
            tensor.fill_(-1.0)
        return index


def load_with_workers(ctx: Context) -> tuple[bool, float]:
    import multiprocessing

    import tutti

    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    tutti.use_shared_allocator()
    tensors = [tutti.zeros(100_000), torch.zeros(1_000_000)]
    loader = torch.utils.data.DataLoader(Scribbler(tensors), num_workers=2, multiprocessing_context="fork")
    seen = sorted(int(item) for item in loader)
    untouched = seen == [0, 1, 2, 3] and all(not bool(tensor.any()) for tensor in tensors)
    for tensor in tensors:  # the parent is still in the group, and its tensors still mapped
        tensor.fill_(1.0)
        dist.all_reduce(tensor)
    return untouched, float(tensors[0][0] + tensors[1][-1])


def test_forked_data_loader_leaves_its_parent_alone(fresh_world: World) -> None:
    assert fresh_world(2).call(load_with_workers) == [(True, 4.0)] * 2


def wait_long(ctx: Context, wait_s: float, call: str) -> float:
    """The share of a core that rank 0 uses while it waits for rank 1."""
    import resource

    dist.all_reduce(torch.ones(4))
    if ctx.rank == 1:
        threading.Event().wait(wait_s)  # the work that makes this rank late
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    if call == "async":
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.wait()
    elif call == "recv" and ctx.rank == 0:
        dist.recv(torch.ones(4), 1)
    elif call == "recv":
        dist.send(torch.ones(4), 0)
    else:
        dist.all_reduce(torch.ones(4))
    after, elapsed = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - start
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used / elapsed if ctx.rank == 0 and elapsed > 1.0 else 0.0


@pytest.mark.parametrize("call", ["sync", "async", "recv"])
def test_waiting_rank_leaves_the_core_to_others(fresh_world: World, call: str) -> None:
    """Under 5 % of a core after 10 ms: here over more than a second, those 10 ms included."""
    assert fresh_world(2).call(wait_long, 1.3, call)[0] < 0.05


def test_nothing_is_left_in_dev_shm(fresh_world: World) -> None:
    before = names_in_dev_shm()
    pool = fresh_world(2)
    pending = pool.begin(call_until_error, "all_reduce", 100_000, 1, each=lambda rank: (0.05 if rank else None,))
    during = names_in_dev_shm() - before
    pending.wait(20)
    pool.kill()
    assert not during and not names_in_dev_shm() - before
