"""``tutti plan calibrate``: a topology file of this machine, and how well it predicts."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from tutti._pictures import pyplot
from tutti._units import format_bytes, format_us
from tutti.plans.files import check_picture, check_writable, store, store_picture

if TYPE_CHECKING:
    from tutti.plans.comparison import Row

DONE, REFUSED = 0, 2  # exit statuses
PROBES = 75  # ticks of a measurement


def _print_rows(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("plan", "size", "predicted", "measured", "ratio"):
        table.add_column(column, justify="left" if column == "plan" else "right")
    for row in rows:
        predicted, measured = format_us(row.predicted_us), format_us(row.measured_us)
        table.add_row(row.plan, format_bytes(row.size), predicted, measured, f"{row.ratio:.2f}")
    Console(highlight=False).print(table)
    off = sorted(max(row.ratio, 1 / row.ratio) for row in rows)
    typer.echo(f"off by a factor of {median(off):.2f} in the median, {off[-1]:.2f} at most")


def write_plot(rows: list[Row], title: str, path: Path) -> None:
    """Predicted over measured by size, a line for each plan. ImportError, naming the remedy, without matplotlib."""
    plt = pyplot()

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    for name in dict.fromkeys(row.plan for row in rows):
        own = [row for row in rows if row.plan == name]
        sizes = [row.size for row in own]
        (line,) = left.plot(sizes, [row.measured_us for row in own], "o-", label=name, markersize=4)
        left.plot(sizes, [row.predicted_us for row in own], "x--", color=line.get_color(), markersize=5)
        right.plot(sizes, [row.ratio for row in own], "o-", color=line.get_color(), label=name, markersize=4)
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("bytes of a rank's block")
        axis.grid(alpha=0.3)
    left.set_ylabel("us: measured (o), predicted (x)")
    right.set_ylabel("predicted / measured")
    right.axhline(1, color="black", linewidth=0.8)
    right.legend(fontsize=7)
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    store_picture(figure, path, dpi=110)
    plt.close(figure)


def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The topology file.")],
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=2, help="Not more than cores.")] = 2,
    tries: Annotated[int, typer.Option("--tries", min=1, help="Runs of each probe; the fastest counts.")] = 12,
    check: Annotated[bool, typer.Option("--check", help="Run built-in plans and compare with predictions.")] = False,
    png: Annotated[Path | None, typer.Option(dir_okay=False, help="With --check: a plot of it.")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="All figures.")] = None,
) -> None:
    """Measures this machine by short plans and writes the topology that `tutti plan simulate` takes.

    Run it on a quiet machine. Leaves 2 if there are fewer cores than ranks.
    """
    if png is not None and not check:
        raise typer.BadParameter("--png plots what --check compares: ask for that, too")
    from rich.progress import Progress

    from tutti.plans.calibration import as_json, fit, least_of, measure, usable_ranks
    from tutti.plans.comparison import PLANS, SIZES, compare

    try:
        if png is not None:
            check_picture(png)
        for file in (output, json_out):
            if file is not None:
                check_writable(file)
        ranks = usable_ranks(ranks)
        timer = least_of(tries)
        with Progress(transient=True) as progress:
            task = progress.add_task("measuring", total=PROBES + (len(PLANS) * len(SIZES) if check else 0))

            def tick() -> None:
                progress.advance(task)

            found = measure(timer, tick=tick)
            topology = fit(found, ranks, f"this machine, {ranks} ranks")
            rows = compare(topology, ranks, timer, tick=tick) if check else []
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(REFUSED) from None
    store(json.dumps(topology, indent=1) + "\n", output)
    best = max(link["bandwidth_gbs"] for link in topology["links"])
    typer.echo(
        f"signal {format_us(found.signal_us)}, dispatch {found.dispatch_us * 1e3:.1f} ns, "
        f"transfers up to {best:.1f} GB/s together, copies up to {topology['local']['bandwidth_gbs']:.1f} GB/s"
    )
    if rows:
        _print_rows(rows)
        if png is not None:
            write_plot(rows, f"{len(rows)} calls of built-in plans, {ranks} ranks", png)
            typer.echo(f"wrote {png}")
    if json_out is not None:
        compared = [{**vars(row), "ratio": row.ratio} for row in rows]
        figures = {"measured": as_json(found), "topology": topology, "compared": compared}
        store(json.dumps(figures, indent=1) + "\n", json_out)
        typer.echo(f"wrote {json_out}")
    typer.echo(f"wrote {output}")
