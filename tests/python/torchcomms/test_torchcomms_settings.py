"""Hints of TorchComms that one rank alone is given: right results, or an error on all ranks that names the hint."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from launching import free_port
from rank_pool import RankPool, unique_name
from rank_worker import Context
from torchcomms_interface import NEEDS_TORCHCOMMS, interface, new_comm

World = Callable[..., RankPool]
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]

Hints = dict[str, str]
LATE_S = 20.0  # the communicators' own time is 30 s: who has waited for that has not been told


def results_are_right(comm: Any, rank: int, size: int) -> bool:
    op = interface().ReduceOp
    total = size * (size + 1) / 2
    for count in (1, 100, 1 << 18):
        tensor = torch.full((count,), rank + 1.0)
        comm.all_reduce(tensor, op.SUM, False)
        gathered = torch.empty(size * count)
        comm.all_gather_single(gathered, torch.full((count,), float(rank)), True).wait()
        if not (bool((tensor == total).all()) and gathered[::count].tolist() == [float(r) for r in range(size)]):
            return False
    return True


def outcome(make: Callable[[], Any], rank: int, size: int) -> str:
    """What making the communicator says, once its calls are right; empty: it is made."""
    start = time.monotonic()
    try:
        comm = make()
    except RuntimeError as error:
        assert time.monotonic() - start < LATE_S, "it was not told"
        return str(error)
    assert results_are_right(comm, rank, size)
    comm.finalize()
    return ""


def made(ctx: Context, name: str, odd: int, hints: Hints, others: Hints, stored: bool = True) -> str:
    own = hints if ctx.rank == odd else others
    return outcome(lambda: new_comm(ctx, name, stored=stored, hints=own), ctx.rank, ctx.size)


def split(ctx: Context, name: str, odd: int, hints: Hints, others: Hints) -> str:
    comm = new_comm(ctx, name)
    own = hints if ctx.rank == odd else others
    said = outcome(lambda: comm.split(list(range(ctx.size)), "part", hints=own), ctx.rank, ctx.size)
    assert results_are_right(comm, ctx.rank, ctx.size), "the part's mistake is its own"
    comm.finalize()
    return said


def reconfigured(ctx: Context, name: str, odd: int, hints: Hints, others: Hints, stored: bool = True) -> str:
    comm = new_comm(ctx, name, stored=stored, enable_reconfigure=True)
    store = ctx.store(name)
    store.set(f"handle{ctx.rank}", comm.get_init_handle())
    handles = [store.get(f"handle{r}").decode() for r in range(ctx.size)]
    own = hints if ctx.rank == odd else others

    def make() -> Any:
        comm.reconfigure(1, handles, hints=own).wait()
        return comm

    said = outcome(make, ctx.rank, ctx.size)
    if said:  # with what all have alike it goes on
        comm.reconfigure(2, handles, hints={"tutti.algorithm": ""}).wait()
        assert results_are_right(comm, ctx.rank, ctx.size)
        comm.finalize()
    return said


WAYS = pytest.mark.parametrize("way", [made, split, reconfigured])
RANKS = 3
MAY_DIFFER: list[tuple[Hints, Hints]] = [
    ({"tutti.max_blocks": "3"}, {}),  # the least counts, and on GPUs only
    ({"tutti.abort_process": "1"}, {"tutti.abort_process": "0"}),
    ({"tutti.algorithm": ""}, {}),
    ({"other.backend": "1"}, {}),
]
REFUSED = [
    ("tutti.nothing", "1"),
    ("tutti.abort_process", "yes"),
    ("tutti.max_blocks", "-1"),
    ("tutti.max_blocks", "many"),
    ("tutti.algorithm", "no_such"),
]


@WAYS
def test_hints_that_may_differ(fresh_world: World, way: Any) -> None:
    pool = fresh_world(RANKS, open_group=False)
    for odd, (hints, others) in enumerate(MAY_DIFFER):
        said = pool.call(way, unique_name("tc"), odd % RANKS, hints, others)
        assert said == [""] * RANKS, (hints, said)


@WAYS
def test_an_algorithm_of_one_rank_is_named(fresh_world: World, way: Any) -> None:
    pool = fresh_world(RANKS, open_group=False)
    for odd in range(RANKS):
        for others in ("", "all_reduce=ring"):
            shared = {"tutti.algorithm": others} if others else {}
            for said in pool.call(way, unique_name("tc"), odd, {"tutti.algorithm": "all_reduce=staged"}, shared):
                assert "hint tutti.algorithm" in said and f"rank {odd}" in said, said
                assert "all_reduce=staged" in said and (others or "unset") in said, said


@WAYS
def test_a_hint_that_one_rank_refuses_is_told(fresh_world: World, way: Any) -> None:
    pool = fresh_world(RANKS, open_group=False)
    for odd in range(RANKS):
        for hint, value in REFUSED:
            for rank, said in enumerate(pool.call(way, unique_name("tc"), odd, {hint: value}, {})):
                assert hint in said and value in said, said
                assert rank == odd or f"rank {odd}" in said, said


@pytest.mark.parametrize("way", [made, reconfigured])
@pytest.mark.parametrize("odd", [0, 1])
def test_without_a_store(fresh_world: World, way: Any, odd: int) -> None:
    """Where ranks that reconfigure meet, rank 0 serves: it stays until the others have heard why it cannot go on."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    pool = fresh_world(2, open_group=False, env=meet)
    for said in pool.call(way, unique_name("tc"), odd, {"tutti.nothing": "1"}, {}, False):
        assert "tutti.nothing" in said, said
