"""Each sentence of two pages that says never, always or cannot is listed beside the tests that protect it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WORDS = re.compile(r"\b([Nn]ever|[Aa]lways|[Cc]annot|must not|whatever|whomever)\b|^(Every|No|Nothing|Nobody|None)\b")
PAGES = ("concepts", "gpu")
pytestmark = pytest.mark.tutti_only


def plain(text: str) -> str:
    """In one line, without marks and where links lead."""
    return re.sub(r"[*`\[\]]", "", re.sub(r"\]\([^)]*\)", "]", " ".join(text.split())))


@cache
def pieces(page: str) -> list[str]:
    """Paragraphs, items of lists and cells of tables."""
    text = re.sub(r"^```.*?^```|^#.*?$", "\n", (ROOT / f"docs/{page}.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    return [plain(piece) for piece in re.split(r"\n\s*\n|\n(?=- |\d\. )|\|", text)]


def sentences(page: str) -> list[str]:
    """Those that say such a word; what stands before a colon or semicolon is one, too."""
    parts = [part for piece in pieces(page) for part in re.split(r"(?<=[.:;?!])\s+", re.sub(r"^- ", "", piece))]
    return [part for part in parts if WORDS.search(part)]


@cache
def listed() -> list[tuple[str, str, list[str]]]:
    """The page, the words of the sentence, its tests."""
    text = (ROOT / "docs" / "tested.md").read_text()
    rows = re.findall(rf"^\| ({'|'.join(PAGES)}) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return [(page, plain(words), re.findall(r"`([^`]+)`", tests)) for page, words, tests in rows]


@pytest.mark.parametrize("page", PAGES)
def test_every_such_sentence_is_listed(page: str) -> None:
    found = sentences(page)
    assert len(found) > 20
    for sentence in found:
        assert any(of == page and words in sentence for of, words, _ in listed()), f"{page}.md: {sentence}"


def test_what_is_listed_is_said() -> None:
    for page, words, _ in listed():
        assert any(words in piece for piece in pieces(page)), f"{page}.md does not say '{words}'"


def exists(test: str) -> bool:
    name, _, what = test.partition(":")
    if name.endswith(".sh"):
        text = (ROOT / "scripts" / name).read_text()
        return re.search(rf"^mutant .*['\"]{re.escape(what)}['\"]", text, re.MULTILINE) is not None
    if name.endswith(".py"):
        files = (ROOT / "tests" / "python").glob(f"*/{name}")
        return any(re.search(rf"^def {what}\(", path.read_text(), re.MULTILINE) for path in files)
    path = ROOT / "tests" / "cpp" / name
    if not path.is_file():
        return False
    suite, _, case = what.partition(".")
    return re.search(rf"^TEST(_F|_P)?\({suite}, {case}\)", path.read_text(), re.MULTILINE) is not None


def test_the_tests_that_are_named_exist() -> None:
    assert not exists("test_never.py:test_nothing") and not exists("cuda/ports_test.cc:Ports.Sink")
    for _, words, tests in listed():
        assert tests, words
        for test in tests:
            assert exists(test), f"{words}: there is no {test}"
