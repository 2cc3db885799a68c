"""Every collective, type, operation, size and layout at 1 to 8 ranks, against results computed locally."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conformance import COLLECTIVES, NOT_IN_GLOO, run_sweep
from rank_pool import RankPool

World = Callable[..., RankPool]

# Small worlds take every case, larger ones (more ranks than cores) a part: all pairs of dimensions stay covered.
EVERY = {1: 1, 2: 1, 3: 1, 4: 2, 5: 5, 6: 7, 7: 5, 8: 5}
EVERY_OTHER_BACKEND = 40


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", sorted(EVERY))
def test_sweep(world: World, backend: str, seed: int, collective: str, size: int) -> None:
    if backend == "gloo" and collective in NOT_IN_GLOO:
        pytest.skip(f"gloo has no {collective}")
    every = EVERY[size] if backend == "tutti" else EVERY_OTHER_BACKEND
    run_sweep(world(size), collective, seed, every)
