"""The `tutti` command within this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tutti.cli.app import app


def invoke(
    *words: str | Path, env: dict[str, str] | None = None, lines: str = "", columns: int = 160
) -> tuple[int, str]:
    """Its exit status and what it has printed; what it raises is raised."""
    result = CliRunner(env={"COLUMNS": str(columns), **(env or {})}).invoke(app, [*map(str, words)], input=lines)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
