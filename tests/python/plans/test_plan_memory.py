"""What the verifier says of memory and of bits, where ranks or operations differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import invoke

from tutti import _core
from tutti.language import (
    AllReduce,
    Buffer,
    BufferType,
    CollectiveProgram,
    MemoryChannel,
    Rank,
    SwitchChannel,
    SyncType,
)

pytestmark = pytest.mark.tutti_only


def operand(buffer: str, index: int) -> list[dict[str, Any]]:
    return [{"type": buffer, "index": index, "size": 1}]


def move(name: str, source: list[dict[str, Any]], target: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "src_buff": source, "dst_buff": target}


def multicast_of_packets(scratch: tuple[int, int]) -> str:
    """Two ranks with so many chunks of scratch send each other their input as packets, beside plain data there."""

    def rank_of(rank: int) -> dict[str, Any]:
        store = move("gstorepkt", operand("s", 3), [{"switch_channel_id": 0, "index": rank, "size": 1}])
        operations = [
            move("copy", operand("i", 0), operand("s", 2)),
            {"name": "nop"},
            move("cpkt", operand("i", 0), operand("s", 3)),
            {**store, "channel_type": "switch"},
            move("upkt", operand("s", 0), operand("o", 0)),
            move("upkt", operand("s", 1), operand("o", 1)),
        ]
        group = {"channel_type": "switch", "buffer_type": "s", "rank_groups": [{"size": 2, "ranks": [0, 1]}]}
        block = {
            "id": 0,
            "ops": operations,
            "channels": [{"channel_type": "switch", "channel_ids": [0]}],
            "remote_buffer_refs": [],
        }
        chunks = {"input_chunks": 1, "output_chunks": 2, "scratch_chunks": scratch[rank]}
        return {
            "id": rank,
            **chunks,
            "channels": [group],
            "remote_buffers": [],
            "semaphores": [],
            "threadblocks": [block],
        }

    plan = {"name": "multicast", "collective": "allgather", "protocol": "LL", "inplace": False}
    return json.dumps({**plan, "use_double_scratch_buffer": True, "gpus": [rank_of(0), rank_of(1)]})


@pytest.mark.parametrize("scratch", [(4, 4), (4, 5), (5, 4), (4, 400)])
def test_packets_reach_ranks_with_other_scratch(tmp_path: Path, scratch: tuple[int, int]) -> None:
    file = tmp_path / "multicast.json"
    file.write_text(multicast_of_packets(scratch))
    for words in (["run", "--size", "4100", "--repeat", "2"], ["simulate", "--topology", "nvswitch", "--size", "4KB"]):
        code, output = invoke("plan", words[0], file, *words[1:])
        assert code == 0, output


def all_reduce_in(order: str) -> str:
    """Three ranks, of which the second adds up in another way."""
    ranks = range(3)
    with CollectiveProgram(order, AllReduce(3, 1, False), 3, instr_fusion=False) as program:
        channels = {(a, b): MemoryChannel(b, a) for a in ranks for b in ranks if a != b}
        groups = [SwitchChannel(rank_list=[0, 1, 2], buffer_type=BufferType.input)]
        if order == "groups":
            groups.append(SwitchChannel(rank_list=[2, 1, 0], buffer_type=BufferType.input))

        def meet() -> None:
            for channel in channels.values():
                channel.signal(tb=0, data_sync=SyncType.before)
            for channel in channels.values():
                channel.wait(tb=0, data_sync=SyncType.after)

        meet()
        for r in ranks:
            me = Rank(r)
            output = me.get_output_buffer()
            if order != "operations":
                group = groups[-1] if r == 1 else groups[0]
                group.at_rank(r).reduce(buffer_offset=0, size=3, dst_chunk=output[0:3], tb=0)
                continue
            parts = [Buffer(r, 3) for _ in range(4)]
            for q in ranks:
                theirs = Rank(q).get_input_buffer()[0:3]
                if q == r:
                    me.copy(parts[q][0:3], theirs, tb=0)
                else:
                    channels[r, q].get(parts[q][0:3], theirs, tb=0)
            if r == 1:
                me.reduce(parts[0][0:3], [parts[1][0:3]], dst_chunk=parts[3][0:3], tb=0)
                me.reduce(parts[3][0:3], [parts[2][0:3]], dst_chunk=output[0:3], tb=0)
            else:
                me.reduce(parts[0][0:3], [parts[1][0:3], parts[2][0:3]], dst_chunk=output[0:3], tb=0)
        meet()
    return program.to_json()


@pytest.mark.parametrize(("order", "same"), [("one group", True), ("groups", False), ("operations", False)])
def test_same_bits_are_said_of_one_order_alone(order: str, same: bool) -> None:
    """A narrow type is rounded once by an operation of three operands, and twice by two of two."""
    verdict = _core.check_plan(all_reduce_in(order))
    assert verdict["outcome"] == "proven", verdict["fault"]
    assert verdict["same_bits"] is same


def apart(collective: str, in_place: bool, ranks: int, inputs: int, outputs: int) -> str:
    """On each rank one thread block reads its first chunk of input, and the other writes its first of output."""

    def block(number: int, operation: dict[str, Any]) -> dict[str, Any]:
        return {"id": number, "ops": [operation], "channels": [], "remote_buffer_refs": []}

    blocks = [
        block(0, move("copy", operand("i", 0), operand("s", 0))),
        block(1, move("copy", operand("s", 1), operand("o", 0))),
    ]
    chunks = {"input_chunks": inputs, "output_chunks": outputs, "scratch_chunks": 2}
    none: dict[str, Any] = {"channels": [], "remote_buffers": [], "semaphores": []}
    gpus = [{"id": rank, **chunks, **none, "threadblocks": blocks} for rank in range(ranks)]
    return json.dumps({"name": "x", "collective": collective, "protocol": "Simple", "inplace": in_place, "gpus": gpus})


@pytest.mark.parametrize("collective", ["test", "custom"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (4, 2)])
def test_input_and_output_in_place_are_one_memory(collective: str, in_place: bool, sizes: tuple[int, int]) -> None:
    """Also of plans without a defined result: one thread block reads what the other overwrites."""
    verdict = _core.check_plan(apart(collective, in_place, 3, *sizes))
    assert verdict["outcome"] == ("rejected" if in_place else "proven"), verdict


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)])
def test_buffers_of_different_sizes_in_place_begin_together(tmp_path: Path, sizes: tuple[int, int]) -> None:
    file = tmp_path / "x.json"
    plan = json.loads(apart("test", True, 3, *sizes))
    for rank in plan["gpus"]:
        operations = [one for block in rank["threadblocks"] for one in block["ops"]]
        rank["threadblocks"] = [{**rank["threadblocks"][0], "ops": [operations[0], {"name": "nop"}, operations[1]]}]
    file.write_text(json.dumps(plan))
    code, output = invoke("plan", "step", file, lines="run\nquit\n")
    assert code == 0, output
