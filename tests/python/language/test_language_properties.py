"""Properties of all programs, on random ones."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from interpreter import Machine, results

from tutti.language import (
    AllReduce,
    BaseBuffer,
    Buffer,
    Chunk,
    CollectiveProgram,
    MemoryChannel,
    ProgramError,
    Rank,
    ReplicationPolicy,
    Semaphore,
    TestCollective,
    ThreadBlockGroup,
)

RANKS, CHUNKS = 3, 4
QUICK = settings(max_examples=60, deadline=None, derandomize=True)

# A step: who does it, what, and to which chunks. All input is defined; the rest once something was copied there.
steps = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1),
        st.sampled_from(["copy", "reduce", "put", "get", "read_reduce", "group"]),
        st.integers(0, CHUNKS - 1),
        st.integers(0, CHUNKS - 1),
        st.integers(1, 2),
        st.integers(1, RANKS - 1),
    ),
    min_size=1,
    max_size=8,
)


def write(drawn: list[Any], **options: Any) -> CollectiveProgram:
    """A program that does the steps one after the other: every rank signals every other between two of them."""
    with CollectiveProgram("random", TestCollective(RANKS, CHUNKS, CHUNKS), RANKS, **options) as program:
        channels = {(a, b): MemoryChannel(b, a) for a in range(RANKS) for b in range(RANKS) if a != b}
        inputs = [Rank(rank).get_input_buffer() for rank in range(RANKS)]
        outputs = [Rank(rank).get_output_buffer() for rank in range(RANKS)]
        for rank in range(RANKS):
            Rank(rank).copy(outputs[rank][:], inputs[rank][:], tb=0)
        for rank, what, first, second, size, away in drawn:
            meet(channels)
            peer = (rank + away) % RANKS
            one, two = cut(outputs[rank], first, size), cut(outputs[peer], second, size)
            mine = cut(inputs[rank], second, size)
            if what == "copy":
                Rank(rank).copy(one, mine, tb=0)
            elif what == "reduce":
                Rank(rank).reduce(one, [mine], tb=0)
            elif what == "put":
                channels[rank, peer].put(two, one, tb=0)
            elif what == "get":
                channels[rank, peer].get(one, two, tb=0)
            elif what == "read_reduce":
                channels[rank, peer].reduce(one, [two], tb=0)
            else:
                Rank(rank).barrier([0, 1])
                Rank(rank).copy(one, mine, tb_group=ThreadBlockGroup([0, 1]))
                Rank(rank).barrier([0, 1])
        meet(channels)
    return program


def cut(buffer: BaseBuffer, first: int, size: int) -> Chunk:
    start = min(first, CHUNKS - size)
    return buffer[start : start + size]


def meet(channels: dict[tuple[int, int], MemoryChannel]) -> None:
    for channel in channels.values():
        channel.signal(tb=0)
    for channel in channels.values():
        channel.wait(tb=0)


def contents(machine: Machine, chunks: int) -> list[list[Any]]:
    """The outputs, in ``chunks`` cells a rank whatever the plan has; a cell is named by rank and place."""
    found = []
    for rank in range(RANKS):
        cells = [cell for chunk in machine.output(rank) for cell in chunk]
        assert chunks % len(cells) == 0
        each = chunks // len(cells)
        found.append([refined(cell, each, part) for cell in cells for part in range(each)])
    return found


def refined(cell: Any, each: int, part: int) -> Any:
    return tuple(sorted((rank, place * each + part) for rank, place in cell))


@QUICK
@given(steps)
def test_passes_and_instances_keep_the_result(drawn: list[Any]) -> None:
    finest = CHUNKS * 12
    plain = contents(results(write(drawn, instr_fusion=False).to_dict()), finest)
    assert contents(results(write(drawn).to_dict(), 1), finest) == plain
    for instances in (2, 3):
        for policy in ReplicationPolicy:
            built = write(drawn, instances=instances, replication_policy=policy)
            assert contents(results(built.to_dict(), instances), finest) == plain


@QUICK
@given(steps, st.integers(1, 3), st.sampled_from(list(ReplicationPolicy)), st.booleans())
def test_compiling_is_idempotent_and_begins_afresh(
    drawn: list[Any], instances: int, policy: ReplicationPolicy, fusion: bool
) -> None:
    options = {"instances": instances, "replication_policy": policy, "instr_fusion": fusion}
    first = write(drawn, **options)
    text = first.to_json()
    assert first.to_json() == text
    assert write(drawn, **options).to_json() == text
    for gpu in json.loads(text)["gpus"]:
        assert [block["id"] for block in gpu["threadblocks"]] == list(range(len(gpu["threadblocks"])))
        barriers = {op["barrier_id"] for block in gpu["threadblocks"] for op in block["ops"] if op["name"] == "barrier"}
        assert all(number < 2 * instances * (1 + len(gpu["threadblocks"])) for number in barriers)


@QUICK
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(list(ReplicationPolicy)),
)
def test_replication_covers_every_chunk_once(
    sizes: list[int], instances: int, blocks: int, policy: ReplicationPolicy
) -> None:
    """Of copies that cover a buffer, the instances cover the longer one, and none does another's part."""
    total = sum(sizes)
    collective = TestCollective(1, total, total)
    with CollectiveProgram("cover", collective, 1, instances=instances, replication_policy=policy) as program:
        at = 0
        for number, size in enumerate(sizes):
            source, target = Rank(0).get_input_buffer(), Rank(0).get_output_buffer()
            Rank(0).copy(target[at : at + size], source[at : at + size], tb=number % blocks)
            at += size
    plan = program.to_dict()
    machine = Machine(plan)
    covered: Counter[Any] = Counter()
    for block in plan["gpus"][0]["threadblocks"]:
        for operation in block["ops"]:
            (source,), (target,) = machine.operands(plan["gpus"][0], block, operation)
            assert [cell[2] for cell in source[0]] == [cell[2] for cell in target[0]]
            covered.update(target[0])
    expected = plan["gpus"][0]["output_chunks"] * machine.cells
    assert covered == Counter({(0, "o", cell): 1 for cell in range(expected)})
    assert expected == total * instances


ranges = st.tuples(st.sampled_from("ios"), st.integers(0, 5), st.integers(1, 3))


@QUICK
@given(st.lists(st.tuples(ranges, ranges), min_size=1, max_size=12), st.booleans())
def test_between_two_joints_nothing_depends_on_anything(drawn: list[Any], inplace: bool) -> None:
    with CollectiveProgram("joints", AllReduce(1, 8, inplace), 1, instr_fusion=False) as program:
        buffers = {"i": Rank(0).get_input_buffer(), "o": Rank(0).get_output_buffer(), "s": Buffer(0, 8)}
        for (source, a, size), (target, b, _) in drawn:
            Rank(0).copy(buffers[target][b : b + size], buffers[source][a : a + size], tb=0)
    machine = Machine(plan := program.to_dict())
    gpu, block = plan["gpus"][0], plan["gpus"][0]["threadblocks"][0]
    read: set[Any] = set()
    written: set[Any] = set()
    needed = True
    for operation in block["ops"]:
        if operation["name"] == "nop":
            assert not needed, "two joints without anything between them"
            read, written, needed = set(), set(), True
            continue
        ((source,),), ((target,),) = machine.operands(gpu, block, operation)
        assert not written & {*source, *target}
        assert not read & set(target)
        read, written, needed = read | set(source), written | set(target), False
    assert sum(operation["name"] == "copy" for operation in block["ops"]) == len(drawn)


@QUICK
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=10))
def test_scratch_and_identifiers_follow_the_order_in_which_they_are_made(made: list[tuple[int, int]]) -> None:
    for _ in range(2):
        ends, semaphores = Counter[int](), Counter[int]()
        with CollectiveProgram("resources", AllReduce(3, 1), 3):
            for rank, size in made:
                buffer, semaphore = Buffer(rank, size), Semaphore(rank, 0)
                assert (buffer.offset, len(buffer)) == (ends[rank], size)
                assert semaphore.id == semaphores[rank]
                ends[rank] += size
                semaphores[rank] += 1


@QUICK
@given(st.integers(-3, 6), st.integers(-3, 6))
def test_a_slice_is_chunks_or_an_error_here(start: int, stop: int) -> None:
    with CollectiveProgram("slices", TestCollective(1, CHUNKS, CHUNKS), 1):
        buffer = Rank(0).get_input_buffer()
        if 0 <= start < stop <= CHUNKS:
            chunk = buffer[start:stop]
            assert (chunk.index, chunk.size) == (start, stop - start)
            return
        with pytest.raises(ProgramError) as caught:
            buffer[start:stop]
    assert caught.value.file == __file__
    assert caught.value.rank == 0
