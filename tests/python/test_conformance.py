"""Every collective, type, operation, size and layout at 1 to 8 ranks, against results computed locally."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conformance import COLLECTIVES, NOT_IN_GLOO, sweep
from rank_pool import RankPool

World = Callable[..., RankPool]

# Small worlds take every case, larger ones (more ranks than cores) a part: all pairs of dimensions stay covered.
EVERY = {1: 1, 2: 1, 3: 1, 4: 2, 5: 5, 6: 7, 7: 5, 8: 5}
EVERY_OTHER_BACKEND = 40


def run_sweep(pool: RankPool, collective: str, seed: int, every: int, roundings: int = 1) -> None:
    answers = pool.call(sweep, [collective], seed, every, roundings, timeout_s=120)
    problems = [f"rank {rank}: {problem}" for rank, (_, found, _) in enumerate(answers) for problem in found]
    if problems:
        pool.kill()
    assert not problems, "\n".join(problems)
    assert answers[0][0] > 0
    first = answers[0][2]
    for rank, (_, _, sums) in enumerate(answers):
        differ = [number for number, pair in enumerate(zip(first, sums, strict=True)) if pair[0] != pair[1]]
        assert not differ, f"ranks 0 and {rank} have different bits in cases {differ[:10]}"


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", sorted(EVERY))
def test_sweep(world: World, backend: str, seed: int, collective: str, size: int) -> None:
    if backend == "gloo" and collective in NOT_IN_GLOO:
        pytest.skip(f"gloo has no {collective}")
    every = EVERY[size] if backend == "tutti" else EVERY_OTHER_BACKEND
    run_sweep(world(size), collective, seed, every)
