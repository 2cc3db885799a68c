#!/usr/bin/env python3
"""Compares what the CUDA kernels spill with what is allowed: check_spills.py LOG [--write]

LOG is the output of a build of the plug-in from scratch with CMAKE_CUDA_FLAGS=-Xptxas=-v, for sm_90. The table beside
this script, spills.txt, has a line for each kernel that spills: its name, then the bytes stored and loaded. A kernel
that spills more, or is not in the table and spills, is a failure; so is a line whose kernel is not in LOG. --write
makes the table of LOG. Figures are those of one version of nvcc, which the table names: with another one nothing is
compared.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("spills.txt")
SLACK = 32  # bytes: some registers more or less are no failure
ENTRY = re.compile(r"Compiling entry function '([^']+)' for 'sm_90'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def version_of_nvcc() -> str:
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release ([0-9.]+)", said)
    return found[1] if found else "unknown"


def short_name(name: str) -> str:
    """Without its parameters and name spaces."""
    name = re.sub(r"^void |tutti::cuda::|tutti::|\(anonymous namespace\)::", "", name)
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:i].replace(" ", "")
    return name.replace(" ", "")


def spills_in(log: str) -> dict[str, tuple[int, int]]:
    """By kernel. What follows an entry's name first are its own properties, then those of functions it calls."""
    parts = ENTRY.split(log)
    mangled = parts[1::2]
    names = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    found: dict[str, tuple[int, int]] = {}
    for name, text in zip(names.splitlines(), parts[2::2], strict=True):
        short = short_name(name)
        said = SPILLS.search(text)
        if said is None:
            raise SystemExit(f"the log says nothing of the spills of {name}")
        before = found.get(short, (0, 0))
        found[short] = (max(before[0], int(said[2])), max(before[1], int(said[3])))
    return found


def main() -> int:
    version = version_of_nvcc()
    found = spills_in(Path(sys.argv[1]).read_text())
    if "--write" in sys.argv:
        rows = [f"{name} {stores} {loads}" for name, (stores, loads) in sorted(found.items()) if stores + loads > 0]
        TABLE.write_text("\n".join([f"nvcc {version}", *rows]) + "\n")
        return 0
    head, *rows = TABLE.read_text().splitlines()
    if head != f"nvcc {version}":
        print(f"spills.txt is of {head}, this is nvcc {version}: nothing is compared")
        return 0
    allowed = {name: (int(stores), int(loads)) for name, stores, loads in (row.split() for row in rows)}
    problems = [
        f"{name} is not in the log: build from scratch, or take its line out"
        for name in sorted(set(allowed) - set(found))
    ]
    for name, now in sorted(found.items()):
        most = allowed.get(name, (0, 0))
        if now[0] > most[0] + SLACK or now[1] > most[1] + SLACK:
            problems.append(f"{name} spills {now[0]} bytes of stores and {now[1]} of loads; allowed are {most}")
    print("\n".join(problems) if problems else f"{len(found)} kernels spill no more than is allowed")
    return 1 if problems or not found else 0


if __name__ == "__main__":
    sys.exit(main())
