"""How the subcommands of ``tutti plan`` take files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tutti.plans.files import store

PlanFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="A plan in JSON, or an algorithm of MSCCL in XML.")
]

NO_PLAN = 2  # exit status


def write_text(text: str, output: Path | None) -> None:
    """Writes what a command has made, and says where; prints it if there is no file."""
    if output is None:
        typer.echo(text)
        return
    store(text + "\n", output)
    typer.echo(f"wrote {output}")


@contextmanager
def no_plan(name: object, kinds: tuple[type[Exception], ...] = (ValueError, NotImplementedError)) -> Iterator[None]:
    """Says why what is read within is no plan, and leaves."""
    try:
        yield
    except kinds as error:
        typer.echo(f"{name}: {error}", err=True)
        raise typer.Exit(NO_PLAN) from None
