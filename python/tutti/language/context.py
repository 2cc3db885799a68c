"""The program that is being written.

It is a context variable, so threads and tasks each have their own, and a program inside another one's ``with`` ends by
giving the outer one back.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from tutti.language.errors import fail

if TYPE_CHECKING:
    from tutti.language.program import CollectiveProgram

_current: ContextVar[CollectiveProgram | None] = ContextVar("tutti_language_program", default=None)


def get_program() -> CollectiveProgram:
    """The program whose ``with`` block is being executed."""
    program = _current.get()
    if program is None:
        fail("no program here: write it within 'with CollectiveProgram(...)'")
    return program


def enter(program: CollectiveProgram) -> Token[CollectiveProgram | None]:
    """Makes ``program`` the current one until :func:`leave`."""
    return _current.set(program)


def leave(token: Token[CollectiveProgram | None]) -> None:
    """Gives back what was current before :func:`enter`."""
    _current.reset(token)


def set_program(program: CollectiveProgram | None) -> None:
    """Makes ``program`` the current one, for code that manages without ``with``."""
    _current.set(program)
