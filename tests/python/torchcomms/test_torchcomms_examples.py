"""The examples of TorchComms run; the one that trains on each kind of device that is here."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable

import pytest
from rank_pool import RankPool
from rank_worker import Context
from running_examples import launch, run_example
from torchcomms_interface import GPUS, NEEDS_TORCHCOMMS, STAND_IN, interface

World = Callable[..., RankPool]
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]


def run(ctx: Context, example: str, port: int, arguments: list[str]) -> str:
    """What it prints. The stand-in takes the name that examples know."""
    sys.modules.setdefault("torchcomms", interface())
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_example(ctx, example, port, arguments)
    return printed.getvalue()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(GPUS == 0, reason="no GPU"))])
def test_training(fresh_world: World, device: str) -> None:
    # The stand-in has this backend alone. Beside NCCL each rank needs a GPU to itself.
    beside = ["--beside", "tutti"] if STAND_IN or (device == "cuda" and GPUS < 2) else []
    printed = launch(fresh_world, "torchcomms_train.py", 2, "--device", device, *beside, run=run)
    losses = [float(line.split()[-1]) for line in printed[0].splitlines()]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert not printed[1]


def test_an_algorithm_of_the_programs_own(fresh_world: World) -> None:
    printed = launch(fresh_world, "torchcomms_algorithm.py", 2, run=run)
    assert printed == ["my_ring has added the tensors of 2 ranks\n", ""]
