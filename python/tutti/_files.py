"""Files that a user names, read within bounds: never more than there is room for, never a wait for one who writes."""

from __future__ import annotations

import os
import stat

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
