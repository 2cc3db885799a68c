"""The options of the `tutti` command and its subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tutti._units import MOST_INT
from tutti.cli.exit_status import CANNOT, INTERRUPTED
from tutti.cli.plan import app as plan_app


class _Commands(TyperGroup):
    """The commands; what the system refuses one (a file, memory) is a line and an exit status, too."""

    def invoke(self, ctx: Any) -> Any:
        """Runs what was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # who reads has gone: click ends quietly
        except KeyboardInterrupt:
            typer.echo("tutti: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError:
            typer.echo("tutti: that takes more memory than there is", err=True)
        except OSError as error:
            typer.echo(f"tutti: {error}", err=True)
        raise typer.Exit(CANNOT)


app = typer.Typer(
    cls=_Commands,
    name="tutti",
    help="Tutti: collective communication for PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(plan_app, name="plan")


def _show_version(wanted: bool) -> None:
    if wanted:
        from tutti import __version__

        typer.echo(f"tutti {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Tutti: collective communication for PyTorch."""


@app.command()
def info() -> None:
    """Versions, settings in force, and how this process was launched."""
    from tutti.cli import info as command

    command.run()


@app.command()
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the check that starts torch.")] = False,
) -> None:
    """Checks by real transfers what this machine can do, says what it means and how to fix it."""
    from tutti.cli import doctor as command

    raise typer.Exit(command.run(quick=quick))


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def run(
    program: Annotated[list[str], typer.Argument(help="A script, or with -m a module, and its arguments.")],
    name: Annotated[str, typer.Option("--as", help="Groups of this name are Tutti's: gloo.")],
    module: Annotated[bool, typer.Option("-m", help="The program is a module.")] = False,
) -> None:
    """Runs a Python program whose gloo groups Tutti serves, for programs that know backends by name."""
    from tutti.cli import run as command

    try:
        command.run(program, name, module)
    except ValueError as error:
        typer.echo(f"tutti run: {error}", err=True)
        raise typer.Exit(2) from None


@app.command()
def nccl(
    path: Annotated[bool, typer.Option("--path", help="Print nothing but the path, for LD_PRELOAD.")] = False,
    by_name: Annotated[
        bool, typer.Option("--by-name", help="The one for programs that open libnccl.so.2 as they run, as JAX does.")
    ] = False,
) -> None:
    """Where the library is that runs NCCL's calls on Tutti."""
    from tutti.cli import nccl as command

    raise typer.Exit(command.run(path_only=path, by_name=by_name))


@app.command()
def bench(
    collectives: Annotated[
        str,
        typer.Option("--collectives", "-c", help="Comma-separated names, or 'all'.", show_default="the five most used"),
    ] = "all_reduce,all_gather,reduce_scatter,all_to_all,broadcast",
    sizes: Annotated[
        str,
        typer.Option(
            "--sizes",
            "-s",
            help="Comma-separated, like 8,64KB,4MB; or MIN:MAX:FACTOR, like 8:64MB:4.",
            show_default="8 bytes to 16 MB",
        ),
    ] = "8,1KB,8KB,64KB,512KB,4MB,16MB",
    backends: Annotated[
        str, typer.Option("--backends", "-b", help="tutti, gloo; tutti-mapped: tensors from tutti.empty.")
    ] = "tutti,tutti-mapped,gloo",
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="Processes to start.")] = 2,
    dtype: Annotated[str, typer.Option("--dtype", "-d", help="float32 or f32, bfloat16 or bf16, ...")] = "float32",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.001, max=1e9, help="Time for each backend at each size.")
    ] = 0.2,
    json_file: Annotated[Path | None, typer.Option("--json", help="Save the results here.")] = None,
    png_file: Annotated[Path | None, typer.Option("--png", help="Save a plot here.")] = None,
) -> None:
    """Measures collectives x sizes on several backends side by side; checks every result in the same run."""
    from tutti.dist.needs_torch import require_torch

    require_torch()
    from tutti.cli import bench as command
    from tutti.plans.files import check_picture

    try:
        plan = command.make_plan(collectives, sizes, backends, ranks, dtype, seconds)
        if png_file is not None:
            check_picture(png_file)
        code = command.run(plan, json_file, png_file)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(code)


@app.command()
def tune(
    ranks: Annotated[
        str, typer.Option("--ranks", "-n", help="Comma-separated; by default up to the cores or GPUs.")
    ] = "",
    collectives: Annotated[str, typer.Option("--collectives", "-c", help="Comma-separated names, or 'all'.")] = "all",
    sizes: Annotated[
        str,
        typer.Option("--sizes", "-s", help="Of one rank's block, comma-separated.", show_default="64 bytes to 16 MB"),
    ] = "64,1KB,4KB,16KB,64KB,256KB,1MB,4MB,16MB",
    dtypes: Annotated[
        str, typer.Option("--dtypes", "-d", help="Of reductions: f32, bf16, f16, f64, i32, i64.")
    ] = "f32",
    tensors: Annotated[
        str, typer.Option("--tensors", help="private, mapped or both; on GPUs private.", show_default="all")
    ] = "",
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, max=1e7, help="About how long it may take.")] = 3,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Of the table; else the user's folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Go on with a run that was cut short.")] = True,
    plans: Annotated[
        list[Path] | None, typer.Option("--plans", exists=True, help="Files or folders; else TUTTI_PLAN_PATH.")
    ] = None,
    built_in: Annotated[
        bool, typer.Option("--built-in/--no-built-in", help="Also try the plans of the built-in programs.")
    ] = True,
    device: Annotated[str, typer.Option("--device", help="cpu, or cuda: calls on this machine's GPUs.")] = "cpu",
) -> None:
    """Measures every algorithm on this machine and writes the table by which groups choose; checks every result."""
    from tutti.cli import tune as command

    try:
        settings = command.make_settings(
            ranks, collectives, sizes, dtypes, tensors, minutes, output, resume, plans or [], built_in, device
        )
        code = command.run(settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(code)


@app.command()
def explain(
    collective: Annotated[str, typer.Argument(help="all_reduce, all_gather, broadcast, ...")],
    size: Annotated[str, typer.Argument(help="Of one rank's block, like 64KB.")] = "0",
    ranks: Annotated[int, typer.Option("--ranks", "-n", max=MOST_INT, help="Ranks on this machine.")] = 2,
    dtype: Annotated[str, typer.Option("--dtype", "-d", help="f32 or float32, bf16 or bfloat16, i32, ...")] = "f32",
    op: Annotated[str, typer.Option("--op", help="sum, avg, product, min, max, ...")] = "sum",
    mapped: Annotated[bool, typer.Option("--mapped", help="The tensors come from tutti.empty.")] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, or cuda: tensors on this machine's GPUs.")] = "cpu",
) -> None:
    """Says which algorithm a call takes on this machine, and why."""
    from tutti import _core
    from tutti._units import format_bytes, parse_bytes
    from tutti.cli.dtypes import short_name

    dtype = short_name(dtype)
    try:
        if device not in ("cpu", "cuda"):
            raise ValueError(f"--device is cpu or cuda, not {device}")
        reasons = _core.explain(collective, parse_bytes(size), ranks, dtype, op, mapped, device)
        call = collective
        if collective != "barrier":
            call += f" of {format_bytes(parse_bytes(size))} a rank, {dtype}{', mapped' if mapped else ''}"
        if _core.collective_traits(collective)["reduces"]:
            call += f", {op}"
        here = "this machine's GPUs" if device == "cuda" else "this machine"
        typer.echo(f"{call}; {ranks} {'rank' if ranks == 1 else 'ranks'} on {here}:")
        typer.echo(reasons.rstrip())
    except (ValueError, RuntimeError) as error:  # the latter where no ranks can be made, for want of descriptors
        typer.echo(f"tutti explain: {error}", err=True)
        raise typer.Exit(2) from None
