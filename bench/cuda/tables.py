"""Tables and a plot of what cuda_bench has measured.

    python bench/cuda/tables.py out/chosen.csv [--peer "MSCCL++=other.csv"] [--png gpus.png]

Prints a Markdown table for each collective: microseconds a call by size, of calls in CUDA graphs. "without copies" is
the least of what was forced to run on memory that all ranks map, from 1 MB on, with a * where copy engines took it. A
peer's file has the columns collective, bytes and median_us; use it for what cannot run in the same program. The plot
shows every time as a part of NCCL's.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
from collections import defaultdict

MAPPED = ("direct", "copy_engine")
LEAST_MAPPED = 1 << 20

Times = dict[str, float]  # by column
Tables = dict[str, dict[int, Times]]  # by collective and size


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    """A CSV file with comments."""
    with path.open() as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def read(paths: list[pathlib.Path], peers: dict[str, pathlib.Path]) -> tuple[Tables, set[tuple[str, int]]]:
    """All times, and where those without copies are of copy engines."""
    tables: Tables = defaultdict(lambda: defaultdict(dict))
    engines: set[tuple[str, int]] = set()
    for row in (row for path in paths for row in rows_of(path) if row["mode"] == "graph"):
        place, size, time = row["collective"], int(row["bytes"]), float(row["median_us"])
        times, algorithm = tables[place][size], row["algorithm"].split("@")[0]
        if row["implementation"] == "nccl":
            times["NCCL" if algorithm == "default" else f"NCCL, {algorithm}"] = time
        elif algorithm in MAPPED:
            if size >= LEAST_MAPPED and time < times.get("without copies", float("inf")):
                times["without copies"] = time
                (engines.add if algorithm == "copy_engine" else engines.discard)((place, size))
        else:
            times["Tutti"] = min(time, times.get("Tutti", float("inf")))
    for name, path in peers.items():
        for row in rows_of(path):
            # A peer may say that it lacks a collective; sizes that were not measured here have no row.
            if row["median_us"][0].isdigit() and int(row["bytes"]) in tables[row["collective"]]:
                tables[row["collective"]][int(row["bytes"])][name] = float(row["median_us"])
    return tables, engines


def size_text(size: int) -> str:
    """1048576: "1 MB"."""
    for unit, name in ((30, "GB"), (20, "MB"), (10, "KB")):
        if size >= 1 << unit:
            return f"{size >> unit} {name}"
    return str(size)


def time_text(time: float | None) -> str:
    """Three digits."""
    return "" if time is None else f"{time:.0f}" if time >= 100 else f"{time:.1f}"


def columns_of(table: dict[int, Times]) -> list[str]:
    """Those that have a time, Tutti's first."""
    known = ["Tutti", "without copies", "NCCL", "NCCL, windows"]
    found = {column for times in table.values() for column in times}
    return [column for column in known if column in found] + sorted(found - set(known))


def markdown(tables: Tables, engines: set[tuple[str, int]]) -> str:
    """A table a collective."""
    lines: list[str] = []
    for place, table in tables.items():
        columns = columns_of(table)
        lines += ["", f"| {place} | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
        for size, times in sorted(table.items()):
            cells = [time_text(times.get(column)) for column in columns]
            if (place, size) in engines:
                cells[columns.index("without copies")] += "*"
            lines.append(f"| {size_text(size)} | " + " | ".join(cells) + " |")
    return "\n".join(lines[1:]) + "\n"


def plot(tables: Tables, path: pathlib.Path) -> None:
    """Times as parts of NCCL's; collectives that NCCL was not measured for are left out."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {place: table for place, table in tables.items() if any("NCCL" in times for times in table.values())}
    figure, axes = plt.subplots(1, len(shown), figsize=(5 * len(shown), 4), sharey=True, squeeze=False)
    for axis, (place, table) in zip(axes[0], shown.items(), strict=True):
        for column in columns_of(table):
            points = [(s, t[column] / t["NCCL"]) for s, t in sorted(table.items()) if column in t and "NCCL" in t]
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=column)
        axis.set(title=place, xscale="log", xlabel="bytes", ylim=(0, 2))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("time / NCCL's")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def peer(text: str) -> tuple[str, pathlib.Path]:
    """ "NAME=FILE"."""
    name, _, path = text.partition("=")
    return name, pathlib.Path(path)


def main() -> None:
    """Prints the tables, and draws the plot if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=pathlib.Path, nargs="+")
    parser.add_argument("--peer", type=peer, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--png", type=pathlib.Path)
    arguments = parser.parse_args()
    tables, engines = read(arguments.csv, dict(arguments.peer))
    print(markdown(tables, engines), end="")
    if arguments.png:
        plot(tables, arguments.png)


if __name__ == "__main__":
    main()
