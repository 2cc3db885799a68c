"""Limits of time under TorchComms: each call that a rank does not come to raises on the others, and names itself.

Rank 1 makes the communicators and nothing else. No limit ends a process, unless a hint asks for it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from rank_pool import RankPool, unique_name
from rank_worker import Context
from torchcomms_interface import NEEDS_TORCHCOMMS, STAND_IN, batch_limit, interface, new_comm

World = Callable[..., RankPool]
Call = Callable[..., Any]
SOON, LONG = timedelta(milliseconds=150), timedelta(seconds=60)
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]


def calls(comm: Any) -> dict[str, tuple[str, Call]]:
    """What rank 0 may call: each waits for rank 1. With the name that the message must have."""
    op, one, two = interface().ReduceOp.SUM, torch.ones(1), torch.ones(2)
    pair = [torch.ones(1), torch.ones(1)]

    def batch(asynchronous: bool, timeout: timedelta | None = None) -> Any:
        messages = comm.batch_op_create()
        messages.recv(one, 1)
        return messages.issue(asynchronous, *([] if timeout is None else [batch_limit(timeout)]))

    def persistent(asynchronous: bool, **limit: Any) -> Any:
        return comm.all_gather_p_exec(comm.all_gather_p_init(two), one, asynchronous, **limit)

    return {
        "broadcast": ("broadcast", lambda a, **t: comm.broadcast(one, 1, a, **t)),
        "all_reduce": ("all_reduce", lambda a, **t: comm.all_reduce(one, op, a, **t)),
        "reduce": ("reduce", lambda a, **t: comm.reduce(one, 0, op, a, **t)),
        "all_gather": ("all_gather", lambda a, **t: comm.all_gather(pair, one, a, **t)),
        "all_gather_v": ("all_gather", lambda a, **t: comm.all_gather_v([one, two], one, a, **t)),
        "all_gather_single": ("all_gather", lambda a, **t: comm.all_gather_single(two, one, a, **t)),
        "reduce_scatter": ("reduce_scatter", lambda a, **t: comm.reduce_scatter(one, pair, op, a, **t)),
        "reduce_scatter_v": ("reduce_scatter", lambda a, **t: comm.reduce_scatter_v(one, [one, two], op, a, **t)),
        "reduce_scatter_single": ("reduce_scatter", lambda a, **t: comm.reduce_scatter_single(one, two, op, a, **t)),
        "all_to_all": ("all_to_all", lambda a, **t: comm.all_to_all(pair, [one, one], a, **t)),
        "all_to_all_single": ("all_to_all", lambda a, **t: comm.all_to_all_single(two, torch.ones(2), a, **t)),
        "all_to_all_v_single": (
            "all_to_all",
            lambda a, **t: comm.all_to_all_v_single(two, torch.ones(2), [1, 1], [1, 1], a, **t),
        ),
        "barrier": ("barrier", lambda a, **t: comm.barrier(a, **t)),
        "scatter": ("scatter", lambda a, **t: comm.scatter(one, [], 1, a, **t)),
        "gather": ("gather", lambda a, **t: comm.gather(pair, one, 0, a, **t)),
        "gather_single": ("gather", lambda a, **t: comm.gather_single(two, one, 0, a, **t)),
        "all_gather_p_exec": ("all_gather", persistent),
        "send": ("send", lambda a, **t: comm.send(torch.ones(16 << 20), 1, a, **t)),
        "recv": ("recv", lambda a, **t: comm.recv(one, 1, a, **t)),
        "batch_op_issue": ("batch_op_issue|recv", batch),
    }


def limits(ctx: Context, name: str) -> None:
    """The call's own limit, then the communicator's; every other call blocks, the rest is waited for."""
    kept, store = [], ctx.store(name)
    for number, operation in enumerate(calls(None)):
        for own in (True, False):
            asynchronous = (number + own) % 2 == 1
            comm = new_comm(ctx, f"{name}.{operation}.{own}", timeout=LONG)
            kept.append(comm)
            if ctx.rank != 0:
                continue
            if not own:
                comm.set_timeout(SOON)
            said, call = calls(comm)[operation]
            limit = {"timeout": SOON} if own else {}
            work = call(True, **limit) if asynchronous else None
            with pytest.raises(RuntimeError, match=rf"(?s)({said})\b.*150 ms"):
                call(False, **limit) if work is None else work.wait()
            # A message's own limit is that of the wait: it goes on itself.
            goes_on = own and operation in ("send", "recv", "batch_op_issue")
            assert comm.is_aborted() == (not goes_on), operation
            if work is not None:
                assert not work.is_completed(), operation
                if STAND_IN:
                    assert work.status() == interface().WorkStatus.TIMEDOUT, operation
    if ctx.rank == 0:
        store.set("over", "1")
    else:
        store.wait(["over"])


def given_at_first(ctx: Context, name: str) -> None:
    """What new_comm() was given is the limit of calls, too."""
    comm, store = new_comm(ctx, name, timeout=timedelta(seconds=3)), ctx.store(name)
    if ctx.rank == 0:
        with pytest.raises(RuntimeError, match=r"all_reduce\b.*3000 ms"):
            comm.all_reduce(torch.ones(1), interface().ReduceOp.SUM, False)
        store.set("over", "1")
    else:
        store.wait(["over"])


def ends(ctx: Context, name: str) -> None:
    """By a call that blocks, where the hint asks for it; the other rank only hears of it."""
    comm = new_comm(ctx, name, hints={"tutti.abort_process": str(1 - ctx.rank)})
    one = torch.ones(1)
    if ctx.rank == 0:
        comm.all_reduce(one, interface().ReduceOp.SUM, False, timeout=SOON)
    with pytest.raises(RuntimeError):
        comm.recv(one, 0, False)
    assert comm.is_aborted()


@pytest.mark.parametrize("function", [limits, given_at_first])
def test_late_calls_raise(fresh_world: World, function: Callable[..., None]) -> None:
    fresh_world(2, open_group=False).call(function, unique_name("tc"), timeout_s=120)


def test_a_late_call_ends_the_process_if_it_is_told_to(fresh_world: World) -> None:
    pool = fresh_world(2, open_group=False)
    outcomes = pool.begin(ends, unique_name("tc")).wait(60)
    assert (outcomes[0].kind, outcomes[0].value) == ("died", -signal.SIGABRT), pool.explain(outcomes)
    assert outcomes[1].kind == "ok", pool.explain(outcomes)
    pool.kill()
