"""Scripts of ranks as processes, started as a launcher does."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SUPPORT = Path(__file__).parent
RANK = SUPPORT / "communicator_rank.py"
WATCHED = SUPPORT / "watched_rank.py"


def free_port() -> int:
    """One that the system does not give to somebody else before it is used: it gives those from 32768 on."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


def own_store() -> dict[str, str]:
    return {"TUTTI_MASTER_ADDR": "127.0.0.1", "TUTTI_MASTER_PORT": str(free_port())}


def launch(
    ranks: int,
    *tasks: str,
    dies: int = -1,
    hosts: int = 1,
    script: Path = RANK,
    meet: dict[str, str] | None = None,
    env_of: Callable[[int], dict[str, str]] = lambda rank: {},
    fails: bool = False,
    within: float = 60,
) -> list[str]:
    """What the ranks have printed; all end well, but the one that ``dies``, or none where all are to fail."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "MASTER", "TUTTI_"))}
    environment |= {"WORLD_SIZE": str(ranks), **(meet or own_store())}
    processes = [
        subprocess.Popen(
            [sys.executable, str(WATCHED), str(script), *tasks],
            env={
                **environment,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "TUTTI_HOST_ID": f"host{rank % hosts}",
                **env_of(rank),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=within)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    told = "\n".join(f"rank {rank}: {output}" for rank, output in enumerate(outputs))
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        # First what it ended with: a report may show the beginning alone.
        why = f"rank {rank}: {process.returncode}, {output[-500:]}\nOf\n{told}"
        if fails:
            assert process.returncode == 1, why
        elif rank != dies:
            # PyTorch may warn at the end of functional calls that raised and were not waited for.
            assert process.returncode == 0 and "done" in output.splitlines(), why
    return outputs


def ended(
    ranks: int, words_of: Callable[[int], list[object]], env_of: Callable[[int], dict[str, str]], within: float = 120
) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each rank, a process of Python's with these words and this environment."""
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, words_of(rank))],
            env=env_of(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=within) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]
