"""The programs whose mutants the explorer of tests/cpp/plan/explorer tries, as plans in files.

    python tests/python/language/explored_programs.py

writes them to tests/cpp/plan/explorer/programs. A test makes sure that they are what the programs give.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from test_language_builtins import spec_of

from tutti.language import AlgoSpec, Broadcast, CollectiveProgram, ProgramError
from tutti.language.builtins import BUILTINS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tests/cpp/plan/explorer/programs"
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


def texts() -> dict[str, str]:
    """The content of each file."""
    return {f"{name}.json": program.to_json(indent=None, origin=False) + "\n" for name, program in explored_programs()}


def main() -> None:
    """Writes the files."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for name, text in texts().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
