"""The bucket algorithm on a torus: rings along one dimension after the other.

N. Jain and Y. Sabharwal, Optimal Bucket Algorithms for Large MPI Collectives on Torus Interconnects, ICS 2010.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from tutti.language.builtins.block_trees import BlockTrees, Edge
from tutti.language.builtins.common import require, start, whole_numbers
from tutti.language.collectives import AllReduce
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["torus_bucket_all_reduce"]

_NAME = "the torus bucket algorithm"


def _shape(spec: AlgoSpec) -> tuple[int, ...]:
    """The torus that the spec's tag ``torus`` gives, or the squarest of two dimensions."""
    ranks = spec.world_size
    if "torus" in spec.tags:
        shape = tuple(whole_numbers(spec.tags["torus"], "the sizes of a torus", _NAME))
        fits = math.prod(shape) == ranks and all(size >= 1 for size in shape)
        require(fits, _NAME, f"has {ranks} ranks, which are no torus of {' x '.join(map(str, shape))}")
        return shape
    sides = [side for side in range(2, math.isqrt(ranks) + 1) if ranks % side == 0]
    require(bool(sides), _NAME, f"needs two dimensions of at least two ranks each, but {ranks} has no such factors")
    return sides[-1], ranks // sides[-1]


def _edges(shape: Sequence[int]) -> Callable[[int], Iterator[Edge]]:
    ranks = math.prod(shape)

    def edges(block: int) -> Iterator[Edge]:
        """In every line of a dimension the sum goes round to the owner's coordinate; from then on only there."""
        first_step, stride = 0, 1
        for size in shape:
            goal = block // stride % size
            lines = range(ranks) if stride < ranks else ()
            for origin in lines:
                # One origin a line; lower dimensions have already been brought to the owner's coordinates.
                if origin // stride % size == 0 and origin % stride == block % stride:
                    for step in range(size - 1):
                        sender, receiver = (goal + 1 + step) % size, (goal + 2 + step) % size
                        yield first_step + step, origin + sender * stride, origin + receiver * stride
            first_step += size - 1
            stride *= size

    return edges


def torus_bucket_all_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """Reduces along rings of each dimension, then gathers back: 2(sum of (d-1)) steps, 2(n-1)/n of the data a rank.

    All messages go to neighbours; a square torus has 4(sqrt(n)-1) steps where a ring has 2(n-1). The first dimension
    is that of neighbouring ranks; ``tags={"torus": (4, 2, 2)}`` gives the sizes.
    """
    shape = _shape(spec)
    with start(spec, _NAME, AllReduce) as program:
        BlockTrees(program, _edges(shape)).run()
    return program
