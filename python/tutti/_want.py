"""Want of memory where the library itself could not tell the other ranks of it: before its functions have begun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tutti import _core

__all__ = ["told"]


@contextmanager
def told(store: Any, name: str, rank: int) -> Iterator[None]:
    """While ``rank`` joins the group ``name``: a ``MemoryError`` is told to the ranks that wait for it."""
    try:
        yield
    except MemoryError:
        _core.tell_no_memory(store, name, rank)
        raise MemoryError(f"rank {rank} has no memory to form group {name!r}") from None
