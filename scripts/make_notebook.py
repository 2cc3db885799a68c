#!/usr/bin/env python3
"""Makes a notebook of a page that is a session (see tests/python/project/test_tutorial.py).

    scripts/make_notebook.py docs/tutorial.md > docs/tutorial.ipynb

Text becomes text, files become cells that write them, console blocks become cells that run their commands, and what the
page says of their output stays with them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"^(?:<!-- file: (?P<name>\S+) -->\n+)?```(?P<language>python|console)\n(?P<text>.*?)^```\n",
    re.MULTILINE | re.DOTALL,
)
FAILS = re.compile(r"  # exit \d+$", re.MULTILINE)


def markdown(text: str, number: int) -> dict[str, Any]:
    """A cell of text."""
    return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": lines(text.strip("\n"))}


def code(source: str, output: str, number: int) -> dict[str, Any]:
    """A cell of code, with what it prints."""
    outputs = [{"name": "stdout", "output_type": "stream", "text": lines(output)}] if output else []
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"cell-{number}",
        "metadata": {},
        "outputs": outputs,
        "source": lines(source.strip("\n")),
    }


def lines(text: str) -> list[str]:
    """As notebooks keep text."""
    return text.splitlines(keepends=True)


def cells(page: str) -> list[dict[str, Any]]:
    """The page, cut at its blocks."""
    made: list[dict[str, Any]] = []
    end = 0
    for match in BLOCK.finditer(page):
        if page[end : match.start()].strip():
            made.append(markdown(page[end : match.start()], len(made)))
        end = match.end()
        text = match["text"]
        if match["name"]:
            made.append(code(f"%%writefile {match['name']}\n{text}", "", len(made)))
        elif match["language"] == "python":
            made.append(code(text, "", len(made)))
        else:
            typed = FAILS.sub("", "".join(f"!{line[2:]}" for line in lines(text) if line.startswith("$ ")))
            made.append(code(typed, "".join(x for x in lines(text) if not x.startswith("$ ")), len(made)))
    if page[end:].strip():
        made.append(markdown(page[end:], len(made)))
    return made


def main() -> None:
    """Prints the notebook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    page = parser.parse_args().page.read_text()
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": cells(page),
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    json.dump(notebook, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
