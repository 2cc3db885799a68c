"""Commands that run ranks, interrupted at random moments or short of descriptors: they end soon, say why, and leave
nothing behind, no process and no temporary file.

TUTTI_TEST_STORM_ROUNDS says how often each (default 1), --seed at which moments.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce

pytestmark = pytest.mark.tutti_only
ROUNDS = int(os.environ.get("TUTTI_TEST_STORM_ROUNDS", "1"))
SOON_S = 20.0  # to end, far below what each is given to do
WORK_S = 60.0  # to do a little, or to say why not: a rank that waits for another waits longer
COMMANDS = {
    "plan run": "plan run {plan} --threads --size 1KB --repeat",
    "plan run in one thread": "plan run {plan} --size 1KB --repeat",
    "bench": "bench -c all_reduce -s 8 -b tutti -n 2 --seconds",
    "tune": "tune -n 2 -c all_reduce -s 64 -o {folder}/table.json --no-built-in --minutes",
}
# How often, how many seconds for each size, how many minutes.
LONG, SHORT = {"plan": "200000000", "bench": "100", "tune": "100"}, {"plan": "20", "bench": "0.01", "tune": "0.001"}


def session(leader: int) -> dict[int, str]:
    """The processes of a session that have not ended, and what each runs."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            after = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(after[3]) == leader and after[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    return found


def words_of(name: str, folder: Path, much: str) -> list[str]:
    plan = folder / "ring.json"
    plan.write_text(ring_all_reduce(AlgoSpec("ring", AllReduce(2, 1, False))).to_json())
    return [*COMMANDS[name].format(plan=plan, folder=folder).split(), much]


class Run:
    """A command in a session of its own."""

    def __init__(self, words: list[str], folder: Path, limit: int | None = None, **env: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir(exist_ok=True)

        def fewer() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs tests in the background may ignore it
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "tutti", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=fewer,
            env={**os.environ, "TMPDIR": str(self.temporary), "COLUMNS": "200", **env},
        )

    def ended(self, what: str, within: float) -> str:
        """All that it has said; it has ended by itself, and left nothing."""
        begun = time.monotonic()
        try:
            output, _ = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            alive = session(self.process.pid)
            raise AssertionError(f"{what}: goes on after {within} s: {alive}") from None
        finally:
            end = time.monotonic() + SOON_S
            while (left := session(self.process.pid)) and time.monotonic() < end:
                time.sleep(0.01)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        print(f"{what}: {self.process.returncode} after {time.monotonic() - begun:.1f} s: {output[-300:]}")
        assert not left, f"{what}: left {left}\n{output}"
        assert not list(self.temporary.iterdir()), f"{what}: left {list(self.temporary.iterdir())}\n{output}"
        return output


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("whom", ["terminal", "command"])
def test_an_interrupt_ends_all_of_it(name: str, whom: str, seed: int, tmp_path: Path) -> None:
    """Ctrl-C reaches the ranks, too; kill -INT only who started them. At any moment from the start on, or once there
    are ranks: from then on nothing but the command itself says anything.
    """
    moments = random.Random(f"{seed} {name} {whom}")
    starts_ranks = not name.startswith("plan")
    for number in range(ROUNDS):
        turn = number + (name == "bench") + (whom == "terminal")
        moment, since_ranks = moments.uniform(0, 3), starts_ranks and turn % 2 == 0
        run = Run(words_of(name, tmp_path, LONG[name.split()[0]]), tmp_path)
        end = time.monotonic() + WORK_S
        while since_ranks and len(session(run.process.pid)) < 3:  # one of multiprocessing's own is there before
            assert run.process.poll() is None, run.process.communicate()
            assert time.monotonic() < end, f"{name}: no ranks"
        time.sleep(moment)
        assert run.process.poll() is None, run.process.communicate()
        send: Callable[[int, int], None] = os.killpg if whom == "terminal" else os.kill
        send(run.process.pid, signal.SIGINT)
        what = f"{name}, interrupted after {moment:.3f} s{' with ranks' if since_ranks else ''}"
        output = run.ended(what, SOON_S)
        assert run.process.returncode == 130 if since_ranks else run.process.returncode != 0, f"{what}: {output}"
        assert not since_ranks or ("tutti: interrupted" in output and "Traceback" not in output), f"{what}: {output}"


@pytest.mark.parametrize("name", COMMANDS)
def test_want_of_descriptors_is_a_line(name: str, seed: int, tmp_path: Path) -> None:
    limits = random.Random(f"{seed} {name}")
    for _ in range(ROUNDS):
        limit = limits.randrange(5, 18)
        run = Run(words_of(name, tmp_path, SHORT[name.split()[0]]), tmp_path, limit)
        what = f"{name} with {limit} descriptors"
        output = run.ended(what, WORK_S)
        assert run.process.returncode == 0 or re.search("Too many open files|descriptor", output), f"{what}: {output}"
