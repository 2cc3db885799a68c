"""A rank that dies, stops or gives up within a call that a plan runs, and ranks that have different plans."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from failures import DEADLINE_S, DEATH_S, SLACK_S, await_file, check_message, check_survivors, raised_in_time
from rank_pool import Pending, RankPool
from rank_worker import Context

import tutti
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]

LARGE = 300_000  # elements: many segments, so that a signal finds the ranks within the plan


def write_plan(folder: Path, algorithm: str, ranks: int) -> str:
    """Writes the plan of a built-in program; returns the name of its algorithm."""
    name = f"{algorithm}_{ranks}"
    spec = AlgoSpec(name=name, collective=AllReduce(ranks, 1, True))
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(BUILTINS["allreduce", algorithm](spec).to_json())
    return f"plan:{name}"


def algorithms_run(group: Any = None) -> list[str]:
    return sorted({row["algorithm"] for row in tutti.get_metrics(group)["rows"] if row["collective"] == "all_reduce"})


def reduce_until_error(ctx: Context, count: int, marker: str, kill_after_s: float | None) -> dict[str, Any]:
    """Reduces over and over, checking each result, until a call raises."""
    started = False
    while True:
        tensor = torch.full((count,), float(ctx.rank))
        try:
            dist.all_reduce(tensor)
        except dist.DistBackendError as error:
            return {"message": str(error), "ran": algorithms_run()}
        assert bool((tensor == sum(range(ctx.size))).all())
        if not started:
            started = True
            with open(f"{marker}.{ctx.rank}", "w"):
                pass
            if kill_after_s is not None:
                threading.Timer(kill_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()


def begin_reducing(
    world: World, size: int, folder: Path, algorithm: str, count: int, **more: Any
) -> tuple[RankPool, Pending, str]:
    """Ranks that reduce by a plan; returns the plan's name too."""
    name = write_plan(folder / "plans", algorithm, size)
    pool = world(size, env={"TUTTI_PLAN_PATH": str(folder / "plans")}, group_timeout_s=more.pop("timeout_s", 60.0))
    each = more.pop("each", lambda rank: (None,))
    return pool, pool.begin(reduce_until_error, count, str(folder / "running"), each=each), name


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("algorithm", "count"), [("one_shot", 64), ("ring", LARGE), ("rabenseifner", LARGE)])
def test_killed_rank(fresh_world: World, tmp_path: Path, seed: int, size: int, algorithm: str, count: int) -> None:
    """SIGKILL at a random moment of calls that a plan runs."""
    chooser = random.Random(f"{algorithm} {size} {seed}")
    victim, delay_s = chooser.randrange(size), chooser.uniform(0.001, 0.06)
    pool, pending, name = begin_reducing(
        fresh_world, size, tmp_path, algorithm, count, each=lambda rank: (delay_s if rank == victim else None,)
    )
    survivors = [rank for rank in range(size) if rank != victim]
    death = pending.wait(30, [victim])[victim]
    assert death.kind == "died", f"seed {seed}: {pool.explain({victim: death})}"
    outcomes = pending.wait(10, survivors)
    messages = raised_in_time(outcomes, death.seconds, DEATH_S + SLACK_S, pool)
    for rank in survivors:
        check_message(messages[rank], victim, "all_reduce")
        assert outcomes[rank].value["ran"] == [name]
    check_survivors(pool, survivors)


def stop_within(folder: Path, pool: RankPool, pending: Pending, victim: int) -> float:
    """Stops a rank in the midst of its calls; returns when."""
    import time

    await_file(str(folder / f"running.{victim}"))
    pool.send_signal(victim, signal.SIGSTOP)
    return time.monotonic() - pending.start


@pytest.mark.parametrize("size", [2, 3])
def test_stopped_rank(fresh_world: World, tmp_path: Path, size: int) -> None:
    """The others time out naming it, and all go on when it resumes."""
    pool, pending, name = begin_reducing(fresh_world, size, tmp_path, "two_shot", LARGE, timeout_s=DEADLINE_S)
    stopped = stop_within(tmp_path, pool, pending, 1)
    others = [rank for rank in range(size) if rank != 1]
    outcomes = pending.wait(20, others)
    messages = raised_in_time(outcomes, stopped, 2 * DEADLINE_S + SLACK_S, pool)
    assert any("timed out" in message for message in messages.values()), messages
    # It may have been stopped within the plan or between two calls.
    named = r"(waiting for|of) rank 1\b|rank 1 has not arrived"
    assert any(re.search(named, message) for message in messages.values()), messages
    assert all(re.search(r"all_reduce #\d+", message) for message in messages.values()), messages
    assert all(outcomes[rank].value["ran"] == [name] for rank in others)
    pool.send_signal(1, signal.SIGCONT)
    resumed = pending.wait(10, [1])
    assert resumed[1].kind == "ok", pool.explain(resumed)
    check_survivors(pool, list(range(size)))


def reduce_and_abort(ctx: Context, count: int, marker: str, aborts: bool) -> dict[str, Any]:
    """As reduce_until_error; aborts the group when the other rank has been stopped."""
    if aborts:
        group = dist.distributed_c10d._get_default_group()

        def abort() -> None:
            await_file(f"{marker}.stopped")
            group.abort()

        threading.Thread(target=abort, daemon=True).start()
    return reduce_until_error(ctx, count, marker, None)


def test_abort_while_a_plan_waits(fresh_world: World, tmp_path: Path) -> None:
    name = write_plan(tmp_path / "plans", "ring", 2)
    marker = str(tmp_path / "running")
    pool = fresh_world(2, env={"TUTTI_PLAN_PATH": str(tmp_path / "plans")})
    pending = pool.begin(reduce_and_abort, LARGE, marker, each=lambda rank: (rank == 0,))
    await_file(f"{marker}.0")
    stop_within(tmp_path, pool, pending, 1)
    Path(f"{marker}.stopped").touch()
    aborted = pending.wait(20, [0])
    assert aborted[0].kind == "ok", pool.explain(aborted)
    assert "abort" in aborted[0].value["message"]
    assert aborted[0].value["ran"] == [name]
    pool.send_signal(1, signal.SIGCONT)
    told = pending.wait(10, [1])
    assert told[1].kind == "ok", pool.explain(told)
    assert re.search(r"\brank 0\b", told[1].value["message"]), told[1].value


def reduce_die_shrink(ctx: Context) -> Any:
    """Rank 1 dies within calls of the plan; the others go on as a smaller group."""
    dist.all_reduce(torch.ones(LARGE))
    if ctx.rank == 1:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            dist.all_reduce(torch.ones(LARGE))
    except dist.DistBackendError:
        before = algorithms_run()
    group, members = tutti.shrink(timeout=10)
    tensor = torch.full((LARGE,), float(ctx.rank))
    dist.all_reduce(tensor, group=group)
    return float(tensor[-1]), members, before, algorithms_run(group)


@pytest.mark.parametrize("sizes", [(3, 2), (3,)], ids=["plans for both", "none for the smaller group"])
def test_shrink_after_a_death_in_a_plan(fresh_world: World, tmp_path: Path, sizes: tuple[int, ...]) -> None:
    names = [write_plan(tmp_path, "ring", size) for size in sizes]
    pool = fresh_world(3, env={"TUTTI_PLAN_PATH": str(tmp_path)})
    outcomes = pool.begin(reduce_die_shrink).wait(30)
    assert outcomes[1].kind == "died", pool.explain(outcomes)
    for rank in (0, 2):
        assert outcomes[rank].kind == "ok", pool.explain(outcomes)
        total, members, before, after = outcomes[rank].value
        assert (total, members, before) == (2.0, [0, 2], names[:1])
        assert after == (names[1:] or ["staged"])


def error_of_new_group(ctx: Context, folder: str) -> str:
    os.environ["TUTTI_PLAN_PATH"] = f"{folder}/{ctx.rank}"
    try:
        dist.new_group()
    except RuntimeError as error:
        return str(error)
    finally:
        del os.environ["TUTTI_PLAN_PATH"]
    return ""


def test_different_plans_are_both_named(fresh_world: World, tmp_path: Path) -> None:
    for rank, algorithm in enumerate(("ring", "swing")):
        write_plan(tmp_path / str(rank), algorithm, 2)
    messages = fresh_world(2).call(error_of_new_group, str(tmp_path))
    named = [set(re.findall(r"with the plans ([0-9a-f]{8})", message)) for message in messages]
    assert len(named[0]) == 2 and named[0] == named[1], messages
    for message in messages:
        assert "TUTTI_PLAN_PATH" in message and f"{tmp_path}/0 " in message and f"{tmp_path}/1 " in message
        assert "on rank 0" in message and "on rank 1" in message


def error_of_options(ctx: Context) -> str:
    """Of a group whose ranks force different algorithms by its options."""
    try:
        dist.new_group(pg_options=tutti.Options(algorithm=f"all_reduce={('staged', 'slots')[ctx.rank]}"))
    except RuntimeError as error:
        return str(error)
    return ""


def test_different_options_are_both_named(fresh_world: World) -> None:
    for message in fresh_world(2).call(error_of_options):
        assert "Options(algorithm=...)" in message, message
        assert "is all_reduce=staged on rank 0 and all_reduce=slots on rank 1" in message, message
