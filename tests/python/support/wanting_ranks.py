"""Processes of wanting_rank.py, which make groups again and again while one of them lacks something."""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from two_levels import two_level

from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce

SCRIPT = Path(__file__).with_name("wanting_rank.py")
MORE_S = 20.0  # than the ranks' own limit, and the round hangs

_names = itertools.count()


def write_plans(folder: Path, layouts: tuple[str, ...]) -> None:
    """For each layout, a letter for the host of each rank, a folder with a plan of the all-reduce among them."""
    for layout in layouts:
        (folder / layout).mkdir()
        size = len(layout)
        if len(set(layout)) == 1:
            ring = ring_all_reduce(AlgoSpec("ring", AllReduce(size, 1, True), min_message_size=4096))
            (folder / layout / "allreduce.json").write_text(ring.to_json())
        else:
            two_level(folder / layout, "allreduce", tuple(layout.count(host) for host in sorted(set(layout))), True)


class Ranks:
    """`size` processes, started when they are first needed and anew after a round that they did not survive."""

    def __init__(self, size: int, store_port: int, plans: Path, preload: Path | None = None) -> None:
        self.size = size
        self.environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "MASTER", "TUTTI_"))
        }
        self.environment |= {
            "WORLD_SIZE": str(size),
            "STORE": f"127.0.0.1:{store_port}",
            "PLANS": str(plans),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "TUTTI_LOG_LEVEL": "error",
            "TUTTI_CACHE_DIR": "none",
            "TUTTI_TUNING_PATH": "none",
        }
        if preload is not None:
            self.environment["LD_PRELOAD"] = str(preload)
        self.processes: list[subprocess.Popen[str]] = []
        self.warm: set[tuple[str, str]] = set()  # what has been played by these processes

    def start(self) -> None:
        for rank in range(self.size):
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT)],
                    env={**self.environment, "RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def play(self, face: str, layout: str, poor: int, want: list[Any], limit_s: float = 20) -> list[dict[str, Any]]:
        """What became of a round in which the rank `poor` lacks something; "ended" is "died" or "hung" where it did."""
        if not self.processes:
            self.start()
        if (face, layout) not in self.warm:  # what is made once a process
            self.warm.add((face, layout))
            self.play(face, layout, poor, ["nothing"])
        name = f"round {os.getpid()} {next(_names)}"
        for rank, process in enumerate(self.processes):
            order = {"name": name, "face": face, "layout": layout, "want": want if rank == poor else ["nothing"]}
            order["limit_s"] = limit_s
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        deadline = time.monotonic() + limit_s + MORE_S
        ends = [self._end(process, deadline) for process in self.processes]
        if any(end["ended"] in ("died", "hung") for end in ends):
            self.kill()
        return ends

    @staticmethod
    def _end(process: subprocess.Popen[str], deadline: float) -> dict[str, Any]:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], max(0.01, deadline - time.monotonic()))
        line = process.stdout.readline() if ready else ""
        if line:
            end: dict[str, Any] = json.loads(line)
            return end
        if not ready:
            return {"ended": "hung", "errors": []}
        return {"ended": "died", "errors": [f"exit code {process.wait(10)}"]}

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)
        self.processes.clear()
        self.warm.clear()
