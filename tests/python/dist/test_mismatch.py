"""Ranks that make different calls all raise, the message names both calls, and nobody's output has been written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]

FILL = 7  # what outputs hold before the call
FOUND_WITHIN_S = 5  # far below the group's timeout: found by comparing, not by waiting


@dataclass(frozen=True)
class Intent:
    """What one rank calls."""

    name: str
    count: int = 1000
    dtype: torch.dtype = torch.float32
    op: str = "SUM"
    root: int = 0
    asynchronous: bool = False


class Tensors:
    """What a call of this intent reads and writes, made before the call so that it can be looked at after an error."""

    def __init__(self, intent: Intent, size: int) -> None:
        self.full = torch.full((intent.count,), FILL).to(intent.dtype)
        self.wide = torch.full((intent.count * size,), FILL).to(intent.dtype)

    def untouched(self) -> bool:
        return bool((self.full == FILL).all()) and bool((self.wide == FILL).all())


def make_call(intent: Intent, tensors: Tensors, rank: int, size: int) -> Any:
    full, wide = tensors.full, tensors.wide
    op = getattr(dist.ReduceOp, intent.op)
    blocks = list(wide.chunk(size)) if rank == intent.root else None
    calls: dict[str, Callable[..., Any]] = {
        "all_reduce": lambda **later: dist.all_reduce(full, op=op, **later),
        "reduce": lambda **later: dist.reduce(full, intent.root, op=op, **later),
        "broadcast": lambda **later: dist.broadcast(full, intent.root, **later),
        "all_gather": lambda **later: dist.all_gather_into_tensor(wide, full, **later),
        "reduce_scatter": lambda **later: dist.reduce_scatter_tensor(full, wide, op=op, **later),
        "all_to_all": lambda **later: dist.all_to_all_single(wide, wide.clone(), **later),
        "gather": lambda **later: dist.gather(full, blocks, dst=intent.root, **later),
        "scatter": lambda **later: dist.scatter(full, blocks, src=intent.root, **later),
        "barrier": lambda **later: dist.barrier(**later),
    }
    return calls[intent.name](async_op=intent.asynchronous)


def differ(ctx: Context, intents: list[Intent]) -> dict[str, Any]:
    """Makes this rank's call; if it returns, the next call must raise instead."""
    intent = intents[ctx.rank]
    tensors = Tensors(intent, ctx.size)
    start = time.monotonic()
    where = "call"
    try:
        work = make_call(intent, tensors, ctx.rank, ctx.size)
        if work is not None:
            work.wait()
        where = "next call"
        dist.barrier()
    except dist.DistBackendError as error:
        seconds = time.monotonic() - start
        return {"where": where, "message": str(error), "untouched": tensors.untouched(), "seconds": seconds}
    return {"where": "nowhere", "message": "", "untouched": False, "seconds": 0.0}


def answers_of(pool: RankPool, intents: list[Intent]) -> list[dict[str, Any]]:
    answers = pool.call(differ, intents, timeout_s=60)
    pool.open_group()  # the ranks go on in a new group
    return answers


NAMES = {torch.float32: "f32", torch.int32: "i32", torch.float64: "f64", torch.bfloat16: "bf16"}


def named(rank: int, intent: Intent) -> str:
    """How the message must name a rank's call."""
    text = rf"rank {rank} calls {intent.name} #\d+"
    if intent.name != "barrier":
        text += rf" {NAMES[intent.dtype]}\[{intent.count}\]"
    if intent.name in ("all_reduce", "reduce", "reduce_scatter"):
        text += f" {intent.op.lower()}"
    if intent.name in ("reduce", "broadcast", "gather", "scatter"):
        text += f" root {intent.root}"
    return text


def check_named(answers: list[dict[str, Any]], intents: list[Intent]) -> None:
    """Every rank raised in time, and every message names the odd call and another."""
    for rank, answer in enumerate(answers):
        assert answer["where"] != "nowhere", f"rank {rank} raised nothing"
        assert answer["seconds"] < FOUND_WITHIN_S, f"rank {rank}: found after {answer['seconds']} s"
        if answer["where"] == "next call" and re.search(r"rank \d+ .*differs from that of rank \d+", answer["message"]):
            continue  # its own part was done: it learns between whom the difference is
        told = [other for other, intent in enumerate(intents) if re.search(named(other, intent), answer["message"])]
        calls = {intents[other] for other in told}
        assert len(calls) >= 2, f"rank {rank} does not name two calls: {answer['message']}"


BASE = Intent("all_reduce")
DIFFERENCES = {
    "collective": Intent("all_gather"),
    "reduce_scatter": Intent("reduce_scatter"),
    "all_to_all": Intent("all_to_all"),
    "barrier": Intent("barrier"),
    "dtype": replace(BASE, dtype=torch.int32),
    "count": replace(BASE, count=1001),
    "op": replace(BASE, op="MAX"),
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("count", [1, 1000, 300_000])
@pytest.mark.parametrize("what", DIFFERENCES)
def test_all_ranks_raise_before_any_output(world: World, what: str, count: int, asynchronous: bool) -> None:
    """Collectives in which everyone needs everyone."""
    size = 3
    odd = DIFFERENCES[what]
    scaled = replace(odd, count=count + (odd.count - BASE.count), asynchronous=asynchronous)
    intents = [replace(BASE, count=count, asynchronous=asynchronous)] * (size - 1) + [scaled]
    answers = answers_of(world(size), intents)
    check_named(answers, intents)
    assert all(answer["where"] == "call" for answer in answers)
    assert [answer["untouched"] for answer in answers] == [True] * size


@pytest.mark.parametrize("odd_rank", [0, 1, 3])
def test_any_rank_can_be_the_odd_one(world: World, odd_rank: int) -> None:
    intents = [BASE] * 4
    intents[odd_rank] = DIFFERENCES["count"]
    answers = answers_of(world(4), intents)
    check_named(answers, intents)
    assert [answer["untouched"] for answer in answers] == [True] * 4


ROOTED = ["reduce", "broadcast", "gather", "scatter"]


@pytest.mark.parametrize("count", [1, 1000, 300_000])
@pytest.mark.parametrize("name", ROOTED)
def test_different_roots(world: World, name: str, count: int) -> None:
    """A sender may have returned already: then its next call raises."""
    intents = [Intent(name, count=count, root=0), Intent(name, count=count, root=1)]
    check_named(answers_of(world(2), intents), intents)


@pytest.mark.parametrize("name", ROOTED)
def test_rooted_against_another_collective(world: World, name: str) -> None:
    intents = [Intent(name), Intent(name), BASE]
    answers = answers_of(world(3), intents)
    check_named(answers, intents)
    assert answers[2]["untouched"]


@pytest.mark.parametrize("name", ROOTED)
def test_receivers_detect_before_they_write(world: World, name: str) -> None:
    """The count differs: nobody who receives has been written."""
    intents = [Intent(name, count=1000), Intent(name, count=999)]
    answers = answers_of(world(2), intents)
    check_named(answers, intents)
    assert [answer["untouched"] for answer in answers] == [True, True]


def uneven(ctx: Context, name: str, unit: int, odd: int) -> dict[str, Any]:
    """Rank ``odd`` expects one element too many of the next one. What it, and that one, have got of each other."""
    beside = (odd + 1) % ctx.size
    sizes = [unit * (1 + r + (ctx.rank if name == "all_to_all" else 0)) for r in range(ctx.size)]  # as r has it, too
    expected = [size + int(ctx.rank == odd and r == beside) for r, size in enumerate(sizes)]
    out = [torch.full((size,), float(FILL)) for size in expected]
    start, message = time.monotonic(), ""
    try:
        if name == "all_to_all":
            dist.all_to_all(out, [torch.full((size,), float(ctx.rank)) for size in sizes])
        else:
            dist.all_gather(out, torch.full((sizes[ctx.rank],), float(ctx.rank)))
    except dist.DistBackendError as error:
        message = str(error)
    other = {odd: beside, beside: odd}.get(ctx.rank)
    untouched = other is None or bool((out[other] == FILL).all())
    return {"message": message, "untouched": untouched, "seconds": time.monotonic() - start}


def uneven_answers(world: World, name: str, unit: int, odd: int) -> list[dict[str, Any]]:
    """Of three ranks, which have a new group afterwards."""
    pool = world(3)
    answers: list[dict[str, Any]] = pool.call(uneven, name, unit, odd, timeout_s=60)
    pool.open_group()
    return answers


ONE_IS_ODD = pytest.mark.parametrize("odd", [0, 1, 2])
UNITS = pytest.mark.parametrize("unit", [1, 1000, 300_000])


@ONE_IS_ODD
@UNITS
def test_sizes_of_a_pair_differ(world: World, unit: int, odd: int) -> None:
    """Every rank raises, and of what goes between the two nothing has been written."""
    answers = uneven_answers(world, "all_to_all", unit, odd)
    assert all("differ" in answer["message"] or "blocks of other sizes" in answer["message"] for answer in answers), (
        answers
    )
    assert all(answer["untouched"] and answer["seconds"] < FOUND_WITHIN_S for answer in answers), answers


@ONE_IS_ODD
@UNITS
def test_sizes_of_a_gathered_block_differ(world: World, unit: int, odd: int) -> None:
    """Who expects another size raises before it has written the block; who gave it may have all that it needs."""
    answers = uneven_answers(world, "all_gather", unit, odd)
    assert "blocks of other sizes" in answers[odd]["message"] and answers[odd]["untouched"], answers
    assert answers[odd]["seconds"] < FOUND_WITHIN_S, answers


def one_more(ctx: Context) -> str:
    """Rank 0 makes a call that nobody else makes, then all make the same."""
    try:
        if ctx.rank == 0:
            dist.all_reduce(torch.ones(8))
        dist.broadcast(torch.ones(8), 0)
        dist.barrier()
    except dist.DistBackendError as error:
        return str(error)
    return ""


def test_an_extra_call_is_found(world: World) -> None:
    pool = world(2)
    messages = pool.call(one_more)
    pool.open_group()
    assert all("rank 0 calls all_reduce #" in m and "rank 1 calls broadcast #" in m for m in messages), messages


def unusable_memory(ctx: Context) -> list[tuple[str, Callable[[], Any]]]:
    """Outputs over their inputs, over themselves, and storages that were made smaller than their tensors."""
    n, many = ctx.size, torch.ones(2000 * ctx.size)
    rows, shifted = list(many.view(n, -1)), many[1:2001]
    repeated, cut = torch.ones(1).expand(2000), torch.ones(2000)
    cut.untyped_storage().resize_(8)
    twice = torch.ones(3)  # shares memory with itself: such tensors take a road of their own
    return [
        ("all-to-all in place", lambda: dist.all_to_all_single(many, many)),
        ("all-to-all in place, uneven", lambda: dist.all_to_all_single(many, many, [2000] * n, [2000] * n)),
        ("all-to-all of lists in place", lambda: dist.all_to_all(rows, rows[::-1])),
        ("gathered over the input", lambda: dist.all_gather_into_tensor(many, shifted)),
        ("gathered over the input, lists", lambda: dist.all_gather(rows, shifted)),
        ("gathered from another's block", lambda: dist.all_gather_into_tensor(many, rows[1])),
        ("gathered at the root over its input", lambda: dist.gather(shifted, rows, dst=0)),
        ("scattered over the input", lambda: dist.scatter(rows[1], rows, src=0)),
        ("reduced and scattered over the input", lambda: dist.reduce_scatter_tensor(shifted, many)),
        ("an output over itself", lambda: dist.all_reduce(repeated)),
        ("an output over itself, asynchronous", lambda: dist.broadcast(repeated, 1, async_op=True).wait()),
        ("a received tensor over itself", lambda: dist.irecv(repeated, 1).wait()),
        ("coalesced outputs over themselves", lambda: dist.all_reduce_coalesced([repeated, torch.ones(3)])),
        ("a storage cut off", lambda: dist.all_reduce(cut)),
        ("a message of a storage cut off", lambda: dist.isend(cut, 1).wait()),
        ("coalesced storages cut off", lambda: dist.all_reduce_coalesced([torch.ones(3), cut])),
        ("storages cut off among those that overlap", lambda: dist.all_reduce_coalesced([twice, twice, cut])),
    ]


def refused(ctx: Context) -> list[str]:
    """Calls that cannot work are refused before anything is sent; the group and its numbering go on."""
    tensor = torch.ones(4)
    tries: list[tuple[str, Callable[[], Any]]] = [
        ("average of truth", lambda: dist.all_reduce(tensor.bool(), op=dist.ReduceOp.AVG)),
        ("bits of floats", lambda: dist.all_reduce(tensor, op=dist.ReduceOp.BAND)),
        ("order of complex", lambda: dist.all_reduce(tensor.to(torch.complex64), op=dist.ReduceOp.MAX)),
        ("too small an output", lambda: dist.all_gather_into_tensor(torch.ones(3), tensor)),
        ("uneven input", lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(4 * ctx.size))),
        ("types differ", lambda: dist.all_gather([tensor.int()] * ctx.size, tensor)),
        ("splits of another size", lambda: dist.all_to_all_single(tensor, tensor, [1] * ctx.size, [9] * ctx.size)),
        *unusable_memory(ctx),
    ]
    wrong = []
    # Only rank 0 tries: what is refused must not need the others.
    for what, attempt in tries if ctx.rank == 0 else []:
        try:
            attempt()
            wrong.append(f"{what}: accepted")
        except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
            if isinstance(error, dist.DistBackendError) or not str(error):
                wrong.append(f"{what}: {type(error).__name__}: {error}")
    dist.all_reduce(tensor)
    if not torch.equal(tensor, torch.full((4,), float(ctx.size))):
        wrong.append("the group is not usable afterwards")
    return wrong


def test_refused_calls_leave_the_group_usable(world: World) -> None:
    assert world(2).call(refused) == [[], []]


def calls_after_a_failure(ctx: Context) -> tuple[str, dict[str, str]]:
    """What the call that fails says, and what each later one does."""
    import tutti

    group = dist.new_group([0, 1])
    other = 1 - ctx.rank

    def x(count: int = 4) -> torch.Tensor:
        return torch.ones(count)

    def said(call: Callable[[], Any]) -> str:
        try:
            work = call()
            if isinstance(work, dist.Work):
                work.wait()
        except dist.DistBackendError as error:
            return str(error)
        return "nothing"

    def batch() -> None:
        sends = [dist.P2POp(dist.isend, x(), other, group), dist.P2POp(dist.irecv, x(), other, group)]
        for work in dist.batch_isend_irecv(sends):
            work.wait()

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(x(), group=group),
        "an asynchronous one": lambda: dist.all_reduce(x(), group=group, async_op=True),
        "reduce": lambda: dist.reduce(x(), 0, group=group),
        "broadcast": lambda: dist.broadcast(x(), 0, group=group),
        "all_gather": lambda: dist.all_gather([x(), x()], x(), group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(x(8), x(), group=group),
        "gather": lambda: dist.gather(x(), [x(), x()] if ctx.rank == 0 else None, 0, group=group),
        "scatter": lambda: dist.scatter(x(), [x(), x()] if ctx.rank == 0 else None, 0, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x(2), x(), group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(x(), x(), group=group),
        "an uneven one": lambda: dist.all_to_all_single(x(), x(), [1, 3], [1, 3], group=group),
        "barrier": lambda: dist.barrier(group=group),
        "send": lambda: dist.send(x(), other, group=group),
        "recv": lambda: dist.recv(x(), other, group=group),
        "isend": lambda: dist.isend(x(), other, group=group),
        "irecv": lambda: dist.irecv(x(), other, group=group),
        "a batch": batch,
        "objects": lambda: dist.all_gather_object([None, None], 1, group=group),
        "monitored_barrier": lambda: tutti.monitored_barrier(group),
    }
    first = said(lambda: dist.all_reduce(x(2 + ctx.rank), group=group))
    return first, {name: said(call) for name, call in calls.items()}


def test_every_later_call_raises_the_same_error(world: World) -> None:
    for first, later in world(2).call(calls_after_a_failure):
        cause = first[first.index("the ranks make different calls") :]
        assert "rank 0 calls all_reduce #1 f32[2]" in cause and "rank 1 calls all_reduce #1 f32[3]" in cause
        assert not {name: text for name, text in later.items() if cause not in text}


def mismatched_message(ctx: Context, counts: list[int], dtypes: list[torch.dtype]) -> tuple[str, bool]:
    """Rank 0 sends to rank 1 what rank 1 does not expect."""
    tensor = torch.full((counts[ctx.rank],), FILL).to(dtypes[ctx.rank])
    try:
        if ctx.rank == 0:
            dist.send(tensor, 1)
            dist.barrier()
        else:
            dist.recv(tensor, 0)
    except (RuntimeError, ValueError) as error:
        return str(error), bool((tensor == FILL).all())
    return "", False


@pytest.mark.parametrize("counts", [(5, 6), (6, 5), (300_000, 5)])
def test_message_of_another_size(world: World, counts: tuple[int, int]) -> None:
    pool = world(2)
    answers = pool.call(mismatched_message, list(counts), [torch.float32] * 2)
    pool.open_group()
    assert f"f32[{counts[0]}]" in answers[1][0] and f"f32[{counts[1]}]" in answers[1][0], answers
    assert answers[1][1], "the receiver's tensor was written"
    assert answers[0][0], "the sender's next call did not raise"


def test_message_of_another_type(world: World) -> None:
    pool = world(2)
    answers = pool.call(mismatched_message, [5, 5], [torch.float32, torch.int32])
    pool.open_group()
    assert "f32[5]" in answers[1][0] and "i32[5]" in answers[1][0], answers
    assert answers[1][1], "the receiver's tensor was written"
