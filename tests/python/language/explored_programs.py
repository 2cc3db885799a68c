"""Programs as plans in files, for tests in C++.

    python tests/python/language/explored_programs.py

writes those whose mutants the explorer of tests/cpp/plan/explorer tries to its folder ``programs``, and programs of
several instances to tests/cpp/cuda/replicated. A test makes sure that they are what the programs give.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from test_language_builtins import spec_of

from tutti.language import AlgoSpec, Broadcast, CollectiveProgram, ProgramError, ReplicationPolicy
from tutti.language.builtins import BUILTINS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests/cpp/plan/explorer/programs"
REPLICATED = ROOT / "tests/cpp/cuda/replicated"
sys.path.insert(0, str(ROOT / "examples/plans"))


def explored_programs() -> Iterator[tuple[str, CollectiveProgram]]:
    """Every built-in program for three ranks, or for two where it refuses three, and a loop."""
    from pipelined_broadcast import pipelined_broadcast

    for kind, algorithm in BUILTINS:
        for ranks in (3, 2):
            try:
                program = BUILTINS[kind, algorithm](spec_of(kind, ranks, root=1, nranks_per_node=2))
            except ProgramError:
                continue
            yield f"{kind}_{algorithm}_{ranks}", program
            break
    spec = AlgoSpec(name="pipelined broadcast", collective=Broadcast(3, 1, False))
    yield "broadcast_pipelined_3", pipelined_broadcast(spec)


def replicated_programs() -> Iterator[tuple[str, CollectiveProgram]]:
    """For two ranks, by either policy."""
    for policy, instances in ((ReplicationPolicy.interleaved, 4), (ReplicationPolicy.none, 3)):
        for kind, algorithm in (("allreduce", "ring"), ("allreduce", "two_shot"), ("alltoall", "pairwise")):
            more = {"instances": instances, "replication_policy": policy}
            program = BUILTINS[kind, algorithm](spec_of(kind, 2, nranks_per_node=2, **more))
            yield f"{kind}_{algorithm}_2_{policy}", program


def texts() -> dict[Path, dict[str, str]]:
    """The content of each file, by folder."""
    folders = {FOLDER: explored_programs(), REPLICATED: replicated_programs()}
    return {
        folder: {f"{name}.json": program.to_json(indent=None, origin=False) + "\n" for name, program in programs}
        for folder, programs in folders.items()
    }


def main() -> None:
    """Writes the files."""
    for folder, files in texts().items():
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.json"):
            old.unlink()
        for name, text in files.items():
            (folder / name).write_text(text)


if __name__ == "__main__":
    main()
