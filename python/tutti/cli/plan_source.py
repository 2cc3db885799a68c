"""How ``tutti plan check`` and ``simulate`` are told which plan: a file, or a family that the library generates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tutti._units import MOST_INT
from tutti.plans.source import PlanSource

OptionalPlanFile = Annotated[
    Path | None, typer.Argument(exists=True, dir_okay=False, help="A plan or template in JSON, or MSCCL's XML.")
]
Generate = Annotated[
    str | None, typer.Option("--generate", "-g", help="Instead of a file: a family, see `tutti plan generate --list`.")
]
Ranks = Annotated[int, typer.Option("--ranks", "-n", min=0, max=MOST_INT, help="Of a generated plan.")]
RanksPerHost = Annotated[
    int, typer.Option("--ranks-per-host", min=1, max=MOST_INT, help="Of a generated two-level plan.")
]
Pieces = Annotated[
    int, typer.Option("--pieces", min=0, max=MOST_INT, help="Of a generated tree or one-shot plan; 0: as usual.")
]


def plan_source(file: Path | None, family: str | None, ranks: int, ranks_per_host: int, pieces: int) -> PlanSource:
    """What these options name; exactly one of a file and a family, or the command is wrong."""
    try:
        return PlanSource(file, family, ranks, ranks_per_host, pieces)
    except ValueError:
        raise typer.BadParameter("say which plan: a file, or --generate with --ranks") from None
