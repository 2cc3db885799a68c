"""``tutti plan generate`` and ``tutti plan fold``: plans that are not written out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tutti._units import MOST_INT
from tutti.cli.plan_file import PlanFile, no_plan, write_text
from tutti.cli.plan_source import Pieces, RanksPerHost, plan_source
from tutti.plans.files import read_plan

Output = Annotated[Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write here instead of printing.")]


def generate(
    family: Annotated[str | None, typer.Argument(help="Its name, as --list has it.")] = None,
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=0, max=MOST_INT, help="For how many ranks.")] = 0,
    ranks_per_host: RanksPerHost = 8,
    pieces: Pieces = 0,
    list_families: Annotated[bool, typer.Option("--list", help="Say what can be generated.")] = False,
    write_out: Annotated[bool, typer.Option("--write-out", help="All ranks, also where they are alike.")] = False,
    output: Output = None,
) -> None:
    """Makes an all-reduce of a common family: as a template where its ranks are alike, else written out."""
    from tutti import _core

    if list_families:
        for name, what in _core.plan_families().items():
            typer.echo(f"{name:<20} {what}")
        return
    source = plan_source(None, family, ranks, ranks_per_host, pieces)
    with no_plan(source.name):
        text = source.text()
        text = _core.write_out_plan(text, 2) if write_out else text
    write_text(text, output)


def fold(
    file: PlanFile,
    dims: Annotated[
        str | None, typer.Option("--dims", help="How ranks are numbered: 8 a ring, 2,2,2 a cube, 8,512 hosts of 8.")
    ] = None,
    input_blocks: Annotated[
        int, typer.Option("--input-blocks", min=1, max=MOST_INT, help="Into how many parts input is cut.")
    ] = 1,
    output_blocks: Annotated[int, typer.Option("--output-blocks", min=1, max=MOST_INT, help="… output.")] = 1,
    output: Output = None,
) -> None:
    """Folds a plan whose ranks are alike into a template; every operation of every rank is compared.

    Without --dims a symmetry is looked for. Leaves 2 if there is none; then it names the first difference.
    """
    from tutti import _core

    with no_plan(file):
        sizes = None if dims is None else _dims(dims)
        text = _core.fold_plan(read_plan(file), sizes, input_blocks, output_blocks, 2)
    write_text(text, output)


def _dims(text: str) -> list[int]:
    dims = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if not all(1 <= dim <= MOST_INT for dim in dims):
        raise ValueError(f'"{text}" is no numbering of ranks; write it like 8 or 2,2,2')
    return dims
