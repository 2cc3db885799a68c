"""A GPU whose memory is full: what needs some of it is refused or works, and says so; with memory all goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_worker import Context
from test_cuda_memory import COUNT, DEVICE, RANKS, World, on_gpu

import tutti

LIMIT_S = 20


def fill_the_gpu() -> list[torch.Tensor]:
    hoard, size = [], 8 << 30
    while size >= 512:
        try:
            hoard.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return hoard


def in_a_new_group(ctx: Context) -> None:
    group = dist.new_group(timeout=timedelta(seconds=LIMIT_S))
    all_reduce(ctx, group)
    dist.destroy_process_group(group)


def all_reduce(ctx: Context, group: Any) -> None:
    x: torch.Tensor = ctx.kept["x"].fill_(ctx.rank + 1)
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    work.wait()
    assert x.cpu().eq(sum(range(1, ctx.size + 1))).all()


def messages(ctx: Context) -> None:
    """The first ones in a group take memory of both ranks."""
    group = dist.new_group(timeout=timedelta(seconds=LIMIT_S))
    x, out = ctx.kept["x"].fill_(ctx.rank), ctx.kept["out"]
    to, source = (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size
    todo = [dist.P2POp(dist.isend, x, to, group), dist.P2POp(dist.irecv, out, source, group)]
    for work in dist.batch_isend_irecv(todo):
        work.wait()
        torch.cuda.synchronize()
        work.wait()
    assert out.cpu().eq(source).all()
    dist.destroy_process_group(group)


def registration(ctx: Context) -> None:
    x = ctx.kept["x"]
    tutti.register_tensors([x])
    all_reduce(ctx, dist.group.WORLD)
    tutti.unregister_tensors([x])


def without_memory(ctx: Context, what: Callable[[Context], None]) -> str:
    ctx.init(f"{ctx.generation}.full", timeout_s=LIMIT_S)
    ctx.kept |= {name: torch.ones(COUNT, device="cuda") for name in ("x", "out")}
    all_reduce(ctx, dist.group.WORLD)
    hoard = fill_the_gpu()
    dist.barrier()
    torch.cuda.synchronize()
    begun, said = time.monotonic(), ""
    try:
        what(ctx)
    except RuntimeError as error:
        said = str(error)
    took = time.monotonic() - begun
    assert took < LIMIT_S + 10, f"{took:.1f} s: {said}"
    hoard.clear()
    torch.cuda.empty_cache()
    ctx.init(f"{ctx.generation}.again", timeout_s=LIMIT_S)
    all_reduce(ctx, dist.group.WORLD)
    return f"{took:.1f} s: {said}" if said else ""


@on_gpu
@pytest.mark.parametrize("what", [in_a_new_group, messages, registration])
def test_a_full_gpu(fresh_world: World, what: Callable[[Context], None]) -> None:
    said = fresh_world(RANKS, env=DEVICE).call(without_memory, what, timeout_s=120)
    told = [text for text in said if text]
    assert not told or any("memory" in text for text in told), said
    print(said)
