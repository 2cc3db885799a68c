"""What a communicator is given when it has been formed.

:mod:`tutti.algorithms.builder` registers it when it is loaded; before that nobody has named an algorithm, and there is
nothing to give. The faces that form groups lie below it, and ask here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["give", "register"]

# Takes the algorithms of a communicator, and what chooses among them.
Install = Callable[[list[Any], Any], None]

_givers: list[Callable[[int, Install], None]] = []


def register(giver: Callable[[int, Install], None]) -> None:
    """From now on ``giver(ranks, install)`` is called for every communicator of this process that has been formed."""
    _givers.append(giver)


def give(ranks: int, install: Install) -> None:
    """Gives a communicator of so many ranks what has been registered, if anything."""
    for giver in _givers:
        giver(ranks, install)
