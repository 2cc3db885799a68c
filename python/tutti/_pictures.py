"""Pictures in files, drawn with matplotlib, which is an extra."""

from __future__ import annotations

from pathlib import Path
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


def check_picture(path: Path) -> None:
    """Before anything is measured: ``ValueError`` if no picture can be of this name, ImportError as :func:`pyplot`."""
    kinds = pyplot().Figure().canvas.get_supported_filetypes()
    kind = path.suffix[1:].lower()
    if kind and kind not in kinds:
        raise ValueError(f"{path}: no picture is of the kind {kind}; there are {', '.join(sorted(kinds))}")
