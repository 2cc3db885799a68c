"""``tutti plan compile``: a plan as CUDA source, and what the compiler makes of it. Needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tutti._units import MOST_INT
from tutti.cli.plan_file import PlanFile, no_plan, write_text
from tutti.plans.files import read_plan, store


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
    from tutti import _core
    from tutti._units import parse_bytes
    from tutti.cli.dtypes import short_name
    from tutti.plans import nvrtc

    dtype = short_name(dtype)
    with no_plan(file):
        try:
            clusters = nvrtc.most_cluster(architecture)
            made = _core.emit_plan(read_plan(file), rank, parse_bytes(size), dtype, op, in_place, clusters)
        except NotImplementedError as error:
            typer.echo(f"{file}: {error}", err=True)
            raise typer.Exit(1) from error
    if emit_cuda:
        write_text(made["source"].rstrip("\n"), output)
        return
    try:
        compiled = _core.compile_cuda(made["source"], architecture, nvrtc.find())
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
    parts = (what, threads, nvrtc.resources(compiled["log"]), f"NVRTC {compiled['compiler']}")
    typer.echo("; ".join(part for part in parts if part))
