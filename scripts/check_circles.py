"""Circles of imports, in C++ files and in Python modules, for check_layers.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)

Graph = dict[str, set[str]]


def circles(graph: Graph) -> list[list[str]]:
    """The sets of two or more nodes that reach each other, each once, sorted (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(found)


def cpp_graph(files: dict[str, str]) -> Graph:
    """Which file includes which; ``files`` are texts by the name under which they are included."""
    return {name: set(INCLUDE.findall(text)) & (files.keys() - {name}) for name, text in files.items()}


def python_graph(files: dict[str, str]) -> Graph:
    """Which module imports which, in functions too; ``files`` are texts by path below the folder of the package.

    What is imported for type checkers only is never executed, and does not count. Neither do modules that are loaded by
    name, as a package does for names that it hands on.
    """
    paths = {_module(path): path for path in files}
    return {
        module: set(_imported(module, path, files[path], paths.keys())) - {module} for module, path in paths.items()
    }


def _module(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(module: str, path: str, text: str, known: Iterable[str]) -> Iterator[str]:
    package = module if Path(path).name == "__init__.py" else module.rpartition(".")[0]
    for node in _executed(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in known:
                    yield inner
                elif base in known and not (alias.name.startswith("_") and alias.name != "__version__"):
                    yield base  # a name of it; names such as tutti._core are compiled modules


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield other
                yield from _executed(other)
            continue
        yield node
        yield from _executed(node)


def graphs(root: Path, paths: Iterable[Path]) -> tuple[Graph, Graph]:
    """What the C++ files of the library include of each other, and the modules of the package import."""
    cpp: dict[str, str] = {}
    python: dict[str, str] = {}
    for path in paths:
        text = (root / path).read_text(errors="replace")
        if path.parts[0] in ("src", "include") and path.suffix in {".h", ".cuh", ".cc", ".cu"}:
            cpp[str(Path(*path.parts[1:]))] = text
        elif path.parts[0] == "python" and path.suffix == ".py":
            python[str(Path(*path.parts[1:]))] = text
    return cpp_graph(cpp), python_graph(python)


def problems(includes: Graph, imports: Graph) -> list[str]:
    """A line for each circle."""
    return [f"a circle of includes: {', '.join(found)}" for found in circles(includes)] + [
        f"a circle of imports: {', '.join(found)}" for found in circles(imports)
    ]
