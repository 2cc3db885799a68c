"""The plans of verdicts.tsv, by source: name and text.

    python tests/python/language/table_plans.py FOLDER

writes them to files of a folder, for tests in C++; those of MSCCL++'s own programs where TUTTI_TEST_MSCCLPP names a
checkout of microsoft/mscclpp.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from peer_programs import cases
from test_language_builtins import spec_of

from tutti.language import ProgramError
from tutti.language.builtins import BUILTINS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CHECKOUT = os.environ.get("TUTTI_TEST_MSCCLPP")


def builtins() -> Iterator[tuple[str, str]]:
    for kind, algorithm in BUILTINS:
        for ranks in (2, 3, 4, 8):
            try:
                program = BUILTINS[kind, algorithm](spec_of(kind, ranks, nranks_per_node=2))
            except ProgramError:
                continue
            yield f"{kind} {algorithm}", program.to_json(indent=None, origin=False)


def files() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests/cpp/plan/plans").glob("*.json")):
        if path.name != "verdicts.json":
            yield path.stem, path.read_text()


def examples() -> Iterator[tuple[str, str]]:
    arguments = {"pipelined_broadcast": [("--ranks", "3"), ("--ranks", "8", "--in-place")]}
    arguments["two_level_all_reduce"] = [
        ("--ranks", "4", "--ranks-per-host", "2"),
        ("--ranks", "9", "--ranks-per-host", "3"),
    ]
    for path in sorted((ROOT / "examples/plans").glob("*.py")):
        for argv in arguments.get(path.stem, []):
            command = [sys.executable, str(path), *argv]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            yield " ".join((path.stem, *argv)), done.stdout


def peers() -> Iterator[tuple[str, str]]:
    programs = [case for case in cases(Path(str(CHECKOUT))) if not case.fragment]
    texts = json.dumps([case.for_package("tutti") for case in programs])
    command = [sys.executable, str(HERE / "run_programs.py"), "tutti.language"]
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(command, input=texts, capture_output=True, text=True, env=environment, check=True)
    for case, result in zip(programs, json.loads(done.stdout), strict=True):
        if "out" in result:
            yield case.label, result["out"]


SOURCES: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "builtins": builtins,
    "tests/cpp/plan/plans": files,
    "examples/plans": examples,
    "mscclpp": peers,
}


def main() -> None:
    """A file a plan; those of an earlier run go."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    number = 0
    for source, plans in SOURCES.items():
        if source == "mscclpp" and not CHECKOUT:
            continue
        for name, text in plans():
            ranks = len(json.loads(text)["gpus"])
            label = "".join(c if c.isalnum() else "_" for c in f"{source} {name} {ranks}")[-100:]
            (folder / f"{number:03} {label}.json").write_text(text)
            number += 1


if __name__ == "__main__":
    main()
