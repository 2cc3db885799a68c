"""Plans in files that a user names, and what is written to such.

They are read within bounds: never more than there is room for, never a wait for one who writes.
"""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

from tutti._interrupts import interrupts_later
from tutti._pictures import pyplot

# Plans are far smaller; what is made of more would fill the memory. As in src/base/whole_file.h.
MOST_BYTES = 64 << 20


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """What is in a regular file. ``ValueError`` if it is none or has more than 64 MB, ``OSError`` from the system."""
    # Not blocking: the other end of a pipe may never come.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("is no regular file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"has more than the {MOST_BYTES >> 20} MB that are read")
    return content


def read_file(file: Path) -> bytes:
    """What is in a file. ValueError if it cannot be read, is no regular file or has more than 64 MB."""
    try:
        return read_whole(file)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def read_plan(file: Path) -> str:
    """The JSON text of a plan; a file whose name ends in ``.xml`` is converted. ValueError if that cannot be."""
    content = read_file(file)
    if file.suffix.lower() == ".xml":
        from tutti.msccl import import_plan

        return json.dumps(import_plan(content, file.name))
    # The reader names the byte at which a text stops being JSON, so bad UTF-8 goes on to it, marked.
    return content.decode("utf-8-sig", errors="replace")


def load_plan(file: Path) -> dict[str, Any]:
    """The plan as an object, after the core has read it; a template is written out. ValueError if it is none."""
    from tutti import _core

    text = read_plan(file)
    _core.plan_info(text)
    plan: dict[str, Any] = json.loads(text)
    return json.loads(_core.write_out_plan(text)) if "template" in plan else plan


def check_writable(file: Path) -> None:
    """Before what takes long: OSError as :func:`store` raises it. Leaves the file, or that there is none, as it is."""
    try:
        there = file.exists()
        if there and not file.is_file() and not file.is_dir():
            return  # whoever reads a pipe would take this for its end
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o666))
        if not there:
            file.resolve().unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None


def store(content: str | bytes, file: Path) -> None:
    """Writes a file, all of it before a Ctrl-C is heard. OSError that names it, also where the system does not (a full
    disk).
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(file, "wb", opener=lambda name, flags: os.open(name, flags & ~os.O_TRUNC, 0o666)) as target:
            if not stat.S_ISREG(os.fstat(target.fileno()).st_mode):  # who reads a pipe may never do so
                target.write(data)
                return
            with interrupts_later():
                target.truncate()
                target.write(data)
                target.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None


def replace(content: bytes, file: Path) -> None:
    """Puts a file in the place of another: a reader sees the old one or the new one, whenever this process ends.

    Makes its folder. OSError that names it; nothing is left beside it then.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        temporary.write_bytes(content)
        temporary.replace(file)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(file)) from None
        raise


def picture_file(path: Path) -> Path:
    """What a picture is written to: a name without a kind becomes that of a PNG."""
    return path if path.suffix[1:] else Path(f"{path}.png")


def check_picture(path: Path) -> None:
    """Before anything is measured: ``ValueError`` if no picture can be of this name, OSError if it cannot be written,
    ImportError, naming the remedy, without matplotlib.
    """
    kinds = pyplot().Figure().canvas.get_supported_filetypes()
    kind = path.suffix[1:].lower()
    if kind and kind not in kinds:
        raise ValueError(f"{path}: no picture is of the kind {kind}; there are {', '.join(sorted(kinds))}")
    check_writable(picture_file(path))


def store_picture(figure: Any, path: Path, dpi: int) -> None:
    """Draws a figure of matplotlib's whole, then writes it to :func:`picture_file`."""
    drawn = io.BytesIO()
    target = picture_file(path)
    figure.savefig(drawn, format=target.suffix[1:].lower(), dpi=dpi)
    store(drawn.getvalue(), target)
