"""Draws what torchcomms_bench.py has measured: a table, and figures of latency and bandwidth.

    python bench/torchcomms/report.py out.json --out report

writes report/report.md and, for each collective, report/<collective>.png: the median time a call and the bus bandwidth
over the size, one line for each implementation. Stretches of sizes for which Tutti takes one algorithm are shaded and
named.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

Record = dict[str, Any]


def size_text(size: int) -> str:
    """1048576 is "1M"."""
    for unit, bits in (("M", 20), ("K", 10)):
        if size >= 1 << bits and size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return str(size)


def regions(records: list[Record]) -> list[tuple[str, int, int]]:
    """Algorithm, first and last size of each stretch for which Tutti takes the same one."""
    taken = sorted({(r["bytes"], r["algorithm"]) for r in records if r["algorithm"]})
    stretches = []
    for name, group in itertools.groupby(taken, key=lambda pair: pair[1]):
        sizes = [size for size, _ in group]
        stretches.append((name, sizes[0], sizes[-1]))
    return stretches


def draw(collective: str, records: list[Record], file: pathlib.Path) -> None:
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 9), sharex=True)
    for name in dict.fromkeys(r["implementation"] for r in records):
        line = sorted((r["bytes"], r["p50_us"], r["bus_gb_s"]) for r in records if r["implementation"] == name)
        sizes, times, rates = zip(*line, strict=True)
        above.plot(sizes, times, marker="o", label=name)
        below.plot(sizes, rates, marker="o", label=name)
    for axes in (above, below):
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        for place, (_, first, last) in enumerate(regions(records)):
            axes.axvspan(first / 1.4, last * 1.4, color=f"C{place + 5}", alpha=0.1)
    for name, first, last in regions(records):
        above.text((first * last) ** 0.5, 1.01, name, transform=above.get_xaxis_transform(), ha="center", fontsize=8)
    above.set_yscale("log")
    above.set_ylabel("median time a call, us")
    below.set_ylabel("bus bandwidth, GB/s")
    below.set_xlabel("bytes that a rank puts in")
    above.set_title(collective, pad=20)
    above.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def table(collective: str, records: list[Record]) -> list[str]:
    names = list(dict.fromkeys(r["implementation"] for r in records))
    lines = [f"## {collective}", "", f"![{collective}]({collective}.png)", ""]
    lines += ["| bytes | algorithm of Tutti | " + " | ".join(names) + " |", "| --- " * (len(names) + 2) + "|"]
    for size in sorted({r["bytes"] for r in records}):
        here = {r["implementation"]: r for r in records if r["bytes"] == size}
        algorithm = next((r["algorithm"] for r in here.values() if r["algorithm"]), "")
        times = [f"{here[name]['p50_us']:.1f} ({here[name]['min_us']:.1f})" if name in here else "" for name in names]
        lines.append(f"| {size_text(size)} | {algorithm} | " + " | ".join(times) + " |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json")
    parser.add_argument("--out", default="report")
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    measured = json.loads(pathlib.Path(args.json).read_text(encoding="utf-8"))
    lines = ["# Collectives through TorchComms", "", "Median and (minimum) of the rounds, microseconds a call.", ""]
    lines += [", ".join(f"{key}: {value}" for key, value in measured["about"].items()), ""]
    for collective in dict.fromkeys(r["collective"] for r in measured["records"]):
        records = [r for r in measured["records"] if r["collective"] == collective]
        draw(collective, records, out / f"{collective}.png")
        lines += table(collective, records)
    (out / "report.md").write_text("\n".join(lines), encoding="utf-8")
    print(out / "report.md")


if __name__ == "__main__":
    main()
