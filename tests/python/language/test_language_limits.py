"""What no plan can hold is refused at the line that says it, not by the reader of the plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from building import chunks, names, operations, program

from tutti.language import (
    AlgoSpec,
    AllReduce,
    Buffer,
    BufferType,
    Collective,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    ProgramError,
    Rank,
    ReplicationPolicy,
    Semaphore,
    SwitchChannel,
    TestCollective,
    ThreadBlockGroup,
    limits,
)
from tutti.language.builtins import ring_all_reduce
from tutti.language.passes import replication, runs
from tutti.language.passes.draft import Block


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("name", [None, 1, b"x", "a" * 5000, "\ud800"]),
        ("instances", [0, 1.5, "2", None]),
        ("instr_fusion", [None, 1, "no"]),
        ("auto_sync", [None, 1, "no"]),
        ("replication_policy", [None, "none", 1]),
        ("reuse_resources", [None, 1, "no"]),
        ("use_double_scratch_buffer", [None, 1, "no"]),
        ("num_threads_per_block", [0, -1, 65537, 1.5, "a", None]),
        ("buffer_alignment", [0, -1, 2**31, "a"]),
        ("min_message_size", [-1, 2**64, 1.5, "1KB", None]),
        ("max_message_size", [-1, 2**64, 1.5, "1KB", None]),
        ("num_ranks", [2.0, "2", None]),
        ("collective", ["allreduce", None]),
    ],
)
def test_settings_that_no_plan_has(setting: str, values: list[Any]) -> None:
    rest = {"name": "x", "collective": AllReduce(2, 1), "num_ranks": 2}
    for value in values:
        with pytest.raises(ProgramError) as caught:
            CollectiveProgram(**{**rest, setting: value})
        assert caught.value.file == __file__


@pytest.mark.parametrize("collective", [None, "allreduce", AllReduce])
def test_a_spec_is_of_a_collective(collective: Any) -> None:
    with pytest.raises(ProgramError, match="the collective is such as") as caught:
        AlgoSpec("x", collective)
    assert caught.value.file == __file__


@pytest.mark.parametrize(
    "more",
    [
        {"in_place": True},
        {"in_place": 0},
        {"nranks_per_node": 1.5},
        {"nranks_per_node": -1},
        {"world_size": 2.0},
        {"tags": 3},
        {"tags": {3: 4}},
    ],
)
def test_a_spec_says_what_its_collective_says(more: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match="AlgoSpec: ") as caught:
        AlgoSpec("x", AllReduce(2, 1, False), **more)
    assert caught.value.file == __file__
    assert AlgoSpec("x", AllReduce(2, 1, False), in_place=False, nranks_per_node=1).nranks_per_node == 1


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_is_a_number_of_64_bits(seed: int) -> None:
    with pytest.raises(ValueError, match="a seed is a number from 0"):
        ring_all_reduce(AlgoSpec("ring", AllReduce(2, 1))).run(64, seed=seed)


@pytest.mark.parametrize("seed", [1.5, "3"])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(ProgramError, match="a seed is a whole number"):
        ring_all_reduce(AlgoSpec("ring", AllReduce(2, 1))).run(64, seed=seed)


def test_a_range_of_messages_is_not_empty() -> None:
    with pytest.raises(ProgramError, match="max_message_size is from 10 to"):
        program(min_message_size=10, max_message_size=5)


@pytest.mark.parametrize("fields", [{"name": None}, {"name": "a" * 5000}, {"root": 2}, {"root": "x"}])
def test_collectives_of_ones_own(fields: dict[str, Any]) -> None:
    with pytest.raises(ProgramError):
        program(type("Own", (Collective,), fields)(2, 1, True))


@pytest.mark.parametrize(
    "make",
    [
        lambda: program(AllReduce(2, 1, "yes")),  # type: ignore[arg-type]
        lambda: program(AllReduce(65537, 1)),
        lambda: program(AllReduce(2, 2**23 + 1)),
        lambda: program(AllReduce(2, 2**62)),
        lambda: program(TestCollective(2, 2**24 + 1, 1)),
        lambda: program(TestCollective(2, -1, 1)),
    ],
)
def test_buffers_that_are_too_large(make: Callable[[], Any]) -> None:
    with pytest.raises(ProgramError):
        make()


def two_blocks_signal() -> None:
    channel = MemoryChannel(1, 0)
    channel.signal(tb=0)
    channel.signal(tb=1)


def two_blocks_put_with_signal() -> None:
    channel = PortChannel(1, 0)
    channel.signal(tb=0)
    channel.put_with_signal(chunks(1)[1][0:1], chunks(0)[0][0:1], tb=1)


def two_blocks_acquire() -> None:
    semaphore = Semaphore(0, 2)
    semaphore.acquire(tb=0)
    semaphore.acquire(tb=1)


def chunk_of_another_program() -> None:
    with program(TestCollective(2, 50, 50)):
        chunk = chunks(0)[0][20:21]
    Rank(0).copy(chunks(0)[1][0:1], chunk, tb=0)


def far_chunk_of_another_program() -> None:
    with program():
        chunk = Buffer(1, 8)[4:5]
    MemoryChannel(1, 0).put(chunk, chunks(0)[0][0:1], tb=0)


def looped(unit: int, count: int) -> None:
    with LoopIterationContext(unit, count):
        Rank(0).copy(chunks(0)[1][0:1], chunks(0)[0][0:1], tb=0)


@pytest.mark.parametrize(
    "write",
    [
        two_blocks_signal,
        two_blocks_put_with_signal,
        two_blocks_acquire,
        chunk_of_another_program,
        far_chunk_of_another_program,
        lambda: looped(2**40 + 16, 1),
        lambda: looped(16, 2**24 + 1),
        lambda: looped(2**70, 1),
        lambda: Buffer(0, 2**24 + 1),
        lambda: [Buffer(0, 2**23) for _ in range(3)],
        lambda: Semaphore(0, 2**20 + 1),
        lambda: [Semaphore(0, 0) for _ in range(2**16 + 1)],
        lambda: [MemoryChannel(1, 0) for _ in range(2**18 + 1)],
        lambda: [SwitchChannel([1], BufferType.input) for _ in range(2**18 + 1)],
        lambda: MemoryChannel(1, 0).signal(tb=4096),
        lambda: SwitchChannel(None, BufferType.input),  # type: ignore[arg-type]
        lambda: ThreadBlockGroup(None),  # type: ignore[arg-type]
        lambda: ThreadBlockGroup(range(4097)),
        lambda: Rank(0).copy(chunks(0)[1][0:1], chunks(0)[0][0:1], tb_group=[0, 1]),  # type: ignore[arg-type]
        lambda: Rank(0).reduce(chunks(0)[1][0:1], None, tb=0),  # type: ignore[arg-type]
        lambda: MemoryChannel(1, 0).reduce(chunks(0)[1][0:1], None, tb=0),  # type: ignore[arg-type]
        lambda: Rank(0).barrier(None),  # type: ignore[arg-type]
        lambda: Rank(0).barrier(3),  # type: ignore[arg-type]
        lambda: Rank(0).reduce(chunks(0)[1][0:1], [chunks(0)[0][0:1]] * 2**16, tb=0),
    ],
)
def test_what_no_plan_can_do_is_refused_where_it_is_said(write: Callable[[], Any]) -> None:
    with program(), pytest.raises(ProgramError) as caught:
        write()
    assert caught.value.file == __file__
    assert caught.value.line is not None


def test_instances_are_thread_blocks() -> None:
    with program(instances=4097, replication_policy=ReplicationPolicy.none) as built:
        Rank(0).copy(chunks(0)[1][0:1], chunks(0)[0][0:1], tb=0)
    with pytest.raises(ProgramError, match="a rank has at most 4096"):
        built.to_json()


def many_channels(count: int) -> None:
    for _ in range(count):
        MemoryChannel(1, 0)
        MemoryChannel(0, 1)


@pytest.mark.parametrize(
    ("instances", "write", "said"),
    [
        (3, lambda: Buffer(1, 2**23), "rank 1, .*3 instances of 8388608 scratch chunks; a rank has at most 16777216"),
        (4, lambda: [Semaphore(0, 0) for _ in range(2**14 + 1)], "4 instances of 16385 semaphores; a rank .* 65536"),
        (64, lambda: many_channels(2**12 + 1), "64 instances of 4097 memory channels; a rank has at most 262144"),
        (64, lambda: [PortChannel(0, 1) for _ in range(2**12 + 1)], "rank 1, .*64 instances of 4097 port channels"),
        (
            64,
            lambda: [PortChannel(0, 1)] + [SwitchChannel([0, 1], BufferType.input) for _ in range(2**12)],
            "rank 1, .*64 instances of 4096 switch channels; a rank has at most 262143",
        ),
    ],
)
def test_instances_multiply_what_a_rank_has(instances: int, write: Callable[[], Any], said: str) -> None:
    with program(instances=instances) as built:
        write()
    with pytest.raises(ProgramError, match=said) as caught:
        built.to_json()
    assert caught.value.file == __file__


@pytest.mark.parametrize(("sizes", "said"), [((2**23, 1), "input"), ((1, 2**23), "output")])
def test_instances_multiply_what_the_collective_has(sizes: tuple[int, int], said: str) -> None:
    built = program(TestCollective(1, *sizes), instances=3)
    with pytest.raises(ProgramError, match=f"rank 0, .*3 instances of 8388608 {said} chunks"):
        built.to_json()


def test_undivided_chunks_are_not_multiplied() -> None:
    with program(instances=3, replication_policy=ReplicationPolicy.none) as built:
        Buffer(0, 2**23)
    assert built.to_dict()["gpus"][0]["scratch_chunks"] == 2**23


def copies_puts_and_sums(count: int) -> None:
    channel, scratch, (source, result) = MemoryChannel(1, 0), Buffer(1, 2 * count), chunks(0)
    for at in range(count):
        channel.put(scratch[at : at + 1], source[0:1], tb=0)
    for _ in range(count):
        Rank(0).reduce(result[0:1], [source[0:1]], tb=0)
    for at in range(count, 2 * count):
        channel.put(scratch[at : at + 1], result[0:1], tb=0)


def test_no_more_is_merged_than_an_operation_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    with program() as built:
        copies_puts_and_sums(6)
    assert names(built) == ["put", "res"]
    monkeypatch.setattr(runs, "MOST_OPERANDS", 4)
    assert [len(op["src_buff"]) for op in operations(built) if op["name"] == "put"][:2] == [4, 2]
    for op in operations(built):
        assert max(len(op.get("src_buff", [])), len(op.get("dst_buff", []))) <= 4
    assert sum(len(op["src_buff"]) - 1 for op in operations(built) if op["name"] in ("re", "res")) == 6


def test_a_plan_has_so_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    with program(instances=2) as built:
        looped(16, 1)
        MemoryChannel(1, 0).signal(tb=3)
        MemoryChannel(0, 1).wait(tb=0)
    blocks = [block for gpu in built.to_dict()["gpus"] for block in gpu["threadblocks"]]
    every = sum(1 + len(op.get("ops", ())) for block in blocks for op in block["ops"])
    monkeypatch.setattr(replication, "MOST_ALL_OPERATIONS", every)
    built.to_dict()
    monkeypatch.setattr(replication, "MOST_ALL_OPERATIONS", every - 1)
    with pytest.raises(ProgramError, match=f"rank 1, .*{every} operations up to this rank; all .* at most {every - 1}"):
        built.to_dict()
    monkeypatch.setattr(replication, "MOST_OPERATIONS", 2)
    said = "rank 0, thread block 6, .*3 operations; a thread block, or a loop, has at most 2"
    with pytest.raises(ProgramError, match=said):
        built.to_dict()


def test_what_is_beyond_the_limit_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    copy = replication._copy_block

    def counted(*arguments: Any) -> Block:
        made.append(copy(*arguments))
        return made[-1]

    with program(instances=1000) as built:
        looped(16, 1)
    monkeypatch.setattr(replication, "_copy_block", counted)
    monkeypatch.setattr(replication, "MOST_ALL_OPERATIONS", 10)
    with pytest.raises(ProgramError, match="all ranks have at most 10"):
        built.to_dict()
    assert len(made) <= 10


class Number:
    """An integer as NumPy has them: no ``int``, but as good as one."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


def test_numbers_of_other_kinds_become_numbers() -> None:
    assert program(num_threads_per_block=True).to_dict()["num_threads_per_block"] is not True
    group = ThreadBlockGroup(Number(block) for block in (1, 0))
    assert group.tb_list == [1, 0] and all(type(block) is int for block in group.tb_list)
    with pytest.raises(ProgramError, match="counted from 0: 0.5"):
        ThreadBlockGroup([0.5])  # type: ignore[list-item]
    with pytest.raises(ProgramError, match="counted from 0: -1"):
        ThreadBlockGroup([-1])


def test_the_limits_are_those_of_the_reader() -> None:
    """As src/plan/limits.h says them."""
    header = (Path(__file__).parents[3] / "src" / "plan" / "limits.h").read_text()
    names = {
        "kMaxRanks": limits.MOST_RANKS,
        "kMaxChunks": limits.MOST_CHUNKS,
        "kMaxBlocks": limits.MOST_BLOCKS,
        "kMaxOperations": limits.MOST_OPERATIONS,
        "kMaxAllOperations": limits.MOST_ALL_OPERATIONS,
        "kMaxOperands": limits.MOST_OPERANDS,
        "kMaxChannels": limits.MOST_CHANNELS,
        "kMaxSemaphores": limits.MOST_SEMAPHORES,
        "kMaxCredit": limits.MOST_CREDIT,
        "kMaxUnitBytes": limits.MOST_UNIT_BYTES,
        "kMaxNameBytes": limits.MOST_NAME_BYTES,
    }
    for name, ours in names.items():
        found = re.search(rf"{name} = (?:std::int64_t\{{)?(\d+)\}}?(?: << (\d+))?;", header)
        assert found is not None, name
        assert int(found[1]) << int(found[2] or 0) == ours, name
