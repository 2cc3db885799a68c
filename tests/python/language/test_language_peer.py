"""Programs for MSCCL++ run unchanged and give its plans, but for the differences that are listed.

Needs a checkout of microsoft/mscclpp, whose language is pure Python: ``TUTTI_TEST_MSCCLPP=folder pytest ...``.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from peer_differences import BOTH_REFUSE, DIFFERENCES, refusal_of
from peer_programs import Case, cases

CHECKOUT = os.environ.get("TUTTI_TEST_MSCCLPP")
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="TUTTI_TEST_MSCCLPP names no checkout of microsoft/mscclpp")
HERE = Path(__file__).resolve().parent

# Stands for the package without its compiled part; names that its older programs use lead to what they are called now.
STUB = """
import builtins
import mscclpp.language as language
from mscclpp.language import channel, collectives, general, loop, program, rank, thread_block_group, utils
for module in (channel, collectives, general, loop, program, rank, thread_block_group, utils):
    vars(language).update({name: value for name, value in vars(module).items() if not name.startswith("_")})
builtins.MSCCLPPProgram = program.CollectiveProgram
channel.MemoryChannel.put_packet = channel.MemoryChannel.put_packets
rank.Rank.copy_packet, rank.Rank.unpack_packet = rank.Rank.copy_packets, rank.Rank.unpack_packets
"""


@cache
def all_cases() -> tuple[Case, ...]:
    return tuple(cases(Path(str(CHECKOUT))))


def results(package: str, path: Path) -> dict[str, dict[str, str]]:
    texts = json.dumps([case.for_package(package) for case in all_cases()])
    environment = {**os.environ, "PYTHONPATH": str(path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, str(HERE / "run_programs.py"), f"{package}.language"]
    done = subprocess.run(command, input=texts, capture_output=True, text=True, env=environment, check=True)
    return dict(zip((case.label for case in all_cases()), json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def ours() -> dict[str, dict[str, str]]:
    return results("tutti", HERE.parents[2] / "python")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    package = tmp_path_factory.mktemp("peer") / "mscclpp"
    package.mkdir()
    (package / "__init__.py").write_text(STUB)
    for name in ("language", "default_algos"):
        (package / name).symlink_to(Path(str(CHECKOUT)).resolve() / "python/mscclpp" / name)
    return results("mscclpp", package.parent)


def normal(value: Any) -> Any:
    """A plan without what only Tutti's have, and with lists in order where their order means nothing."""
    if isinstance(value, list):
        return [normal(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    plan = {key: normal(entry) for key, entry in value.items() if key not in ("version", "origin")}
    unordered = ["access_channel_types"]
    if plan.get("name") in ("signal", "wait", "rlxsignal", "rlxwait", "flush"):
        unordered.append("channel_ids")
    return {key: sorted(entry) if key in unordered else entry for key, entry in plan.items()}


def split(plan: dict[str, Any]) -> tuple[dict[str, Any], list[list[str]]]:
    """A plan without its operations, and these as one line each, by thread block."""
    blocks = [block for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    return plan, [[json.dumps(operation, sort_keys=True) for operation in block.pop("ops")] for block in blocks]


def hunks(theirs: list[str], ours: list[str]) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """The operations that differ, in pairs of what each side has."""

    def read(lines: list[str]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in lines]

    matcher = difflib.SequenceMatcher(None, theirs, ours, autojunk=False)
    return [(read(theirs[a:b]), read(ours[c:d])) for what, a, b, c, d in matcher.get_opcodes() if what != "equal"]


def test_all_programs_give_the_same_plans(ours: dict[str, dict[str, str]], theirs: dict[str, dict[str, str]]) -> None:
    wrong: list[str] = []
    compared, found = 0, set()
    for case in all_cases():
        mine, other = ours[case.label], theirs[case.label]
        if "error" in mine or "error" in other:
            wrong += verdict_on_errors(case, mine.get("error"), other.get("error"))
            continue
        compared += 1
        (shape, blocks), (other_shape, other_blocks) = (split(normal(json.loads(one["out"]))) for one in (mine, other))
        if shape != other_shape:
            wrong.append(f"{case.label}: ranks, channels or buffers differ")
        for number, (one, two) in enumerate(zip(other_blocks, blocks, strict=True)):
            for hunk in hunks(one, two):
                known = {difference for difference in DIFFERENCES if difference.covers(case.label, *hunk)}
                found |= known
                if not known:
                    wrong.append(f"{case.label}: block {number}: {hunk[0]} there, {hunk[1]} here")
    assert not wrong, "\n".join(wrong)
    assert compared > 150, compared
    assert found == set(DIFFERENCES), "differences that are listed but not there"


def verdict_on_errors(case: Case, mine: str | None, other: str | None) -> list[str]:
    """A program may fail here only where it fails there alike, or where the refusal is listed."""
    if mine is None:
        return []  # one of those that only Tutti runs
    refusal = refusal_of(case.label)
    if other is not None and (mine == other or any(re.search(label, case.label) for label in BOTH_REFUSE)):
        return []
    if refusal is not None and refusal.reason in mine:
        return []
    return [f"{case.label}: {mine} here, {other or 'runs'} there"]


def test_every_program_runs_for_some_arguments(ours: dict[str, dict[str, str]]) -> None:
    names = {case.name for case in all_cases()}
    ran = {case.name for case in all_cases() if "out" in ours[case.label]}
    assert len(names) > 75
    refused = {name for name in names - ran if not any(re.search(label, name) for label in BOTH_REFUSE)}
    assert not refused
