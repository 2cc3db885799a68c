"""``tutti plan compile``: a plan as CUDA source, and what the compiler makes of it. Needs no GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tutti._units import MOST_INT
from tutti.cli.plan_file import PlanFile, no_plan, read_plan, store, write_text


def resources(log: str) -> str:
    """Registers and spills of the kernel, as ptxas has logged them; "" if it has not."""
    of_kernel = log[log.find("tutti_plan") :]
    used = re.search(r"Used (\d+) registers", of_kernel)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", of_kernel)
    if used is None or spilled is None:
        return ""
    return f"{used[1]} registers, spills {spilled[1]} bytes and loads {spilled[2]} back"


def most_cluster(architecture: str) -> int:
    """How many blocks of such a GPU may form a cluster."""
    number = re.search(r"\d+", architecture)
    return 8 if number is not None and int(number[0]) >= 90 else 1


def compile_(
    file: PlanFile,
    emit_cuda: Annotated[bool, typer.Option("--emit-cuda", help="Print the source; no compiler is needed.")] = False,
    size: Annotated[str, typer.Option("--size", "-s", help="Of one rank's block, like 64KB.")] = "64KB",
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, max=MOST_INT, help="Each has a kernel of its own.")] = 0,
    dtype: Annotated[str, typer.Option("--dtype", "-d", help="f32 or float32, bf16, i32, ...")] = "f32",
    op: Annotated[str, typer.Option("--op", help="sum, avg, product, min, max, ...")] = "sum",
    in_place: Annotated[bool, typer.Option("--in-place", help="Input and output share memory.")] = False,
    architecture: Annotated[str, typer.Option("--architecture", "-a", help="Of the GPU.")] = "sm_90",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="For the source, or the cubin.")] = None,
) -> None:
    """Compiles a rank's part of a plan for a GPU, and says what registers it takes; no GPU is needed.

    The plan is proven first. NVRTC compiles it: PyPI's nvidia-cuda-nvrtc, or the library that TUTTI_NVRTC names.

    Leaves 0 if it could be, 1 if not, 2 if the file is no plan.
    """
    from tutti import _core, _nvrtc
    from tutti._dtypes import short_name
    from tutti._units import parse_bytes

    dtype = short_name(dtype)
    with no_plan(file):
        try:
            clusters = most_cluster(architecture)
            made = _core.emit_plan(read_plan(file), rank, parse_bytes(size), dtype, op, in_place, clusters)
        except NotImplementedError as error:
            typer.echo(f"{file}: {error}", err=True)
            raise typer.Exit(1) from error
    if emit_cuda:
        write_text(made["source"].rstrip("\n"), output)
        return
    try:
        compiled = _core.compile_cuda(made["source"], architecture, _nvrtc.find())
    except NotImplementedError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    if output is not None:
        store(compiled["cubin"], output)
        typer.echo(f"wrote {output}")
    what = f"rank {rank}, {size} of {dtype}: {len(compiled['cubin'])} bytes for {architecture}"
    threads = f"{made['threads']} threads a block and 32 for control"
    if made["cluster"] > 1:
        threads += f", clusters of {made['cluster']}"
    parts = (what, threads, resources(compiled["log"]), f"NVRTC {compiled['compiler']}")
    typer.echo("; ".join(part for part in parts if part))
