"""``tutti plan simulate``: how long a plan takes on a topology, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tutti._units import format_bytes, format_us, parse_bytes
from tutti.cli.plan_file import in_a_line, no_plan, size_note
from tutti.cli.plan_source import Generate, OptionalPlanFile, Pieces, Ranks, RanksPerHost, plan_source
from tutti.plans.files import read_file
from tutti.plans.source import PlanSource
from tutti.plans.timeline import where, write_html, write_png, write_trace
from tutti.topology import PRESETS

# Exit statuses; 2 if a file is wrong.
DONE, OVER_BUDGET = 0, 1

MOST_PRINTED = 20

Output = Annotated[Path | None, typer.Option(dir_okay=False)]


def _topology(name: str, source: PlanSource) -> str:
    """The JSON of a file, or of a preset for as many ranks as the plan has."""
    if name in PRESETS:
        return json.dumps(PRESETS[name](source.rank_count()))
    path = Path(name)
    if not path.exists():
        raise ValueError(f'"{name}" is neither a file nor one of {", ".join(PRESETS)}')
    try:
        return read_file(path).decode(errors="replace")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _print_result(result: dict[str, Any]) -> None:
    typer.echo(
        f"{in_a_line(result['plan'])}: {in_a_line(result['collective'])} of "
        f"{format_bytes(result['block_bytes'])} a rank block, {result['ranks']} ranks on {result['topology']}"
    )
    if result["basis"]:
        typer.echo(result["basis"])
    if not result["complete"]:
        typer.echo(f"stopped after {result['done']:.1%} of the operations; the time is an estimate")
    typer.echo(f"time            {format_us(result['time_us'])}{'' if result['complete'] else ' (estimate)'}")
    typer.echo(f"bandwidth       {result['algorithm_gbs']:.4g} GB/s")
    typer.echo(f"latency bound   {format_us(result['latency_bound_us'])}")
    typer.echo(f"bandwidth bound {format_us(result['bandwidth_bound_us'])}")
    path = result["critical_path"]
    typer.echo("critical path, until:")
    head = path if len(path) <= MOST_PRINTED else path[: MOST_PRINTED // 2]
    tail = [] if len(path) <= MOST_PRINTED else path[-MOST_PRINTED // 2 :]
    for step in head:
        typer.echo(f"  {format_us(step['end_us']):>9}  {where(step)}")
    if tail:
        typer.echo(f"             … {len(path) - len(head) - len(tail)} more …")
    for step in tail:
        typer.echo(f"  {format_us(step['end_us']):>9}  {where(step)}")
    typer.echo("busiest links:")
    for use in result["links"][:5]:
        typer.echo(f"  {use['share']:>6.1%}  {use['name']}, {format_bytes(use['bytes'])}")


def simulate(
    topology: Annotated[str, typer.Option(help=f"A topology file, or {', '.join(PRESETS)}.")],
    size: Annotated[str, typer.Option(help="Of one rank's block, like 64KB.")],
    file: OptionalPlanFile = None,
    generated: Generate = None,
    ranks: Ranks = 0,
    ranks_per_host: RanksPerHost = 8,
    pieces: Pieces = 0,
    budget: Annotated[float | None, typer.Option(min=0, help="Seconds, then stop with an estimate.")] = None,
    html: Output = None,
    png: Output = None,
    trace: Output = None,
    json_out: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Predicts a plan's time on a topology: bounds, critical path, use of links; draws its timeline.

    Leaves 0, 1 if it went over budget, 2 if a file is wrong or the plan gets stuck.
    """
    source = plan_source(file, generated, ranks, ranks_per_host, pieces)
    wants_timeline = any(path is not None for path in (html, png, trace))
    with no_plan(source.name, (ValueError, NotImplementedError, ImportError)):
        result = source.simulate(_topology(topology, source), parse_bytes(size), budget, wants_timeline)
        if html is not None:
            write_html(result, html)
            typer.echo(f"wrote {html}", err=json_out)
        if png is not None:
            write_png(result, png)
            typer.echo(f"wrote {png}", err=json_out)
        if trace is not None:
            write_trace(result, trace)
            typer.echo(f"wrote {trace}", err=json_out)
        note = size_note(*source.sizes(), result["block_bytes"])
    if json_out:
        typer.echo(json.dumps({key: value for key, value in result.items() if key != "timeline"}, indent=2))
    else:
        _print_result(result)
        if note is not None:
            typer.echo(note)
    raise typer.Exit(DONE if result["complete"] else OVER_BUDGET)
