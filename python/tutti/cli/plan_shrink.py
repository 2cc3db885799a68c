"""``tutti plan shrink``: the smallest plan with the same fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tutti.cli.plan_file import PlanFile, no_plan, write_text
from tutti.plans.files import load_plan
from tutti.plans.resolved import operations
from tutti.plans.shrinking import Shrinker

LONGEST_NAME = 4000  # with what is added to it, it is still one that the reader takes

DONE, RAN_OUT = 0, 1  # exit statuses; 2 if there is nothing to shrink


def _size(plan: dict[str, Any]) -> str:
    count = sum(1 for _ in operations(plan))
    blocks = sum(len(gpu["threadblocks"]) for gpu in plan["gpus"])
    return f"{len(plan['gpus'])} ranks, {blocks} thread blocks, {count} operations"


def shrink(
    file: PlanFile,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the small plan here.")] = None,
    kind_only: Annotated[bool, typer.Option("--kind-only", help="Any fault of the same kind will do.")] = False,
    checks: Annotated[int, typer.Option("--checks", min=1, help="At most this many proofs.")] = 20_000,
) -> None:
    """Minimises a plan that the verifier rejects, for as long as the fault stays the same.

    Leaves 0, 1 if the checks ran out before it was minimal, 2 if the file is no plan or has no fault.
    """
    from tutti import _core

    with no_plan(file):
        shrinker = Shrinker(load_plan(file), kind_only, most_checks=checks)
        plan = shrinker.given
        first = _core.check_plan(json.dumps(plan), True)["fault"]
    typer.echo(f"before: {_size(plan)}", err=output is None)
    typer.echo(f"  {first['kind']}: {first['message']}", err=output is None)
    small = shrinker.run()
    if not plan["name"].endswith("(shrunk)") and len(plan["name"].encode()) <= LONGEST_NAME:
        small.plan["name"] = f"{plan['name']} (shrunk)"
    fault = small.verdict["fault"]
    typer.echo(f"after {small.checks} checks: {_size(small.plan)}", err=output is None)
    typer.echo(f"  {fault['kind']}: {fault['message']}", err=output is None)
    if not small.complete:
        typer.echo("the checks ran out: more may go with a larger --checks", err=True)
    write_text(json.dumps(small.plan, indent=1), output)
    raise typer.Exit(DONE if small.complete else RAN_OUT)
