"""``tutti info``: versions, settings, launch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

import tutti
from tutti import _core
from tutti._units import format_simd


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _or_dash(value: object) -> str:
    return "-" if value in (None, "") else str(value)


def _pairs(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def run() -> None:
    """Prints three tables."""
    console = Console()
    console.print(
        _pairs(
            "Versions",
            [
                ("tutti", f"{tutti.__version__} ({_core.build_type}, {_core.compiler})"),
                ("torch", _installed("torch")),
                ("python", platform.python_version()),
                ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
                ("cores", f"{_core.usable_cores()} usable, kernels for {format_simd(_core.simd_target())}"),
                ("installed in", str(Path(tutti.__file__).parent)),
            ],
        )
    )
    try:
        launch = _core.launch_info()
        place = [
            ("launcher", launch.launcher or "none: a process on its own"),
            ("rank", f"{launch.rank} of {launch.size}"),
            ("rank on this machine", "-" if launch.local_rank < 0 else str(launch.local_rank)),
        ]
    except ValueError as error:
        place = [("launcher", str(error))]
    console.print()
    console.print(
        _pairs(
            "Launch",
            [
                *place,
                ("MASTER_ADDR", _or_dash(os.environ.get("MASTER_ADDR"))),
                ("MASTER_PORT", _or_dash(os.environ.get("MASTER_PORT"))),
            ],
        )
    )
    settings = Table(title="Settings", title_justify="left", box=None, pad_edge=False)
    settings.add_column("variable", style="bold", no_wrap=True)
    settings.add_column("in force", overflow="fold")
    settings.add_column("what it does", overflow="fold")
    try:
        for variable in _core.config():
            settings.add_row(variable.name, _or_dash(variable.value), variable.help)
    except ValueError as error:
        settings.add_row("invalid", "", str(error))
    console.print()
    console.print(settings)
