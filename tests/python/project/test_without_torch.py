"""The package where torch is not installed: a virtual environment with what pyproject.toml names, and nothing else."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import subprocess
import tomllib
import venv
from pathlib import Path

import pytest

from tutti import _core

pytestmark = pytest.mark.tutti_only
ROOT = Path(__file__).resolve().parents[3]


def needed(requirements: list[str]) -> set[str]:
    """The distributions that these ask for, and what those ask for, without extras."""
    found: set[str] = set()
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None, requirement
        try:
            distribution = metadata.distribution(name[0])
        except metadata.PackageNotFoundError:
            continue  # of another Python or system
        if "extra ==" not in requirement and distribution.name not in found:
            found |= {distribution.name, *needed(distribution.requires or [])}
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of that environment. What is in it are links to what is installed here."""
    folder = tmp_path_factory.mktemp("without") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in needed(project["dependencies"]):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if ".." not in file.parts}:
            if top != "__pycache__" and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    (site / "tutti").mkdir()
    for path in (ROOT / "python" / "tutti").iterdir():
        (site / "tutti" / path.name).symlink_to(path)
    for path in Path(_core.__file__).parent.glob("*.so*"):
        if not path.name.startswith("_torch") and not (site / "tutti" / path.name).exists():
            (site / "tutti" / path.name).symlink_to(path)
    assert not (site / "torch").exists()
    return str(folder / "bin" / "python")


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


WORKS = """
import sys
import numpy as np
import tutti
from tutti.language.builtins import BUILTINS

with tutti.Communicator(rank=0, size=1) as comm:
    array = np.arange(5.0)
    comm.all_reduce(array)
    assert array.tolist() == [0, 1, 2, 3, 4] and comm.metrics()["rows"]

def refused(use):
    try:
        use()
    except ImportError as error:
        text = str(error)
        assert text.startswith('this part of tutti needs torch, which is not installed here: pip install "torch'), text
        assert text.endswith("pip install --no-build-isolation --force-reinstall --no-deps ."), text
        return True
    return False

refused_names = [name for name in tutti.__all__ if refused(lambda: getattr(tutti, name))]
assert {"empty", "get_metrics", "Options", "shrink", "group_info", "register_tensors"} <= set(refused_names)
assert not {"Communicator", "AlgoSpec", "Algorithm", "CommGroup", "RawBuffer", "Metrics"} & set(refused_names)
assert refused(tutti.pretend)
for module in ("tutti.ops", "tutti.serving"):
    assert refused(lambda: __import__(module)), module
assert "torch" not in sys.modules
print("works")
"""


def test_arrays_and_programs_work_and_the_rest_says_what_to_run(python: str) -> None:
    finished = run(python, "-c", WORKS)
    assert finished.stdout == "works\n", finished.stderr


COMMANDS = """
import sys
from typer.testing import CliRunner
from tutti.cli.app import app

plan = sys.argv[1]
for said, *words in (
    ("not installed", "info"),
    ("2 ranks on this machine", "explain", "all_reduce", "64KB"),
    ("", "plan", "generate", "ring", "--ranks", "4", "--output", plan),
    ("", "plan", "check", "--run", plan),
    ("", "plan", "simulate", plan, "--topology", "nvswitch", "--size", "1MB"),
):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and said in result.output, (words, result.output, result.exception)
for words in (["bench"], ["run", "--as", "gloo", "script.py"]):
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ImportError), (words, result.output)
assert "torch" not in sys.modules
print("works")
"""


def test_commands_need_no_torch_but_those_that_measure_its_backends(python: str, tmp_path: Path) -> None:
    finished = run(python, "-c", COMMANDS, str(tmp_path / "plan.json"))
    assert finished.stdout == "works\n", finished.stderr


def test_a_package_built_without_torch_says_how_to_build_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tutti.dist import needs_torch

    found = needs_torch.find_spec
    monkeypatch.setattr(needs_torch, "find_spec", lambda name: None if name == "tutti._torch" else found(name))
    with pytest.raises(ImportError, match=r"was built without torch: .*pip install --no-build-isolation"):
        needs_torch.require_torch()
