"""Want of memory where the library itself could not tell the other ranks of it: before its functions have begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tutti import _core

__all__ = ["told", "told_by"]

_WHY = "it has no memory to form the group"


@contextmanager
def told(store: Any, name: str, rank: int) -> Iterator[None]:
    """While ``rank`` joins the group ``name`` over a store: a ``MemoryError`` is told to the ranks that wait for it."""
    with told_by(lambda: _core.tell_cannot_join(store, name, rank, _WHY), name, rank):
        yield


@contextmanager
def told_by(tell: Callable[[], None], name: str, rank: int) -> Iterator[None]:
    """The same, where ``tell`` does it."""
    try:
        yield
    except MemoryError:
        tell()
        raise MemoryError(f"rank {rank} has no memory to form group {name!r}") from None
