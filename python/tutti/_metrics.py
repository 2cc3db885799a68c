"""The shape of what :func:`tutti.get_metrics` returns."""

from __future__ import annotations

from typing import TypedDict


class MetricsRow(TypedDict):
    """One line of :class:`Metrics`: the calls of one collective, in one size class, by one algorithm.

    ``device`` is ``"cpu"`` or ``"cuda"``. ``calls`` and ``bytes`` (of this rank's block or message) are exact. Times
    are in nanoseconds and of the ``timed_calls`` only, since below 8 KB a sample is timed: ``total_ns``, ``wait_ns`` of
    it spent waiting for peers, and ``p50_ns``, the median to a factor of 1.2.

    A call on a GPU counts when it is issued or captured, replays of its graph do not, and it is not timed.
    """

    device: str
    collective: str
    size_class: str
    algorithm: str
    calls: int
    bytes: int
    timed_calls: int
    total_ns: int
    wait_ns: int
    p50_ns: int


class Metrics(TypedDict):
    """What a group has done on this rank.

    ``mapped_calls`` needed no copy, because all ranks of the host map their tensors; ``errors`` counts what raised.
    ``rescued_waits`` are waits that only their time slice ended though what they waited for was there: lost wake-ups, 0
    unless Tutti or the system is at fault, since the group was made.
    ``device_calls`` are the collectives that the GPU has run since the group was made, replays of graphs included;
    uneven all-to-all, gather and scatter, which run as messages, are not. It is read from the GPU.
    """

    rows: list[MetricsRow]
    mapped_calls: int
    errors: int
    rescued_waits: int
    device_calls: int
