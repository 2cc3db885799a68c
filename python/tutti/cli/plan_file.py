"""How the subcommands of ``tutti plan`` take files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

PlanFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="A plan in JSON, or an algorithm of MSCCL in XML.")
]

NO_PLAN = 2  # exit status


def read_plan(file: Path) -> str:
    """The JSON text of a plan; a file whose name ends in ``.xml`` is converted. ValueError if that cannot be."""
    content = file.read_bytes()
    if file.suffix.lower() == ".xml":
        from tutti.msccl import import_plan

        return json.dumps(import_plan(content, file.name))
    # The reader names the byte at which a text stops being JSON, so bad UTF-8 goes on to it, marked.
    return content.decode(errors="replace")


def load_plan(file: Path) -> dict[str, Any]:
    """The plan as an object, after the core has read it; a template is written out. ValueError if it is none."""
    from tutti import _core

    text = read_plan(file)
    _core.plan_info(text)
    plan: dict[str, Any] = json.loads(text)
    return json.loads(_core.write_out_plan(text)) if "template" in plan else plan


def write_text(text: str, output: Path | None) -> None:
    """Writes what a command has made, and says where; prints it if there is no file."""
    if output is None:
        typer.echo(text)
        return
    output.write_text(text + "\n", encoding="utf-8")
    typer.echo(f"wrote {output}")


def fail(file: Path, error: Exception) -> typer.Exit:
    """Says why a file is no plan; to be raised."""
    typer.echo(f"{file}: {error}", err=True)
    return typer.Exit(NO_PLAN)
