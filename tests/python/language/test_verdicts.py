"""Every plan that the tests use has the verdict that the table says: its outcome and the first reason against it.

The table is verdicts.tsv: source, plan, ranks, outcome, kind of fault, first reason. Where it is meant to change,
``TUTTI_WRITE_VERDICTS=1 pytest tests/python/language/test_verdicts.py`` writes it anew.

The plans of MSCCL++'s own programs need a checkout of microsoft/mscclpp, as in test_language_peer.py.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from peer_programs import cases
from test_language_builtins import spec_of

from tutti import _core
from tutti.language import ProgramError
from tutti.language.builtins import BUILTINS

pytestmark = pytest.mark.tutti_only

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TABLE = HERE / "verdicts.tsv"
CHECKOUT = os.environ.get("TUTTI_TEST_MSCCLPP")
WRITE = os.environ.get("TUTTI_WRITE_VERDICTS") == "1"
COLUMNS = ("source", "plan", "ranks", "outcome", "fault", "reason")


class Row(NamedTuple):
    """A line of the table."""

    source: str
    plan: str
    ranks: str
    outcome: str
    fault: str
    reason: str


def row_of(source: str, name: str, text: str) -> Row:
    """What the loader or the verifier says about a plan."""
    ranks = str(len(json.loads(text)["gpus"]))
    try:
        verdict = _core.check_plan(text)
    except ValueError as error:
        return Row(source, name, ranks, "refused", "structure", str(error))
    fault = verdict["fault"] or {"kind": "", "message": ""}
    return Row(source, name, ranks, verdict["outcome"], fault["kind"], fault["message"])


def builtins() -> Iterator[Row]:
    for kind, algorithm in BUILTINS:
        for ranks in (2, 3, 4, 8):
            try:
                program = BUILTINS[kind, algorithm](spec_of(kind, ranks, nranks_per_node=2))
            except ProgramError:
                continue
            yield row_of("builtins", f"{kind} {algorithm}", program.to_json(indent=None, origin=False))


def files() -> Iterator[Row]:
    for path in sorted((ROOT / "tests/cpp/plan/plans").glob("*.json")):
        if path.name != "verdicts.json":
            yield row_of("tests/cpp/plan/plans", path.stem, path.read_text())


def examples() -> Iterator[Row]:
    arguments = {"pipelined_broadcast": [("--ranks", "3"), ("--ranks", "8", "--in-place")]}
    arguments["two_level_all_reduce"] = [
        ("--ranks", "4", "--ranks-per-host", "2"),
        ("--ranks", "9", "--ranks-per-host", "3"),
    ]
    for path in sorted((ROOT / "examples/plans").glob("*.py")):
        for argv in arguments.get(path.stem, []):
            command = [sys.executable, str(path), *argv]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            yield row_of("examples/plans", " ".join((path.stem, *argv)), done.stdout)


def peers() -> Iterator[Row]:
    programs = [case for case in cases(Path(str(CHECKOUT))) if not case.fragment]
    texts = json.dumps([case.for_package("tutti") for case in programs])
    command = [sys.executable, str(HERE / "run_programs.py"), "tutti.language"]
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(command, input=texts, capture_output=True, text=True, env=environment, check=True)
    for case, result in zip(programs, json.loads(done.stdout), strict=True):
        if "out" in result:
            yield row_of("mscclpp", case.label, result["out"])


SOURCES: dict[str, Callable[[], Iterator[Row]]] = {
    "builtins": builtins,
    "tests/cpp/plan/plans": files,
    "examples/plans": examples,
    "mscclpp": peers,
}


def table() -> list[Row]:
    with TABLE.open(newline="") as file:
        lines = list(csv.reader(file, delimiter="\t"))
    assert tuple(lines[0]) == COLUMNS
    return [Row(*line) for line in lines[1:]]


def rewrite(source: str, found: list[Row]) -> None:
    order = list(SOURCES)
    known = [row for row in table() if row.source != source] if TABLE.exists() else []
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(known + found, key=lambda row: (order.index(row.source), row.plan, int(row.ranks))))


@pytest.mark.parametrize("source", list(SOURCES))
def test_verdicts_are_those_of_the_table(source: str) -> None:
    if source == "mscclpp" and not CHECKOUT:
        pytest.skip("TUTTI_TEST_MSCCLPP names no checkout of microsoft/mscclpp")
    found = list(SOURCES[source]())
    if WRITE:
        rewrite(source, found)
    wanted = [row for row in table() if row.source == source]
    keys = [(row.plan, row.ranks) for row in wanted]
    assert len(keys) == len(set(keys))
    assert sorted(found) == sorted(wanted)


def test_the_table_has_every_kind_of_verdict() -> None:
    rows = table()
    assert {row.source for row in rows} == set(SOURCES)
    assert {row.outcome for row in rows} >= {"proven", "proven after repair", "rejected"}
    assert all(row.outcome == "proven" for row in rows if row.source in ("builtins", "examples/plans"))
