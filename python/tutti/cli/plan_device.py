"""Options of ``tutti plan``: where a plan is to run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tutti.plans.gpu_fit import USUAL


class Device(StrEnum):
    """Where a plan is to run."""

    cpu = "cpu"
    cuda = "cuda"


DeviceOption = Annotated[Device, typer.Option("--device", help="Where it is to run.")]
GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", show_default=USUAL, help="With --device cuda: for which, a100, h100, h200 or b200."),
]
