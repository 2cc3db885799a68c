"""The documentation says what is so: its examples run, its lists are complete, its links lead somewhere.

A Python block after the comment ``<!-- run: 2 ranks -->`` is executed by two ranks. One that calls init_process_group
runs as torchrun would start it; any other finds the default group made and torch, dist and tutti imported.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool
from rank_worker import Context

import tutti
from tutti import _core

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
RANKS = 2
BLOCK = re.compile(r"^<!-- run: (?P<how>.+?) -->\n+```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> Iterator[Any]:
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text()):
            line = page.read_text().count("\n", 0, match.start("code")) + 1
            yield pytest.param(match["how"], match["code"], id=f"{page.stem}:{line}")


def run_block(ctx: Context, code: str, port: int) -> None:
    """A rank's part: the block, in a name space of its own."""
    import torch
    import torch.distributed as dist

    names: dict[str, Any] = {"__name__": "__main__", "torch": torch, "dist": dist, "tutti": tutti}
    before = dict(os.environ)
    if "init_process_group" in code:
        ctx.close()
        os.environ.update(RANK=str(ctx.rank), WORLD_SIZE=str(ctx.size), LOCAL_RANK=str(ctx.rank))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    try:
        exec(compile(code, "documentation", "exec"), names)  # our own pages
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.parametrize(("how", "code"), list(examples()))
def test_example_runs(world: World, fresh_world: World, how: str, code: str) -> None:
    import torch.distributed as dist

    if how == "2 ranks, each a host":
        fresh_world(RANKS, env_of=lambda rank: {"TUTTI_HOST_ID": f"host{rank}"}).call(run_block, code, 0)
        return
    assert how == "2 ranks", f"nobody knows how to run '{how}'"
    if "init_process_group" not in code:
        world(RANKS).call(run_block, code, 0)
        return
    # A store of this block alone: the ranks' keys have no prefix.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pool = world(RANKS)
    pool.call(run_block, code, store.port)
    pool.open_group()


def test_every_python_block_can_be_parsed() -> None:
    for page in PAGES:
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            ast.parse(code, page.name)


def test_every_setting_is_described_as_the_library_describes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TUTTI_")]:
        monkeypatch.delenv(name)
    row = re.compile(r"^\| `(TUTTI_\w+)` \| `(.*?)` \| (.*?) \| (.*?) \|$", re.MULTILINE)
    page = (DOCS / "environment.md").read_text()
    described = [(name, default, f"{what}; may be {values}") for name, default, what, values in row.findall(page)]
    assert described == [(variable.name, variable.value, variable.help) for variable in _core.config()]


@cache
def sources() -> str:
    folders = [ROOT / name for name in ("src", "include", "python", "tests", "examples")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".cc", ".h", ".cuh", ".py"}]
    return "\n".join(path.read_text() for path in files if path != Path(__file__))


def test_no_page_names_a_setting_that_nobody_reads() -> None:
    files = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")]
    options = "\n".join(path.read_text() for path in files)
    in_c = set(re.findall(r"^  (TUTTI_\w+) = \d", (ROOT / "include" / "tutti" / "tutti.h").read_text(), re.MULTILINE))
    for page in PAGES:
        for name in set(re.findall(r"\bTUTTI_[A-Z_]*[A-Z]\b", page.read_text())) - in_c:
            macro = re.search(rf"# *define {name}\b", sources())
            known = f'"{name}"' in sources() or f"({name} " in options or macro
            assert known, f"{page.name}: {name}"


@cache
def literals() -> str:
    """The text of all string literals, neighbours joined as the compilers join them."""
    piece = r'"(?:[^"\\\n]|\\.)*"'
    found = re.findall(rf"{piece}(?:\s*f?{piece})*", sources())
    return "\n".join("".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)) for text in found).replace('\\"', '"')


def test_every_quoted_error_message_exists() -> None:
    """Messages in the first column of a table; what stands between two ellipses is in the sources as it stands."""
    page = (DOCS / "errors.md").read_text()
    quoted = [text for cell in re.findall(r"^\| (``?.*?) \|", page, re.MULTILINE) for text in message_of(cell)]
    assert len(quoted) > 50
    for message in quoted:
        for part in message.split("…"):
            text = part.strip(" ,()")
            assert len(text) < 4 or text in literals(), f"no source says '{text}'"


def message_of(cell: str) -> list[str]:
    if cell.startswith("``"):
        return [cell.strip("`")]
    return re.findall(r"`([^`]+)`", cell)


def test_links_and_paths_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text()
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name}: {target}"
            if anchor:
                heads = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}
                assert anchor in slugs, f"{page.name}: {target}#{anchor}"
        for name in re.findall(r"`((?:src|include|tests|examples|bench|scripts|python|cmake|docs)/[\w./\-]+)`", text):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_the_site_has_every_page() -> None:
    listed = re.findall(r"^\s+- (?:[^:\n]+: )?([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md"))


def test_every_public_function_is_described() -> None:
    pages = "\n".join(page.read_text() for page in PAGES)
    described = set(re.findall(r"\btutti\.(\w+)", pages))
    missing = [name for name in tutti.__all__ if name not in described and not name.startswith("__")]
    assert missing == ["GroupInfo", "register"], missing


def test_every_algorithm_is_described() -> None:
    page = (DOCS / "concepts.md").read_text()
    for collective in _core.collectives():
        for name in re.findall(r"^(?:-> |   )(\w+):", _core.explain(collective, 8), re.MULTILINE):
            assert f"| `{name}` |" in page, f"{collective}: {name}"
