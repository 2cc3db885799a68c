"""A small plan, as its file says it."""

from __future__ import annotations

from typing import Any


def operand(index: int, **where: Any) -> dict[str, Any]:
    return {**where, "index": index, "size": 1}


def direct_all_reduce(ranks: int, in_place: bool) -> dict[str, Any]:
    """Every rank reads its chunk from all, adds, and writes the sum to all."""
    buffer = "i" if in_place else "o"
    gpus = []
    for rank in range(ranks):
        peers = [peer for peer in range(ranks) if peer != rank]
        channels = list(range(len(peers)))
        meet: list[dict[str, Any]] = [
            {"name": "signal", "channel_ids": channels, "channel_type": "memory"},
            {"name": "wait", "channel_ids": channels, "channel_type": "memory"},
            {"name": "nop"},
        ]
        reads = [operand(rank, buffer_id=i) for i in channels]
        writes = [operand(rank, buffer_id=i + (0 if in_place else len(peers))) for i in channels]
        work = {
            "name": "rres",
            "src_buff": [operand(rank, type="i"), *reads],
            "dst_buff": [operand(rank, type=buffer), *writes],
            "channel_type": "memory",
            "reduce_op": "sum",
        }
        kinds = ["i"] if in_place else ["i", "o"]
        remote = [{"rank": peer, "type": kind, "access_channel_types": ["memory"]} for kind in kinds for peer in peers]
        block = {
            "id": 0,
            "ops": [*meet, work, {"name": "nop"}, *meet[:2]],
            "channels": [{"channel_type": "memory", "channel_ids": channels}],
            "remote_buffer_refs": [
                {"access_channel_type": "memory", "remote_buffer_ids": list(range(len(remote)))},
            ],
        }
        gpus.append(
            {
                "id": rank,
                "input_chunks": ranks,
                "output_chunks": ranks,
                "scratch_chunks": 0,
                "threadblocks": [block],
                "channels": [{"channel_type": "memory", "connected_to": peers}],
                "remote_buffers": remote,
                "semaphores": [],
            }
        )
    return {
        "name": "direct",
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": in_place,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 1 << 40,
    }
