"""Pictures in files, drawn with matplotlib, which is an extra."""

from __future__ import annotations

from typing import Any


def pyplot() -> Any:
    """Of matplotlib, for files. ImportError, naming the remedy, if it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise ImportError("plots need matplotlib: pip install matplotlib") from None
    matplotlib.use("agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
