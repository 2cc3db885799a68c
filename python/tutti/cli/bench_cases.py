"""The collectives that ``tutti bench`` measures: how each is called, and what its result must be.

Sizes follow nccl-tests: the bytes of the larger of a rank's two buffers. So an all_gather of 64 KB among 4 ranks takes
16 KB from each. Algorithm bandwidth is that size over the time; bus bandwidth multiplies it by what the links carry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

Allocate = Callable[[int], torch.Tensor]
ROOT = 0

# torch 2.13 renames them, and warns of the names that 2.11 has.
_all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter_single: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass
class Case:
    """One call, ready to be made again and again: ``fill`` sets the inputs, ``check`` compares the outputs."""

    call: Callable[[], object]
    fill: Callable[[], None]
    check: Callable[[], bool]
    calls_per_run: int = 1


@dataclass(frozen=True)
class World:
    """Who takes part, and where its tensors come from."""

    rank: int
    size: int
    group: dist.ProcessGroup
    allocate: Allocate

    @property
    def dtype(self) -> torch.dtype:
        """Of all tensors of a run."""
        return self.allocate(0).dtype

    def values(self, rank: int, elements: int) -> torch.Tensor:
        """What ``rank`` contributes: small whole numbers, whose sums are exact in all but the narrowest dtypes."""
        numbers = torch.arange(elements)
        values = numbers % 5 + rank % 3
        if self.dtype.is_complex:
            values = torch.complex(values.float(), (numbers % 3 - rank % 2).float())
        return values.to(self.dtype)

    def total(self, elements: int) -> torch.Tensor:
        """The sum of all ranks' values, rounded once."""
        result = torch.zeros(elements, dtype=_wide(self.dtype))
        for rank in range(self.size):
            result += self.values(rank, elements).to(result.dtype)
        return result.to(self.dtype)


def _all_reduce(world: World, elements: int) -> Case:
    tensor = world.allocate(elements)
    return Case(
        lambda: dist.all_reduce(tensor, group=world.group),
        lambda: _set(tensor, world.values(world.rank, elements)),
        lambda: _same(tensor, world.total(elements)),
    )


def _reduce(world: World, elements: int) -> Case:
    tensor = world.allocate(elements)
    return Case(
        lambda: dist.reduce(tensor, ROOT, group=world.group),
        lambda: _set(tensor, world.values(world.rank, elements)),
        lambda: world.rank != ROOT or _same(tensor, world.total(elements)),
    )


def _broadcast(world: World, elements: int) -> Case:
    tensor = world.allocate(elements)
    return Case(
        lambda: dist.broadcast(tensor, ROOT, group=world.group),
        lambda: _set(tensor, world.values(world.rank, elements)),
        lambda: _same(tensor, world.values(ROOT, elements)),
    )


def _all_gather(world: World, elements: int) -> Case:
    block = max(1, elements // world.size)
    source, target = world.allocate(block), world.allocate(block * world.size)
    return Case(
        lambda: _all_gather_single(target, source, group=world.group),
        lambda: _set(source, world.values(world.rank, block)),
        lambda: _same(target, torch.cat([world.values(rank, block) for rank in range(world.size)])),
    )


def _reduce_scatter(world: World, elements: int) -> Case:
    block = max(1, elements // world.size)
    source, target = world.allocate(block * world.size), world.allocate(block)
    return Case(
        lambda: _reduce_scatter_single(target, source, group=world.group),
        lambda: _set(source, world.values(world.rank, block * world.size)),
        lambda: _same(target, _block(world.total(block * world.size), world.rank, block)),
    )


def _all_to_all(world: World, elements: int) -> Case:
    block = max(1, elements // world.size)
    source, target = world.allocate(block * world.size), world.allocate(block * world.size)

    def right() -> bool:
        sent = [world.values(rank, block * world.size) for rank in range(world.size)]
        return _same(target, torch.cat([_block(values, world.rank, block) for values in sent]))

    return Case(
        lambda: dist.all_to_all_single(target, source, group=world.group),
        lambda: _set(source, world.values(world.rank, block * world.size)),
        right,
    )


def _gather(world: World, elements: int) -> Case:
    block = max(1, elements // world.size)
    source = world.allocate(block)
    targets = [world.allocate(block) for _ in range(world.size)] if world.rank == ROOT else None
    return Case(
        lambda: dist.gather(source, targets, dst=ROOT, group=world.group),
        lambda: _set(source, world.values(world.rank, block)),
        lambda: targets is None or all(_same(t, world.values(rank, block)) for rank, t in enumerate(targets)),
    )


def _scatter(world: World, elements: int) -> Case:
    block = max(1, elements // world.size)
    target = world.allocate(block)
    sources = [world.allocate(block) for _ in range(world.size)] if world.rank == ROOT else None

    def fill() -> None:
        for rank, source in enumerate(sources or []):
            _set(source, world.values(rank, block))

    return Case(
        lambda: dist.scatter(target, sources, src=ROOT, group=world.group),
        fill,
        lambda: _same(target, world.values(world.rank, block)),
    )


def _send_recv(world: World, elements: int) -> Case:
    """Ranks 0 and 1, 2 and 3, ... play ping-pong; a run is two messages."""
    peer = world.rank ^ 1
    source, target = world.allocate(elements), world.allocate(elements)

    def call() -> None:
        if peer >= world.size:
            return
        if world.rank < peer:
            dist.send(source, peer, group=world.group)
            dist.recv(target, peer, group=world.group)
        else:
            dist.recv(target, peer, group=world.group)
            dist.send(source, peer, group=world.group)

    return Case(
        call,
        lambda: _set(source, world.values(world.rank, elements)),
        lambda: peer >= world.size or _same(target, world.values(peer, elements)),
        calls_per_run=2,
    )


def _barrier(world: World, elements: int) -> Case:
    return Case(lambda: dist.barrier(group=world.group), lambda: None, lambda: True)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """A dtype that holds small whole numbers of this one, and in which torch adds and compares."""
    if dtype.is_complex:
        return torch.promote_types(dtype, torch.complex64)
    if not dtype.is_floating_point:
        return torch.int64
    return dtype if dtype.itemsize >= 4 else torch.float32  # no promotion: torch has none for 8 bits


def _same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    got, wanted = got.to(_wide(got.dtype)), wanted.to(_wide(wanted.dtype))
    # What overflows is a NaN in some dtypes of 8 bits, and must be.
    return torch.equal(got, wanted) or torch.allclose(got, wanted, rtol=0, atol=0, equal_nan=True)


def _set(tensor: torch.Tensor, values: torch.Tensor) -> None:
    tensor.copy_(values)


def _block(tensor: torch.Tensor, index: int, block: int) -> torch.Tensor:
    return tensor[index * block : (index + 1) * block]


CASES: dict[str, Callable[[World, int], Case]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
    "barrier": _barrier,
}


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0
