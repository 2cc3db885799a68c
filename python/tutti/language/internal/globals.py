"""The current program, by the module that older programs import it from."""

from __future__ import annotations

from tutti.language.context import get_program, set_program

__all__ = ["get_program", "set_program"]
