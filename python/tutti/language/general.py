"""What needs no object of the language."""

from __future__ import annotations

from tutti.language.context import get_program

__all__ = ["JSON", "get_program"]


def JSON() -> str:  # noqa: N802, RUF100 -- the name that programs use
    """The plan of the current program, as text."""
    return get_program().to_json()
