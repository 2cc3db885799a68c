"""Examples, run by ranks of a pool."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rank_pool import RankPool
from rank_worker import Context

World = Callable[..., RankPool]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run_example(ctx: Context, name: str, port: int, arguments: list[str]) -> None:
    """Runs an example as torchrun would: by environment, in a process of its own."""
    os.environ.update(RANK=str(ctx.rank), WORLD_SIZE=str(ctx.size), LOCAL_RANK=str(ctx.rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [str(EXAMPLES / name), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def launch(
    fresh_world: World, store_name: str, ranks: int, *arguments: str, run: Callable[..., Any] = run_example
) -> list[Any]:
    """What `run` returns on each rank."""
    import torch.distributed as dist

    # A store of this run alone: the ranks' keys have no prefix.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pool = fresh_world(ranks, open_group=False)
    return pool.call(run, store_name, store.port, list(arguments), timeout_s=120)
