"""torchcomms for the tests of the backend: the one that is installed, or the stand-in of tests/cpp/torchcomms.

The build names the stand-in in TUTTI_TORCHCOMMS_STAND_IN (ctest does). Without either such tests are skipped.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from rank_pool import RankPool, unique_name
from rank_worker import Context

STAND_IN = os.environ.get("TUTTI_TORCHCOMMS_STAND_IN", "")
NEEDS_TORCHCOMMS = pytest.mark.skipif(
    not STAND_IN and importlib.util.find_spec("torchcomms") is None,
    reason="torchcomms is not installed; ctest runs this file on the stand-in for it",
)
# Of tests of what TorchComms gives C++ alone.
ON_STAND_IN = pytest.mark.skipif(not STAND_IN, reason="TorchComms does not give it to Python")
CPU = torch.device("cpu")
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
# Of a file about CUDA tensors. Ranks take the GPUs in turn.
ON_GPUS = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS, pytest.mark.skipif(GPUS == 0, reason="there is no GPU")]
GPU_RANKS = pytest.mark.parametrize("ranks", sorted({2, max(2, GPUS)}))


@functools.cache
def interface() -> Any:
    if not STAND_IN:
        return importlib.import_module("torchcomms")
    sys.path.append(STAND_IN)
    return importlib.import_module("torchcomms_stand_in")


def given_to_torch() -> None:
    """What TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 does where torchcomms is installed, on the stand-in, too."""
    from torch.distributed import config, distributed_c10d

    if STAND_IN:
        distributed_c10d.new_comm = interface().new_comm
        distributed_c10d._BackendWrapper = interface()._BackendWrapper
        distributed_c10d.FlightRecorderHook = MagicMock()
        distributed_c10d._TORCHCOMM_AVAILABLE = True
    config.use_torchcomms = True


def new_comm(ctx: Context, name: str, *, stored: bool = True, device: torch.device = CPU, **options: Any) -> Any:
    """A communicator of all ranks of the pool."""
    os.environ.update(RANK=str(ctx.rank), WORLD_SIZE=str(ctx.size), LOCAL_RANK=str(ctx.rank))
    options.setdefault("timeout", timedelta(seconds=30))
    if stored:
        options.setdefault("store", ctx.store("torchcomms"))
    return interface().new_comm("tutti", device, name, **options)


def device_of(ctx: Context) -> torch.device:
    """The rank's GPU, which becomes the current one."""
    device = torch.device("cuda", ctx.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def call_on_gpus(fresh_world: Callable[..., RankPool], ranks: int, *functions: Callable[..., Any], **env: str) -> None:
    """In fresh ranks, one function after another, each with a name of its own."""
    pool = fresh_world(ranks, open_group=False, env={"TUTTI_TEST_DEVICE": "cuda", **env})
    for function in functions:
        pool.call(function, unique_name("tc"), timeout_s=120)


def batch_limit(timeout: timedelta) -> Any:
    """The options of a batch that has this limit of time."""
    options = interface().BatchP2POptions()
    options.timeout = timeout
    return options


def refused(pattern: str, call: Callable[[], Any]) -> None:
    """A RuntimeError, as other backends of TorchComms raise. The real torchcomms checks some arguments first."""
    with pytest.raises(RuntimeError, match=pattern if STAND_IN else None):
        call()


def same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted.to(got.dtype).expand_as(got))
