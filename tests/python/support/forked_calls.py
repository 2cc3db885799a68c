"""What calls in a forked child of a rank must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PARENTS = "belongs to the parent"


def refused(
    call: Callable[[], Any], kind: type[Exception] | tuple[type[Exception], ...] = (ValueError, RuntimeError)
) -> None:
    """Raised at once, and the error says why."""
    try:
        call()
    except kind as error:
        assert PARENTS in str(error), error
    else:
        raise AssertionError("a call in a forked child was not refused")
