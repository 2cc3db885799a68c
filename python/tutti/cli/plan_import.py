"""``tutti plan import``: plans of other systems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tutti.cli.plan_file import no_plan, write_text
from tutti.plans.files import read_file


def import_(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An algorithm of MSCCL, in XML.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here instead of printing.")] = None,
) -> None:
    """Converts an XML algorithm of MSCCL into a plan. It is not proven yet: `tutti plan check` does that.

    Leaves 2 if the file is no such algorithm; the error names its line.
    """
    from tutti import _core
    from tutti.msccl import import_plan

    with no_plan(file):
        text = json.dumps(import_plan(read_file(file), file.name), indent=1)
        _core.plan_info(text)
    write_text(text, output)
