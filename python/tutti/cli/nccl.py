"""``tutti nccl``: where the library under NCCL's name is."""

from __future__ import annotations

from pathlib import Path

import typer

from tutti import _core


def library(by_name: bool = False) -> Path:
    """The path of libtutti_nccl.so, beside the modules of the package, or of the one that is called libnccl.so.2."""
    return Path(_core.__file__).parent / ("by_name/libnccl.so.2" if by_name else "libtutti_nccl.so")


def run(path_only: bool, by_name: bool) -> int:
    """Prints the path, and how to use it. The exit code is 1 if the library is not installed."""
    path = library(by_name)
    if not path.is_file():
        typer.echo(f"no {path.name} in {path.parent}: this installation was built without it", err=True)
        return 1
    if path_only:
        typer.echo(str(path))
        return 0
    typer.echo(f"The library under NCCL's name: {path}")
    flags = "--path --by-name" if by_name else "--path"
    typer.echo(f'Put it before a program that uses NCCL: LD_PRELOAD="$(tutti nccl {flags})" torchrun ... script.py')
    typer.echo("TUTTI_NCCL=1 lets Tutti run calls; TUTTI_NCCL_REPORT=1 prints at the end what ran where.")
    return 0
