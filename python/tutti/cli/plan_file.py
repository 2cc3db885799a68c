"""How the subcommands of ``tutti plan`` take files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tutti._files import read_whole

PlanFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="A plan in JSON, or an algorithm of MSCCL in XML.")
]

NO_PLAN = 2  # exit status


def read_file(file: Path) -> bytes:
    """What is in a file. ValueError if it cannot be read, is no regular file or has more than 64 MB."""
    try:
        return read_whole(file)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def read_plan(file: Path) -> str:
    """The JSON text of a plan; a file whose name ends in ``.xml`` is converted. ValueError if that cannot be."""
    content = read_file(file)
    if file.suffix.lower() == ".xml":
        from tutti.msccl import import_plan

        return json.dumps(import_plan(content, file.name))
    # The reader names the byte at which a text stops being JSON, so bad UTF-8 goes on to it, marked.
    return content.decode("utf-8-sig", errors="replace")


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
    store(text + "\n", output)
    typer.echo(f"wrote {output}")


def store(content: str | bytes, file: Path) -> None:
    """Writes a file. OSError that names it, also where the system does not (a full disk)."""
    try:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None


@contextmanager
def no_plan(name: object, kinds: tuple[type[Exception], ...] = (ValueError, NotImplementedError)) -> Iterator[None]:
    """Says why what is read within is no plan, and leaves."""
    try:
        yield
    except kinds as error:
        typer.echo(f"{name}: {error}", err=True)
        raise typer.Exit(NO_PLAN) from None
