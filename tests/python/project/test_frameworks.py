"""The recipes of docs/frameworks.md, run as they stand by the commands below them, where the framework is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tutti_only
PAGE = Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"
RECIPE = re.compile(
    r"^<!-- needs (?P<module>\w+) -->\n```python\n(?P<code>.*?)^```\n\n {4}(?P<command>[^\n]+)\n",
    re.MULTILINE | re.DOTALL,
)
RECIPES = [
    pytest.param(*match.group("module", "code", "command"), id=match["module"])
    for match in RECIPE.finditer(PAGE.read_text())
]
OWN_CHECKS = "torchrun --nproc-per-node=2 -m tutti run --as gloo -m accelerate.test_utils.scripts."


def run(command: str, folder: Path, **env: str) -> str:
    """What the command printed; torchrun takes a port of its own, and programs find this environment's commands."""
    words = shlex.split(command)
    of_this_interpreter = {  # wherever its package is installed
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
        "tutti": [sys.executable, "-m", "tutti"],
    }
    words[:1] = of_this_interpreter.get(words[0], [str(Path(sys.executable).parent / words[0])])
    finished = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


@pytest.mark.parametrize(("module", "code", "command"), RECIPES)
def test_recipe_runs(tmp_path: Path, module: str, code: str, command: str) -> None:
    need(module)
    (tmp_path / "train.py").write_text(code)
    run(command, tmp_path)


@pytest.mark.parametrize(
    ("script", "said"), [("test_ops", "testing gather"), ("test_script", "**Test reinstantiated state**")]
)
def test_accelerates_own_checks_pass(tmp_path: Path, script: str, said: str) -> None:
    need("accelerate")
    assert said in run(OWN_CHECKS + script, tmp_path, ACCELERATE_USE_CPU="true")


def test_every_recipe_is_run() -> None:
    assert len(RECIPES) == PAGE.read_text().count("<!-- needs ") == 4
