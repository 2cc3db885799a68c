"""What the words in a stepped plan's buffers say about where they come from (src/executor/cpu/stepper.h)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

RANKS_PER_WORD = 15


@dataclass(frozen=True)
class Content:
    """A cell: how often each rank's input is in the sum, of which chunk, and of which call (None: of several)."""

    ranks: dict[int, int]
    chunk: int | None
    call: int | None

    def __str__(self) -> str:
        if not self.ranks:
            return "·"
        chunk = "?" if self.chunk is None else str(self.chunk)
        call = "" if self.call == 1 else " of call ?" if self.call is None else f" of call {self.call}"
        return f"{_names(self.ranks)} [{chunk}]{call}"


def read_cell(cell: bytes) -> Content:
    """The content of a cell; a cell of zeros has none."""
    first, *sums = struct.unpack(f"<{len(cell) // 8}Q", cell)
    ranks = {}
    for word, value in enumerate(sums):
        for place in range(RANKS_PER_WORD + 1):
            count = value >> (4 * place) & 15
            if count:
                ranks[word * RANKS_PER_WORD + place] = count
    total = sum(ranks.values())
    if total == 0:
        return Content({}, None, None)
    places, calls = first & 0xFFFFFFFF, first >> 32
    chunk = places // total - 1 if places % total == 0 else None
    return Content(ranks, chunk, calls // total + 1 if calls % total == 0 else None)


def read_chunk(data: bytes, cell_bytes: int) -> list[Content]:
    """The contents of a chunk, each once where neighbours agree. An unfinished last cell is left out."""
    contents: list[Content] = []
    for begin in range(0, len(data) - cell_bytes + 1, cell_bytes):
        content = read_cell(data[begin : begin + cell_bytes])
        if not contents or contents[-1] != content:
            contents.append(content)
    return contents


def _names(ranks: dict[int, int]) -> str:
    """``"r0-3+r6"``, ``"r0+2·r1"``."""
    parts: list[str] = []
    for rank, count in sorted(ranks.items()):
        begin = rank
        while count == 1 and begin - 1 in ranks and ranks[begin - 1] == 1:
            begin -= 1
        if count == 1 and begin < rank:
            parts[-1] = f"r{begin}-{rank}"
        else:
            parts.append(f"r{rank}" if count == 1 else f"{count}·r{rank}")
    return "+".join(parts)
