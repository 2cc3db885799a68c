"""Broadcast of long messages: scattered first, then gathered by everyone.

M. Barnett et al., Interprocessor Collective Communication Library (InterCom), SHPCC 1994.
"""

from __future__ import annotations

from tutti.language.builtins.binomial import BinomialTree
from tutti.language.builtins.common import Mesh, copy_unless_same, input_of, output_of, start
from tutti.language.builtins.rooted import hand_down
from tutti.language.collectives import Broadcast
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["scatter_all_gather_broadcast"]


def scatter_all_gather_broadcast(spec: AlgoSpec) -> CollectiveProgram:
    """Scatters over a binomial tree and gathers along a ring: log n + n-1 steps, at most 2(n-1)/n of the data a rank.

    A binomial tree alone sends the whole data up to log n times from one rank. Blocks that the scattering has left at a
    rank are not sent to it again.
    """
    with start(spec, "scatter-all-gather broadcast", Broadcast) as program:
        tree, mesh, n, factor = BinomialTree(program), Mesh(), program.num_ranks, spec.collective.chunk_factor
        writes = [(tree.rank(tree.parent(v)), tree.rank(v)) for v in range(1, n)]
        mesh.enter(writes + [(tree.rank(v), tree.rank(v + 1)) for v in range(n) if n > 1])
        copy_unless_same(program, tree.root, output_of(tree.root)[:], input_of(tree.root)[:])
        hand_down(tree, mesh, lambda child: slice(child * factor, (child + tree.span(child)) * factor))
        for step in range(n - 1):
            # At this step v passes on block v - step, unless the next one has it already.
            passing = [v for v in range(n) if (v - step) % n not in _scattered(tree, (v + 1) % n)]
            for v in passing:
                here, there, block = tree.rank(v), tree.rank(v + 1), (v - step) % n * factor
                piece = slice(block, block + factor)
                mesh.send(here, there, [(output_of(there)[piece], output_of(here)[piece])])
            for v in passing:
                mesh.receive(tree.rank(v + 1), tree.rank(v))
    return program


def _scattered(tree: BinomialTree, v: int) -> range:
    return range(v, v + tree.span(v))
