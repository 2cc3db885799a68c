"""Models over ``torch.distributed`` under storm_rank.py: steps of DDP and FSDP2 beside the same steps in one process,
the operators and the all-reduce of inference engines; and what a program sets while calls run.
"""

from __future__ import annotations

import gc
import random
from typing import Any

import torch
import torch.distributed as dist
from storm_faces import LIMIT_S, MAPPED, SEED, VICTIM, WANT, same
from storm_torch import Torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import tutti
import tutti.ops
from tutti.serving import CustomAllReduce

ROWS, ROW = 4, 16  # of what every rank gives a model, and of what an engine's norm takes


def near(got: torch.Tensor, wanted: torch.Tensor, part: float = 1e-5) -> None:
    got, wanted = got.double().cpu(), wanted.double().cpu()
    assert torch.allclose(got, wanted, rtol=part, atol=part), f"seed {SEED}: {got} for {wanted}"


class Serving(Torch):
    """What inference engines call; on a GPU, too."""

    @property
    def of_torch(self) -> Any:
        return self.group or dist.group.WORLD

    def operators(self, count: int) -> None:
        """Each form of the sum, of the norm and of the codes; they are over when they return."""
        self.await_all()
        name, op = self.of_torch.group_name, torch.ops.tutti
        kind, x = self.shared.randrange(4), self.give(self.full(count))
        if kind == 0:
            same(tutti.ops.all_reduce(x, self.group), self.sum)
        elif kind == 1:
            out = self.empty(count)
            same(op.all_reduce.out(x, name, out=out), self.sum)
        elif kind == 2:
            same(op.all_reduce_(self.full(count), name), self.sum)
        else:
            bits, block = self.shared.choice(("fp8", "int8")), self.shared.choice((32, 128, 512))
            near(tutti.ops.all_reduce_quantized(x, self.group, bits, block), torch.full((count,), self.sum), 0.1)
        self.norms(count)

    def norms(self, count: int) -> None:
        rows = max(1, min(count, 60_000) // ROW)
        x, residual = self.full(rows * ROW).view(rows, ROW), self.full(rows * ROW, 2.0).view(rows, ROW)
        weight, kind, name = self.full(ROW, 3.0), self.shared.randrange(3), self.of_torch.group_name
        total = self.sum + 2.0  # of equal elements, so that the norm is 1
        if kind == 0:
            y, s = tutti.ops.all_reduce_add_rms_norm(x, residual, weight, 1e-6, self.group)
        elif kind == 1:
            torch.ops.tutti.all_reduce_add_rms_norm_(x, residual, weight, 1e-6, name)
            y, s = x, residual
        else:
            codes, scale, s = tutti.ops.all_reduce_add_rms_norm_fp8(x, residual, weight, None, 1e-6, self.group)
            y = codes.float() * scale
        near(y, torch.full((rows, ROW), 3.0), 0.07 if kind == 2 else 1e-5)
        same(s, total)

    def serving(self, count: int) -> None:
        """A group of an engine's own beside this one: made on all ranks or left to the engine on all."""
        self.await_all()
        x = self.full(count)
        custom = CustomAllReduce(self.of_torch, x.device, max_size=4 * 60_000)
        made = self.votes(not custom.disabled)
        assert made in (0, self.size), f"seed {SEED}: on {made} ranks; here: {custom.why_disabled or 'made'}"
        self.formed[made > 0] += 1
        if made == 0:
            assert WANT.search(custom.why_disabled), custom.why_disabled
            return
        got = custom.custom_all_reduce(x)
        assert (got is None) == (count > 60_000)
        same(custom.all_reduce(x) if got is None else got, self.sum)
        same(x, self.rank + 1)
        near(custom.all_reduce_quantized(x), torch.full((count,), self.sum), 0.1)
        residual = self.full(ROW, 2.0)
        inp = self.full(ROW)
        custom.all_reduce_add_rms_norm(inp, residual, self.full(ROW, 3.0), 1e-6)
        near(inp, torch.full((ROW,), 3.0))
        same(residual, self.sum + 2)
        custom.close()


class Models(Serving):
    """On tensors of the host."""

    kinds = ("all_reduce", "batch", "functional", "barrier", "part", "smaller", "operators", "operators", "serving")
    kinds += ("ddp", "ddp", "fsdp", "pretending")

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self.ddp(7)  # what it loads it loads at the first call: there may be no descriptors for it then
        self.fsdp(7)

    def model(self) -> nn.Module:
        width, seed = self.shared.choice((8, 64, 200)), self.shared.randrange(1000)
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(ROW, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))

    def steps(self, net: nn.Module, twin: nn.Module) -> None:
        """Each rank's rows are its part of a batch that the twin learns as a whole."""
        ours, whole = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, twin))
        for _ in range(self.shared.randrange(1, 4)):
            data = torch.Generator().manual_seed(self.shared.randrange(1000))
            x = torch.randn(self.size * ROWS, ROW, generator=data)
            ours.zero_grad()
            whole.zero_grad()
            loss = net(x[self.rank * ROWS : (self.rank + 1) * ROWS]).square().mean()
            loss.backward()
            of_all = twin(x).square().mean()
            of_all.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG, group=self.group)
            near(mean, of_all.detach())
            for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
                assert mine.grad is not None and other.grad is not None
                gradient = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
                near(gradient, other.grad)
            ours.step()
            whole.step()

    def twins(self) -> tuple[nn.Module, nn.Module]:
        state = self.shared.getstate()
        first = self.model()
        self.shared.setstate(state)
        return first, self.model()

    def ddp(self, count: int) -> None:
        """Calls of before may be under way."""
        first, twin = self.twins()
        net = nn.parallel.DistributedDataParallel(
            first,
            process_group=self.group,
            bucket_cap_mb=self.shared.choice((0.001, 0.02, 25)),
            gradient_as_bucket_view=self.shared.random() < 0.5,
        )
        self.steps(net, twin)

    def fsdp(self, count: int) -> None:
        net, twin = self.twins()
        mesh = DeviceMesh.from_group(self.of_torch, "cpu")
        for layer in net.children():
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        from_group = self.shared.random() < 0.5
        for module in net.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(from_group)
        self.steps(net, twin)

    def pretending(self, count: int) -> None:
        """A group that is asked for as gloo, with calls under way; it stays Tutti's when others no more are."""
        if self.group is not None:
            return
        of = self.some_ranks()
        tutti.pretend("gloo")
        part = self.all_or_none(
            of, lambda: dist.new_group(of, backend="gloo"), lambda: dist.new_group(of, backend="gloo")
        )
        tutti.pretend("gloo", enabled=False)
        if part is not None:
            assert (dist.get_backend(part), tutti.group_info(part).size) == ("gloo", len(of))
            x = self.full(count)
            dist.all_reduce(x, group=part)
            same(x, sum(r + 1 for r in of))
            dist.destroy_process_group(part)

    def look(self, chooser: random.Random) -> None:
        """Sets, too, what holds for the calls that begin then; it is not the same on all ranks."""
        super().look(chooser)
        group, limit = self.group, chooser.uniform(LIMIT_S, 2 * LIMIT_S)
        tutti.set_timeout(limit, group)
        assert abs(tutti.get_communicator(group).timeout.total_seconds() - limit) < 0.01
        if MAPPED:
            tutti.use_shared_allocator(chooser.random() < 0.7, chooser.choice((1, 4096, 65536)))

    def ended(self) -> None:
        """PyTorch's meshes and reducers keep the group that they had, and so what its plans have of mapped memory."""
        gc.collect()
        stats = tutti.arena_stats()
        assert stats["quarantined"] == 0 or VICTIM >= 0, f"seed {SEED}: {stats}"
