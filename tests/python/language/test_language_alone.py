"""Programs in which one thread block does everything: what it orders needs no more than the language's own joints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tutti.language import (
    BaseBuffer,
    Buffer,
    BufferType,
    Collective,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    Rank,
    ReplicationPolicy,
    SwitchChannel,
)

CHUNKS = 4


class Free(Collective):
    """Four chunks of input and of output on every rank, and no result to be checked."""

    def sizes(self, rank: int) -> tuple[int, int]:
        """Alike."""
        return CHUNKS, CHUNKS


class Scene:
    """Two ranks; rank 0's thread block 0 reaches all memory through one channel, between two meetings."""

    def __init__(self) -> None:
        self.rank = Rank(0)
        self.channel = MemoryChannel(1, 0)
        self.own, self.far = Rank(0).get_output_buffer(), Rank(1).get_output_buffer()
        self.input = Rank(0).get_input_buffer()
        self.scratch: BaseBuffer = Buffer(0, CHUNKS)
        self.switch = SwitchChannel([0, 1], BufferType.output).at_rank(0)


def put_then_get(at: Scene) -> None:
    at.channel.put(at.far[0:2], at.own[0:2], tb=0)
    at.channel.get(at.scratch[0:1], at.far[1:2], tb=0)


def get_then_put(at: Scene) -> None:
    at.channel.get(at.scratch[0:2], at.far[0:2], tb=0)
    at.channel.put(at.far[1:2], at.own[0:1], tb=0)


def put_twice(at: Scene) -> None:
    at.channel.put(at.far[0:2], at.own[0:2], tb=0)
    at.channel.put(at.far[1:3], at.scratch[0:2], tb=0)


def put_twice_to_the_same(at: Scene) -> None:
    at.channel.put(at.far[0:1], at.own[0:1], tb=0)
    at.channel.put(at.far[0:1], at.scratch[0:1], tb=0)


def put_then_reduce_of_it(at: Scene) -> None:
    at.channel.put(at.far[0:1], at.own[0:1], tb=0)
    at.channel.reduce(at.scratch[1:3], [at.far[0:2]], tb=0)


def put_into_what_was_reduced(at: Scene) -> None:
    at.channel.reduce(at.own[0:2], [at.far[0:2]], tb=0)
    at.channel.put(at.far[1:3], at.own[0:2], tb=0)


def put_twice_of_what_was_reduced(at: Scene) -> None:
    at.rank.reduce(at.own[0:2], [at.scratch[0:2]], tb=0)
    at.channel.put(at.far[0:2], at.own[0:2], tb=0)
    at.channel.put(at.far[1:3], at.own[0:2], tb=0)


def get_after_broadcast(at: Scene) -> None:
    at.switch.broadcast(at.scratch[0:1], 0, 1, tb=0)
    at.channel.get(at.scratch[1:3], at.far[0:2], tb=0)


def put_before_reduction_of_all(at: Scene) -> None:
    at.channel.put(at.far[0:1], at.scratch[0:1], tb=0)
    at.switch.reduce(0, 2, at.own[2:4], tb=0)


def get_into_both_names_of_one_memory(at: Scene) -> None:
    at.channel.get(at.own[0:1], at.far[2:3], tb=0)
    at.channel.get(at.input[0:1], at.far[3:4], tb=0)


def reduce_with_the_other_name_of_the_result(at: Scene) -> None:
    at.rank.reduce(at.own[0:1], [at.scratch[0:1]], tb=0)
    at.rank.reduce(at.own[0:1], [at.input[0:1]], tb=0)


def loop_then_put(at: Scene) -> None:
    with LoopIterationContext(16, 1):
        at.channel.get(at.scratch[0:1], at.far[0:1], tb=0)
    at.channel.put(at.far[0:1], at.own[0:1], tb=0)


def alone(what: Callable[[Scene], None], inplace: bool, **options: object) -> CollectiveProgram:
    with CollectiveProgram("alone", Free(2, 1, inplace), 2, **options) as program:  # type: ignore[arg-type]
        at, back = Scene(), MemoryChannel(0, 1)
        back.signal(tb=0)
        at.channel.wait(tb=0)
        what(at)
        at.channel.signal(tb=0)
        back.wait(tb=0)
    return program


@pytest.mark.parametrize(
    "what",
    [
        put_then_get,
        get_then_put,
        put_twice,
        put_twice_to_the_same,
        put_then_reduce_of_it,
        put_into_what_was_reduced,
        put_twice_of_what_was_reduced,
        get_after_broadcast,
        put_before_reduction_of_all,
        get_into_both_names_of_one_memory,
        reduce_with_the_other_name_of_the_result,
        loop_then_put,
    ],
)
def test_one_thread_block_is_in_order_with_itself(what: Callable[[Scene], None]) -> None:
    for inplace in (False, True):
        for instances, policy in ((1, "none"), (2, "interleaved"), (3, "none")):
            for fusion in (True, False):
                program = alone(
                    what,
                    inplace,
                    instances=instances,
                    replication_policy=ReplicationPolicy(policy),
                    instr_fusion=fusion,
                )
                verdict = program.check()
                assert verdict["outcome"] != "rejected", (inplace, instances, policy, fusion, verdict["fault"])
