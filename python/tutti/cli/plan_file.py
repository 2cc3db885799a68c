"""How the subcommands of ``tutti plan`` take files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tutti._units import format_bytes
from tutti.language.limits import MOST_MESSAGE
from tutti.plans.files import store

PlanFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="A plan in JSON, or an algorithm of MSCCL in XML.")
]

NO_PLAN = 2  # exit status


def in_a_line(text: str) -> str:
    """What a plan calls something, with what would move the cursor or change the terminal written out."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def size_note(least: int, most: int, block_bytes: int) -> str | None:
    """That a plan for rank blocks of ``least`` to ``most`` bytes is not for this size; None if it is."""
    if least <= block_bytes <= most:
        return None
    bounds = [f" from {format_bytes(least)}"] if least else []
    bounds += [f" up to {format_bytes(most)}"] if most < MOST_MESSAGE else []
    size = format_bytes(block_bytes)
    return f"note: no group runs it on {size} a rank: it is for sizes{''.join(bounds)}"


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
