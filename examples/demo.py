"""The demonstration behind ``make demo``: the same training over Tutti, over gloo and in one process, compared.

Every run is what a user would start: torchrun with two ranks of examples/ddp_train.py. Statistics and a plot go to
demo-out/. The exit code says whether the two backends computed the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmark_throughput import bar_plot
from tutti import _core
from tutti._units import format_us

HERE = Path(__file__).resolve().parent
RANKS = 2


@dataclass(frozen=True)
class Run:
    """One training run of the demo."""

    key: str
    title: str
    arguments: tuple[str, ...]
    distributed: bool = True


def runs(options: argparse.Namespace) -> list[Run]:
    """What is run, in order."""
    plan = [
        Run("tutti", "tutti", ("--backend", "tutti")),
        Run("gloo", "gloo", ("--backend", "gloo")),
        Run("baseline", "one process", ("--baseline", "--ranks", str(RANKS)), distributed=False),
        Run("tutti_shared", "tutti, mapped", ("--backend", "tutti", "--shared-allocator")),
    ]
    if options.only:
        plan = [run for run in plan if run.key in options.only.split(",")]
    return plan


def train(run: Run, options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Starts the run, shows its lines, returns its statistics."""
    stats = out / f"{run.key}_stats.json"
    stats.unlink(missing_ok=True)
    command = [sys.executable]
    if run.distributed:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += [str(HERE / "ddp_train.py"), *run.arguments, "--save-stats", str(stats)]
    command += ["--params", str(options.params), "--epochs", str(options.epochs)]
    command += ["--batch-size", str(options.batch_size)]
    environment = dict(os.environ, OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
    # gloo's process aborts at its end once in many runs ("terminate called without an active exception").
    for _ in range(2 if run.key == "gloo" else 1):
        finished = subprocess.run(command, env=environment, check=False)
        if finished.returncode == 0 and stats.exists():
            break
    else:
        raise SystemExit(f"the run on {run.title} failed: {' '.join(command)}")
    result: dict[str, Any] = json.loads(stats.read_text())
    return result


def summary_table(results: dict[str, dict[str, Any]], titles: dict[str, str]) -> Table:
    """Samples/s, scaling, and what communication took, a line a run."""
    table = Table(
        title="DistributedDataParallel on handwritten digits", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    heads = ("run", "ranks", "samples/s", "scaling", "reducing", "p50", "accuracy")
    for name in heads:
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True)
    single = results.get("baseline", {}).get("samples_per_s")
    for key, stats in results.items():
        communication = stats.get("communication")
        table.add_row(
            titles[key],
            str(stats["ranks"]),
            f"{stats['samples_per_s']:.0f}",
            f"{stats['samples_per_s'] / single:.2f}x" if single else "-",
            f"{communication['share_of_time']:.1%}" if communication else "-",
            format_us(communication["all_reduce_p50_us"]) if communication else "-",
            f"{stats['epochs'][-1]['accuracy']:.2%}",
        )
    table.caption = (
        "samples/s: median of the epochs after the first; reducing: share of time with an all-reduce under way; "
        "p50: of an all-reduce; mapped: tutti.use_shared_allocator(), so that buckets are reduced in place"
    )
    table.caption_justify = "left"
    return table


def bounds_of_scaling(baseline: dict[str, Any], load: float) -> str:
    """What the scaling of this model can be on this machine, and what keeps it below the number of ranks."""
    alone = baseline["optimizer_share"]
    most = RANKS / (1 + (RANKS - 1) * alone)
    said = (
        f"Each rank updates the whole model: {alone:.0%} of one process's time, which no rank takes from another. "
        f"Without any communication {RANKS} ranks would reach {most:.2f}x."
    )
    cores = _core.usable_cores()
    if cores < RANKS:
        return f"{said} This machine has {cores} core: the ranks take turns on it, and nothing is gained."
    if load > cores - RANKS + 0.5:
        return f"{said} The load average was {load:.1f} at the start: other programs take part of the {cores} cores."
    return said


def largest_difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Of the two runs' losses, relative."""
    pairs = [(a["loss"], b["loss"]) for a, b in zip(first["epochs"], second["epochs"], strict=True)]
    return max(abs(float(a) - float(b)) / abs(float(b)) for a, b in pairs)


def compare_losses(results: dict[str, dict[str, Any]], console: Console) -> bool:
    """Whether all runs learnt the same, to the rounding of fp32; says how far they are apart."""
    # Between backends the sums of two numbers are the same to the bit; one process adds in another order, and
    # training lets that grow from step to step.
    bounds = {"gloo": 1e-6, "tutti_shared": 1e-6, "baseline": 1e-3}
    agree = True
    for key, bound in bounds.items():
        if key not in results or "tutti" not in results:
            continue
        difference = largest_difference(results["tutti"], results[key])
        verdict = "agree" if difference <= bound else "[red]DIFFER[/red]"
        console.print(f"Losses of tutti and {key}: {verdict}, largest relative difference {difference:.1e}")
        agree = agree and difference <= bound
    return agree


def main() -> int:
    """Runs everything; 1 if the backends disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--params", type=float, default=2.0, help="model size in millions (default: 2)")
    parser.add_argument("--epochs", type=int, default=12)
    # Enough to compute for each all-reduce and each update that two ranks are worth it.
    parser.add_argument("--batch-size", type=int, default=128, help="samples a rank and step (default: 128)")
    parser.add_argument("--out", type=Path, default=HERE.parent / "demo-out")
    parser.add_argument("--only", default="", help="comma-separated runs: tutti,gloo,baseline,tutti_shared")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    started, load = time.monotonic(), os.getloadavg()[0]
    results: dict[str, dict[str, Any]] = {}
    titles: dict[str, str] = {}
    for run in runs(options):
        console.rule(f"[bold]{run.title}[/bold]", align="left")
        results[run.key] = train(run, options, options.out)
        titles[run.key] = run.title
    console.rule()
    console.print(summary_table(results, titles))
    if "baseline" in results:
        console.print(bounds_of_scaling(results["baseline"], load))
    agree = compare_losses(results, console)
    plot = options.out / "throughput.png"
    bar_plot({titles[key]: stats for key, stats in results.items()}, plot)
    console.print("Data: UCI Optical Recognition of Handwritten Digits, as scikit-learn carries it (CC BY 4.0).")
    console.print(f"Statistics and plot: {options.out}  ({time.monotonic() - started:.0f} s)")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
