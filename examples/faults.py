"""What the other ranks see when one goes wrong: under gloo and under Tutti, side by side.

    python examples/faults.py

In each scene three ranks reduce in a loop until rank 1 is killed, is stopped, leaves, or calls something else than
the others. The table says how long rank 0 took to notice, and what it was told. Rank 0's data are compared as well:
an error that never comes is one thing, a wrong result without one another.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from rich.text import Text

import tutti

RANKS = 3
CULPRIT = 1
ELEMENTS = 1 << 16
CALLS_BEFORE = 20
PATIENCE_S = 10.0  # longer than the groups' timeout: after it a scene is called a hang


@dataclass(frozen=True)
class Scene:
    """What the culprit does instead of its next all-reduce."""

    title: str
    misdeed: Callable[[], object]


@dataclass(frozen=True)
class Outcome:
    """What rank 0 saw: seconds from the misdeed to the end of its call, and how it ended."""

    seconds: float | None
    message: str
    good: bool


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _leave() -> None:
    dist.destroy_process_group()
    sys.exit(0)


def _wrong_dtype() -> None:
    dist.all_reduce(torch.ones(ELEMENTS, dtype=torch.int32))


def _wrong_count() -> None:
    dist.all_reduce(torch.ones(ELEMENTS // 2))


def _wrong_call() -> None:
    dist.broadcast(torch.ones(ELEMENTS), src=CULPRIT)


SCENES = (
    Scene("killed (SIGKILL)", _kill),
    Scene("stopped (SIGSTOP)", _stop),
    Scene("leaves in between", _leave),
    Scene("other dtype: i32 for f32", _wrong_dtype),
    Scene("half the count", _wrong_count),
    Scene("broadcast for all_reduce", _wrong_call),
)


def rank_main(rank: int, backend: str, scene: Scene, store_file: str, timeout_s: float, report: Connection) -> None:
    """One rank: some good calls, then the culprit's misdeed. Rank 0 reports what became of its call."""
    torch.set_num_threads(1)
    os.environ.setdefault("TUTTI_LOG_LEVEL", "error")  # the table tells what the log lines would
    if rank != 0:
        # Only rank 0's story is told.
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 2)
    dist.init_process_group(
        backend,
        store=dist.FileStore(store_file, RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=timeout_s),
    )
    for _ in range(CALLS_BEFORE):
        dist.all_reduce(torch.ones(ELEMENTS))
    # A blob in the store tells when the misdeed was done: the clock is the machine's.
    marks = dist.FileStore(f"{store_file}.marks", RANKS)
    if rank == CULPRIT:
        marks.set("when", str(time.monotonic()))
        scene.misdeed()
    tensor = torch.ones(ELEMENTS)
    error, right = "", True
    try:
        dist.all_reduce(tensor)
        right = bool((tensor == RANKS).all())
    except Exception as caught:  # what type it is belongs to the story
        error = f"{type(caught).__name__}: {caught}"
    seconds = time.monotonic() - float(marks.get("when"))
    if rank == 0:
        report.send((seconds, error, right))
    # Some backends cannot be taken down after a failure; the scene is over in any case.
    os._exit(0)


def play(backend: str, scene: Scene, timeout_s: float) -> Outcome:
    """Starts the ranks of one scene and waits for rank 0's report, at most until it counts as hanging."""
    context = mp.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="tutti-faults-") as folder:
        ours, theirs = context.Pipe(duplex=False)
        arguments: tuple[Any, ...] = (backend, scene, f"{folder}/store", timeout_s, theirs)
        ranks = [context.Process(target=rank_main, args=(rank, *arguments)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        theirs.close()
        try:
            if not ours.poll(timeout_s + PATIENCE_S):
                return Outcome(None, f"nothing within {timeout_s + PATIENCE_S:.0f} s: a hang", good=False)
            seconds, error, right = ours.recv()
        except EOFError:
            ranks[0].join(timeout=5)
            return Outcome(None, f"rank 0 itself died, exit code {ranks[0].exitcode}", good=False)
        finally:
            for process in ranks:
                process.kill()  # SIGKILL ends a stopped process too
                process.join()
    if error:
        return Outcome(seconds, error, good=True)
    return Outcome(seconds, "no error" + ("" if right else ", and a WRONG RESULT"), good=False)


def shorten(message: str, length: int = 280) -> str:
    """The first lines of a message, without the C++ stack that some backends add."""
    text = " ".join(line.strip() for line in message.splitlines() if not line.startswith("frame #"))
    return text if len(text) <= length else text[: length - 1] + "…"


def main() -> int:
    """Plays every scene on every backend; 1 if Tutti let one pass."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backends", default="gloo,tutti")
    parser.add_argument("--timeout", type=float, default=3.0, help="of the groups, in seconds (default: 3)")
    options = parser.parse_args()
    tutti.register()
    console = Console()
    backends = options.backends.split(",")
    table = Table(title=f"{RANKS} ranks, timeout {options.timeout:g} s: rank {CULPRIT} ...", title_justify="left")
    table.add_column("scene", style="bold")
    table.add_column("backend")
    table.add_column("seconds", justify="right")
    table.add_column("what rank 0 is told", overflow="fold")
    failures = 0
    with console.status("") as status:
        for scene in SCENES:
            for backend in backends:
                status.update(f"{scene.title}, {backend} ...")
                outcome = play(backend, scene, options.timeout)
                seconds = "-" if outcome.seconds is None else f"{outcome.seconds:.3f}"
                text = Text(shorten(outcome.message), style="" if outcome.good else "red")
                table.add_row(
                    scene.title if backend == backends[0] else "",
                    backend,
                    seconds,
                    text,
                )
                failures += backend == "tutti" and not outcome.good
            table.add_section()
    console.print(table)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
