"""All-reduce in exchanges among several ranks at once.

M. Ruefenacht, M. Bull, S. Booth, Generalisation of recursive doubling for AllReduce, Parallel Computing 69, 2017.
"""

from __future__ import annotations

from tutti.language.builtins.common import require, start
from tutti.language.builtins.halving import Fold
from tutti.language.chunks import Buffer
from tutti.language.collectives import AllReduce
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.utils import AlgoSpec

__all__ = ["recursive_multiplying_all_reduce"]

_NAME = "recursive multiplying"
_DEFAULT_RADIX = 4


def _factors(ranks: int, radix: int) -> list[int] | None:
    """Numbers up to ``radix`` that multiply to ``ranks``, large ones first, if there are such."""
    factors = []
    for size in range(radix, 1, -1):
        while ranks % size == 0:
            factors.append(size)
            ranks //= size
    return factors if ranks == 1 else None


def _largest_product(ranks: int, radix: int) -> tuple[int, list[int]]:
    """The most of the ranks that can take part, and how many meet at each step; a power of two always can."""
    for size in range(ranks, 1, -1):
        factors = _factors(size, radix)
        if factors is not None:
            return size, factors
    return 1, []


def recursive_multiplying_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Exchanges everything among groups of up to k ranks: about log_k n steps, the whole data k-1 times in each.

    Fewer steps than recursive doubling where sends of a rank overlap; ``tags={"radix": k}`` says k, by default 4. Where
    the ranks are no product of numbers up to k, the most that are take part and the others fold onto them. All ranks of
    a group add in the order of its ranks, so all get the same bits.
    """
    radix = spec.tags.get("radix", _DEFAULT_RADIX)
    require(isinstance(radix, int) and radix >= 2, _NAME, f"joins at least two ranks at a time, not {radix!r}")
    with start(spec, _NAME, AllReduce) as program:
        size, factors = _largest_product(program.num_ranks, min(radix, program.num_ranks))
        fold = Fold(program, size)
        steps, stride = [], 1
        for factor in factors:
            steps.append([_group(rank, stride, factor) for rank in range(size)])
            stride *= factor
        fold.enter([(a, b) for groups in steps for a in range(size) for b in groups[a] if a != b])
        for number, groups in enumerate(steps):
            _exchange(fold, groups, first=number == 0)
        fold.leave()
    return program


def _group(rank: int, stride: int, count: int) -> range:
    """The ranks that differ from ``rank`` only in one digit."""
    lowest = rank - rank // stride % count * stride
    return range(lowest, lowest + count * stride, stride)


def _exchange(fold: Fold, groups: list[range], *, first: bool) -> None:
    everyone = range(fold.size)
    length = len(fold.current(0, first=first))
    slots = {(rank, peer): Buffer(rank, length) for rank in everyone for peer in groups[rank] if peer != rank}
    for rank in everyone:
        for peer in groups[rank]:
            if peer != rank:
                fold.mesh.send(rank, peer, [(slots[peer, rank][:], fold.current(rank, first=first)[:])])
    for rank in everyone:
        for peer in groups[rank]:
            if peer != rank:
                fold.mesh.receive(rank, peer)
        sources = [slots.get((rank, peer), fold.current(rank, first=first))[:] for peer in groups[rank]]
        Rank(rank).reduce(sources[0], sources[1:], tb=0, dst_chunk=fold.current(rank, first=False)[:])
