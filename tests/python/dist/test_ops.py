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


TYPES = [torch.bfloat16, torch.float16, torch.float32]


def rows_of(ctx: Context, device: str, dtype: torch.dtype, rows: int, hidden: int) -> tuple[torch.Tensor, ...]:
    """The parts of all ranks, and a residual and a weight that are alike on all."""
    generator = torch.Generator().manual_seed(rows * 1000 + hidden)
    shapes = [(ctx.size, rows, hidden), (rows, hidden), (hidden,)]
    return tuple(torch.randn(*shape, generator=generator).to(dtype).to(device) for shape in shapes)


def norms_in_every_form(ctx: Context, device: str) -> None:
    """The residual has the bits of an all-reduce and a sum; all forms agree; the norm is the formula's."""
    import tutti.ops

    name, op = dist.group.WORLD.group_name, torch.ops.tutti
    for dtype in TYPES:
        for rows, hidden in ((1, 64), (5, 72), (3, 4096), (130, 1024), (2, 7)):
            parts, residual, weight = rows_of(ctx, device, dtype, rows, hidden)
            x = parts[ctx.rank].clone()
            y, s = tutti.ops.all_reduce_add_rms_norm(x, residual, weight, 1e-5)
            assert torch.equal(s, tutti.ops.all_reduce(x) + residual), (dtype, rows, hidden)
            wide = s.float()
            want = (wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(dtype) * weight
            torch.testing.assert_close(y, want, rtol=8 * torch.finfo(dtype).eps, atol=1e-6)
            gathered = [torch.empty_like(y) for _ in range(ctx.size)]
            dist.all_gather(gathered, y)
            assert all(torch.equal(other, y) for other in gathered), "ranks have other bits"
            outs = {"out": torch.empty_like(x), "residual_out": torch.empty_like(x)}
            op.all_reduce_add_rms_norm.out(x, residual, weight, 1e-5, name, **outs)
            assert torch.equal(outs["out"], y)
            assert torch.equal(outs["residual_out"], s)
            inp, kept = x.clone(), residual.clone()
            op.all_reduce_add_rms_norm_(inp, kept, weight, 1e-5, name)
            assert torch.equal(inp, y)
            assert torch.equal(kept, s)
            by_column = x.t().contiguous().t()
            assert torch.equal(tutti.ops.all_reduce_add_rms_norm(by_column, residual, weight, 1e-5)[0], y)


def norms_in_fp8(ctx: Context, device: str) -> None:
    import tutti.ops

    for dtype in TYPES:
        parts, residual, weight = rows_of(ctx, device, dtype, 6, 512)
        x = parts[ctx.rank].clone()
        y, s = tutti.ops.all_reduce_add_rms_norm(x, residual, weight)
        for scale in (torch.tensor([0.02], device=device), torch.tensor([0.001], device=device)):
            codes, same, s_too = tutti.ops.all_reduce_add_rms_norm_fp8(x, residual, weight, scale)
            assert same is scale
            assert torch.equal(s_too, s)
            want = (y.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            assert torch.equal(codes.view(torch.uint8), want.view(torch.uint8))
        residual[2] = 0
        x[2] = 0
        codes, scales, _ = tutti.ops.all_reduce_add_rms_norm_fp8(x, residual, weight)
        y, s = tutti.ops.all_reduce_add_rms_norm(x, residual, weight)
        most = torch.full((), 448.0, device=device)  # on the GPU, a division by a number of Python's is a product
        want = (y.abs().amax(-1, keepdim=True).float() / most).clamp(min=1 / (448 * 512))
        assert torch.equal(scales, want)
        assert scales.shape == (6, 1)
        torch.testing.assert_close(codes.float() * scales, y.float(), rtol=2**-4, atol=float(scales.max()) * 2**-9)
    with pytest.raises(TypeError, match="weight"):
        tutti.ops.all_reduce_add_rms_norm(x, residual, weight.double())
    with pytest.raises(ValueError, match="shape"):
        tutti.ops.all_reduce_add_rms_norm(x, residual[:2], weight)


def quantized(ctx: Context, device: str) -> None:
    """The documented bound, on friendly and hostile data; the same bits on all ranks."""
    import tutti.ops

    name = dist.group.WORLD.group_name
    for dtype in TYPES:
        for bits, steps in (("fp8", 28.0), ("int8", 254.0)):
            for count, block in ((1, 128), (1000, 32), (5000, 128), (300_001, 512)):
                parts = torch.randn(ctx.size, count, generator=torch.Generator().manual_seed(count)).to(dtype)
                parts[:, ::97] *= 300
                parts[:, count // 2 :][:, :block] = 0
                x = parts[ctx.rank].to(device)
                got = tutti.ops.all_reduce_quantized(x, bits=bits, block=block)
                assert got.dtype == dtype
                gathered = [torch.empty_like(got) for _ in range(ctx.size)]
                dist.all_gather(gathered, got)
                assert all(torch.equal(other, got) for other in gathered), "ranks have other bits"
                exact = parts.double().sum(0)
                blocks = torch.nn.functional.pad(parts.double().abs(), (0, -count % block)).view(ctx.size, -1, block)
                largest = blocks.amax(-1).sum(0).repeat_interleave(block)[:count]
                allowed = (2 + 1 / steps) * largest / steps * 1.01 + exact.abs() * torch.finfo(dtype).eps + 1e-7
                assert ((got.cpu().double() - exact).abs() <= allowed).all(), (dtype, bits, count, block)
                out = torch.empty_like(x)
                assert torch.ops.tutti.all_reduce_quantized.out(x, name, bits, block, out=out) is out
                assert torch.equal(out, got)
    x = torch.ones(256, device=device)
    if ctx.rank == 0:
        x[3] = float("inf")
    got = tutti.ops.all_reduce_quantized(x)
    assert got[:128].isnan().all()
    assert got[128:].eq(ctx.size).all()
    for wrong in ({"bits": "int4"}, {"block": 100}):
        with pytest.raises(ValueError, match="int8|elements"):
            tutti.ops.all_reduce_quantized(x, **wrong)
    with pytest.raises(TypeError, match="bfloat16"):
        tutti.ops.all_reduce_quantized(x.double())


def captured(ctx: Context, device: str) -> None:
    """Both in a CUDA graph that is replayed with other data."""
    import tutti.ops

    parts, residual, weight = rows_of(ctx, device, torch.bfloat16, 4, 4096)
    x = parts[ctx.rank].clone()
    tutti.ops.all_reduce_add_rms_norm(x, residual, weight)  # makes the communicator
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, s = tutti.ops.all_reduce_add_rms_norm(x, residual, weight)
        total = tutti.ops.all_reduce_quantized(x, bits="int8")
    for factor in (1.0, -2.0, 0.5):
        x.copy_(parts[ctx.rank] * factor)
        graph.replay()
        got = [t.clone() for t in (y, s, total)]
        want = [*tutti.ops.all_reduce_add_rms_norm(x, residual, weight), tutti.ops.all_reduce_quantized(x, bits="int8")]
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), factor


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
    op, checks = torch.ops.tutti, ("test_schema", "test_faketensor")
    torch.library.opcheck(op.all_reduce.default, (x, name), test_utils=checks)
    torch.library.opcheck(op.all_reduce_quantized.default, (x, name, "int8", 64), test_utils=checks)
    norm = (x, x.clone(), weight, 1e-6, name)
    torch.library.opcheck(op.all_reduce_add_rms_norm.default, norm, test_utils=checks)
    torch.library.opcheck(op.all_reduce_add_rms_norm_.default, norm, test_utils=checks)
    torch.library.opcheck(op.all_reduce_add_rms_norm_fp8_rows.default, norm, test_utils=checks)

    def in_fp8(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        inp, residual = x * 2, x + 1
        op.all_reduce_add_rms_norm_(inp, residual, weight, 1e-6, name)
        codes, s = op.all_reduce_add_rms_norm_fp8(inp, residual, weight, scale, 1e-6, name)
        return op.all_reduce_quantized(codes.float() * scale + s, name)

    arguments = (x, weight, torch.tensor([0.01], device=device))
    got = torch.compile(in_fp8, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(got, in_fp8(*arguments))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", [eager, normed, norms_in_every_form, norms_in_fp8, quantized, compiled])
def test_operators(world: World, function: Callable[..., None], device: str) -> None:
    env = {} if device == "cpu" else {"TUTTI_TEST_DEVICE": device}
    world(2, **env).call(function, device, timeout_s=120)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_graphs(world: World) -> None:
    world(2, TUTTI_TEST_DEVICE="cuda").call(captured, "cuda", timeout_s=120)
