"""``tutti tune``: measures this machine and writes the table by which groups choose their algorithms."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from tutti import _core
from tutti._units import format_bytes, format_us, parse_bytes, parse_count, parse_words
from tutti.cli.dtypes import short_name
from tutti.cli.exit_status import CANNOT
from tutti.cli.local_ranks import LocalRanks, local_ranks
from tutti.cli.tune_plans import KINDS, TunedPlan, built_in_plans, files_in, given_plans
from tutti.cli.tune_rank import Candidate, Cell, Task, main
from tutti.cli.tune_table import (
    NoTable,
    Progress,
    cell_entry,
    check_places,
    make_table,
    plan_files,
    read_table,
    write_whole,
)

SILENCE_S = 180  # without a result for this long, the run is given up
MOST_BYTES = 64 << 20  # of the larger of a rank's two buffers
SHARE = 0.7  # of the time for timed calls; the rest is for making groups and checking results
LEAST_S = 0.01  # for a cell
KEPT = "What has been measured is kept: the same command goes on from there, without --no-resume."
UNIT = 8  # bytes: what is measured is whole elements of any type
DTYPES = ("f32", "bf16", "f16", "f64", "i32", "i64")


@dataclass(frozen=True)
class Settings:
    """What is to be measured, and where the table goes."""

    ranks: tuple[int, ...]
    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    tensors: tuple[str, ...]
    minutes: float
    output: Path
    resume: bool
    plans: tuple[Path, ...]
    built_in: bool
    device: str = "cpu"


def default_ranks(device: str = "cpu") -> tuple[int, ...]:
    """Powers of two up to the cores or GPUs, and their number itself; two at least."""
    most = len(_core.cuda_report()["devices"]) if device == "cuda" else _core.usable_cores()
    most = max(2, most)
    return tuple(sorted({1 << k for k in range(1, most.bit_length()) if 1 << k <= most} | {most}))


def make_settings(
    ranks: str,
    collectives: str,
    sizes: str,
    dtypes: str,
    tensors: str,
    minutes: float,
    output: Path | None,
    resume: bool,
    plans: list[Path],
    built_in: bool,
    device: str = "cpu",
) -> Settings:
    """The settings that the options describe. ValueError says which is wrong and what it may be."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda, not {device}")
    known = tuple(name for name in _core.collectives() if _core.library_algorithm_names(name, device))
    tensors = tensors or ("private" if device == "cuda" else "private,mapped")
    if device == "cuda" and parse_words(tensors) != ("private",):
        raise ValueError("a table chooses for private tensors on GPUs only: registered memory has calls of its own")
    chosen = known if collectives == "all" else parse_words(collectives)
    types = tuple(short_name(word) for word in parse_words(dtypes))
    for name, allowed in ((chosen, known), (types, DTYPES), (parse_words(tensors), ("private", "mapped"))):
        for word in name:
            if word not in allowed:
                raise ValueError(f'there is no "{word}"; there are {", ".join(allowed)}')
    if output is None:
        if not (default := _core.default_tuning_file()):
            raise ValueError("there is no folder for settings (HOME is not set): name a file by --output")
        output = Path(default)
    counts = tuple(parse_count(word) for word in parse_words(ranks)) if ranks else default_ranks(device)
    if not counts or min(counts) < 2 or max(counts) > 64:
        raise ValueError("the numbers of ranks lie between 2 and 64")
    settings = Settings(
        counts,
        chosen,
        tuple(sorted({max(UNIT, parse_bytes(word) // UNIT * UNIT) for word in parse_words(sizes)})),
        types,
        parse_words(tensors),
        minutes,
        output.absolute(),
        resume,
        tuple(plans) or tuple(Path(path) for path in [os.environ.get("TUTTI_PLAN_PATH", "")] if path),
        built_in,
        device,
    )
    if not (settings.collectives and settings.sizes and settings.dtypes and settings.tensors):
        raise ValueError("name at least one collective, size, element type and sort of tensors")
    return settings


def cells_of(settings: Settings, ranks: int) -> Iterator[Cell]:
    """All that is to be measured among so many ranks."""
    for collective in settings.collectives:
        if collective == "barrier":
            yield Cell(ranks, collective, settings.dtypes[0], False, 0, settings.device)
            continue
        traits = _core.collective_traits(collective)
        blocks = ranks if traits["input_blocks"] or traits["output_blocks"] else 1
        for dtype in settings.dtypes if traits["reduces"] else settings.dtypes[:1]:
            for tensors in settings.tensors:
                for size in settings.sizes:
                    if size * blocks <= MOST_BYTES:
                        yield Cell(ranks, collective, dtype, tensors == "mapped", size, settings.device)


def _plans_for(settings: Settings, collective: str, ranks: int, folder: Path) -> list[TunedPlan]:
    plans = given_plans(list(settings.plans), ranks, collective, folder) if collective in KINDS else []
    if settings.built_in:
        plans += built_in_plans(collective, ranks, folder)
    by_name: dict[str, TunedPlan] = {}
    for plan in plans:
        if by_name.setdefault(plan.algorithm, plan).sha256 != plan.sha256:
            name = plan.algorithm.removeprefix("plan:")
            raise ValueError(f'two plans for {collective} among {ranks} ranks are called "{name}": rename one')
    return list(by_name.values())


def make_tasks(settings: Settings, folder: Path) -> tuple[list[Task], list[TunedPlan]]:
    """Every cell with its candidates; plans are written into ``folder``."""
    tasks, plans = [], []
    for ranks in settings.ranks:
        candidates: dict[str, tuple[Candidate, ...]] = {}
        for collective in settings.collectives:
            own = _plans_for(settings, collective, ranks, folder)
            plans += own
            built_in = [Candidate(name) for name in _core.library_algorithm_names(collective, settings.device)]
            candidates[collective] = (*built_in, *(Candidate(plan.algorithm, str(plan.file)) for plan in own))
        tasks += [Task(cell, candidates[cell.collective]) for cell in cells_of(settings, ranks)]
    return tasks, plans


def _start(size: int, tasks: tuple[Task, ...], seconds: float) -> AbstractContextManager[LocalRanks]:
    return local_ranks(
        multiprocessing.get_context("spawn"),
        size,
        main,
        lambda rank, folder, reports: (rank, size, folder, tasks, seconds, reports),
    )


def _name(cell: Cell) -> str:
    if cell.collective == "barrier":
        return f"{cell.ranks} ranks, barrier"
    where = ", on GPUs" if cell.device == "cuda" else ", mapped" if cell.mapped else ""
    return f"{cell.ranks} ranks, {cell.collective} {format_bytes(cell.bytes)}{where}"


def measure(tasks: list[Task], state: Progress, seconds: float, console: Console) -> None:
    """Measures what ``state`` does not have yet, and keeps each result there at once."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        missing = [task for task in tasks if state.find(task) is None]
        line = bar.add_task("starting", total=len(tasks), completed=len(tasks) - len(missing))
        for ranks in dict.fromkeys(task.cell.ranks for task in missing):
            own = {task.cell: task for task in missing if task.cell.ranks == ranks}
            with _start(ranks, tuple(own.values()), seconds) as processes:
                for cell, result in processes.results(SILENCE_S):
                    state.add(own[cell], result)
                    bar.update(line, advance=1, description=_name(cell))


def _report(cells: Iterable[tuple[Cell, dict[str, Any]]]) -> Table:
    table = Table(title="where another algorithm than the untuned one is chosen", title_justify="left")
    for column, justify in (("call", "left"), ("chosen", "left"), ("time", "right"), ("instead of", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    table.add_column("time", justify="right")
    for cell, result in cells:
        times, default, choice = result["ns"], result["default"], result["choice"]
        if choice != default:
            untuned = format_us(times[default] / 1e3) if default in times else "wrong"
            table.add_row(_name(cell), choice, format_us(times[choice] / 1e3), default, untuned)
    return table


def _remove_unused(folder: Path, written: set[Path], used: set[Path], own: set[Path]) -> None:
    """Removes of the files that runs have ``written`` into ``folder`` what nothing uses; all else is the user's."""
    own = {file.resolve() for file in own}
    for file in {file.resolve() for file in written} - {file.resolve() for file in used} - own:
        if file.parent == folder.resolve() and os.path.isfile(file):
            file.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def run(settings: Settings, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> int:
    """Measures, writes the table, says what it changes; 1 if a rank failed or a result was wrong, 2 if there is
    something else in the table's place. OSError if that cannot be written.
    """
    try:
        read_table(settings.output)
        check_places(settings.output)
        return _run(settings, console or Console(), now)
    except NoTable as error:
        typer.echo(f"tutti tune: {error}", err=True)
        return CANNOT


def _run(settings: Settings, console: Console, now: Callable[[], float]) -> int:
    folder = settings.output.with_suffix(".plans")
    start = now()
    try:
        tasks, plans = make_tasks(settings, folder)
        state = Progress(settings.output, settings.resume)
        known = sum(state.find(task) is not None for task in tasks)
        if known:
            console.print(f"Going on after {known} of {len(tasks)} cells (--no-resume begins anew).", highlight=False)
        seconds = max(LEAST_S, settings.minutes * 60 * SHARE / max(1, len(tasks)))
        measure(tasks, state, seconds, console)
    except RuntimeError as error:
        console.print(f"[red]tutti tune:[/red] {escape(str(error))}", highlight=False)
        console.print(KEPT)
        return 1
    except KeyboardInterrupt:
        console.print(KEPT)
        raise
    results = [(task.cell, state.find(task) or {}) for task in tasks]
    written = {plan.file for plan in plans} | plan_files(settings.output)
    table = make_table(settings.output, [cell_entry(cell, result) for cell, result in results if result["ns"]], plans)
    write_whole(settings.output, table)
    state.remove()
    _remove_unused(folder, written, plan_files(settings.output), set(files_in(settings.plans)))
    console.print(_report(results))
    wrong = [(cell, name) for cell, result in results for name, why in result["refused"].items() if "WRONG" in why]
    for cell, name in wrong:
        console.print(f"[red]WRONG[/red] {_name(cell)}: {escape(name)}; it is not in the table", highlight=False)
    console.print(f"{len(results)} calls measured in {now() - start:.0f} s, results checked, wrong: {len(wrong)}.")
    console.print(f"Table: {settings.output}", soft_wrap=True, highlight=False)
    return 1 if wrong else 0
