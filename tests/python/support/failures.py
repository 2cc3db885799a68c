"""Ranks that fail in the middle of calls: what the others raise, when, and that they go on."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from conformance import Case, Run
from rank_pool import Outcome, RankPool, unique_name
from rank_worker import Context

DEATH_S = 1.0  # the promise: every other rank raises within it
DEATH_ON_HOSTS_S = 2.0  # where some are on other hosts
SLACK_S = 1.0  # for a busy machine of two cores
DEADLINE_S = 1.0  # group timeout of tests that run into it


def call_until_error(
    ctx: Context, collective: str, count: int, seed: int, kill_after_s: float | None
) -> dict[str, Any]:
    """Calls a collective over and over, checking each result, until it raises."""
    if kill_after_s is not None:
        threading.Timer(kill_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    chooser = random.Random(seed)
    members = list(range(ctx.size))
    done = 0
    while True:
        case = Case(
            collective,
            torch.float32,
            "SUM",
            count,
            "contiguous",
            chooser.random() < 0.3 and collective != "send_recv",
            chooser.randrange(ctx.size),
            True,
            seed,
        )
        try:
            run = Run(case, ctx.rank, members)
            run.start()
            problem = run.finish()
        except dist.DistBackendError as error:
            return {"message": str(error), "done": done}
        if problem:
            raise AssertionError(f"call {done}: {problem}")
        done += 1


def go_on(ctx: Context, name: str, members: list[int]) -> float:
    """A new group of those that are left works."""
    ctx.init(name, 20, rank=members.index(ctx.rank), size=len(members))
    tensor = torch.full((1000,), float(ctx.rank))
    dist.all_reduce(tensor)
    dist.barrier()
    return float(tensor[0])


def check_survivors(pool: RankPool, survivors: list[int]) -> None:
    results = pool.call(go_on, unique_name("survivors"), survivors, ranks=survivors)
    assert results == [float(sum(survivors))] * len(survivors)


def check_message(message: str, culprit: int, call: str) -> None:
    """It names the rank, the call and its number."""
    assert re.search(rf"\brank {culprit}\b", message), f"rank {culprit} is not named: {message}"
    if call == "send_recv":
        assert re.search(r"\b(send|recv) f32\[", message), message
    else:
        name = {"all_gather_uneven": "all_gather", "all_gather_into_tensor": "all_gather"}.get(call, call)
        name = {"reduce_scatter_tensor": "reduce_scatter", "all_to_all_single": "all_to_all"}.get(name, name)
        assert re.search(rf"\b{name} #\d+", message), f"{name} with its number is not named: {message}"


def raised_in_time(outcomes: dict[int, Outcome], since_s: float, limit_s: float, pool: RankPool) -> dict[int, str]:
    """Messages of ranks that returned what they caught, no later than `limit_s` after `since_s` of the call's time."""
    if any(outcome.kind != "ok" for outcome in outcomes.values()):
        raise AssertionError(pool.explain(outcomes))
    late = {rank: outcome.seconds - since_s for rank, outcome in outcomes.items()}
    assert max(late.values()) < limit_s, f"seconds until ranks raised: {late}"
    return {rank: outcome.value["message"] for rank, outcome in outcomes.items()}


def await_file(path: str, present: bool = True) -> None:
    """Polls, bounded, for a file that another process makes."""
    deadline = time.monotonic() + 20
    while os.path.exists(path) is not present:
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        threading.Event().wait(0.002)


def check_death(messages: dict[int, str], victim: int, collective: str) -> None:
    """Across hosts the first survivors name the dead rank; one that hears of it late may name the rank that told it."""
    assert any(re.search(rf"\brank {victim}\b", message) for message in messages.values()), messages
    for rank, message in messages.items():
        blamed = re.search(r"\brank (\d+) (?:\(pid \d+\) )?(?:died|gave up|has left)", message)
        assert blamed and int(blamed[1]) != rank, message
        check_message(message, int(blamed[1]), collective)


def connect_all(ctx: Context) -> None:
    """Lets every pair of ranks talk: a rank that is refused a first connection can only blame who refuses it."""
    dist.all_to_all_single(torch.empty(ctx.size), torch.ones(ctx.size))
