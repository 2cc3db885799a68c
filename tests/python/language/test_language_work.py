"""What compiling a program costs: so many steps, whatever the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from building import chunks, names, program

from tutti.language import Buffer, CollectiveProgram, MemoryChannel, PortChannel, Rank


def puts(count: int) -> None:
    channel, scratch, source = MemoryChannel(1, 0), Buffer(1, count), chunks(0)[0]
    for at in range(count):
        channel.put(scratch[at : at + 1], source[0:1], tb=0)


def puts_through_ports(count: int) -> None:
    channel, far_end, scratch, source = PortChannel(1, 0), PortChannel(0, 1), Buffer(1, count), chunks(0)[0]
    for at in reversed(range(count)):
        channel.put_with_signal(scratch[at : at + 1], source[0:1], tb=0)
    for _ in range(count):
        far_end.wait(tb=0)


def the_same_put(count: int) -> None:
    channel = MemoryChannel(1, 0)
    for _ in range(count):
        channel.put(chunks(1)[1][0:1], chunks(0)[0][0:1], tb=0)


def gets(count: int) -> None:
    channel, scratch = MemoryChannel(1, 0), Buffer(0, count)
    for at in range(count):
        channel.get(scratch[at : at + 1], chunks(1)[0][0:1], tb=0)


def reductions(count: int) -> None:
    scratch = Buffer(0, count)
    for at in range(count):
        Rank(0).reduce(chunks(0)[1][0:1], [scratch[at : at + 1]], tb=0)


def reading_reductions(count: int) -> None:
    channel, scratch = MemoryChannel(1, 0), Buffer(1, count)
    for at in range(count):
        channel.reduce(chunks(0)[1][0:1], [scratch[at : at + 1]], tb=0)


def reduction_and_puts(count: int) -> None:
    channel, scratch, result = MemoryChannel(1, 0), Buffer(1, count), chunks(0)[1][0:1]
    Rank(0).reduce(result, [chunks(0)[0][0:1]], tb=0)
    for at in range(count):
        channel.put(scratch[at : at + 1], result, tb=0)


def steps_of(write: Callable[[int], None], count: int) -> tuple[int, CollectiveProgram]:
    """How many functions are called, and iterators asked, for a plan of ``count`` operations that become one."""
    with program() as built:
        write(count)
    steps = 0

    def count_step(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_step)
    try:
        built.to_dict()
    finally:
        sys.setprofile(before)
    return steps, built


@pytest.mark.parametrize(
    "write",
    [puts, puts_through_ports, the_same_put, gets, reductions, reading_reductions, reduction_and_puts],
)
def test_merging_takes_steps_by_what_is_merged(write: Callable[[int], None]) -> None:
    least, built = steps_of(write, 100)
    most, _ = steps_of(write, 400)
    assert len(names(built)) <= 2, "they do not become one"
    assert most < 4.4 * least
