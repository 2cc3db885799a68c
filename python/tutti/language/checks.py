"""What all objects of the language ask of their arguments."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from tutti.language.errors import fail
from tutti.language.limits import MOST_BLOCKS, MOST_NAME_BYTES
from tutti.language.operations import Share
from tutti.language.thread_block_group import ThreadBlockGroup

if TYPE_CHECKING:
    from tutti.language.program import CollectiveProgram


def whole(value: Any, what: str, *, rank: int | None = None, operation: str | None = None) -> int:
    """``value`` as an int; other libraries' integers are as good as Python's."""
    try:
        return int(operator.index(value))
    except TypeError:
        fail(f"{what} is a whole number, not {value!r}", rank=rank, operation=operation)


def bounded(value: Any, least: int, most: int, what: str, *, rank: int | None = None, operation: str) -> int:
    """``value`` as an int from ``least`` to ``most``."""
    number = whole(value, what, rank=rank, operation=operation)
    if not least <= number <= most:
        fail(f"{what} is from {least} to {most}, not {number}", rank=rank, operation=operation)
    return number


def flag(value: Any, what: str, *, operation: str) -> bool:
    """``value``, if it is True or False: plans know nothing else."""
    if not isinstance(value, bool):
        fail(f"{what} is True or False, not {value!r}", operation=operation)
    return value


def text(value: Any, what: str, *, operation: str) -> str:
    """``value``, if it is text that a plan can hold."""
    if not isinstance(value, str):
        fail(f"{what} is a text, not {value!r}", operation=operation)
    size = len(value.encode(errors="replace"))
    if size > MOST_NAME_BYTES:
        fail(f"{what} has at most {MOST_NAME_BYTES} bytes, not {size}", operation=operation)
    if value.encode(errors="ignore") != value.encode(errors="replace"):
        fail(f"{what} has halves of characters: {value!r}", operation=operation)
    return value


def listed(values: Any, what: str, *, rank: int | None = None, operation: str) -> list[Any]:
    """``values`` as a list."""
    try:
        return list(values)
    except TypeError:
        fail(f"{what} come as a list, not as {values!r}", rank=rank, operation=operation)


def checked_rank(program: CollectiveProgram, rank: Any, operation: str, what: str = "rank") -> int:
    """``rank`` as an int, if the program has it."""
    number = whole(rank, what, operation=operation)
    if not 0 <= number < program.num_ranks:
        fail(f"{what} {number} is not one of the program's ranks 0 to {program.num_ranks - 1}", operation=operation)
    return number


def checked_block(tb: Any, rank: int, operation: str) -> int:
    """``tb`` as an int, if thread blocks can have that number."""
    number = whole(tb, "a thread block", rank=rank, operation=operation)
    if number < 0:
        fail(f"thread blocks are counted from 0: {number}", rank=rank, operation=operation)
    if number >= MOST_BLOCKS:
        fail(f"a rank has at most {MOST_BLOCKS} thread blocks, so none is {number}", rank=rank, operation=operation)
    return number


def blocks_of(tb: Any, group: ThreadBlockGroup | None, rank: int, operation: str) -> list[tuple[int, Share | None]]:
    """The thread blocks that do an operation, each with its share. With both given, ``tb`` does its share only."""
    if tb is None and group is None:
        fail("say which thread block does it: tb=... or tb_group=...", rank=rank, operation=operation)
    if group is None:
        return [(checked_block(tb, rank, operation), None)]
    if not isinstance(group, ThreadBlockGroup):
        fail(f"tb_group is a ThreadBlockGroup, not {group!r}", rank=rank, operation=operation)
    members = group.tb_list if tb is None else [checked_block(tb, rank, operation)]
    return [(block, Share(group.get_internal_id(block), group.numtb())) for block in members]
