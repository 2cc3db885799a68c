"""``tutti run``: a Python program whose groups named gloo are Tutti's."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tutti.dist.autoload import torch_registers
from tutti.dist.needs_torch import require_torch
from tutti.dist.pretence import NAMES

__all__ = ["run"]


def run(program: list[str], name: str, module: bool) -> NoReturn:
    """Becomes ``python program...``, or ``python -m program...``, with ``TUTTI_PRETEND`` set to ``name``.

    The process stays the same, so launchers and signals see the program itself; processes that it starts inherit the
    setting. Raises ValueError for a name that Tutti does not take, and where PyTorch would not load Tutti;
    ImportError without PyTorch.
    """
    if name not in NAMES:
        raise ValueError(f"--as takes {' or '.join(NAMES)}, not {name}")
    require_torch()
    if not torch_registers():
        raise ValueError(
            "PyTorch does not load Tutti by itself here: unset TORCH_DEVICE_BACKEND_AUTOLOAD, and install the package"
        )
    command = [sys.executable, *_options_of_python(), *(["-m"] if module else []), *program]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, {**os.environ, "TUTTI_PRETEND": name})


def _options_of_python() -> list[str]:
    """The interpreter's own options, as this process was given them: ``-u`` of torchrun, ``-X``, ``-W``."""
    before = sys.orig_argv[1 : len(sys.orig_argv) - (len(sys.argv) - 1)]  # options, then the command or -m tutti
    return before[:-2] if before[-2:-1] == ["-m"] else before[:-1]
