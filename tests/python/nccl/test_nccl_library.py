"""Which library the one under NCCL's name passes calls on to. Stand-ins for NCCL lie in several places at once."""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tutti.cli import nccl

pytestmark = pytest.mark.tutti_only
# Prints which stand-ins the process has: of those that it has not opened itself, the one that is asked.
PROGRAM = """
import ctypes, os, sys
for file in sys.argv[1:]:
    ctypes.CDLL(file)
version = ctypes.c_int()
assert ctypes.CDLL(None).ncclGetVersion(ctypes.byref(version)) == 0
assert version.value == 22703, version.value
maps = open("/proc/self/maps").read().split()
print(*sorted({word for word in maps if word.endswith("/libnccl.so.2")}))
"""


@pytest.fixture
def places(tmp_path: Path, stand_in: str) -> dict[str, str]:
    """NCCL that is preloaded, opened, on the linker's path, and beside a copy of Tutti's package with its library."""
    files = {name: tmp_path / name / "libnccl.so.2" for name in ("linked", "opened", "path")}
    files["package"] = tmp_path / "site/nvidia/nccl/lib/libnccl.so.2"
    for file in files.values():
        file.parent.mkdir(parents=True)
        shutil.copy(stand_in, file)
    files["shim"] = tmp_path / "site/tutti/libtutti_nccl.so"
    files["shim"].parent.mkdir()
    shutil.copy(nccl.library(), files["shim"])
    return {name: str(file) for name, file in files.items()}


def asked(places: dict[str, str], *opened: str, preload: tuple[str, ...] = (), path: tuple[str, ...] = ()) -> str:
    """What the program prints, with the places named instead of files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "MSCCLPP_"))}
    tutti = str(Path(nccl.library()).parent)  # for what the copy needs
    folders = [os.path.dirname(places[name]) for name in path]
    environment = {
        **kept,
        "LD_PRELOAD": " ".join([places["shim"], *(places[name] for name in preload)]),
        "LD_LIBRARY_PATH": ":".join([*folders, tutti, kept.get("LD_LIBRARY_PATH", "")]).rstrip(":"),
    }
    command = [sys.executable, "-c", PROGRAM, *(places[name] for name in opened)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {os.path.realpath(file): name for name, file in places.items()}
    return " ".join(names.get(file, file) for file in done.stdout.split())


def test_the_one_that_the_program_is_linked_with(places: dict[str, str]) -> None:
    assert asked(places, preload=("linked",), path=("path",)) == "linked"


def test_the_one_that_it_has_opened(places: dict[str, str]) -> None:
    assert asked(places, "opened", path=("path",)) == "opened"


def test_the_one_on_the_linkers_path(places: dict[str, str]) -> None:
    assert asked(places, path=("path",)) == "path"


@pytest.mark.skipif(ctypes.util.find_library("nccl") is not None, reason="this machine has an NCCL on its path")
def test_the_one_of_the_package_beside(places: dict[str, str]) -> None:
    assert asked(places) == "package"


def test_a_program_that_opens_it_by_name(stand_in: str) -> None:
    """As JAX does: first the file of NCCL's package, by its path, then libnccl.so.2."""
    program = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
library = ctypes.CDLL("libnccl.so.2")
version = ctypes.c_int()
assert library.ncclGetVersion(ctypes.byref(version)) == 0
assert version.value == 22703, version.value
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TUTTI_", "MSCCLPP_"))}
    environment |= {"LD_PRELOAD": str(nccl.library(by_name=True)), "TUTTI_NCCL": "1", "TUTTI_NCCL_REPORT": "1"}
    command = [sys.executable, "-c", program, stand_in]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"above NCCL 2.27.3 ({stand_in})" in done.stderr, done.stderr


def test_it_links_neither_nccl_nor_cuda() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf")
    text = subprocess.run(["readelf", "-d", nccl.library()], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", text)
    assert "libtutti.so.0" in needed
    assert not [name for name in needed if "nccl" in name or "cuda" in name]
