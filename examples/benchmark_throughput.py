"""Bar plots of what ddp_train.py has measured.

    python examples/ddp_train.py --baseline --save-stats baseline_stats.json
    torchrun --nproc-per-node=2 examples/ddp_train.py --save-stats ddp_stats.json
    python examples/benchmark_throughput.py --baseline baseline_stats.json --ddp ddp_stats.json -o bench

``--ddp`` may be given several times, with a name before the file: ``--ddp gloo=gloo_stats.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def bar_plot(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Samples/s and the median all-reduce of each run, and the loss over the epochs."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (speed, latency, loss) = plt.subplots(1, 3, figsize=(13, 4.4))
    names = list(runs)
    colours = [f"C{index}" for index in range(len(names))]
    bars = speed.bar(names, [stats["samples_per_s"] for stats in runs.values()], color=colours)
    speed.bar_label(bars, fmt="%.0f")
    speed.set_ylabel("samples/s")
    speed.set_title("throughput")
    timed = {name: stats["communication"] for name, stats in runs.items() if "communication" in stats}
    if timed:
        colours_timed = [colours[names.index(name)] for name in timed]
        bars = latency.bar(list(timed), [c["all_reduce_p50_us"] for c in timed.values()], color=colours_timed)
        latency.bar_label(bars, fmt="%.0f")
    latency.set_ylabel("us")
    latency.set_title("median all-reduce")
    for index, (name, stats) in enumerate(runs.items()):
        values = [record["loss"] for record in stats["epochs"]]
        # Equal curves lie on one another: thinner lines on top keep all of them in sight.
        loss.plot(range(1, len(values) + 1), values, label=name, color=colours[index], linewidth=7 - 1.5 * index)
    loss.set_xlabel("epoch")
    loss.set_title("loss")
    loss.legend(fontsize=8)
    loss.text(0.5, 0.97, "equal losses lie on one another", transform=loss.transAxes, ha="center", va="top", fontsize=8)
    for axis in (speed, latency):
        axis.tick_params(axis="x", labelrotation=20, labelsize=8)
        axis.margins(y=0.12)  # room for the numbers above the highest bars
    sizes = {f"{stats['parameters'] / 1e6:.2g} M" for stats in runs.values()}
    figure.suptitle(f"DDP on handwritten digits, {', '.join(sorted(sizes))} parameters")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def named_file(text: str) -> tuple[str | None, Path]:
    """``"gloo=stats.json"`` or ``"stats.json"``."""
    name, equals, path = text.partition("=")
    return (name, Path(path)) if equals else (None, Path(text))


def main() -> None:
    """Reads the statistics, prints the ratios, draws the plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="statistics of one process")
    parser.add_argument("--ddp", type=named_file, action="append", default=[], metavar="[NAME=]FILE")
    parser.add_argument("-o", "--out", type=Path, default=Path("bench"), help="the plot goes to OUT_throughput.png")
    options = parser.parse_args()
    runs: dict[str, dict[str, Any]] = {}
    try:
        if options.baseline is not None:
            runs["one process"] = json.loads(options.baseline.read_text())
        for name, path in options.ddp:
            stats = json.loads(path.read_text())
            runs[name or f"{stats['backend']}, {stats['ranks']} ranks"] = stats
    except (OSError, json.JSONDecodeError) as error:
        parser.error(f"these are no statistics of ddp_train.py: {error}")
    if not runs:
        parser.error("give --baseline, --ddp or both")
    single = runs.get("one process", {}).get("samples_per_s")
    for name, stats in runs.items():
        scaling = f"  {stats['samples_per_s'] / single:.2f}x of one process" if single else ""
        print(f"{name:24s} {stats['samples_per_s']:10.1f} samples/s{scaling}")
    path = options.out.with_name(f"{options.out.name}_throughput.png")
    bar_plot(runs, path)
    print(f"plot: {path}")


if __name__ == "__main__":
    main()
