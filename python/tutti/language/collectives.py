"""What the ranks have before and after: the chunks of their input and output buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tutti.language.checks import whole
from tutti.language.chunks import BaseBuffer
from tutti.language.errors import fail
from tutti.language.limits import MOST_RANKS
from tutti.language.vocabulary import BufferType

if TYPE_CHECKING:
    from tutti.language.program import CollectiveProgram

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "Collective",
    "Gather",
    "Reduce",
    "ReduceScatter",
    "Scatter",
    "SendRecv",
    "TestCollective",
]


class Collective:
    """Base of all. A collective of one's own gives it a ``name`` and says its buffers in :meth:`init_buffers`."""

    name = "custom"
    root: int | None = None

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool = False) -> None:
        kind = type(self).__name__
        self.num_ranks = whole(num_ranks, "num_ranks", operation=kind)
        self.chunk_factor = whole(chunk_factor, "chunk_factor", operation=kind)
        self.inplace = inplace
        if self.num_ranks < 1:
            fail(f"a collective has at least one rank, not {num_ranks}", operation=kind)
        if self.num_ranks > MOST_RANKS:
            fail(f"a collective has at most {MOST_RANKS} ranks, not {num_ranks}", operation=kind)
        if self.chunk_factor < 1:
            fail(f"chunk_factor is at least 1, not {chunk_factor}", operation=kind)

    @property
    def total(self) -> int:
        """The chunks of all ranks' shares together."""
        return self.num_ranks * self.chunk_factor

    def sizes(self, rank: int) -> tuple[int, int]:
        """How many chunks the input and the output of ``rank`` have."""
        return self.total, self.total

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """The input and output buffer of every rank."""
        return [
            {
                kind: BaseBuffer(rank, kind, 0, size)
                for kind, size in zip((BufferType.input, BufferType.output), self.sizes(rank), strict=True)
            }
            for rank in range(self.num_ranks)
        ]

    def check(self, prog: CollectiveProgram) -> None:
        """Called when a program is compiled; a collective of one's own may look at it here and raise."""


class TestCollective(Collective):
    """Buffers of any size, for programs that try operations out."""

    __test__ = False  # pytest would collect it
    name = "test"

    def __init__(self, num_ranks: int, input_size: int, output_size: int) -> None:
        super().__init__(num_ranks, 1, False)
        self.input_size = whole(input_size, "input_size", operation="TestCollective")
        self.output_size = whole(output_size, "output_size", operation="TestCollective")

    def sizes(self, rank: int) -> tuple[int, int]:
        """As told."""
        return self.input_size, self.output_size


class AllReduce(Collective):
    """Every rank gets the combination of all ranks' inputs, of ``num_ranks * chunk_factor`` chunks each."""

    name = "allreduce"


class AllGather(Collective):
    """Every rank gets all ranks' inputs, one after the other."""

    name = "allgather"

    def sizes(self, rank: int) -> tuple[int, int]:
        """A share, and all of them."""
        return self.chunk_factor, self.total


class ReduceScatter(Collective):
    """Every rank gets its share of the combination of all ranks' inputs."""

    name = "reducescatter"

    def sizes(self, rank: int) -> tuple[int, int]:
        """All shares, and one."""
        return self.total, self.chunk_factor


class AllToAll(Collective):
    """Every rank gets from every rank the share of its input that is meant for it."""

    name = "alltoall"


class SendRecv(Collective):
    """Every rank gets the input of the rank before it."""

    name = "sendrecv"

    def sizes(self, rank: int) -> tuple[int, int]:
        """A share each."""
        return self.chunk_factor, self.chunk_factor


class _Rooted(Collective):
    """A collective in which one rank is special."""

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool = False, root: int = 0) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        kind = type(self).__name__
        self.root: int = whole(root, "root", operation=kind)
        if not 0 <= self.root < self.num_ranks:
            fail(f"root {root} is not one of ranks 0 to {self.num_ranks - 1}", operation=kind)

    def at_root(self, rank: int, size: int) -> int:
        """``size`` at the root, nothing elsewhere."""
        return size if rank == self.root else 0


class Broadcast(_Rooted):
    """Every rank gets the root's input; what other ranks' inputs hold means nothing.

    The data is as long as all shares together, so that programs may scatter and gather it.
    """

    name = "broadcast"


class Reduce(_Rooted):
    """The root gets the combination of all ranks' inputs. Other ranks have no output."""

    name = "reduce"

    def sizes(self, rank: int) -> tuple[int, int]:
        """As long as all shares together, so that programs may scatter and gather them."""
        return self.total, self.at_root(rank, self.total)


class Gather(_Rooted):
    """The root gets all ranks' inputs, one after the other. Other ranks have no output."""

    name = "gather"

    def sizes(self, rank: int) -> tuple[int, int]:
        """A share, and at the root all of them."""
        return self.chunk_factor, self.at_root(rank, self.total)


class Scatter(_Rooted):
    """Every rank gets its share of the root's input. Other ranks have no input."""

    name = "scatter"

    def sizes(self, rank: int) -> tuple[int, int]:
        """At the root all shares, and one."""
        return self.at_root(rank, self.total), self.chunk_factor
