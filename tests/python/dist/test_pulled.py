"""Calls in which the kernel reads the peers' tensors."""

from __future__ import annotations

import pytest
from launching import SUPPORT, launch

pytestmark = pytest.mark.tutti_only
RANK = SUPPORT / "pulled_rank.py"


def ran(*tasks: str, **settings: object) -> list[str]:
    outputs = launch(2, *tasks, script=RANK, **settings)  # type: ignore[arg-type]
    return [next(line for line in output.splitlines() if line.startswith("by ")) for output in outputs]


@pytest.fixture(scope="module")
def pulls() -> bool:
    """Whether it is done on this machine: not where the system forbids it, is slow at it, or has one core."""
    by = ran("plain")
    assert by[0] == by[1] and by[0] in ("by pulled", "by staged"), by
    return by[0] == "by pulled"


@pytest.mark.parametrize("switched", [(0,), (0, 1)])
def test_one_rank_that_may_not_is_enough_to_do_without(pulls: bool, switched: tuple[int, ...]) -> None:
    env = {"TUTTI_CROSS_MEMORY": "0"}
    assert ran("plain", env_of=lambda rank: env if rank in switched else {}) == ["by staged", "by staged"]


def test_it_may_be_named(pulls: bool) -> None:
    if not pulls:
        pytest.skip("needs peers that read each other's memory")
    assert ran("named") == ["by pulled", "by pulled"]


def test_memory_that_the_kernel_gives_to_nobody_is_staged(pulls: bool) -> None:
    outputs = launch(2, "secret", script=RANK)
    if not pulls or "not here" in outputs[0]:
        pytest.skip("needs memfd_secret and peers that read each other's memory")


def test_memory_that_is_gone_in_the_call_is_an_error_on_both(pulls: bool) -> None:
    if not pulls:
        pytest.skip("needs peers that read each other's memory")
    outputs = launch(2, "hole", script=RANK)
    assert (
        "rank 0" in outputs[1] and "its memory cannot be read, or this rank's not be written: Bad address" in outputs[1]
    ), outputs
    assert "said" in outputs[0] and "rank 1" in outputs[0], outputs


def test_a_rank_that_dies_is_named(pulls: bool) -> None:
    outputs = launch(2, "death", script=RANK, dies=1)
    assert "rank 1" in outputs[0] and "died" in outputs[0], outputs
