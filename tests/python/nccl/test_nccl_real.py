"""The library under NCCL's name beside NCCL itself, without a GPU: what both export, and what both answer.

NCCL is that of PyPI: installed, or where TUTTI_NCCL_PACKAGE says (the folder nvidia/nccl of the newest release, which
src/nccl/functions.h is made for).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import SUPPORT

from tutti.cli import nccl

pytestmark = pytest.mark.tutti_only
# All functions of NCCL 2.32.3, of which the library also has a second name each.
FUNCTIONS = (SUPPORT / "nccl_functions.txt").read_text().split()
EDGES = SUPPORT / "nccl_edges.py"
ONE_ID = """
import ctypes, sys
place = (ctypes.c_ubyte * 128)()
assert ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(place) == 0
print(bytes(place).hex())
"""


def exported(library: Path) -> set[str]:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    names = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in names.splitlines()}


@pytest.fixture(scope="module")
def theirs() -> Path:
    """NCCL's library."""
    said = os.environ.get("TUTTI_NCCL_PACKAGE")
    package = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if said is None and package is None:
        pytest.skip("there is no NCCL from PyPI: TUTTI_NCCL_PACKAGE names its folder nvidia/nccl")
    folder = said or next(iter(package.submodule_search_locations or [""]))  # type: ignore[union-attr]
    library = Path(folder, "lib", "libnccl.so.2")
    assert library.is_file()
    return library


def output(*words: str, **settings: str) -> str:
    """Of a Python program in an environment without settings of either library but these; NCCL needs an interface."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "NCCL_", "MSCCLPP_"))}
    environment = {**kept, "NCCL_SOCKET_IFNAME": "lo", **settings}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(library: Path, lacking: list[str], **settings: str) -> list[list[object]]:
    return list(json.loads(output(str(EDGES), str(library), *lacking, **settings)))


def test_it_exports_what_nccl_exports_and_nothing_else() -> None:
    assert exported(nccl.library()) == {name for function in FUNCTIONS for name in (function, f"p{function}")}


def test_no_function_of_nccl_is_missing(theirs: Path) -> None:
    names = {name.removeprefix("p") for name in exported(theirs) if re.match("p?nccl[A-Z]", name)}
    assert names - set(FUNCTIONS) <= {"ncclResetDebugInitInternal"}


@pytest.mark.parametrize("on", ["0", "1"])
def test_it_answers_as_nccl_does_at_the_edges(theirs: Path, on: str) -> None:
    lacking = sorted(set(FUNCTIONS) - exported(theirs))
    wanted = answers(theirs, lacking)
    assert len(wanted) > 150
    assert answers(nccl.library(), lacking, TUTTI_NCCL=on, TUTTI_NCCL_LIB_PATH=str(theirs)) == wanted
    # Preloaded: a program that opens NCCL's file by its path means that file.
    assert answers(theirs, lacking, TUTTI_NCCL=on, LD_PRELOAD=str(nccl.library())) == wanted


def test_unique_ids_have_the_room_that_is_used(theirs: Path) -> None:
    """What NCCL leaves zero in its ids, where the meeting place is written."""
    assert not any(bytes.fromhex(output("-c", ONE_ID, str(theirs)))[64:])
    for on, mark in (("0", bytes(5)), ("1", b"Tutti")):
        text = output("-c", ONE_ID, str(nccl.library()), TUTTI_NCCL=on, TUTTI_NCCL_LIB_PATH=str(theirs))
        assert bytes.fromhex(text)[64:69] == mark
