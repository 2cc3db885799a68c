"""A death that a rank hears of in one group ends those that it was formed in, and no others."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]

SIZE = 4


def hear_of_a_death_in_a_part(ctx: Context) -> dict[str, Any]:
    """Rank 3 dies, rank 1 hears of it in a part, and makes no call of the whole, in which the others wait for it."""
    import tutti

    part = dist.new_group([1, 3])
    others = dist.new_group([0, 1, 2])
    if ctx.rank == 3:
        for peer in range(3):
            dist.recv(torch.empty(1), peer)  # its groups have formed
        os.kill(os.getpid(), signal.SIGKILL)
    dist.send(torch.empty(1), 3)
    message = ""
    try:
        if ctx.rank == 1:
            dist.recv(torch.empty(1), 3, part)
        else:
            dist.recv(torch.empty(1), 1)
    except dist.DistBackendError as error:
        message = str(error)
    result, why = tutti.get_error()
    total = torch.ones(1)
    dist.all_reduce(total, group=others)
    return {"message": message, "error": result, "why": why, "others": total.item()}


@pytest.mark.parametrize("hosts", [1, 2, SIZE])
def test_a_death_in_a_part_ends_the_whole(fresh_world: World, hosts: int) -> None:
    pool = fresh_world(SIZE, env_of=lambda rank: {"TUTTI_HOST_ID": f"host{rank * hosts // SIZE}"})
    outcomes = pool.begin(hear_of_a_death_in_a_part).wait(20)
    for rank in (0, 1, 2):
        told = outcomes[rank].value
        assert "died or cannot be reached any more" in told["message"], told
        assert told["error"] != "success" and re.search(r"\brank 3\b", told["why"]), told
        assert told["others"] == 3, told
