"""The all-reduce of an inference engine: on the CPU, and in a CUDA graph where there is a GPU."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context

import tutti

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]


def served(ctx: Context, device: str) -> None:
    from tutti.serving import CustomAllReduce

    group = dist.new_group(backend="gloo")
    custom = CustomAllReduce(group, torch.device(device), max_size=4096)
    assert not custom.disabled, custom.why_disabled
    x = torch.full((4, 16), ctx.rank + 1.0, device=device)
    total = sum(range(1, ctx.size + 1))
    got = custom.custom_all_reduce(x)
    assert got is not None
    assert got.eq(total).all()
    assert x.eq(ctx.rank + 1).all()
    out = torch.zeros_like(x)
    assert custom.all_reduce(x, out=out, registered=True) is out
    assert out.eq(total).all()
    assert custom.custom_all_reduce(torch.zeros(2000, device=device)) is None  # too large
    assert not custom.should_custom_ar(x.t())
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with custom.capture(), torch.cuda.graph(graph):
            captured = custom.custom_all_reduce(x)
        for value in (3.0, 5.0):
            x.fill_(value)
            graph.replay()
            assert captured is not None
            assert captured.eq(value * ctx.size).all()
    residual, weight = torch.full_like(x, 2.0), torch.full((16,), 3.0, device=device)
    inp, kept = x.clone(), residual.clone()
    custom.all_reduce_add_rms_norm(inp, kept, weight, 1e-6)
    s = custom.all_reduce(x) + residual
    assert kept.eq(s).all()
    torch.testing.assert_close(inp, torch.nn.functional.rms_norm(s, (16,), weight, 1e-6))
    normed, codes = torch.empty_like(x), torch.empty_like(x, dtype=torch.float8_e4m3fn)
    kept, scale = residual.clone(), torch.tensor([0.5], device=device)
    custom.all_reduce_add_rms_norm(x, kept, weight, 1e-6, norm_out=normed)
    assert normed.eq(inp).all()
    kept = residual.clone()
    custom.all_reduce_add_rms_norm(x, kept, weight, 1e-6, quant_out=codes, scale=scale)
    assert codes.float().eq(6.0).all()
    torch.testing.assert_close(custom.all_reduce_quantized(x), custom.all_reduce(x), rtol=2 / 14, atol=0.0)
    second = CustomAllReduce(group, torch.device(device))
    assert second.all_reduce(x).eq(custom.all_reduce(x)).all()
    custom.close()
    assert custom.custom_all_reduce(x) is None


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
)
def test_engine(fresh_world: World, device: str) -> None:
    env = {} if device == "cpu" else {"TUTTI_TEST_DEVICE": device}
    fresh_world(2, env=env).call(served, device, timeout_s=120)


def overlapping(ctx: Context) -> None:
    """Ranks that are in different numbers of groups."""
    from tutti.serving import CustomAllReduce

    for ranks in ([0, 1], [1, 2], [0, 1, 2]):
        group = dist.new_group(ranks, backend="gloo")
        if ctx.rank in ranks:
            got = CustomAllReduce(group, "cpu").custom_all_reduce(torch.ones(5))
            assert got is not None
            assert got.eq(len(ranks)).all()


def test_groups_that_overlap(fresh_world: World) -> None:
    fresh_world(3).call(overlapping)


def refused(ctx: Context) -> str:
    from tutti.serving import CustomAllReduce

    custom = CustomAllReduce(dist.new_group(backend="gloo"), torch.device("cuda", 0))
    assert custom.disabled
    assert custom.custom_all_reduce(torch.zeros(3)) is None
    return custom.why_disabled


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_why(fresh_world: World) -> None:
    for reason in fresh_world(2).call(refused):
        assert "CUDA" in reason, reason


def broken(ctx: Context, step: str, dies: bool) -> str:
    """Rank 1 dies, or cannot go on, as it comes to `step` of making one."""
    from tutti.dist import backend
    from tutti.serving import CustomAllReduce

    def ends(*_: object) -> None:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("rank 1 cannot")

    with pytest.MonkeyPatch.context() as patch:
        if ctx.rank == 1:
            if step == "forming":
                patch.setattr(backend, "create_backend", ends)
            elif step == "reducing":
                patch.setattr(CustomAllReduce, "all_reduce", ends)
            else:
                patch.setattr(tutti.dist.needs_torch.load().ProcessGroupTutti, "barrier", ends)
        custom = CustomAllReduce(dist.group.WORLD, "cpu")
    assert custom.disabled
    assert custom.custom_all_reduce(torch.zeros(3)) is None
    return custom.why_disabled


@pytest.mark.parametrize(
    ("step", "dies"),
    [("forming", True), ("reducing", True), ("agreeing", True), ("reducing", False), ("agreeing", False)],
)
def test_one_rank_that_cannot_ends_it_for_all(fresh_world: World, step: str, dies: bool) -> None:
    """Long before the limit of time, which is half an hour."""
    outcomes = fresh_world(3).begin(broken, step, dies).wait(30)
    for rank in (0, 2) if dies else (0, 1, 2):
        assert re.search(r"\brank 1\b", outcomes[rank].value), outcomes[rank]
        if not dies:
            assert "rank 1 cannot" in outcomes[rank].value
