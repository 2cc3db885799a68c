"""The operators of tutti.ops, eager and compiled, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def eager(ctx: Context, device: str) -> None:
    import tutti.ops

    name = dist.group.WORLD.group_name
    x = torch.full((3, 5), float(ctx.rank + 1), device=device)
    total = sum(range(1, ctx.size + 1))
    assert tutti.ops.all_reduce(x).eq(total).all()
    assert x.eq(ctx.rank + 1).all()
    out = torch.zeros(3, 5, device=device)
    assert torch.ops.tutti.all_reduce.out(x, name, out=out) is out
    assert out.eq(total).all()
    assert tutti.ops.all_reduce(x.t()).eq(total).all()  # not contiguous
    assert torch.ops.tutti.all_reduce_(x, name).data_ptr() == x.data_ptr()
    assert x.eq(total).all()
    for bad in (torch.zeros(3, 4, device=device), torch.zeros(3, 5, dtype=torch.float64, device=device)):
        with pytest.raises((ValueError, TypeError), match="shape|dtype"):
            torch.ops.tutti.all_reduce.out(x, name, out=bad)


def normed(ctx: Context, device: str) -> None:
    import tutti.ops

    generator = torch.Generator().manual_seed(1)
    parts = torch.randn(ctx.size, 7, 64, generator=generator)
    residual, weight = torch.randn(7, 64, generator=generator), torch.randn(64, generator=generator)
    got, total = tutti.ops.all_reduce_add_rms_norm(
        parts[ctx.rank].to(device), residual.to(device), weight.to(device), 1e-5
    )
    want = parts.sum(0) + residual
    torch.testing.assert_close(total.cpu(), want)
    torch.testing.assert_close(got.cpu(), torch.nn.functional.rms_norm(want, (64,), weight, 1e-5))
    with pytest.raises(ValueError, match="last dimension"):
        tutti.ops.all_reduce_add_rms_norm(parts[0].to(device), residual.to(device), weight[:3].to(device))


def compiled(ctx: Context, device: str) -> None:
    import tutti.ops  # noqa: F401

    name = dist.group.WORLD.group_name

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        hidden = torch.ops.tutti.all_reduce(x * 2, name)
        normed, total = torch.ops.tutti.all_reduce_add_rms_norm(hidden, x, weight, 1e-6, name)
        return normed + total

    x, weight = torch.ones(4, 8, device=device), torch.full((8,), 2.0, device=device)
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, weight)
    torch.testing.assert_close(got, layer(x, weight))
    torch.library.opcheck(torch.ops.tutti.all_reduce.default, (x, name), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", [eager, normed, compiled])
def test_operators(world: World, function: Callable[..., None], device: str) -> None:
    env = {} if device == "cpu" else {"TUTTI_TEST_DEVICE": device}
    world(2, **env).call(function, device, timeout_s=120)
