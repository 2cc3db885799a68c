"""A rank without memory: each so-manyth allocation of the library's is refused, and all ranks hear of it.

By hand, each of them: NO_MEMORY_STEP=1 (some minutes a case).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from launching import SUPPORT
from wanting_ranks import Ranks, write_plans

SOURCE = SUPPORT / "refuse_memory.cc"
LAYOUTS = ("aa", "ab")
POOR = 0
STEP = int(os.environ.get("NO_MEMORY_STEP", "0"))
MOST = 5  # rounds of a case, without NO_MEMORY_STEP
# The ranks' own limit. Who has memory again tells the others soon; who has none cannot, and they wait for their
# deadline.
ONCE_S, ON_S = 20.0, 2.5
SOON_S = 8.0
SILENT_S = 15.0  # a store's server that has none is waited for 10 s longer than an answer may take


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    folder = tmp_path_factory.mktemp("no_memory")
    preload = folder / "librefuse_memory.so"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(preload)]
    subprocess.run(command, check=True)
    plans = folder / "plans"
    plans.mkdir()
    write_plans(plans, LAYOUTS)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = Ranks(2, store.port, plans, preload)
    yield made
    made.kill()


def fault_of(ends: list[dict[str, Any]], all_from_there: bool, of_any: bool) -> str:
    """Why a round is not what it should be, or nothing."""
    if any(end["ended"] not in ("right", "raised") for end in ends):
        return "a rank " + ", a rank ".join(end["ended"] for end in ends)
    if any(end["seconds"] > (SILENT_S if all_from_there and of_any else SOON_S) for end in ends):
        return "a rank waited for its deadline"
    for rank, end in enumerate(ends):
        if rank == POOR and of_any:
            continue  # a thread that serves others may lack it, and only they hear of that
        blamed = () if rank == POOR else (f"rank {POOR}", f"ranks {POOR}")
        if end["ended"] == "raised" and not any(w in e.lower() for w in ("memory", *blamed) for e in end["errors"]):
            return f"rank {rank} does not say why"
    return ""


@pytest.mark.tutti_only
@pytest.mark.parametrize("any_thread", [False, True], ids=["own", "any"])
@pytest.mark.parametrize("all_from_there", [False, True], ids=["once", "on"])
@pytest.mark.parametrize("where", ["forming", "formed"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("face", ["arrays", "torch"])
def test_all_ranks_hear_of_it(
    ranks: Ranks, face: str, layout: str, where: str, all_from_there: bool, any_thread: bool
) -> None:
    counted = ranks.play(face, layout, POOR, ["memory", 1 << 40, False, any_thread, where])[POOR]["counted"]
    assert counted > 0
    step = STEP or max(1, counted // MOST)
    faults = []
    refused = 0
    for n in range(1, counted + 1, step):
        ends = ranks.play(
            face, layout, POOR, ["memory", n, all_from_there, any_thread, where], ON_S if all_from_there else ONCE_S
        )
        refused += ends[POOR].get("refused", 0) > 0
        if fault := fault_of(ends, all_from_there, any_thread):
            faults.append(f"allocation {n} of {counted}: {fault}: {ends}")
    assert refused > 0
    assert not faults, f"{len(faults)}:\n" + "\n".join(faults[:8])
