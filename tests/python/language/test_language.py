"""The language: what is recorded, what the passes make of it, and where errors point."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interpreter import results

from tutti.language import (
    AlgoSpec,
    AllGather,
    AllReduce,
    AllToAll,
    BaseBuffer,
    Broadcast,
    Buffer,
    BufferType,
    Collective,
    CollectiveProgram,
    Gather,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    ProgramError,
    Rank,
    Reduce,
    ReduceOperationType,
    ReduceScatter,
    ReplicationPolicy,
    Scatter,
    Semaphore,
    SendRecv,
    SwitchChannel,
    SyncType,
    TestCollective,
    ThreadBlockGroup,
)

PACKAGE = Path(__file__).resolve().parents[3] / "python"


def program(collective: Collective | None = None, **settings: Any) -> CollectiveProgram:
    collective = collective or TestCollective(2, 4, 4)
    return CollectiveProgram("test", collective, collective.num_ranks, **settings)


def operations(built: CollectiveProgram, rank: int = 0, block: int = 0) -> list[dict[str, Any]]:
    return built.to_dict(origin=False)["gpus"][rank]["threadblocks"][block]["ops"]


def names(built: CollectiveProgram, rank: int = 0, block: int = 0) -> list[str]:
    return [operation["name"] for operation in operations(built, rank, block)]


def chunks(rank: int) -> tuple[BaseBuffer, BaseBuffer]:
    return Rank(rank).get_input_buffer(), Rank(rank).get_output_buffer()


def test_neither_torch_nor_the_library_is_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import tutti, tutti.language.builtins; from tutti.language import *\n"
        "assert tutti.AlgoSpec is AlgoSpec\n"
        "assert not [name for name in sys.modules if name.startswith(('tutti._core', 'tutti._torch'))]\n"
        "print('alone')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "alone", done.stderr


def test_the_plan_has_the_settings() -> None:
    spec = AlgoSpec(
        name="all of them",
        collective=Broadcast(2, 1, True, root=1),
        instances=1,
        protocol="LL",
        reuse_resources=True,
        num_threads_per_block=256,
        use_double_scratch_buffer=True,
        buffer_alignment=128,
        min_message_size=16,
        max_message_size=2**40,
    )
    plan = CollectiveProgram.from_spec(spec).to_dict()
    gpus = plan.pop("gpus")
    assert plan == {
        "version": 1,
        "name": "all of them",
        "collective": "broadcast",
        "root": 1,
        "protocol": "LL",
        "inplace": True,
        "reuse_resources": True,
        "num_threads_per_block": 256,
        "use_double_scratch_buffer": True,
        "buffer_alignment": 128,
        "min_message_size": 16,
        "max_message_size": 2**40,
    }
    assert [(gpu["input_chunks"], gpu["output_chunks"]) for gpu in gpus] == [(2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("collective", "sizes"),
    [
        (AllReduce(3, 2), [(6, 6)] * 3),
        (AllGather(3, 2), [(2, 6)] * 3),
        (ReduceScatter(3, 2), [(6, 2)] * 3),
        (AllToAll(3, 2), [(6, 6)] * 3),
        (SendRecv(3, 2), [(2, 2)] * 3),
        (TestCollective(3, 5, 7), [(5, 7)] * 3),
        (Broadcast(3, 2, root=1), [(6, 6)] * 3),
        (Reduce(3, 2, root=1), [(6, 0), (6, 6), (6, 0)]),
        (Gather(3, 2, root=1), [(2, 0), (2, 6), (2, 0)]),
        (Scatter(3, 2, root=1), [(0, 2), (6, 2), (0, 2)]),
    ],
)
def test_buffers_of_the_collectives(collective: Collective, sizes: list[tuple[int, int]]) -> None:
    assert [tuple(len(buffer) for buffer in buffers.values()) for buffers in collective.init_buffers()] == sizes


def exchange(**settings: Any) -> CollectiveProgram:
    """A program that uses every kind of resource."""
    with program(AllReduce(2, 1), **settings) as built:
        for rank in (0, 1):
            source, target = chunks(rank)
            slot, done = Buffer(rank, 1), Semaphore(rank, 0)
            channel = MemoryChannel(1 - rank, rank)
            Rank(rank).barrier([0, 1])
            Rank(rank).copy(slot[:], source[0:1], tb=0)
            channel.signal(tb=0)
            channel.wait(tb=0)
            done.release(tb=0)
            done.acquire(tb=1)
            Rank(rank).copy(target[0:1], slot[:], tb=1)
            Rank(rank).barrier([1, 2])
    return built


def test_compiling_again_gives_the_same_text() -> None:
    built = exchange(instances=2)
    first = built.to_json()
    built.post_process_operations()
    assert built.to_json() == first
    assert built.to_json(indent=None, separators=(",", ":")) == json.dumps(json.loads(first), separators=(",", ":"))


def test_every_program_begins_afresh() -> None:
    assert exchange().to_dict(origin=False) == exchange().to_dict(origin=False)
    block = exchange().to_dict()["gpus"][1]["threadblocks"][1]
    assert [one["barrier_id"] for one in block["ops"] if one["name"] == "barrier"] == [0, 1]


def test_threads_write_programs_at_once() -> None:
    alone, barrier, found = exchange().to_dict(origin=False), threading.Barrier(4), []

    def write() -> None:
        with program(AllReduce(2, 1)) as mine:
            barrier.wait(timeout=30)
            assert exchange().to_dict(origin=False) == alone  # a program within another gives it back
            Rank(0).copy(chunks(0)[1][0:1], chunks(0)[0][0:1], tb=0)
            barrier.wait(timeout=30)
        found.append(names(mine))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == [["copy"]] * 4


def test_operations_name_their_lines() -> None:
    with program() as built:
        source, target = chunks(0)
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        Rank(0).copy(target[0:1], source[0:1], tb=0)
        Rank(0).copy(target[1:2], target[0:1], tb=0)
        Rank(0).reduce(target[1:2], [source[1:2]], tb=0)
        Rank(0).reduce(target[1:2], [source[2:3]], tb=0)
    plan = built.to_dict()["gpus"][0]["threadblocks"][0]["ops"]
    here = Path(__file__).name
    assert [one["origin"] for one in plan] == [
        f"{here}:{line}",
        f"{here}:{line + 1}",
        f"{here}:{line + 1}",
        f"{here}:{line + 2}, {here}:{line + 3}",
        f"{here}:{line + 2}, {here}:{line + 3}",
    ]
    assert "origin" not in built.to_json(origin=False)


# Fusion.


def reduced(*, target: slice, others: list[slice], **settings: Any) -> CollectiveProgram:
    with program(**settings) as built:
        source, _ = chunks(0)
        for other in others:
            Rank(0).reduce(source[0:1], [source[other]], tb=0, dst_chunk=source[target])
    return built


def test_reductions_into_the_same_place_are_one() -> None:
    built = reduced(target=slice(0, 1), others=[slice(1, 2), slice(2, 3)])
    assert names(built) == ["re"]
    assert len(operations(built)[0]["src_buff"]) == 3


def test_a_reduction_that_overwrites_the_one_before_is_not_added_to_it() -> None:
    assert names(reduced(target=slice(3, 4), others=[slice(1, 2), slice(2, 3)])) == ["re", "nop", "re"]


def test_a_reduction_that_reads_the_result_before_is_not_added_to_it() -> None:
    assert names(reduced(target=slice(0, 1), others=[slice(1, 2), slice(0, 1)])) == ["re", "nop", "re"]


def test_a_reduction_and_the_puts_of_its_result_are_one() -> None:
    with program(TestCollective(3, 4, 4)) as built:
        source, _ = chunks(0)
        Rank(0).reduce(source[0:1], [source[1:2]], tb=0)
        for peer in (1, 2):
            MemoryChannel(peer, 0).put(chunks(peer)[1][0:1], source[0:1], tb=0)
    assert names(built) == ["res"]
    assert [place.get("buffer_id") for place in operations(built)[0]["dst_buff"]] == [None, 0, 1]


def test_packets_that_are_reduced_kept_and_sent_are_one() -> None:
    with program(TestCollective(2, 4, 4), instances=2) as built:
        source, _ = chunks(0)
        slots, there = Buffer(0, 4), Buffer(1, 4)
        channel = MemoryChannel(1, 0)
        Rank(0).reduce(source[1:2], [slots[0:1]], tb=0, packet=True)
        Rank(0).copy_packets(slots[2:3], source[1:2], tb=0)
        channel.put_packets(there[3:4], source[1:2], tb=0)
        channel.read_put_packets(there[1:2], slots[2:3], tb=0)
    assert names(built, block=1) == ["recspkt"]
    # Replication moves the packets that stay as it moves everything else.
    assert [place["index"] for place in operations(built, block=1)[0]["dst_buff"]] == [3, 5, 7, 3]


def test_a_fused_multicast_reduction_stores_where_it_was_told() -> None:
    with program(TestCollective(2, 4, 4)) as built:
        channel = SwitchChannel([0, 1], BufferType.input)
        block = chunks(0)[0][2:3]
        channel.at_rank(0).reduce(buffer_offset=1, size=1, dst_chunk=block, tb=0)
        channel.at_rank(0).broadcast(src_chunk=block, buffer_offset=2, size=1, tb=0)
    (operation,) = operations(built)
    assert operation["name"] == "glres"
    assert (operation["src_buff"][0]["index"], operation["dst_buff"][0]["index"]) == (1, 2)


def test_a_multicast_reduction_whose_result_is_kept_elsewhere_is_not_fused() -> None:
    with program(TestCollective(2, 4, 4)) as built:
        channel = SwitchChannel([0, 1], BufferType.input)
        block = chunks(0)[1][0:1]
        channel.at_rank(0).reduce(buffer_offset=1, size=1, dst_chunk=block, tb=0)
        channel.at_rank(0).broadcast(src_chunk=block, buffer_offset=2, size=1, tb=0)
    assert names(built) == ["glre", "nop", "gstore"]


def test_what_is_read_into_overlapping_chunks_is_not_fused() -> None:
    with program() as built:
        source, far = chunks(0)[0], chunks(1)[0]
        channel = MemoryChannel(1, 0)
        channel.get(source[0:2], far[0:2], tb=0)
        channel.get(source[1:3], far[0:2], tb=0)
        channel.get(source[3:4], far[3:4], tb=0)
    assert names(built) == ["get", "nop", "get", "get"]


def test_reductions_of_different_kinds_stay_apart() -> None:
    with program() as built:
        source, _ = chunks(0)
        for other, kind in enumerate((ReduceOperationType.max, ReduceOperationType.any), 1):
            Rank(0).reduce(source[0:1], [source[other : other + 1]], tb=0, reduce_op=kind)
    assert [operation.get("reduce_op") for operation in operations(built)] == ["max", None, "any"]


def test_two_signals_of_a_channel_stay_two() -> None:
    with program() as built:
        here, there = [MemoryChannel(1, 0) for _ in range(2)], [MemoryChannel(0, 1) for _ in range(2)]
        for channel in (*here, here[0]):
            channel.signal(tb=0, data_sync=SyncType.none)
        for channel in (*there, there[0]):
            channel.wait(tb=0, data_sync=SyncType.none)
    assert names(built) == ["signal", "signal"]
    assert names(built, rank=1) == ["wait", "wait"]


def test_a_semaphore_taken_twice_is_taken_twice() -> None:
    with program() as built:
        one, other = Semaphore(0, 2), Semaphore(0, 0)
        for semaphore in (one, other, one):
            semaphore.acquire(tb=0, data_sync=SyncType.none)
    assert [operation["semaphore_ids"] for operation in operations(built)] == [[0, 1], [0]]


# Joints.


def test_dependent_operations_are_joined() -> None:
    with program() as built:
        source, target = chunks(0)
        Rank(0).copy(target[0:2], source[0:2], tb=0)
        Rank(0).copy(target[2:3], source[2:3], tb=0)  # nothing in common
        Rank(0).copy(source[2:3], source[0:1], tb=0)  # write after read
        Rank(0).copy(source[3:4], target[2:3], tb=0)  # read after write, joined since
        Rank(0).copy(source[3:4], source[1:2], tb=0)  # write after write
    assert names(built) == ["copy", "copy", "nop", "copy", "copy", "nop", "copy"]
    assert names(exchange(auto_sync=False)).count("nop") < names(exchange()).count("nop") + 1


def test_a_joint_does_not_forget_what_its_operation_reads() -> None:
    with program() as built:
        source, target = chunks(0)
        Rank(0).copy(target[0:1], source[0:1], tb=0)
        Rank(0).copy(target[0:1], source[1:2], tb=0)  # joined: it reads source[1:2]
        Rank(0).copy(source[1:2], source[2:3], tb=0)  # which is written here
    assert names(built) == ["copy", "nop", "copy", "nop", "copy"]


def test_a_switch_reads_and_writes_this_rank_too() -> None:
    with program() as built:
        channel = SwitchChannel([0, 1], BufferType.input)
        source, target = chunks(0)
        Rank(0).copy(source[0:1], target[0:1], tb=0)
        channel.at_rank(0).reduce(buffer_offset=0, size=1, dst_chunk=target[1:2], tb=0)
        Rank(0).copy(source[1:2], target[1:2], tb=0)
    assert names(built) == ["copy", "nop", "glre", "nop", "copy"]


def test_in_place_input_and_output_are_the_same_memory() -> None:
    for collective, source, depends in (
        (AllReduce(2, 1, True), 0, True),
        (AllReduce(2, 1, True), 1, False),
        (AllReduce(2, 1, False), 0, False),
        (AllGather(2, 1, True), 0, False),  # output 0 is the input of rank 0, and this is rank 1
    ):
        with program(collective) as built:
            slots = Buffer(1, 2)
            Rank(1).copy(slots[0:1], chunks(1)[0][source : source + 1], tb=0)
            Rank(1).copy(chunks(1)[1][0:1], slots[1:2], tb=0)
        assert ("nop" in names(built, rank=1)) == depends


def test_what_packets_are_added_to_must_be_there() -> None:
    with program() as built:
        source, target = chunks(0)
        slots = Buffer(0, 1)
        Rank(0).copy(target[0:1], source[0:1], tb=0)
        Rank(0).reduce(target[0:1], [slots[:]], tb=0, dst_chunk=target[1:2], packet=True)
    assert names(built) == ["copy", "nop", "repkt"]


def test_a_loop_is_one_operation_that_joins_within_itself() -> None:
    with program() as built:
        source, target = chunks(0)
        Rank(0).barrier([0])
        with LoopIterationContext(unit=1024, num_chunks=1):
            Rank(0).barrier([0])
            Rank(0).copy(target[0:1], source[0:1], tb=0)
            Rank(0).copy(target[1:2], target[0:1], tb=0)
            Rank(0).reduce(target[2:3], [source[1:2]], tb=0)
            Rank(0).reduce(target[2:3], [source[2:3]], tb=0)
        Rank(0).copy(source[3:4], target[1:2], tb=0)
    loop = operations(built)[0]
    assert names(built) == ["pipeline", "nop", "copy"]
    assert loop["iter_context"] == {"unit_size": 1024, "num_chunks": 1}
    assert [one["name"] for one in loop["ops"]] == ["nop", "copy", "nop", "copy", "re"]


def test_a_joint_at_the_end_of_a_loop_is_no_joint_before_it() -> None:
    with program() as built:
        source, target = chunks(0)
        here, there = MemoryChannel(1, 0), MemoryChannel(0, 1)
        there.signal(tb=0, data_sync=SyncType.none)
        here.wait(tb=0, data_sync=SyncType.after)
        with LoopIterationContext(unit=1024, num_chunks=1):
            Rank(0).copy(target[0:1], source[0:1], tb=0)
            Rank(0).barrier([0])
        Rank(0).barrier([0])
    assert names(built) == ["wait", "nop", "pipeline"]


# Replication.


@pytest.mark.parametrize("policy", list(ReplicationPolicy))
def test_instances_have_resources_of_their_own(policy: ReplicationPolicy) -> None:
    built = exchange(instances=3, replication_policy=policy).to_dict()["gpus"][0]
    assert [block["id"] for block in built["threadblocks"]] == list(range(9))
    assert built["channels"] == [{"channel_type": "memory", "connected_to": [1, 1, 1]}]
    assert built["semaphores"] == [{"init_value": 0}] * 3
    assert [block["channels"] for block in built["threadblocks"][:3]] == [
        [{"channel_type": "memory", "channel_ids": [number]}] for number in range(3)
    ]
    assert built["scratch_chunks"] == (3 if policy == ReplicationPolicy.interleaved else 1)


def test_instances_without_replication_share_every_operation() -> None:
    with program(instances=2, replication_policy=ReplicationPolicy.none) as built:
        source, target = chunks(0)
        Rank(0).copy(target[0:2], source[0:2], tb=0)
        Rank(0).copy(target[1:2], source[3:4], tb_group=ThreadBlockGroup([0, 1]))
        port, back = PortChannel(1, 0), PortChannel(0, 1)
        port.put_with_signal_and_flush(chunks(1)[1][0:1], source[0:1], tb=1)
        back.wait(tb=0, data_sync=SyncType.none)
    first, second, third, fourth = built.to_dict(origin=False)["gpus"][0]["threadblocks"]
    assert (
        [one["name"] for one in first["ops"]] == [one["name"] for one in second["ops"]] == ["copy", "barrier", "copy"]
    )
    assert [block["ops"][0].get("tbg_info") for block in (first, second)] == [
        {"tb_id": part, "tbg_size": 2} for part in (0, 1)
    ]
    assert [block["ops"][-1]["tbg_info"]["tb_id"] for block in (first, second)] == [0, 1]
    assert first["ops"][1] == second["ops"][1] == {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}
    assert [one["name"] for one in third["ops"]] == ["copy", "pwsf"]
    assert [one["name"] for one in fourth["ops"]] == ["copy", "signal", "flush"]
    results(built.to_dict())


def test_what_is_in_a_loop_is_done_by_one_of_the_instances_that_share() -> None:
    with program(instances=2, replication_policy=ReplicationPolicy.none) as built:
        source, target = chunks(0)
        done = Semaphore(0, 0)
        with LoopIterationContext(unit=1024, num_chunks=1):
            Rank(0).copy(target[0:1], source[0:1], tb=0)
            done.release(tb=0)
            done.acquire(tb=1)
        Rank(0).copy(target[1:2], source[1:2], tb=0)
    blocks = built.to_dict()["gpus"][0]["threadblocks"]
    bodies = [[one["name"] for one in block["ops"][0]["ops"]] for block in blocks]
    assert bodies[0] == ["copy", *bodies[1]] == ["copy", "barrier", "sem_release", "barrier"]
    assert [block["ops"][0]["ops"][-2]["semaphore_ids"] for block in blocks] == [[0], [1], [0], [1]]
    assert [block["ops"][1]["tbg_info"]["tb_id"] for block in blocks[:2]] == [0, 1]


def test_ranges_that_differ_are_cut_before_they_are_divided() -> None:
    with program(TestCollective(1, 4, 4), instances=2) as built:
        source, target = chunks(0)
        Rank(0).copy(target[0:4], source[0:4], tb=0)
        Rank(0).copy(source[2:3], target[1:2], tb=0)
    copies = [one for one in operations(built, block=1) if one["name"] == "copy"]
    assert [(one["dst_buff"][0]["index"], one["dst_buff"][0]["size"]) for one in copies] == [
        (1, 1),
        (3, 1),
        (5, 1),
        (7, 1),
        (5, 1),
    ]


# Errors.


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
        here.signal(tb=4)
    with pytest.raises(
        ProgramError, match="signals rank 1 2 times over memory channels, but rank 1 waits for it 1"
    ) as caught:
        built.to_json()
    error = caught.value
    assert (error.line, error.rank, error.thread_block, error.operation) == (line, 0, 4, "signal")


def test_a_signal_in_a_loop_needs_its_wait_in_one() -> None:
    with program() as built:
        here, there = PortChannel(1, 0), PortChannel(0, 1)
        with LoopIterationContext(16, 1):
            here.signal(tb=0)
        there.wait(tb=0)
    with pytest.raises(ProgramError, match="in loops of 1 chunks by 16 bytes"):
        built.to_json()


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
