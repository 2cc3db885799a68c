"""Where a program's statements stand, and the error that names the place.

Every object of the language asks :func:`caller` for the innermost line outside this package when it is made, so an
error points at the user's own line although several of our functions are between it and the check.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import NoReturn

_PACKAGE = __name__.rpartition(".")[0]
_PROGRAMS = _PACKAGE + ".builtins"  # programs like any other, although they ship with the language
_SHARED = _PROGRAMS + ".common"  # what they share is as little a place in a program as the language itself


@dataclass(frozen=True, slots=True)
class Origin:
    """A line of a program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


class ProgramError(ValueError, RuntimeError):
    """A program says something that no plan can do. Its fields name the place; those that do not apply are None.

    It is a RuntimeError too: that is what programs written for MSCCL++ expect to catch.
    """

    def __init__(
        self,
        reason: str,
        *,
        file: str | None = None,
        line: int | None = None,
        rank: int | None = None,
        thread_block: int | None = None,
        operation: str | None = None,
    ) -> None:
        self.reason = reason
        self.file = file
        self.line = line
        self.rank = rank
        self.thread_block = thread_block
        self.operation = operation
        where = [] if file is None else [f"{file}:{line}"]
        what = [] if rank is None else [f"rank {rank}"]
        if thread_block is not None:
            what.append(f"thread block {thread_block}")
        if operation is not None:
            what.append(operation)
        super().__init__(": ".join([*where, *([", ".join(what)] if what else []), reason]))


def caller() -> Origin:
    """The innermost line that is not the language's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno)


def _is_ours(module: str) -> bool:
    if module.startswith(_PROGRAMS):
        return module == _SHARED
    return module == _PACKAGE or module.startswith(_PACKAGE + ".")


def fail(
    reason: str,
    *,
    rank: int | None = None,
    thread_block: int | None = None,
    operation: str | None = None,
    origin: Origin | None = None,
) -> NoReturn:
    """Raises a ProgramError at ``origin``, or at the line of the program that is being executed."""
    place = origin or caller()
    raise ProgramError(
        reason, file=place.file, line=place.line, rank=rank, thread_block=thread_block, operation=operation
    )
