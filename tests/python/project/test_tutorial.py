"""The tutorial and its notebook are sessions that run as they stand.

``docs/tutorial.md`` is read from top to bottom in one folder. A Python block after ``<!-- file: NAME -->`` becomes that
file; of two for one name the later replaces the earlier. A ``console`` block is typed: its lines after ``$`` are
commands, and what stands below one is its output, in which ``...`` stands for anything. A command of which the page
says that it fails, ``# exit 1``, must fail so. A Python block after ``<!-- run -->`` is a script.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutti import _core

pytestmark = [pytest.mark.tutti_only, pytest.mark.skipif(not hasattr(_core, "check_plan"), reason="no plans")]

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "tutorial.md"
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
BLOCK = re.compile(
    r"^(?:<!-- file: (?P<name>\S+) -->\n+```python\n(?P<code>.*?)^```"
    r"|```console\n(?P<session>.*?)^```)",
    re.MULTILINE | re.DOTALL,
)
LIMIT_S = 120  # a guard against a session that hangs


def steps() -> Iterator[tuple[str, str, str]]:
    """(kind, name, text) of each block: ("file", name, code) or ("console", "", session)."""
    for match in BLOCK.finditer(PAGE.read_text()):
        yield ("file", match["name"], match["code"]) if match["name"] else ("console", "", match["session"])


def commands(session: str) -> Iterator[tuple[str, int, str]]:
    """(command, exit code, output) of a console block."""
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        command, _, code = command.partition("  # exit ")
        yield command, int(code or 0), output


def matches(wanted: str, output: str) -> bool:
    """Whether ``output`` is as the page says; ``...`` on a line of its own stands for any lines, even none."""
    pattern = ""
    for line in wanted.splitlines():
        pattern += "(?:.*\n)*?" if line == "..." else re.escape(line).replace(re.escape("..."), ".*") + "\n"
    return re.fullmatch(pattern, output) is not None


def test_the_tutorial_is_a_session_that_runs(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TUTTI_")}
    environment.update(
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        OMP_NUM_THREADS="1",
        COLUMNS="200",
        TUTTI_CACHE_DIR=str(tmp_path / "cache"),
        HOME=str(tmp_path),
    )
    folder = tmp_path / "session"
    folder.mkdir()
    for kind, name, text in steps():
        if kind == "file":
            (folder / name).write_text(text)
            continue
        for command, code, wanted in commands(text):
            run = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, timeout=LIMIT_S, capture_output=True, text=True
            )
            assert run.returncode == code, f"$ {command}\n{run.stdout}{run.stderr}"
            assert not wanted or matches(wanted, run.stdout), f"$ {command}\n{run.stdout}\nthe page says:\n{wanted}"


def test_the_notebook_is_the_tutorial() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_notebook.py", PAGE], capture_output=True, text=True, check=True
    ).stdout
    assert NOTEBOOK.read_text() == made, "run scripts/make_notebook.py docs/tutorial.md > docs/tutorial.ipynb"
