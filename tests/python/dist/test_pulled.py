"""Calls in which the kernel reads the peers' tensors."""

from __future__ import annotations

import pytest
from launching import SUPPORT, launch

pytestmark = pytest.mark.tutti_only
RANK = SUPPORT / "pulled_rank.py"


def ran(task: str, **settings: object) -> list[str]:
    """What two ranks have printed; it is skipped where the system forbids it, is slow at it, or has one core."""
    outputs = launch(2, task, script=RANK, **settings)  # type: ignore[arg-type]
    for line in outputs[0].splitlines():
        if line.startswith("not here"):
            pytest.skip(line)
    return outputs


def moved(outputs: list[str]) -> set[str]:
    """By which algorithms the ranks say that calls ran."""
    return {line for output in outputs for line in output.splitlines() if line.startswith("by ")}


def test_calls_are_right_whoever_moves_the_data() -> None:
    assert moved(ran("plain")) in ({"by pulled"}, {"by staged"})


@pytest.mark.parametrize("switched", [(0,), (0, 1)])
def test_one_rank_that_may_not_is_enough_to_do_without(switched: tuple[int, ...]) -> None:
    env = {"TUTTI_CROSS_MEMORY": "0"}
    assert moved(ran("plain", env_of=lambda rank: env if rank in switched else {})) == {"by staged"}


def test_it_may_be_named() -> None:
    assert moved(ran("named")) == {"by pulled"}


def test_memory_that_the_kernel_gives_to_nobody_is_staged() -> None:
    ran("secret")


def test_memory_that_is_gone_in_the_call_is_an_error_on_both() -> None:
    outputs = ran("hole")
    assert (
        "rank 0" in outputs[1] and "its memory cannot be read, or this rank's not be written: Bad address" in outputs[1]
    ), outputs
    assert "said" in outputs[0] and "rank 1" in outputs[0], outputs


def test_a_rank_that_dies_is_named() -> None:
    outputs = launch(2, "death", script=RANK, dies=1)
    assert "rank 1" in outputs[0] and "died" in outputs[0], outputs
