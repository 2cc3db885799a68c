"""Where TorchComms finds the backend's library, and what is said where it cannot be right. Needs no torchcomms."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tutti import _core
from tutti.dist import backend as groups
from tutti.dist import torchcomms as face

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.tutti_only


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package of Tutti's, as far as the backend is concerned."""
    monkeypatch.setattr(_core, "__file__", str(tmp_path / "_core.so"))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.3.0+git" if name == "torchcomms" else "")
    monkeypatch.delenv(face.LIBRARY_VARIABLE, raising=False)
    return tmp_path


def test_the_entry_point_says_where_the_library_is(package: Path) -> None:
    (package / "_comms_tutti.so").touch()
    (package / "torchcomms_version.txt").write_text("0.3.0\n")
    assert face.backend == str(package / "_comms_tutti.so") == os.environ.pop(face.LIBRARY_VARIABLE)
    points = importlib.metadata.entry_points(group="torchcomms.backends", name="tutti")
    assert [point.value for point in points] in ([], ["tutti.dist.torchcomms:backend"])  # none: run from a build folder


def test_what_is_missing_is_named_with_the_remedy(package: Path) -> None:
    with pytest.raises(ImportError, match=rf"built without.*{package}.*TUTTI_TORCHCOMMS_INCLUDE=<checkout"):
        _ = face.backend
    (package / "_comms_tutti.so").touch()
    (package / "torchcomms_version.txt").write_text("0.2.0\n")
    with pytest.raises(ImportError, match=r"for torchcomms 0\.2\.0, and here is torchcomms 0\.3\.0.*pip install"):
        _ = face.backend
    assert face.LIBRARY_VARIABLE not in os.environ


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize(
    ("given", "text", "said"),
    [
        (
            "",
            "",
            r"TUTTI_TORCHCOMMS_INCLUDE is {root}, where {header} was looked for and not found\. .* root of a checkout",
        ),
        ("comms", "", r"TUTTI_TORCHCOMMS_INCLUDE is {root}/comms, where {header} was looked for and not found\."),
        (
            "",
            "class TorchCommBackend;",
            "whose {header} does not say TORCHCOMM_BACKEND_ABI_VERSION.* root of a checkout",
        ),
        ("", 'constexpr std::string_view TORCHCOMM_BACKEND_ABI_VERSION = "1.3";', "abi 1.3, release 0.3.0"),
    ],
    ids=["no headers", "another folder", "another header", "right"],
)
def test_the_build_says_what_it_looked_for(tmp_path: Path, given: str, text: str, said: str) -> None:
    header = "comms/torchcomms/TorchCommBackend.hpp"
    if text or given:
        (tmp_path / header).parent.mkdir(parents=True)
        (tmp_path / header).write_text(text + "\n")
        (tmp_path / "version.txt").write_text("0.3.0\n")
    script = tmp_path / "look.cmake"
    script.write_text(
        f"include({ROOT}/cmake/TuttiTorchcomms.cmake)\n"
        f"tutti_torchcomms_headers({tmp_path / given} abi release)\n"
        'message("abi ${abi}, release ${release}")\n'
    )
    done = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True, check=False)
    words = " ".join(done.stderr.split())  # CMake breaks lines
    assert re.search(said.format(root=re.escape(str(tmp_path)), header=re.escape(header)), words), words
    assert (done.returncode == 0) == said.startswith("abi")


def test_no_store_and_nowhere_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(ValueError, match="MASTER_PORT are not set: set them, or pass store="):
        face.make_group(None, 0, 2, "name", timedelta(seconds=1), {}, False)


def test_rank_0_outlasts_the_forming_over_its_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the store: what it did next could be to exit."""
    store, formed = dist.HashStore(), threading.Event()
    slow = threading.Event()

    def create(group: Any, _options: Any, _parent: Any) -> object:
        if group.group_rank == 1:
            assert slow.wait(30)
            formed.set()
        return group

    monkeypatch.setattr(face, "meet", lambda *_, **__: store)
    monkeypatch.setattr(groups, "create_backend", create)
    over: list[bool] = []

    def make(rank: int) -> None:
        face.make_group(None, rank, 2, "again", timedelta(seconds=30), {}, True)
        over.append(formed.is_set())

    ranks = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    ranks[0].join(0.2)  # long enough to return, if it would
    slow.set()
    for thread in ranks:
        thread.join(30)
    assert over == [True, True]
