"""What the built-in programs have in common: their collective, their channels, and how a call begins.

All of them write into other ranks only after these have said that they are there: a rank says so when it enters a call,
so it has left the one before, and with it everything that the writer could disturb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tutti.language.channel import MemoryChannel, PortChannel
from tutti.language.checks import listed, whole
from tutti.language.chunks import BaseBuffer, Chunk
from tutti.language.collectives import Collective
from tutti.language.errors import fail
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.utils import AlgoSpec
from tutti.language.vocabulary import SyncType

Builder = Callable[[AlgoSpec], CollectiveProgram]


def require(condition: bool, algorithm: str, reason: str) -> None:
    """Refuses an algorithm for what it is asked for."""
    if not condition:
        fail(f"{algorithm} {reason}", operation=algorithm)


def whole_numbers(values: Any, what: str, algorithm: str) -> list[int]:
    """What a tag lists."""
    numbers = listed(values, what, operation=algorithm)
    return [whole(number, f"each of {what}", operation=algorithm) for number in numbers]


def start(spec: AlgoSpec, algorithm: str, collective: type[Collective]) -> CollectiveProgram:
    """The program of ``spec``, if it asks for the collective that the algorithm does.

    Joins are put in also where ``spec.auto_sync`` says no: these programs have none of their own.
    """
    wanted = collective.__name__
    require(isinstance(spec.collective, collective), algorithm, f"is made for {wanted}, not {spec.collective.name}")
    return CollectiveProgram.from_spec(replace(spec, auto_sync=True))


def ranks_of(program: CollectiveProgram) -> range:
    """All ranks."""
    return range(program.num_ranks)


def input_of(rank: int) -> BaseBuffer:
    """The input buffer of a rank."""
    return Rank(rank).get_input_buffer()


def output_of(rank: int) -> BaseBuffer:
    """The output buffer of a rank."""
    return Rank(rank).get_output_buffer()


def copy_unless_same(program: CollectiveProgram, rank: int, target: Chunk, source: Chunk) -> None:
    """Copies what a collective in place already has where it belongs."""
    if not program.collective.inplace:
        Rank(rank).copy(target, source, tb=0)


class Mesh:
    """The channels that a program uses; a pair of ranks gets both directions at its first mention.

    They are memory channels, but port channels between ranks that are ``apart``, as those of two hosts.
    """

    def __init__(self, apart: Callable[[int, int], bool] = lambda here, there: False) -> None:
        self._apart = apart
        self._channels: dict[tuple[int, int], MemoryChannel | PortChannel] = {}
        self._unflushed: dict[PortChannel, int] = {}  # thread block of the last put

    def between(self, here: int, there: int) -> MemoryChannel | PortChannel:
        """The channel by which rank ``here`` reaches rank ``there``."""
        if (here, there) not in self._channels:
            kind = PortChannel if self._apart(here, there) else MemoryChannel
            for source, target in ((here, there), (there, here)):
                self._channels[source, target] = kind(target, source)
        return self._channels[here, there]

    def enter(self, writes: Iterable[tuple[int, int]], tb: int = 0) -> None:
        """Begins a call: of every pair (writer, target), the target says that it is there and the writer waits."""
        pairs = list(dict.fromkeys(writes))
        for writer, target in pairs:
            self.between(target, writer).signal(tb=tb, data_sync=SyncType.none)
        for writer, target in pairs:
            self.between(writer, target).wait(tb=tb, data_sync=SyncType.after)

    def send(self, here: int, there: int, moves: Iterable[tuple[Chunk, Chunk]], tb: int = 0) -> None:
        """Puts chunks, each (target, source), and signals that they are there."""
        channel = self.between(here, there)
        for target, source in moves:
            channel.put(target, source, tb=tb)
        channel.signal(tb=tb, data_sync=SyncType.before)
        if isinstance(channel, PortChannel):
            self._unflushed[channel] = tb

    def leave(self) -> None:
        """Ends a call: waits until all that was put through ports has left, so that its source may change."""
        for channel, tb in self._unflushed.items():
            channel.flush(tb=tb, data_sync=SyncType.none)
        self._unflushed.clear()

    def receive(self, here: int, there: int, tb: int = 0) -> None:
        """Waits until what rank ``there`` sends is complete."""
        self.between(here, there).wait(tb=tb, data_sync=SyncType.after)


def wrapped(first: int, count: int, modulus: int) -> list[tuple[int, int]]:
    """The ranges (start, stop) of ``count`` numbers from ``first``, counted modulo ``modulus``."""
    start = first % modulus
    stop = start + count
    return [(start, stop)] if stop <= modulus else [(start, modulus), (0, stop - modulus)]
