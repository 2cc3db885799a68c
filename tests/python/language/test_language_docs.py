"""The blocks of docs/dsl.md run, and its tables are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import tutti.language
from tutti.language import BaseBuffer, Collective, CollectiveProgram, MemoryChannel, PortChannel, Rank
from tutti.language.builtins import BUILTINS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "dsl.md"
TEXT = PAGE.read_text()
BLOCKS = re.findall(r"^<!-- dsl -->\n```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_example_runs(code: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, str(PAGE), "exec"), names)  # our own page


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == TEXT.count("```python") >= 6


def test_every_name_is_described() -> None:
    unnamed = {"Origin", "BaseBuffer", "Chunk", "ChannelType", "RankGroup"}
    assert [name for name in tutti.language.__all__ if f"{name}" not in TEXT and name not in unnamed] == []


@pytest.mark.parametrize("kind", [Rank, MemoryChannel, PortChannel])
def test_every_method_is_in_a_table(kind: type) -> None:
    methods = {function.__name__ for name, function in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
    missing = {name for name in methods if not re.search(rf"\b{name}\(|`{name}`", TEXT)}
    assert missing <= {"nop"}


def test_every_setting_is_in_the_table() -> None:
    settings = list(inspect.signature(CollectiveProgram).parameters)
    assert [name for name in settings if f"`{name}`" not in TEXT and f"{name}," not in TEXT] == []


def test_the_table_of_collectives_is_right() -> None:
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \| `(\w+)` \|", TEXT, re.MULTILINE)
    kinds = {kind.__name__: kind for kind in vars(tutti.language).values() if inspect.isclass(kind)}
    listed = {name for name, _, _ in rows}
    assert listed == {name for name, kind in kinds.items() if issubclass(kind, Collective) and kind is not Collective}
    for name, arguments, word in rows:
        made = kinds[name](3, 2, *([] if "inputs" not in arguments else [2]))
        assert made.name == word
        assert isinstance(made.init_buffers()[0][tutti.language.BufferType.input], BaseBuffer)


def test_the_table_of_programs_is_complete() -> None:
    section = TEXT[TEXT.index("## Programs that come") :]
    rows = "\n".join(re.findall(r"^\| .*$", section, re.MULTILINE))
    for collective, name in BUILTINS:
        assert re.search(rf"^\| .*`{collective}`.*`{name}`", rows, re.MULTILINE), (collective, name)
