"""Every error points at the line of the program, and names rank, thread block and operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from building import chunks, program

from tutti.language import (
    AllReduce,
    Broadcast,
    Buffer,
    BufferType,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    ProgramError,
    Rank,
    Semaphore,
    SwitchChannel,
    ThreadBlockGroup,
)


def no_program() -> None:
    Rank(0)


def no_rank() -> None:
    Rank(-1)


def no_such_rank() -> None:
    MemoryChannel(2, 0)


def channel_to_oneself() -> None:
    PortChannel(1, 1)


def rank_that_is_no_number() -> None:
    Buffer("0", 1)  # type: ignore[arg-type]


def empty_chunk() -> None:
    chunks(0)[0][1:1]


def chunk_beyond() -> None:
    chunks(0)[0][3:5]


def chunk_by_number() -> None:
    chunks(0)[0][1]  # type: ignore[index]


def negative_chunk() -> None:
    chunks(0)[0][-1:]


def empty_buffer() -> None:
    Buffer(0, 0)


def no_block() -> None:
    Rank(1).copy(chunks(1)[1][0:1], chunks(1)[0][0:1])


def negative_block() -> None:
    Rank(1).copy(chunks(1)[1][0:1], chunks(1)[0][0:1], tb=-1)


def sizes_differ() -> None:
    Rank(1).copy(chunks(1)[1][0:1], chunks(1)[0][0:2], tb=3)


def far_chunk() -> None:
    Rank(1).copy(chunks(1)[1][0:1], chunks(0)[0][0:1], tb=3)


def wrong_end() -> None:
    MemoryChannel(1, 0).put(chunks(0)[1][0:1], chunks(0)[0][0:1], tb=2)


def get_sizes_differ() -> None:
    MemoryChannel(1, 0).get(chunks(0)[1][0:1], chunks(1)[0][0:2], tb=2)


def packets_copied_outside_scratch() -> None:
    Rank(0).copy_packets(chunks(0)[1][0:1], chunks(0)[0][0:1], tb=2)


def no_chunk() -> None:
    Rank(0).unpack_packets(chunks(0)[1], chunks(0)[0][0:1], tb=2)  # type: ignore[arg-type]


def wrong_sync() -> None:
    MemoryChannel(1, 0).signal(tb=1, data_sync="before")  # type: ignore[arg-type]


def wrong_reduction() -> None:
    Rank(0).reduce(chunks(0)[0][0:1], [chunks(0)[0][1:2]], tb=1, reduce_op="sum")  # type: ignore[arg-type]


def wrong_buffer() -> None:
    SwitchChannel([0, 1], "i")  # type: ignore[arg-type]


def packets_outside_scratch() -> None:
    MemoryChannel(1, 0).put_packets(chunks(1)[1][0:1], chunks(0)[0][0:1], tb=2)


def nothing_to_reduce() -> None:
    Rank(0).reduce(chunks(0)[0][0:1], [], tb=1)


def block_twice() -> None:
    Rank(0).barrier([1, 1])


def loop_in_loop() -> None:
    with LoopIterationContext(16, 1), LoopIterationContext(16, 1):
        pass


def odd_unit() -> None:
    LoopIterationContext(24, 1)


def packets_in_loop() -> None:
    slots = Buffer(0, 1)
    with LoopIterationContext(16, 1):
        Rank(0).unpack_packets(chunks(0)[1][0:1], slots[:], tb=1)


def group_in_loop() -> None:
    with LoopIterationContext(16, 1):
        Rank(0).copy(chunks(0)[1][0:1], chunks(0)[0][0:1], tb_group=ThreadBlockGroup([1, 2]))


def more_than_the_loop_has() -> None:
    with LoopIterationContext(16, 1):
        Rank(0).copy(chunks(0)[1][0:2], chunks(0)[0][0:2], tb=1)


def group_twice() -> None:
    ThreadBlockGroup([1, 2, 1])


def not_in_switch() -> None:
    SwitchChannel([0], BufferType.input).at_rank(1)


def beyond_switch() -> None:
    SwitchChannel([0, 1], BufferType.input).at_rank(0).broadcast(chunks(0)[0][0:1], 4, 1, tb=1)


def negative_semaphore() -> None:
    Semaphore(1, -1)


@pytest.mark.parametrize(
    ("statement", "reason", "rank", "block", "operation"),
    [
        (no_program, "no program here", None, None, None),
        (no_rank, "rank -1 is not one of the program's ranks 0 to 1", None, None, "Rank"),
        (no_such_rank, "destination rank 2", None, None, "MemoryChannel"),
        (channel_to_oneself, "a channel to oneself", 1, None, "PortChannel"),
        (rank_that_is_no_number, "a whole number", None, None, "Buffer"),
        (empty_chunk, "has no chunk", 0, None, None),
        (chunk_beyond, "beyond the 4 chunks of the input buffer", 0, None, None),
        (chunk_by_number, "a slice such as", 0, None, None),
        (negative_chunk, "no negative chunks", 0, None, None),
        (empty_buffer, "at least one chunk", 0, None, None),
        (no_block, "say which thread block", 1, None, "copy"),
        (negative_block, "counted from 0", 1, None, "copy"),
        (sizes_differ, "operands of 1 and 2 chunks", 1, 3, "copy"),
        (far_chunk, "rank 0's", 1, 3, "copy"),
        (wrong_end, "far end is rank 1's, not 0's", 0, 2, "put"),
        (get_sizes_differ, "operands of 1 and 2 chunks", 0, 2, "get"),
        (packets_outside_scratch, "written to scratch only", 0, 2, "put_packet"),
        (packets_copied_outside_scratch, "in scratch only", 0, 2, "copy_packet"),
        (no_chunk, "a chunk is written buffer[start:stop]", 0, 2, "unpack_packet"),
        (wrong_sync, "a SyncType, not 'before'", 0, 1, "signal"),
        (wrong_reduction, "a ReduceOperationType, not 'sum'", 0, 1, "reduce"),
        (wrong_buffer, "a BufferType, not 'i'", None, None, "SwitchChannel"),
        (nothing_to_reduce, "nothing to reduce with", 0, 1, "reduce"),
        (block_twice, "listed twice", 0, None, "barrier"),
        (loop_in_loop, "loops do not nest", None, None, "loop"),
        (odd_unit, "a multiple of 16 bytes", None, None, "loop"),
        (packets_in_loop, "packets in a loop", 0, 1, "unpack_packet"),
        (group_in_loop, "a group of thread blocks in a loop", 0, 1, "copy"),
        (more_than_the_loop_has, "2 chunks in a loop over 1", 0, 1, "copy"),
        (group_twice, "in the group twice", None, None, "ThreadBlockGroup"),
        (not_in_switch, "among ranks [0] only", 1, None, "at_rank"),
        (beyond_switch, "beyond the 4 chunks of rank 0's input", 0, 1, "group_store"),
        (negative_semaphore, "at least 0", 1, None, "Semaphore"),
    ],
)
def test_errors_point_at_the_program(
    statement: Callable[[], None], reason: str, rank: int | None, block: int | None, operation: str | None
) -> None:
    with pytest.raises(ProgramError) as caught:
        if statement is no_program:
            statement()
        else:
            with program():
                statement()
    error = caught.value
    lines, first = inspect.getsourcelines(statement)
    assert error.file == __file__
    assert error.line is not None
    assert first < error.line < first + len(lines)
    assert (error.rank, error.thread_block, error.operation) == (rank, block, operation)
    assert reason in error.reason
    assert str(error).startswith(f"{__file__}:{error.line}: ")
    assert isinstance(error, ValueError)


def test_an_error_says_everything_in_its_text() -> None:
    with (
        pytest.raises(ProgramError, match=r"py:\d+: rank 1, thread block 3, copy: operands of 1 and 2 chunks$"),
        program(),
    ):
        sizes_differ()


def test_a_signal_without_a_wait_is_named() -> None:
    with program() as built:
        here, there = MemoryChannel(1, 0), MemoryChannel(0, 1)
        here.signal(tb=0)
        there.wait(tb=0)
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        here.signal(tb=0)
    with pytest.raises(
        ProgramError, match="signals rank 1 2 times over memory channels, but rank 1 waits for it 1"
    ) as caught:
        built.to_json()
    error = caught.value
    assert (error.line, error.rank, error.thread_block, error.operation) == (line, 0, 0, "signal")


def test_a_signal_in_a_loop_needs_its_wait_in_one() -> None:
    with program() as built:
        here, there = PortChannel(1, 0), PortChannel(0, 1)
        with LoopIterationContext(16, 1):
            here.signal(tb=0)
        there.wait(tb=0)
    with pytest.raises(ProgramError, match="in loops of 1 chunks by 16 bytes"):
        built.to_json()


def test_what_is_refused_is_not_in_the_program() -> None:
    with program() as built:
        near, far = PortChannel(1, 0), PortChannel(0, 1)
        source, target = chunks(0)[0][0:1], chunks(1)[1][0:1]
        for channel, peer in ((near, far), (MemoryChannel(1, 0), MemoryChannel(0, 1))):
            channel.signal(tb=0)
            peer.wait(tb=0)
            with pytest.raises(ProgramError, match="thread blocks 0 and 1 both do it"):
                channel.signal(tb=1)
            with pytest.raises(ProgramError, match="thread blocks 0 and 1 both do it"):
                peer.wait(tb=1)
        with pytest.raises(ProgramError, match="thread blocks 0 and 1 both do it"):
            near.put_with_signal(target, source, tb=1)
    assert [len(gpu["threadblocks"]) for gpu in built.to_dict()["gpus"]] == [1, 1]
    assert built.check()["outcome"] == "proven"


def test_objects_belong_to_the_program_they_were_made_in() -> None:
    with program():
        channel = MemoryChannel(1, 0)
    with program(), pytest.raises(ProgramError, match="program 'test', which is not the one being written"):
        channel.signal(tb=0)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"protocol": "LL128"}, "one of Simple, LL"), ({"instances": 0}, "at least one instance")],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        program(**settings)


def test_ranks_must_agree() -> None:
    with pytest.raises(ProgramError, match="2 ranks, but the collective is made for 4"):
        CollectiveProgram("test", AllReduce(4, 1), 2)
    with pytest.raises(ProgramError, match="root 4 is not one of ranks 0 to 3"):
        Broadcast(4, 1, root=4)
