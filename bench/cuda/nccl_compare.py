"""NCCL alone and with Tutti under its name, beside each other: python bench/cuda/nccl_compare.py [--out FOLDER]

For a machine with two GPUs or more. Runs what is installed: the programs of nccl-tests (all types, all operations,
results checked, in place and not; one process, a thread a GPU), and DDP, FSDP2, tensor-parallel inference and the same
in a CUDA graph (nccl_workloads.py). Each runs twice, and the table has both: times, wrong results, which calls Tutti
ran. The exit code is 1 if a result was wrong, or a loss another than NCCL's by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = [
    f"{name}_perf"
    for name in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "alltoall",
        "alltoallv",
        "gather",
        "scatter",
        "sendrecv",
        "hypercube",
    )
]
WORKLOADS = ("ddp", "fsdp2", "tensor-parallel", "graph")
# Of one type and operation only: what is shown of each program.
SHOWN_TYPE, SHOWN_OP, SHOWN_BYTES = "float", ("sum", "none", ""), (1 << 10, 1 << 16, 1 << 20, 1 << 24)
ROUNDING = 1e-3
ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(?:([a-z]\w*)\s+)?(-?\d+)"
    r"\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s+(\S+)\s+([\d.]+|N/A)\s+(?:[\d.]+|N/A)\s+(?:[\d.]+|N/A)\s+(\S+)\s*$"
)


@dataclass
class Measured:
    """A line of nccl-tests."""

    bytes: int
    type: str
    op: str
    us: float
    wrong: int  # out of place and in place


@dataclass
class Run:
    """One program, with Tutti or without."""

    code: int
    seconds: float
    output: str
    lines: list[Measured] = field(default_factory=list)

    def calls(self) -> tuple[int, int]:
        """How many Tutti and NCCL ran, by the reports of all its processes."""
        found = re.findall(r"^  \w+: (\d+) by Tutti \(.*?\), (\d+) by NCCL", self.output, re.MULTILINE)
        return sum(int(ours) for ours, _ in found), sum(int(theirs) for _, theirs in found)


@dataclass
class Row:
    """A line of the table; times in the unit that ``what`` says."""

    what: str
    nccl: float | None
    tutti: float | None
    note: str = ""
    bad: bool = False


def parse(text: str) -> list[Measured]:
    """The lines of results in what a program of nccl-tests has printed."""
    lines = []
    for match in filter(None, map(ROW.match, text.splitlines())):
        size, _, kind, op, _, us, wrong, _, wrong_in_place = match.groups()
        bad = sum(int(float(count)) for count in (wrong, wrong_in_place) if count != "N/A")
        lines.append(Measured(int(size), kind, op or "", float(us), bad))  # hypercube names none
    return lines


def compared(name: str, nccl: Run, tutti: Run) -> list[Row]:
    """What a program of nccl-tests gave with both."""
    rows = []
    theirs = {(m.bytes, m.type, m.op): m.us for m in nccl.lines}
    for m in tutti.lines:
        if m.type == SHOWN_TYPE and m.op in SHOWN_OP and m.bytes in SHOWN_BYTES:
            rows.append(Row(f"{name} {m.bytes} B, us", theirs.get((m.bytes, m.type, m.op)), m.us))
    wrong = sum(m.wrong for m in tutti.lines)
    failed = [which for which, run in (("NCCL", nccl), ("Tutti", tutti)) if run.code != 0 or not run.lines]
    note = f"{len(tutti.lines)} lines, {wrong} wrong; {said_of(tutti)}"
    note += "".join(f"; with {which} it failed" for which in failed)
    return [*rows, Row(f"{name}, all types and operations", None, None, note, bool(wrong or failed))]


def said_of(run: Run) -> str:
    """Who ran the calls."""
    ours, theirs = run.calls()
    return f"{ours} calls by Tutti, {theirs} by NCCL"


def compared_workload(name: str, nccl: Run, tutti: Run) -> Row:
    """Losses and times with both."""
    answers = []
    for run in (nccl, tutti):
        lines = [line for line in run.output.splitlines() if line.startswith('{"values"')]
        answers.append(json.loads(lines[-1]) if run.code == 0 and lines else None)
    theirs, ours = answers
    times = [answer["ms"] if answer else None for answer in answers]
    if theirs is None or ours is None:
        failed = " and ".join(name for name, answer in zip(("NCCL", "Tutti"), answers, strict=True) if not answer)
        return Row(f"{name}, ms a step", *times, note=f"with {failed} it failed", bad=ours is None)
    most = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(ours["values"], theirs["values"], strict=True))
    note = f"values differ by {most:.1e} at most; {said_of(tutti)}"
    return Row(f"{name}, ms a step", *times, note=note, bad=most > ROUNDING)


def table(rows: Iterable[Row]) -> str:
    """Markdown."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    lines = ["| what | NCCL | with Tutti | Tutti / NCCL | |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        ratio = f"{row.tutti / row.nccl:.2f}" if row.tutti and row.nccl else ""
        mark = "WRONG: " if row.bad else ""
        lines.append(f"| {row.what} | {number(row.nccl)} | {number(row.tutti)} | {ratio} | {mark}{row.note} |")
    return "\n".join(lines)


def library() -> str:
    """The library under NCCL's name."""
    from tutti.cli import nccl

    return str(nccl.library())


class Comparison:
    """Runs programs twice, within a time for all of them."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.out = out
        self.ends = time.monotonic() + seconds
        self.rows: list[Row] = []

    def run(self, name: str, command: list[str], with_tutti: bool, limit: float) -> Run:
        """Keeps its output in a file."""
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        if with_tutti:
            environment |= {"LD_PRELOAD": library(), "TUTTI_NCCL": "1", "TUTTI_NCCL_REPORT": "1"}
        start = time.monotonic()
        limit = min(limit, self.ends - start)
        if limit <= 0:
            return Run(1, 0, "the time is up")
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
            code, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            said = [(part or b"").decode(errors="replace") for part in (error.stdout, error.stderr)]
            code, output = 124, "\n".join([*said, f"stopped after {limit:.0f} s"])
        (self.out / f"{name}.{'tutti' if with_tutti else 'nccl'}.log").write_text(output)
        return Run(code, time.monotonic() - start, output, parse(output))

    def twice(self, name: str, command: list[str], limit: float) -> tuple[Run, Run]:
        """Alone, then with Tutti."""
        alone, beside = (self.run(name, command, with_tutti, limit) for with_tutti in (False, True))
        print(f"{name}: {alone.seconds:.0f} s alone, {beside.seconds:.0f} s with Tutti", file=sys.stderr)
        return alone, beside


def program_of(name: str, folder: str | None) -> str | None:
    """Where it is: in ``folder``, or a folder ``build`` of that, or on the path."""
    for place in (Path(folder), Path(folder) / "build") if folder else ():
        if (place / name).is_file():
            return str(place / name)
    return shutil.which(name)


def gpus() -> int:
    """How many there are, without asking CUDA."""
    return len([entry for entry in Path("/dev").glob("nvidia*") if entry.name[6:].isdigit()])


def main(arguments: list[str] | None = None) -> int:
    """Everything that is installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=gpus(), help="how many to use (all)")
    parser.add_argument("--nccl-tests", default=os.environ.get("NCCL_TESTS"), help="folder of nccl-tests")
    parser.add_argument("--largest", default="64M", help="largest message of nccl-tests")
    parser.add_argument("--minutes", type=float, default=20, help="for all of it")
    parser.add_argument("--limit", type=float, default=240, help="seconds for a program")
    parser.add_argument("--only", nargs="*", default=[*PROGRAMS, *WORKLOADS], help="some of the programs and workloads")
    parser.add_argument("--out", type=Path, default=Path("nccl-compare"), help="folder for logs and the table")
    options = parser.parse_args(arguments)
    if options.gpus < 2:
        print("two GPUs are needed: NCCL takes one rank a GPU", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(options.out, options.minutes * 60)
    for name in (name for name in PROGRAMS if name in options.only):
        program = program_of(name, options.nccl_tests)
        if program is None:
            comparison.rows.append(Row(name, None, None, "not installed: --nccl-tests names its folder"))
            continue
        sizes = ["-b", "16", "-e", options.largest, "-f", "4"]
        calls = ["-n", "20", "-w", "5", "-c", "1", "-d", "all", "-o", "all"]
        command = [program, "-t", str(options.gpus), "-g", "1", *sizes, *calls]
        comparison.rows += compared(name, *comparison.twice(name, command, options.limit))
    for name in (name for name in WORKLOADS if name in options.only):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.gpus}"]
        runs = comparison.twice(name, [*launcher, str(HERE / "nccl_workloads.py"), name], options.limit)
        comparison.rows.append(compared_workload(name, *runs))
    text = table(comparison.rows)
    (options.out / "table.md").write_text(text + "\n")
    (options.out / "table.json").write_text(json.dumps([asdict(row) for row in comparison.rows], indent=1))
    print(text)
    return 1 if any(row.bad for row in comparison.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
