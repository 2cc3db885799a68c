"""tutti.Communicator: ranks that are processes without torch, started as a launcher does."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from launching import SUPPORT, WATCHED, free_port, launch
from rank_pool import RankPool
from rank_worker import Context

import tutti

MISSING = SUPPORT / "missing_rank.py"


def test_a_rank_that_has_lost_a_wake_up_fails(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text("""import sys, types
core = types.ModuleType("tutti._core")
core.rescued_waits = lambda: int(sys.argv[1])
sys.modules["tutti._core"] = core
""")
    for lost in (0, 2):
        done = subprocess.run([sys.executable, WATCHED, script, str(lost)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == ((90, "2 wake-ups were lost\n") if lost else (0, "")), done


@pytest.mark.tutti_only
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_rank_that_never_comes_is_named_to_all(hosts: int) -> None:
    """Also to those whose store ends with rank 0, which gives up before them."""
    outputs = launch(2, script=MISSING, hosts=hosts, env_of=lambda rank: {"WORLD_SIZE": "3"})
    assert outputs[0].startswith("TimeoutError"), outputs
    assert all("rank 2 did not come" in output for output in outputs), outputs


@pytest.mark.tutti_only
def test_a_rank_with_another_secret_says_so_and_the_others_name_its_host() -> None:
    """It is told at once. The others cannot know that it is a rank of theirs, but rank 0 says who came."""
    outputs = launch(3, script=MISSING, env_of=lambda rank: {"TUTTI_SECRET": "odd" if rank == 2 else "the job's"})
    assert "ValueError the job's store" in outputs[2] and "has another secret: give all" in outputs[2], outputs
    refused = "refused connections that have another secret, from 127.0.0.1: give all ranks the same TUTTI_SECRET"
    assert all("rank 2 did not come" in output and refused in output for output in outputs[:2]), outputs
    assert "tutti[rank 0] warning: the job's store at port" in outputs[0], outputs


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_collective(ranks: int) -> None:
    launch(ranks, "every_collective", "refusals")


@pytest.mark.parametrize("ranks", [2, 3])
def test_groups_after_a_refusal_on_one_rank(ranks: int) -> None:
    launch(ranks, "apart")


def test_what_is_no_array_or_must_not_be_written() -> None:
    launch(2, "unusable", "closed")


def test_arrays_of_ctypes() -> None:
    launch(2, "of_ctypes")


def test_settings_that_may_differ() -> None:
    """All at once on one rank, and small enough to matter."""
    odd = {
        "TUTTI_LOG_LEVEL": "error",
        "TUTTI_ARENA_BYTES": "16M",
        "TUTTI_SHARED_THRESHOLD": "1",
        "TUTTI_SHARED_ALLOCATOR": "1",
        "TUTTI_SPINS": "0",
        "TUTTI_FLIGHT_RECORDER_ENTRIES": "0",
        "TUTTI_TUNING_PATH": "none",
        "TUTTI_CACHE_DIR": "none",
        "TUTTI_PLUGIN_PATH": "/nowhere",
        "TUTTI_CUDA_TRANSPORT": "host",
        "TUTTI_CUDA_ALGORITHM": "ll_one_shot",
        "TUTTI_CUDA_MAX_BLOCKS": "1",
        "TUTTI_HEARTBEAT_MS": "10",
    }
    launch(3, "every_collective", "messages", env_of=lambda rank: odd if rank == 1 else {})
    launch(3, "every_collective", "messages", hosts=2, env_of=lambda rank: odd if rank == 1 else {})


def test_another_algorithm_on_one_rank() -> None:
    """All ranks are told of both values before there is a group."""
    outputs = launch(
        3,
        "every_collective",
        env_of=lambda rank: {"TUTTI_ALGORITHM": "all_reduce=staged"} if rank == 1 else {},
        fails=True,
    )
    for output in outputs:
        assert "is unset on ranks 0 and 2 and all_reduce=staged on rank 1" in output, output


def test_another_size_on_one_rank() -> None:
    """It is named, not what follows from it."""
    outputs = launch(3, "every_collective", env_of=lambda rank: {"WORLD_SIZE": "2"} if rank == 1 else {}, fails=True)
    # Rank 1 asks about rank 0 alone, and who waits for a third rank half a second may hear it from rank 1.
    text = re.compile(r"the number of ranks is 3 on (rank 0|ranks 0 and 2) and 2 on rank 1")
    found = [text.search(output) for output in outputs]
    assert all(found), outputs
    assert found[1][1] == "rank 0"


@pytest.mark.parametrize("face", ["torch", "numpy"])
def test_a_value_that_one_rank_cannot_use(face: str, tmp_path: Path) -> None:
    """The others are told of it, though they would wait for a minute."""
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    script = SUPPORT / "signal_rank.py"
    outputs = launch(
        2,
        face,
        str(tmp_path),
        script=script,
        meet=meet,
        env_of=lambda rank: {"TUTTI_STAGE_BYTES": "abc"} if rank == 1 else {},
        fails=True,
    )
    assert "ValueError: TUTTI_STAGE_BYTES=abc is not valid" in outputs[1], outputs[1]
    assert "rank 1 cannot join the group of rank 0: TUTTI_STAGE_BYTES=abc is not valid" in outputs[0], outputs[0]


def test_across_hosts() -> None:
    launch(4, "every_collective", "messages", hosts=2)


def test_messages_and_several_groups() -> None:
    launch(3, "messages", "several")


def test_under_torchrun() -> None:
    """Several groups in the store of the agent, whoever has the ports beside it."""
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    taken = []
    for port in (agent.port - 1, agent.port + 1):
        with contextlib.suppress(OSError):  # somebody else has it
            taken.append(socket.create_server(("127.0.0.1", port)))
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    try:
        launch(2, "again", meet=where)
        launch(2, "again", meet={**where, "TORCHELASTIC_RESTART_COUNT": "1"})
    finally:
        for server in taken:
            server.close()


def test_a_death_and_a_mismatch() -> None:
    launch(3, "loss", dies=1)
    launch(2, "mismatch")


@pytest.mark.parametrize("hosts", [1, 2])
def test_ids_and_parts(hosts: int) -> None:
    launch(3, "by_id", hosts=hosts)


def test_one_that_cannot_join_by_an_id() -> None:
    launch(3, "one_cannot_join")


@pytest.mark.parametrize("hosts", [1, 2])
def test_what_a_death_leaves_goes_on(hosts: int) -> None:
    launch(4, "shrinks", dies=1, hosts=hosts)


def use_beside_torch(ctx: Context) -> tuple[list[float], list[float], list[str]]:
    """On the ranks of a torch group, on torch's tensors; bfloat16 is none of NumPy's types."""
    with tutti.Communicator.from_group(timeout=20) as comm:
        tensor = torch.full((3,), float(ctx.rank + 1), dtype=torch.bfloat16)
        comm.all_reduce(tensor)
        array = np.full(2, ctx.rank + 1.0)
        comm.all_reduce(array)
        refused = []
        for bad in (torch.ones(4, 4).t(), torch.ones(4)[::2]):
            try:
                comm.all_reduce(bad)
            except (ValueError, RuntimeError, TypeError) as error:
                refused.append(type(error).__name__)
        # Their memory holds other values, or is not to be written unseen.
        lazy, given = torch.tensor([1 + 1j]).conj(), torch.ones(1).requires_grad_()
        for odd, remedy in (lazy, "resolve_conj"), (lazy.imag, "resolve_neg"), (given, "detach"):
            with pytest.raises(ValueError, match=remedy):
                comm.all_reduce(odd)
            if not odd.requires_grad:
                with pytest.raises(ValueError, match=remedy):
                    comm.all_reduce(odd, torch.zeros(1, dtype=odd.dtype))
        assert comm.all_reduce(given, torch.zeros(1)).item() == comm.size
    dist.barrier()
    return tensor.tolist(), array.tolist(), refused


@pytest.mark.tutti_only
def test_beside_torch(fresh_world: Any) -> None:
    pool: RankPool = fresh_world(2)
    for tensor, array, refused in pool.call(use_beside_torch):
        assert (tensor, array, len(refused)) == ([3.0] * 3, [3.0] * 2, 2)


def test_rank_and_size_come_together() -> None:
    with pytest.raises(ValueError, match="together"):
        tutti.Communicator(rank=1)


@pytest.mark.parametrize(("rank", "size"), [(0, 0), (0, -1), (2, 2), (-1, 2)])
def test_a_rank_lies_below_the_size(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {size}: a rank lies between 0 and"):
        tutti.Communicator(rank=rank, size=size)


def test_alone_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    with tutti.Communicator(rank=0, size=1) as comm:
        assert comm.all_reduce(np.arange(3)).tolist() == [0, 1, 2]
        assert (comm.rank, comm.size, comm.host_ranks) == (0, 1, [0])
