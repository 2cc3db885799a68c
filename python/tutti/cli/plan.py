"""``tutti plan``: proves, runs, simulates, shows, compares, minimises, imports and exports execution plans."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from tutti._units import MOST_INT
from tutti.cli.plan_calibrate import calibrate
from tutti.cli.plan_compile import compile_
from tutti.cli.plan_device import Device, DeviceOption, GpuOption
from tutti.cli.plan_diff import diff
from tutti.cli.plan_file import PlanFile, in_a_line, no_plan, size_note, write_text
from tutti.cli.plan_import import import_
from tutti.cli.plan_shrink import shrink
from tutti.cli.plan_simulate import simulate
from tutti.cli.plan_source import Generate, OptionalPlanFile, Pieces, Ranks, RanksPerHost, plan_source
from tutti.cli.plan_step import step
from tutti.cli.plan_template import fold, generate
from tutti.plans.files import load_plan, read_plan
from tutti.plans.source import PlanSource

app = typer.Typer(help="Execution plans: prove, run, simulate, show, compare, import, export.", no_args_is_help=True)
for command in (simulate, calibrate, diff, shrink, step, generate, fold):
    app.command()(command)
app.command("import")(import_)
app.command("compile")(compile_)

# What asks for signals of Python's itself: one waits for lines, the other has a bar in the terminal to take away.
LISTENS = ("step", "calibrate")


@app.callback()
def _end_at_once(context: typer.Context) -> None:
    """Execution plans: prove, run, simulate, show, compare, import, export."""
    if context.invoked_subcommand in LISTENS or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    # The library looks for no signals while it proves, runs or simulates, and there is nothing to be left behind.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    context.call_on_close(lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


# Exit statuses of `check`; 2 if the file is no plan.
PROVEN, REJECTED = 0, 1


def _site_line(site: dict[str, Any]) -> str:
    where = f"rank {site['rank']}"
    if site["block"] >= 0:
        where += f", thread block {site['block']}, operation {site['op']}"
        if site["inner"] >= 0:
            where += f".{site['inner']}"
    origin = f"  {in_a_line(site['origin'])}" if site["origin"] else ""
    return f"  {site['name']}: {where}{origin}"


def _origin(plan: dict[str, Any], repair: dict[str, Any]) -> str:
    """The program's line that made the repaired operation; nothing if the plan does not say."""
    ops = plan["gpus"][repair["rank"]]["threadblocks"][repair["block"]]["ops"]
    if repair["op"] < 0 or repair["op"] >= len(ops):
        return ""
    op = ops[repair["op"]]
    return in_a_line(str((op if repair["inner"] < 0 else op["ops"][repair["inner"]]).get("origin", "")))


def _repair_lines(repairs: list[dict[str, Any]], source: PlanSource) -> list[str]:
    """One line for all repairs of one kind that one line of the program makes necessary."""
    import json

    from tutti import _core

    # Written out: a repair is of one rank, also of a template's.
    plan = json.loads(_core.write_out_plan(source.text())) if repairs else {}
    groups: dict[tuple[str, str], list[str]] = {}
    for repair in repairs:
        place, _, change = repair["text"].partition(": ")
        groups.setdefault((change, _origin(plan, repair)), []).append(place)
    return [
        f"{change}: {places[0]}"
        + (f" and {len(places) - 1} more" if len(places) > 1 else "")
        + (f"  {origin}" if origin else "")
        for (change, origin), places in groups.items()
    ]


def _print_verdict(source: PlanSource, verdict: dict[str, Any]) -> None:
    typer.echo(f"{source.name}: {verdict['outcome']}, over {verdict['calls']} calls back to back")
    fault = verdict["fault"]
    if fault is not None:
        typer.echo(f"{fault['kind']}: {fault['message']}")
        for site in fault["sites"]:
            typer.echo(_site_line(site))
    for line in _repair_lines(verdict["repairs"], source):
        typer.echo(f"repair: {line}")
    if verdict["outcome"] != "rejected" and not verdict["checked"]:
        typer.echo("note: its collective says nothing of results, so none was checked; all else is proven")
    if fault is None and not verdict["same_bits"]:
        typer.echo("note: ranks reduce in different orders, so their results may differ in the last bits")


@app.command()
def check(
    file: OptionalPlanFile = None,
    generated: Generate = None,
    ranks: Ranks = 0,
    ranks_per_host: RanksPerHost = 8,
    pieces: Pieces = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse plans that need a repair.")] = False,
    try_it: Annotated[bool, typer.Option("--run", help="If it is proven, run it at the sizes that matter.")] = False,
    device: DeviceOption = Device.cpu,
    gpu: GpuOption = None,
    json_out: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Proves that a plan computes its collective, cannot deadlock, has no race and stays in bounds.

    With --device cuda also that a GPU can hold it; none is needed for that. Leaves 0 if it does, 1 if not or if a run
    goes wrong, 2 if the file is no plan.
    """
    from tutti.plans import gpu_fit, runs

    source = plan_source(file, generated, ranks, ranks_per_host, pieces)
    if gpu is not None and device is not Device.cuda:
        raise typer.BadParameter("--gpu says which GPU is to hold the plan: ask that by --device cuda")
    with no_plan(source.name):
        verdict = source.check(strict)
        if try_it and verdict["outcome"] != "rejected":
            verdict["runs"] = runs.try_plan(verdict["repaired"] or source.text())
        if device is Device.cuda and verdict["outcome"] != "rejected":
            verdict["device"] = gpu_fit.fit(verdict["repaired"] or source.text(), gpu or gpu_fit.USUAL)
    ran, fit = verdict.get("runs"), verdict.get("device")
    if json_out:
        import json

        typer.echo(json.dumps(verdict, indent=2))
    else:
        _print_verdict(source, verdict)
        if ran is not None:
            typer.echo(runs.line_of(ran))
        if fit is not None:
            typer.echo(gpu_fit.line_of(fit))
    wrong = verdict["outcome"] == "rejected" or (ran is not None and ran["fault"] is not None)
    wrong = wrong or (fit is not None and fit["refused"] is not None)
    raise typer.Exit(REJECTED if wrong else PROVEN)


@app.command()
def show(
    file: PlanFile,
    graph: Annotated[int | None, typer.Option("--graph", "-g", help="Draw what orders this rank's operations.")] = None,
    svg: Annotated[Path | None, typer.Option(dir_okay=False, help="With --graph: as a picture into this file.")] = None,
) -> None:
    """Shows what a plan consists of: buffers, channels, and the operations of every thread block; or a rank's order."""
    if svg is not None and graph is None:
        raise typer.BadParameter("--svg draws what orders a rank's operations: say which rank's by --graph")
    if graph is None:
        _show_table(file)
    else:
        _show_graph(file, graph, svg)


def _show_table(file: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from tutti import _core

    with no_plan(file):
        info = _core.plan_info(read_plan(file))
    console = Console()
    traits = [name for name in ("in_place", "reuse_resources", "double_scratch", "writes_input") if info[name]]
    console.print(
        f"{in_a_line(info['name'])}: {in_a_line(info['collective'])} among {len(info['ranks'])} ranks, "
        f"protocol {info['protocol']}"
        + (f", {info['reduce']}" if info["reduce"] else "")
        + "".join(f", {trait.replace('_', ' ')}" for trait in traits),
        markup=False,
        highlight=False,
    )
    if info["source"]:
        console.print(f"made by {in_a_line(info['source'])}", markup=False, highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "input", "output", "scratch", "channels", "block", "operations"):
        table.add_column(column, justify="left" if column == "operations" else "right", overflow="fold")
    for rank, entry in enumerate(info["ranks"]):
        channels = "/".join(str(entry[f"{kind}_channels"]) for kind in ("memory", "port", "switch"))
        chunks = [str(entry[f"{buffer}_chunks"]) for buffer in ("input", "output", "scratch")]
        head = [str(rank), *chunks, channels]
        for block, counts in enumerate(entry["blocks"]):
            operations = ", ".join(f"{count} {name}" for name, count in counts.items())
            table.add_row(*(head if block == 0 else [""] * len(head)), str(block), operations)
        if not entry["blocks"]:
            table.add_row(*head, "", "")
    console.print(table)
    console.print("chunks of each buffer; channels: memory/port/switch", style="dim")


def _show_graph(file: Path, rank: int, svg: Path | None) -> None:
    from rich.console import Console

    from tutti.cli.plan_graph import print_graph
    from tutti.plans.graph import graph_of
    from tutti.plans.graph_picture import svg_of

    with no_plan(file):
        plan = load_plan(file)
        if not 0 <= rank < len(plan["gpus"]):
            raise ValueError(f"there is no rank {rank} among {len(plan['gpus'])}")
    drawn = graph_of(plan, rank)
    if svg is None:
        print_graph(drawn, Console(highlight=False))
    else:
        write_text(svg_of(drawn), svg)


@app.command()
def run(
    file: PlanFile,
    size: Annotated[str, typer.Option("--size", "-s", help="Of one rank's block, like 64KB; 4KB,64KB: each.")] = "64KB",
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="Refuse a plan for another number of ranks.")] = 0,
    dtype: Annotated[str, typer.Option("--dtype", "-d", help="f32 or float32, bf16, i32, ...")] = "f32",
    op: Annotated[str, typer.Option("--op", help="sum, avg, product, min, max, ...")] = "sum",
    repeat: Annotated[int, typer.Option("--repeat", min=1, max=MOST_INT, help="Timed calls, back to back.")] = 20,
    threads: Annotated[bool, typer.Option("--threads", help="A thread for each rank, not one for all.")] = False,
    seed: Annotated[str | None, typer.Option("--seed", help="In this random order; 1,2,3: each. One thread.")] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, max=1e9, help="Seconds until a call counts as stuck.")
    ] = 10,
    device: DeviceOption = Device.cpu,
) -> None:
    """Runs all ranks of a plan in this process, checks the result, says how long it took; for each size and order.

    With --device cuda on this machine's GPUs, a thread for each rank; the plan is proven first.

    Leaves 0 if all is right, 1 at the first that is not, 2 if the plan cannot run this.
    """
    from tutti import _core
    from tutti._units import parse_bytes
    from tutti.cli.dtypes import short_name

    dtype = short_name(dtype)
    if device is Device.cuda and (threads or seed is not None):
        raise typer.BadParameter("on GPUs ranks are threads, in no order: leave out --threads and --seed")
    if threads and seed is not None:
        raise typer.BadParameter("a random order is for one thread: leave out --threads or --seed")
    with no_plan(file):
        text = read_plan(file)
        info = _core.plan_info(text)
        made_for = len(info["ranks"])
        if ranks not in (0, made_for):
            raise ValueError(f"it is for {made_for} ranks, not {ranks}")
        sizes = [parse_bytes(part) for part in size.split(",")]
        seeds = [None] if seed is None else _seeds(seed)
        for block in sizes:
            if (note := size_note(info["min_message_bytes"], info["max_message_bytes"], block)) is not None:
                typer.echo(note)
            for one in seeds:
                milliseconds = round(timeout * 1000)
                report = _core.run_plan(text, block, dtype, op, threads, repeat, one, milliseconds, device.value)
                order = "" if one is None else f", order {one}"
                how = "on GPUs" if device is Device.cuda else "a thread each" if threads else "one thread"
                what = f"{made_for} ranks, {how}{order}"
                _print_run(file, report, what, block, dtype)


def _seeds(text: str) -> list[int]:
    seeds = [int(part) if part.strip().isdecimal() else -1 for part in text.split(",")]
    if min(seeds) < 0 or max(seeds) >= 2**64:
        raise ValueError(f'"{text}" is no seed; write it like 7, several like 1,2,3')
    return seeds


def _print_run(file: Path, report: dict[str, Any], what: str, block: int, dtype: str) -> None:
    from tutti._units import format_bytes, format_us

    size = f"{format_bytes(block)} of {dtype} a rank"
    if report["fault"] is not None:
        typer.echo(f"{file}: wrong: {report['fault']}")
        typer.echo(f"that was with {what}, {size}")
        raise typer.Exit(REJECTED)
    times = sorted(time / 1000 for time in report["nanoseconds"])
    result = "right" if report["checked"] else "it ended; its result has no definition to check against"
    typer.echo(f"{file}: {result}; {what}, {size}")
    typer.echo(f"a call: {format_us(times[0])} at least, {format_us(times[len(times) // 2])} in the median")


@app.command()
def export(
    file: PlanFile,
    mscclpp: Annotated[bool, typer.Option("--mscclpp", help="For MSCCL++'s executor.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here instead of printing.")] = None,
) -> None:
    """Writes a plan in another system's format, with that system's limits checked."""
    from tutti import _core

    if not mscclpp:
        raise typer.BadParameter("say for whom: --mscclpp")
    with no_plan(file):
        text = _core.export_mscclpp(read_plan(file))
    write_text(text, output)
