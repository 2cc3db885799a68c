"""``tutti plan diff``: what two plans do differently."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tutti.cli.plan_file import PlanFile, no_plan
from tutti.plans.difference import BlockDifference, Difference, compare
from tutti.plans.files import load_plan

SAME, DIFFERENT = 0, 1  # exit statuses; 2 if a file is no plan
CONTEXT = 2  # lines of what is the same around what is not


def _block_lines(block: BlockDifference) -> list[str]:
    if block.first is None or block.second is None:
        missing = "first" if block.first is None else "second"
        number = block.second if block.first is None else block.first
        head = f"rank {block.rank}, thread block {number}: not in the {missing} plan"
    else:
        numbers = f"{block.first}" if block.first == block.second else f"{block.first} and {block.second}"
        head = f"rank {block.rank}, thread block {numbers}:"
    lines = [head]
    near = [
        any(mark != " " for mark, _ in block.lines[max(0, i - CONTEXT) : i + CONTEXT + 1])
        for i in range(len(block.lines))
    ]
    for i, (mark, text) in enumerate(block.lines):
        if near[i]:
            lines.append(f"  {mark} {text}")
        elif i == 0 or near[i - 1]:
            lines.append("    …")
    return lines


def _print(difference: Difference) -> None:
    for key, first, second in difference.settings:
        typer.echo(f"{key}: {first} | {second}")
    for rank, key, first, second in difference.resources:
        typer.echo(f"rank {rank}: {key}: {first} | {second}")
    for block in difference.blocks:
        for line in _block_lines(block):
            typer.secho(line, fg={"-": "red", "+": "green"}.get(line[2:3]) if line.startswith("  ") else None)


def diff(
    first: PlanFile,
    second: PlanFile,
    json_out: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Compares what two plans do: settings, channels, operations. Renamed ids are no difference.

    Leaves 0 if they do the same, 1 if not, 2 if a file is no plan.
    """
    plans = []
    for file in (first, second):
        with no_plan(file):
            plans.append(load_plan(file))
    difference = compare(*plans)
    if json_out:
        typer.echo(json.dumps({"same": not difference, **asdict(difference)}, indent=2))
    elif difference:
        _print(difference)
    else:
        typer.echo("both plans do the same")
    raise typer.Exit(DIFFERENT if difference else SAME)
