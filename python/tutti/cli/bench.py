"""``tutti bench``: collectives x sizes x backends, side by side, in one launch."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tutti._units import format_bytes, format_simd, format_us, parse_bytes, parse_count, parse_words
from tutti.cli.bench_rank import Plan, main, sizes_of
from tutti.cli.dtypes import torch_name
from tutti.cli.exit_status import CANNOT
from tutti.cli.local_ranks import TooLarge, local_ranks
from tutti.plans.files import check_writable, store

SILENCE_S = 300  # without a result for this long, the run is given up


def make_plan(collectives: str, sizes: str, backends: str, ranks: int, dtype: str, seconds: float) -> Plan:
    """The plan that the options describe. ValueError says which option is wrong and what it may be."""
    import torch

    from tutti import _core
    from tutti.cli.bench_cases import CASES

    chosen = tuple(CASES) if collectives == "all" else parse_words(collectives)
    for name in chosen:
        if name not in CASES:
            raise ValueError(f"there is no collective {name}; there are {', '.join(CASES)}")
    dtype = torch_name(dtype)
    # Torch has others, quantised ones for example, which nothing can be written to.
    known = {name: getattr(torch, name) for name in map(torch_name, _core.dtypes()) if hasattr(torch, name)}
    if getattr(torch, dtype, None) not in known.values():
        raise ValueError(f"there is no dtype {dtype}; there are {', '.join(known)}")
    names = parse_words(backends)
    present = _backends()
    for name in names:
        if name not in present:
            raise ValueError(f"there is no backend {name} here; there are {', '.join(present)}")
    if not chosen or not names:
        raise ValueError("name at least one collective and one backend")
    if ranks > _core.most_host_ranks:
        raise ValueError(f"--ranks {ranks}: a host has at most {_core.most_host_ranks}")
    chosen_sizes = _sizes(sizes)
    if not chosen_sizes:
        raise ValueError("name at least one size")
    return Plan(chosen, chosen_sizes, names, ranks, dtype, seconds)


def _backends() -> list[str]:
    """The names that can be measured: what this torch has for CPU tensors. MPI is not among them: mpirun starts it."""
    import torch.distributed as dist

    built_in = [name for name, there in (("gloo", dist.is_gloo_available()), ("ucc", dist.is_ucc_available())) if there]
    added = [name.lower() for name in dist.Backend._plugins]
    others = [name for name in added if name != "tutti" and "cpu" in dist.Backend.backend_capability.get(name, [])]
    return ["tutti", "tutti-mapped", *built_in, *others]


def _sizes(text: str) -> tuple[int, ...]:
    """``"8,64KB"`` as it stands; ``"8:64MB"`` in factors of 2, ``"8:64MB:8"`` in factors of 8."""
    if ":" not in text:
        return tuple(parse_bytes(word) for word in parse_words(text))
    bounds = text.split(":")
    first, last = parse_bytes(bounds[0]), parse_bytes(bounds[1])
    factor = parse_count(bounds[2]) if len(bounds) == 3 else 2
    if first < 1 or last < first or factor < 2 or len(bounds) > 3:
        raise ValueError(f'"{text}" is no range of sizes; write it like 8:64MB or 8:64MB:4')
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def _launch(plan: Plan, console: Console) -> list[dict[str, Any]]:
    """Starts the ranks and collects their results. RuntimeError with the rank's traceback if one fails."""
    import torch.multiprocessing as mp

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    results: list[dict[str, Any]] = []
    with (
        local_ranks(
            mp.get_context("spawn"),
            plan.ranks,
            main,
            lambda rank, folder, reports: (rank, plan, f"{folder}/store", reports),
        ) as ranks,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        total = sum(len(sizes_of(collective, plan)) for collective in plan.collectives)
        task = progress.add_task(f"starting {plan.ranks} ranks", total=total)
        for result in ranks.results(SILENCE_S):
            results.append(result)
            progress.update(task, advance=1, description=f"{result['collective']} {format_bytes(result['bytes'])}")
    return results


def _complete(plan: Plan, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Adds bandwidths and ratios, and says where and with what all was measured."""
    import torch

    from tutti import __version__, _core
    from tutti.cli.bench_cases import bus_factor

    reference = plan.backends[-1]
    for result in results:
        backends = result["backends"]
        base = backends[reference].get("p50_us")
        for numbers in backends.values():
            if "p50_us" not in numbers:
                continue
            numbers["algorithm_gbps"] = result["bytes"] / numbers["p50_us"] / 1e3
            numbers["bus_gbps"] = numbers["algorithm_gbps"] * bus_factor(result["collective"], plan.ranks)
            if base:
                numbers["ratio"] = numbers["p50_us"] / base
    return {
        "conditions": {
            "machine": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "cores": _core.usable_cores(),
            "simd": format_simd(_core.simd_target()),
            "tutti": f"{__version__} {_core.build_type} {_core.compiler}",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
        "ranks": plan.ranks,
        "dtype": plan.dtype,
        "reference": reference,
        "backends": list(plan.backends),
        "times": "microseconds of one call, of the slowest rank",
        "results": results,
    }


def _table(report: dict[str, Any]) -> Table:
    reference = report["reference"]
    others = [name for name in report["backends"] if name != reference]
    ranks = "1 rank" if report["ranks"] == 1 else f"{report['ranks']} ranks"
    title = f"{ranks}, {report['dtype']}: median time of a call"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("collective", style="bold", no_wrap=True)
    # Heads of several lines: all columns of the default backends fit into 80.
    heads = ["size", *(_narrow(name) for name in report["backends"])]
    heads += [*(f"{_narrow(name)}\n/ {reference}" for name in others), "bus\nGB/s"]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    before = None
    for result in report["results"]:
        if before not in (None, result["collective"]):
            table.add_section()
        first = result["collective"] != before
        before = result["collective"]
        backends = result["backends"]
        row = [before if first else "", format_bytes(result["bytes"])]
        row += [_cell(backends[name]) for name in report["backends"]]
        row += [f"{backends[name]['ratio']:.3g}" if "ratio" in backends[name] else "-" for name in others]
        best = backends[report["backends"][0]].get("bus_gbps")
        table.add_row(*row, f"{best:.2f}" if best else "-")
    table.caption = f"bus GB/s: of {report['backends'][0]}; ratios: of the times, below 1 is faster than {reference}"
    return table


def _narrow(name: str) -> str:
    return name.replace("-", "-\n")


def _cell(numbers: dict[str, Any]) -> str:
    if "refused" in numbers:
        return "refused"
    time_text = format_us(numbers["p50_us"])
    return time_text if numbers["right"] else f"[red]WRONG[/red] {time_text}"


def run(plan: Plan, json_file: Path | None, png_file: Path | None) -> int:
    """Measures and reports; 1 if a result was wrong or a rank failed, 2 if there is no room for the tensors. OSError if
    ``json_file`` cannot be written.
    """
    if json_file is not None:
        check_writable(json_file)
    console = Console()
    try:
        report = _complete(plan, _launch(plan, console))
    except TooLarge as error:
        typer.echo(f"tutti bench: {error}", err=True)
        return CANNOT
    except RuntimeError as error:
        console.print(f"[red]tutti bench:[/red] {escape(str(error))}", highlight=False)
        return 1
    console.print(_table(report))
    if json_file is not None:
        store(json.dumps(report, indent=1) + "\n", json_file)
        console.print(f"Results: {json_file}")
    if png_file is not None:
        from tutti.cli.bench_plot import plot

        plot(report, png_file)
        console.print(f"Plot: {png_file}")
    outcomes = [(result, name, numbers) for result in report["results"] for name, numbers in result["backends"].items()]
    for result, name, numbers in outcomes:
        if "refused" in numbers:
            console.print(f"{name} refused {result['collective']}: {escape(numbers['refused'])}", highlight=False)
    checked = [numbers["right"] for _, _, numbers in outcomes if "right" in numbers]
    wrong = checked.count(False)
    console.print(f"Results checked: {len(checked)}, wrong: {wrong}.")
    return 1 if wrong else 0
