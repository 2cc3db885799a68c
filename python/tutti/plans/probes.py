"""Small plans whose time depends on one property of the machine: what the calibration of the simulator runs.

All are of collective "test" among two ranks or more, with one chunk a buffer, so a rank block is what an operation
moves. ``rounds`` repeat what is measured within a call, so that beginning and ending a call counts for little.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def _operand(**where: Any) -> list[Json]:
    return [{**where, "index": 0, "size": 1}]


SIGNAL: Json = {"name": "signal", "channel_type": "memory", "channel_ids": [0]}
WAIT: Json = {"name": "wait", "channel_type": "memory", "channel_ids": [0]}
NOP: Json = {"name": "nop"}


def put(target: str) -> Json:
    """The input into a buffer of the peer: 0 its scratch, 1 its output."""
    number = {"s": 0, "o": 1}[target]
    return {
        "name": "put",
        "channel_type": "memory",
        "channel_ids": [0],
        "src_buff": _operand(type="i"),
        "dst_buff": _operand(buffer_id=number),
    }


COPY: Json = {"name": "copy", "src_buff": _operand(type="i"), "dst_buff": _operand(type="o")}
REDUCE: Json = {
    "name": "re",
    "reduce_op": "sum",
    "src_buff": _operand(type="o") + _operand(type="i"),
    "dst_buff": _operand(type="o"),
}


def packets(name: str, slot: int) -> Json:
    """Of one slot of scratch: ``ppkt`` fills the peer's, ``cpkt`` the own; ``upkt`` takes it out, ``repkt`` adds it to
    the output.
    """
    there = [{"type": "s", "index": slot, "size": 1}]
    if name == "upkt":
        return {"name": name, "src_buff": there, "dst_buff": _operand(type="o")}
    if name == "repkt":
        return {**REDUCE, "name": name, "src_buff": _operand(type="o") + there}
    if name == "cpkt":
        return {"name": name, "src_buff": _operand(type="i"), "dst_buff": there}
    peers = [{"buffer_id": 0, "index": slot, "size": 1}]
    return {**put("s"), "name": name, "dst_buff": peers}


TAKE: Json = {"name": "copy", "src_buff": _operand(type="s"), "dst_buff": _operand(type="o")}


def probe(name: str, operations: list[list[Json]], slots: int = 0) -> Json:
    """A plan of ranks with one thread block each; rank 2k exchanges with rank 2k + 1 through channel 0.

    ``slots``: of scratch, for packets.
    """
    gpus = []
    for rank, ops in enumerate(operations):
        peer = rank ^ 1
        gpus.append(
            {
                "id": rank,
                "input_chunks": 1,
                "output_chunks": 1,
                "scratch_chunks": max(slots, 1),
                "threadblocks": [
                    {
                        "id": 0,
                        "ops": ops,
                        "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0, 1]}],
                    }
                ],
                "channels": [{"channel_type": "memory", "connected_to": [peer]}],
                "remote_buffers": [
                    {"rank": peer, "type": buffer, "access_channel_types": ["memory"]} for buffer in ("s", "o")
                ],
                "semaphores": [],
            }
        )
    return {
        "name": name,
        "collective": "test",
        "protocol": "LL" if slots else "Simple",
        "inplace": False,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": slots > 0,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**63,
    }


def alone(operation: Json, rounds: int) -> Json:
    """Each of two ranks repeats an operation, without the other."""
    return probe(operation["name"], [[operation] * rounds] * 2)


def ping_pong(rounds: int, sends: list[Json] | None = None, takes: list[Json] | None = None) -> Json:
    """One rank sends and signals, the other waits and takes, and the other way round: two hops a round."""
    send, take = [*(sends or []), SIGNAL], [WAIT, *(takes or [])]
    return probe("ping-pong", [(send + take) * rounds, (take + send) * rounds])


def exchange(rounds: int, sends: list[Json], takes: list[Json]) -> Json:
    """Both ranks send at once, then both take; and again when both have."""
    one = [*sends, SIGNAL, WAIT, *takes, SIGNAL, WAIT]
    return probe("exchange", [one * rounds] * 2)


def by_packets(filled_by: str, taken_by: str, rounds: int) -> Json:
    """Each of two ranks fills slots of its own scratch (``cpkt``) or both the other's (``ppkt``), and takes the packets
    out of its own (``upkt``, ``repkt``), one slot after another.
    """
    ops = [packets(name, slot) for slot in range(rounds) for name in (filled_by, taken_by)]
    return probe(f"{filled_by} and {taken_by}", [ops] * 2, rounds)
