"""A rank without descriptors: however many are left, it goes on or says what is wanting, and all ranks hear of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from wanting_ranks import Ranks, write_plans

LAYOUTS = ("aa", "ab")
SOON_S = 8.0  # the ranks' own limit is 20
ENOUGH = 60  # as many as a round can need


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    plans = tmp_path_factory.mktemp("plans")
    write_plans(plans, LAYOUTS)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = Ranks(2, store.port, plans)
    yield made
    made.kill()


def fault_of(ends: list[dict[str, Any]], poor: int) -> str:
    """Why a round is not what it should be, or nothing."""
    if any(end["ended"] not in ("right", "raised") for end in ends):
        return "a rank " + ", a rank ".join(end["ended"] for end in ends)
    if any(end["seconds"] > SOON_S for end in ends):
        return "a rank waited for its deadline"
    errors = [error for end in ends for error in end["errors"]]
    if errors and not any(text in error for text in ("descriptor", "Too many open files") for error in errors):
        return "nobody says why"
    other = ends[1 - poor]
    if other["ended"] == "raised" and not any(f"rank {poor}" in error for error in other["errors"]):
        return "the other rank does not say whose fault it is"
    return ""


@pytest.mark.tutti_only
@pytest.mark.parametrize("poor", [0, 1])
@pytest.mark.parametrize("where", ["forming", "formed"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("face", ["arrays", "torch"])
def test_all_ranks_hear_of_it(ranks: Ranks, face: str, layout: str, where: str, poor: int) -> None:
    faults = []
    raised = untroubled = 0
    for left in range(ENOUGH):
        ends = ranks.play(face, layout, poor, ["descriptors", left, where])
        if fault := fault_of(ends, poor):
            faults.append(f"{left} descriptors left: {fault}: {ends}")
        raised += ends[poor]["ended"] == "raised"
        untroubled = untroubled + 1 if all(end["ended"] == "right" and not end["errors"] for end in ends) else 0
        if untroubled == 4:
            break
    assert not faults, f"{len(faults)}:\n" + "\n".join(faults[:8])
    assert raised > 0 and untroubled == 4, f"{raised} raised, {untroubled} untroubled in the end"
