"""Times Tutti's communicator beside OpenMPI and oneCCL on this machine, interleaved, with checked results.

    python bench/collectives/compare.py --build build/release --ranks 2 --json out.json

Each peer is skipped, and said to be, when it is not installed: OpenMPI needs `mpicxx` and `mpirun` of Open MPI, oneCCL
the packages `oneccl` and `oneccl-devel` in the virtual environment of ONECCL_ROOT and MPICH's header mpi.h in
MPICH_INCLUDE. Programs run in turns, `--rounds` times each; a figure is the median over the rounds of the median time a
call. Ratios compare Tutti with the faster peer of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

Medians = dict[tuple[str, int], dict[str, float]]  # (collective, bytes) -> implementation -> us a call


def build_mpi(out: pathlib.Path) -> list[str] | None:
    if not shutil.which("mpicxx") or not shutil.which("mpirun"):
        return None
    program = out / "mpi_bench"
    subprocess.run(["mpicxx", "-std=c++20", "-O2", str(HERE / "mpi_bench.cc"), "-o", str(program)], check=True)
    return [str(program)]


def build_oneccl(out: pathlib.Path) -> list[str] | None:
    root, mpich = os.environ.get("ONECCL_ROOT"), os.environ.get("MPICH_INCLUDE")
    if not root or not mpich:
        return None
    program = out / "oneccl_bench"
    subprocess.run(
        [
            "g++",
            "-std=c++20",
            "-O2",
            f"-I{root}/include",
            f"-I{mpich}",
            str(HERE / "oneccl_bench.cc"),
            "-o",
            str(program),
            f"-L{root}/lib",
            "-lccl",
            "-l:libmpi.so.12",
            f"-Wl,-rpath,{root}/lib",
        ],
        check=True,
    )
    return [str(program)]


def run(command: list[str], env: dict[str, str]) -> list[dict[str, object]]:
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="CMake build folder with tutti_bench")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--collectives", default="")
    parser.add_argument("--min", default="8")
    parser.add_argument("--max", default=str(64 << 20))
    parser.add_argument("--seconds", default="0.2")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--png", type=pathlib.Path, help="a plot of all collectives (needs matplotlib)")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    args = parser.parse_args()

    out = pathlib.Path(tempfile.mkdtemp(prefix="tutti-bench."))
    common = ["--min", args.min, "--max", args.max, "--seconds", args.seconds]
    if args.collectives:
        common += ["--collectives", args.collectives]
    tutti = str(pathlib.Path(args.build) / "bench" / "tutti_bench")
    n = str(args.ranks)
    programs: dict[str, tuple[list[str], dict[str, str]]] = {
        "tutti": ([tutti, "--ranks", n], {}),
        "tutti-mapped": ([tutti, "--ranks", n, "--mapped", "1"], {}),
    }
    if mpi := build_mpi(out):
        flags = ["--allow-run-as-root", "--oversubscribe", "-np", n]
        programs["openmpi"] = (
            ["mpirun", *flags, *mpi],
            {"OMPI_MCA_mpi_yield_when_idle": "1" if args.ranks > (os.cpu_count() or 1) else "0"},
        )
    else:
        print("openmpi: not installed, skipped")
    if ccl := build_oneccl(out):
        root = os.environ["ONECCL_ROOT"]
        env = {
            "LD_LIBRARY_PATH": f"{root}/lib",
            "I_MPI_ROOT": root,
            "FI_PROVIDER_PATH": f"{root}/lib/libfabric/prov",
            "I_MPI_FABRICS": "shm",
        }
        programs["oneccl"] = ([f"{root}/bin/mpiexec", "-n", n, *ccl], env)
    else:
        print("oneccl: ONECCL_ROOT and MPICH_INCLUDE are not set, skipped")

    rows: dict[tuple[str, int], dict[str, list[float]]] = {}
    for _ in range(args.rounds):
        for name, (command, env) in programs.items():
            for row in run([*command, *common], env):
                key = (str(row["collective"]), int(str(row["bytes"])))
                rows.setdefault(key, {}).setdefault(name, []).append(float(str(row["p50_us"])))
    medians = {key: {name: statistics.median(times) for name, times in value.items()} for key, value in rows.items()}
    print_table(medians, list(programs), args.markdown)
    if args.json:
        record = {
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "ranks": args.ranks,
            "rounds": args.rounds,
            "load_average": os.getloadavg()[0],
            "unit": "us a call, median of medians",
            "rows": [{"collective": c, "bytes": b, **t} for (c, b), t in medians.items()],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    if args.png:
        plot(medians, list(programs), args.ranks, args.png)
    shutil.rmtree(out, ignore_errors=True)


def ratio(times: dict[str, float]) -> str:
    peers = [times[p] for p in ("openmpi", "oneccl") if p in times]
    return f"{times['tutti'] / min(peers):.2f}" if peers else "-"


def print_table(medians: Medians, names: list[str], markdown: bool) -> None:
    if markdown:
        print("| collective | bytes | " + " | ".join(names) + " | tutti / best peer |")
        print("| --- " * (len(names) + 3) + "|")
    else:
        print(f"{'collective':15}{'bytes':>10}" + "".join(f"{name:>14}" for name in names) + f"{'tutti/best peer':>17}")
    for (collective, size), times in medians.items():
        cells = [f"{times[name]:.2f}" if name in times else "-" for name in names]
        if markdown:
            print("| " + " | ".join([collective, str(size), *cells, ratio(times)]) + " |")
        else:
            print(f"{collective:15}{size:10}" + "".join(f"{cell:>14}" for cell in cells) + f"{ratio(times):>17}")


def plot(medians: Medians, names: list[str], ranks: int, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    collectives = [c for c in dict.fromkeys(c for c, _ in medians) if c != "barrier"]
    columns = min(4, len(collectives))
    lines = -(-len(collectives) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4 * columns, 3.2 * lines), squeeze=False)
    for axis in axes.flat[len(collectives) :]:
        axis.set_visible(False)
    for axis, collective in zip(axes.flat, collectives, strict=False):
        for name in names:
            points = [(size, times[name]) for (c, size), times in medians.items() if c == collective and name in times]
            if points:
                axis.plot(*zip(*points, strict=True), marker=".", label=name)
        axis.set(xscale="log", yscale="log", title=collective, xlabel="bytes", ylabel="us a call")
        axis.grid(True, which="major", alpha=0.3)
    axes.flat[0].legend(fontsize="small")
    figure.suptitle(f"{ranks} ranks, median time of a call; lower is better")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
