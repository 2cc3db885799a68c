"""Thread blocks that share an operation."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from tutti.language.errors import fail
from tutti.language.limits import MOST_BLOCKS

__all__ = ["ThreadBlockGroup"]


class ThreadBlockGroup:
    """Thread blocks that each do an equal part of an operation, in the order of the list."""

    def __init__(self, tb_list: Iterable[int]) -> None:
        try:
            listed: list[Any] = list(tb_list)
        except TypeError:
            fail(f"thread blocks come as a list, not as {tb_list!r}", operation="ThreadBlockGroup")
        self.tb_list = [_number(block) for block in listed]
        if not self.tb_list:
            fail("a group needs at least one thread block", operation="ThreadBlockGroup")
        self._parts: dict[Any, int] = {}
        for part, block in enumerate(self.tb_list):
            if block >= MOST_BLOCKS:
                fail(
                    f"a rank has at most {MOST_BLOCKS} thread blocks, so none is {block}", operation="ThreadBlockGroup"
                )
            if block in self._parts:
                fail(f"thread block {block} is in the group twice", operation="ThreadBlockGroup")
            self._parts[block] = part

    def get_internal_id(self, tb: int) -> int:
        """Which part thread block ``tb`` does."""
        if tb not in self._parts:
            fail(f"the group has {self.tb_list} only", thread_block=tb, operation="ThreadBlockGroup")
        return self._parts[tb]

    def numtb(self) -> int:
        """How many thread blocks there are."""
        return len(self.tb_list)


def _number(block: Any) -> int:
    """``block`` as an int from 0; other libraries' integers are as good as Python's."""
    try:
        number = int(operator.index(block))
    except TypeError:
        number = -1
    if number < 0:
        fail(f"thread blocks are counted from 0: {block!r}", operation="ThreadBlockGroup")
    return number
