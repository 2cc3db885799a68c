"""Every collective of TorchComms on many dtypes and sizes, in place too; each call synchronous, then again and not.

Data is a function of its rank, so each rank knows what all must have. Values are small, hence sums are exact.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torchcomms_interface import interface

# Name; what the result has before the call; the call, told whether it is asynchronous; the result; what it must be.
Case = tuple[str, torch.Tensor, Callable[[bool], Any], torch.Tensor, torch.Tensor]

ADDED = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
]
MOVED_ONLY = [torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]


MEGABYTE = 1 << 20
LARGE = [(torch.bfloat16, MEGABYTE), (torch.float32, 32 * MEGABYTE)]  # of a rank's block


def data(rank: int, count: int, like: torch.Tensor) -> torch.Tensor:
    values = (torch.arange(5) * 7 + 3 * rank) % 5
    return values.to(torch.float32).to(like.dtype).to(like.device).repeat(count // 5 + 1)[:count]


def total(parts: list[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(torch.add, parts)  # of values that every dtype has


def moves(comm: Any, count: int, like: torch.Tensor) -> Iterator[Case]:
    rank, size, root = comm.get_rank(), comm.get_size(), count % comm.get_size()
    ranks = range(size)
    here = slice(rank * count, (rank + 1) * count)

    def to(receiver: int, sender: int = rank, elements: int = count) -> torch.Tensor:
        return data(10 * sender + receiver, elements, like)

    mine, nothing, nothing_of_all = data(rank, count, like), like.new_zeros(count), like.new_zeros(count * size)
    all_of_them = torch.cat([data(r, count, like) for r in ranks])
    out = like.new_zeros(count)
    yield "broadcast", mine, lambda a: comm.broadcast(out, root, a), out, data(root, count, like)
    inputs = [to(r, root) for r in ranks] if rank == root else []
    yield "scatter", nothing, lambda a: comm.scatter(out, inputs, root, a), out, to(rank, root)

    whole = like.new_zeros(count * size)
    parts = list(whole.chunk(size))
    yield "all_gather", nothing_of_all, lambda a: comm.all_gather(parts, mine, a), whole, all_of_them
    yield "all_gather_single", nothing_of_all, lambda a: comm.all_gather_single(whole, mine, a), whole, all_of_them
    before = nothing_of_all.clone()
    before[here] = mine
    yield (
        "all_gather_single in place",
        before,
        lambda a: comm.all_gather_single(whole, whole[here], a),
        whole,
        all_of_them,
    )
    at_root = all_of_them if rank == root else nothing_of_all
    outputs = parts if rank == root else []
    yield "gather", nothing_of_all, lambda a: comm.gather(outputs, mine, root, a), whole, at_root
    yield "gather_single", nothing_of_all, lambda a: comm.gather_single(whole, mine, root, a), whole, at_root
    sent, wanted = [to(r) for r in ranks], torch.cat([to(rank, r) for r in ranks])
    yield "all_to_all", nothing_of_all, lambda a: comm.all_to_all(parts, sent, a), whole, wanted
    joined = torch.cat(sent)
    yield "all_to_all_single", nothing_of_all, lambda a: comm.all_to_all_single(whole, joined, a), whole, wanted

    lengths = [count + r for r in ranks]
    uneven = [data(r, count + r, like) for r in ranks]
    flat = like.new_zeros(sum(lengths))
    pieces = list(flat.split(lengths))
    empty = torch.zeros_like(flat)
    yield "all_gather_v", empty, lambda a: comm.all_gather_v(pieces, uneven[rank], a), flat, torch.cat(uneven)
    given = torch.cat([to(r, rank, count + r) for r in ranks])
    got, of_each = like.new_zeros(size * (count + rank)), [count + rank] * size
    all_for_me = torch.cat([to(rank, r, count + rank) for r in ranks])
    clear = torch.zeros_like(got)
    yield (
        "all_to_all_v_single",
        clear,
        lambda a: comm.all_to_all_v_single(got, given, of_each, lengths, a),
        got,
        all_for_me,
    )


def reductions(comm: Any, count: int, like: torch.Tensor) -> Iterator[Case]:
    rank, size, root = comm.get_rank(), comm.get_size(), count % comm.get_size()
    ranks, plus = range(size), interface().ReduceOp.SUM

    def to(receiver: int, sender: int = rank, elements: int = count) -> torch.Tensor:
        return data(10 * sender + receiver, elements, like)

    mine, out = data(rank, count, like), like.new_zeros(count)
    sums = total([data(r, count, like) for r in ranks])
    yield "all_reduce", mine, lambda a: comm.all_reduce(out, plus, a), out, sums
    yield "reduce", mine, lambda a: comm.reduce(out, root, plus, a), out, sums if rank == root else mine

    inputs, wanted = [to(r) for r in ranks], total([to(rank, r) for r in ranks])
    given, nothing = torch.cat(inputs), like.new_zeros(count)
    yield "reduce_scatter", nothing, lambda a: comm.reduce_scatter(out, inputs, plus, a), out, wanted
    yield "reduce_scatter_single", nothing, lambda a: comm.reduce_scatter_single(out, given, plus, a), out, wanted
    place = given.clone()
    own = place[rank * count : (rank + 1) * count]
    after = given.clone()
    after[rank * count : (rank + 1) * count] = wanted
    yield (
        "reduce_scatter_single in place",
        given,
        lambda a: comm.reduce_scatter_single(own, place, plus, a),
        place,
        after,
    )
    uneven = [to(r, rank, count + r) for r in ranks]
    part = like.new_zeros(count + rank)
    for_me = total([to(rank, r, count + rank) for r in ranks])
    clear = torch.zeros_like(part)
    yield "reduce_scatter_v", clear, lambda a: comm.reduce_scatter_v(part, uneven, plus, a), part, for_me


def sweep(comm: Any, sizes: list[int], device: torch.device) -> None:
    """All dtypes on these numbers of elements."""
    for dtype in [*ADDED, *MOVED_ONLY]:
        for count in sizes:
            check(comm, dtype, count, device)


def sweep_of_large(comm: Any, device: torch.device) -> None:
    """A few dtypes on megabytes."""
    for dtype, size in LARGE:
        check(comm, dtype, size // dtype.itemsize, device)


def check(comm: Any, dtype: torch.dtype, count: int, device: torch.device) -> None:
    like = torch.zeros(0, dtype=dtype, device=device)
    cases = itertools.chain(moves(comm, count, like), reductions(comm, count, like) if dtype in ADDED else ())
    for name, before, call, result, wanted in cases:
        for asynchronous in (False, True):
            result.copy_(before)
            call(asynchronous).wait()
            equal = result.cpu().view(torch.uint8).equal(wanted.cpu().view(torch.uint8))
            assert equal, f"{name} of {count} {dtype}, asynchronous={asynchronous}: {result}, not {wanted}"
