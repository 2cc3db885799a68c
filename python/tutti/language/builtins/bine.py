"""Broadcast and reduction over bine (binomial negabinary) trees, whose messages go shorter ways than a binomial tree's.

D. De Sensi et al., Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality, SC 2025.
"""

from __future__ import annotations

from tutti.language.builtins.common import start
from tutti.language.builtins.rooted import RootedTree, broadcast_down, reduce_up
from tutti.language.collectives import Broadcast, Reduce
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["bine_broadcast", "bine_reduce"]


class _BineTree(RootedTree):
    """Distances are sums of powers of -2, one way from even numbers and the other from odd ones.

    The tree spans the largest power of two of the ranks; each of the rest hangs below one of the first, a step more.
    """

    def __init__(self, program: CollectiveProgram) -> None:
        super().__init__(program)
        steps = self.size.bit_length() - 1
        spanned = 1 << steps
        self._parent: dict[int, int] = {}
        self._children: dict[int, list[int]] = {v: [] for v in range(self.size)}
        reached = [0]
        for step in range(steps):
            distance = (1 - (-2) ** (steps - step)) // 3
            for v in list(reached):
                child = (v + distance if v % 2 == 0 else v - distance) % spanned
                self._hang(child, v)
                reached.append(child)
        for v in range(spanned, self.size):
            self._hang(v, v - spanned)

    def _hang(self, child: int, parent: int) -> None:
        self._parent[child] = parent
        self._children[parent].append(child)

    def parent(self, v: int) -> int:
        """Who reached v first."""
        return self._parent[v]

    def children(self, v: int) -> list[int]:
        """Whom v reached, in the order of the steps."""
        return self._children[v]


def bine_broadcast(spec: AlgoSpec) -> CollectiveProgram:
    """Everyone who has the data gives it on, far first: log n steps (rounded up), the whole data in each.

    The distances are about 2/3 of a binomial tree's (3, 1, 1 for 8 ranks, not 4, 2, 1).
    """
    with start(spec, "bine broadcast", Broadcast) as program:
        broadcast_down(program, _BineTree(program))
    return program


def bine_reduce(spec: AlgoSpec) -> CollectiveProgram:
    """The broadcast backwards: log n steps (rounded up), the whole data in each."""
    with start(spec, "bine reduce", Reduce) as program:
        reduce_up(program, _BineTree(program))
    return program
