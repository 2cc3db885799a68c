"""Commands that are soon over, interrupted at random moments or short of descriptors: they end, say why and not by a
traceback of their own, and a file that they write is there whole, or as it was before.

TUTTI_TEST_STORM_ROUNDS says how often each (default 1), --seed at which moments.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msccl_files import ring_all_reduce as ring_in_xml
from test_storm_commands import ROUNDS, SOON_S, WORK_S, Run
from typer.testing import CliRunner

from tutti.cli.app import app
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce

pytestmark = pytest.mark.tutti_only
PLANS = Path(__file__).resolve().parents[2] / "cpp" / "plan" / "plans"
COMMANDS = {
    "info": "info",
    "explain": "explain all_reduce 64KB",
    "doctor": "doctor",
    "doctor --quick": "doctor --quick",
    "run": "run --as gloo {folder}/program.py",
    "check": "plan check -g ring -n 64",
    "check --run": "plan check --run {folder}/ring.json",
    "simulate": "plan simulate -g ring -n 8 --topology nvswitch --size 1MB "
    "--html {out}.html --png {out}.png --trace {out}.json",
    "calibrate": "plan calibrate --tries 1 -o {out}.json",
    "diff": "plan diff {folder}/ring.json {folder}/ring.json",
    "shrink": "plan shrink {plans}/both_wait_first.json -o {out}.json",
    "step": "plan step {folder}/ring.json",
    "generate": "plan generate ring -n 24 --write-out -o {out}.json",
    "fold": "plan fold {folder}/ring.json -o {out}.json",
    "import": "plan import {folder}/ring.xml -o {out}.json",
    "compile": "plan compile {folder}/ring.json --emit-cuda -o {out}.cu",
    "show": "plan show {folder}/ring.json --graph 0 --svg {out}.svg",
    "export": "plan export --mscclpp {plans}/ring_all_reduce_3.json -o {out}.json",
}
# As far as it comes: a program's end by Ctrl-C is its own.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
import tutti
print(tutti.group_info().size, "rank")
"""
BEFORE = "as it was\n"
ENDS = {".html": "</html>", ".svg": "</svg>", ".cu": "#endif"}


def whole(file: Path) -> bool:
    content = file.read_bytes()
    if file.suffix == ".png":
        return content.endswith(b"IEND\xaeB`\x82")
    if file.suffix == ".json":
        try:
            json.loads(content)
        except ValueError:
            return False
        return True
    return content.rstrip().endswith(ENDS[file.suffix].encode())


def start(name: str, folder: Path, limit: int | None = None) -> tuple[Run, list[Path]]:
    """The command, and the files that it is to write, which are there already."""
    (folder / "ring.json").write_text(ring_all_reduce(AlgoSpec("ring", AllReduce(2, 1, False))).to_json())
    (folder / "ring.xml").write_bytes(ring_in_xml(4).text())
    (folder / "program.py").write_text(PROGRAM)
    words = COMMANDS[name].format(folder=folder, plans=PLANS, out=folder / "out").split()
    outputs = [Path(word) for word in words if word.startswith(f"{folder}/out.")]
    for output in outputs:
        output.write_text(BEFORE)
    return Run(words, folder, limit, TUTTI_CACHE_DIR="none"), outputs


def examine(what: str, run: Run, outputs: list[Path], output: str, interrupted: bool) -> None:
    status = run.process.returncode
    for file in outputs:
        assert file.exists(), f"{what}: {file.name} is gone\n{output}"
        assert file.read_bytes() == BEFORE.encode() or whole(file), f"{what}: {file.name} is half written\n{output}"
        assert status or file.read_bytes() != BEFORE.encode(), f"{what}: {file.name} was not written\n{output}"
    assert 'tutti/cli/__init__.py", line' not in output, f"{what}: {output}"  # in a traceback, once there is a command
    if interrupted:
        assert status in (0, 1, 130, -signal.SIGINT), f"{what}: {status}, {output}"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_leaves_files_whole(name: str, seed: int, tmp_path: Path) -> None:
    run, outputs = start(name, tmp_path)
    begun = time.monotonic()
    output = run.ended(name, WORK_S)
    lasts = time.monotonic() - begun
    examine(name, run, outputs, output, False)
    assert run.process.returncode == 0, output
    moments = random.Random(f"{seed} {name}")
    for _ in range(ROUNDS):
        moment = moments.uniform(0, 1.2 * lasts)
        run, outputs = start(name, tmp_path)
        time.sleep(moment)
        if moments.random() < 0.5:
            os.killpg(run.process.pid, signal.SIGINT)
        else:
            os.kill(run.process.pid, signal.SIGINT)
        what = f"{name}, interrupted after {moment:.3f} of {lasts:.3f} s"
        examine(what, run, outputs, run.ended(what, SOON_S), True)


@pytest.mark.parametrize("name", COMMANDS)
def test_want_of_descriptors_is_a_line(name: str, seed: int, tmp_path: Path) -> None:
    limits = random.Random(f"{seed} {name}")
    for _ in range(ROUNDS):
        limit = limits.randrange(4, 20)
        run, outputs = start(name, tmp_path, limit)
        what = f"{name} with {limit} descriptors"
        output = run.ended(what, WORK_S)
        examine(what, run, outputs, output, False)
        wanting = re.search("Too many open files|descriptor", output, re.IGNORECASE)
        assert run.process.returncode == 0 or wanting, f"{what}: {output}"


# Ctrl-C at every step of Python's that follows the opening of the output, each in a child of its own.
EVERY_STEP = """
import os, signal, sys
from pathlib import Path
from tutti.cli.app import app

out, before = Path(sys.argv[-1]), "as it was" * 10_000
opened, left, seen = [], 0, []
sys.addaudithook(lambda event, what: opened.append(what) if event == "open" and str(what[0]) == str(out) else None)

def watch(frame, event, what):
    global left
    if opened and event in ("return", "c_return"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)

for step in range(1, 10_000):
    out.write_text(before)
    pid = os.fork()
    if pid == 0:
        opened.clear()
        left = step
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        sys.setprofile(watch)
        app(standalone_mode=False)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    content = out.read_bytes()
    seen.append("as before" if content == before.encode() else hash(content))
    print(step, os.WIFSIGNALED(status), seen[-1])
    if len(set(seen[-5:])) == 1 and seen[-5:][0] != "as before" and len(seen) > 5:
        break  # it has been written
"""


def test_an_interrupt_while_a_file_is_written_leaves_it_whole(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", EVERY_STEP, "plan", "generate", "ring", "-n", "3", "-o", str(tmp_path / "out.json")],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    lines = finished.stdout.splitlines()
    kinds = [line.split(maxsplit=2)[2] for line in lines]
    assert finished.returncode == 0 and all("True" in line for line in lines), finished
    assert set(kinds) == {"as before", kinds[-1]}, finished.stdout


WHILE_IT_LOADS = """
import signal, sys
from tutti.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.addaudithook(lambda event, what: event == "import" and what[0] == "typer" and signal.raise_signal(signal.SIGINT))
sys.argv = ["tutti", "info"]
main()
"""


def test_an_interrupt_while_it_loads_is_a_line() -> None:
    ended = subprocess.run([sys.executable, "-c", WHILE_IT_LOADS], capture_output=True, text=True, timeout=250)
    assert (ended.returncode, ended.stderr) == (130, "tutti: interrupted\n"), ended


def test_a_rank_that_the_doctor_cannot_start_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def one_alone(command: list[str], **how: Any) -> subprocess.Popen[str]:
        if "tutti.cli.doctor_rank" in command and started:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        started.append(start(command, **how))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", one_alone)
    ended = CliRunner().invoke(app, ["doctor"])
    assert ended.exit_code == 2 and "Too many open files" in ended.output, ended
    assert [process.poll() for process in started] == [-signal.SIGKILL]
