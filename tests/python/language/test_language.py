"""The language: what is recorded, and what the passes make of it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from building import chunks, names, operations, program
from interpreter import results

from tutti.language import (
    AlgoSpec,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Buffer,
    BufferType,
    Collective,
    CollectiveProgram,
    Gather,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
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


def test_origins_are_as_long_as_the_reader_takes() -> None:
    def origin_of(file: str, lines: int) -> str:
        text = "def write(out, source):\n"
        text += "".join(f"    out.reduce(source[0:1], [source[{at}:{at + 1}]], tb=0)\n" for at in range(1, lines + 1))
        names_of: dict[str, Any] = {}
        exec(compile(text, file, "exec"), names_of)
        with program(TestCollective(1, lines + 1, 1)) as built:
            names_of["write"](Rank(0), chunks(0)[0])
        (operation,) = built.to_dict()["gpus"][0]["threadblocks"][0]["ops"]
        assert built.check()["fault"]["kind"] == "input"
        origin: str = operation["origin"]
        assert len(origin.encode()) <= 4096
        return origin

    assert origin_of("few.py", 2) == "few.py:2, few.py:3"
    many = origin_of("many.py", 900).split(", ")
    assert many[:-1] == [f"many.py:{line}" for line in range(2, len(many) + 1)]
    assert len(many) > 300 and many[-1] == "…"
    assert origin_of("é" * 5000 + ".py", 1).startswith("é" * 2000)
    assert origin_of("\udcff.py", 1) == "?.py:2"


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


def test_iterations_are_joined_where_operands_begin_apart() -> None:
    def body(first: int, second: int, last: int) -> list[str]:
        """Of a loop that writes two chunks from ``first`` on, reads two from ``second`` and writes them to ``last``."""
        with program(TestCollective(1, 8, 8), auto_sync=True) as built:
            source, target = chunks(0)
            with LoopIterationContext(unit=16, num_chunks=2):
                Rank(0).copy(target[first : first + 2], source[0:2], tb=0)
                Rank(0).copy(target[last : last + 2], target[second : second + 2], tb=0)
        verdict = built.check(strict=True)
        assert verdict["outcome"] == "proven", verdict["fault"]
        return [one["name"] for one in operations(built)[0]["ops"]]

    assert body(0, 2, 4) == ["copy", "copy"]
    assert body(0, 0, 2) == ["copy", "nop", "copy"]  # the same unit of the same chunks
    assert body(0, 1, 3) == ["nop", "copy", "nop", "copy"]  # what the next iteration writes, this one has read
    assert body(0, 4, 1) == ["nop", "copy", "nop", "copy"]  # both write


def test_a_loop_that_is_joined_needs_no_more() -> None:
    with program(TestCollective(1, 4, 4)) as built:
        source, target = chunks(0)
        with LoopIterationContext(unit=16, num_chunks=2):
            Rank(0).copy(target[0:2], source[0:2], tb=0)
            Rank(0).copy(target[1:3], source[0:2], tb=0)
            Rank(0).nop(0)
        assert [one["name"] for one in operations(built)[0]["ops"]] == ["copy", "nop", "copy", "nop"]
        with LoopIterationContext(unit=16, num_chunks=2):
            Rank(0).nop(0)
            Rank(0).copy(target[0:2], source[0:2], tb=0)
            Rank(0).copy(target[1:3], source[0:2], tb=0)
    assert [one["name"] for one in operations(built)[-1]["ops"]] == ["nop", "copy", "nop", "copy"]


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
