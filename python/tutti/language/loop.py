"""Loops: what is written in one is repeated over the units of a chunk, so thread blocks can work in a pipeline."""

from __future__ import annotations

from tutti.language.checks import whole
from tutti.language.context import get_program
from tutti.language.errors import caller, fail
from tutti.language.limits import MOST_CHUNKS, MOST_UNIT_BYTES
from tutti.language.recorder import LoopFrame

__all__ = ["LoopIterationContext"]

_ALIGNMENT = 16  # bytes: an iteration may not begin inside an element


class LoopIterationContext:
    """``with LoopIterationContext(unit, num_chunks):`` repeats its operations for every ``unit`` bytes of a chunk.

    ``num_chunks`` is how many chunks the operations within it have.
    """

    def __init__(self, unit: int, num_chunks: int) -> None:
        self.unit = whole(unit, "the unit of a loop", operation="loop")
        self.num_chunks = whole(num_chunks, "num_chunks", operation="loop")
        if self.unit < 1 or self.unit % _ALIGNMENT:
            fail(f"the unit of a loop is a multiple of {_ALIGNMENT} bytes, not {self.unit}", operation="loop")
        if self.unit > MOST_UNIT_BYTES:
            fail(f"the unit of a loop is at most {MOST_UNIT_BYTES} bytes, not {self.unit}", operation="loop")
        if self.num_chunks > MOST_CHUNKS:
            fail(f"a loop runs over at most {MOST_CHUNKS} chunks, not {self.num_chunks}", operation="loop")
        if self.num_chunks < 1:
            fail(f"a loop runs over at least one chunk, not {self.num_chunks}", operation="loop")

    def __enter__(self) -> LoopIterationContext:
        recorder = get_program().recorder
        if recorder.loop is not None:
            fail(f"loops do not nest; the outer one began at {recorder.loop.origin}", operation="loop")
        recorder.loop = LoopFrame(self.unit, self.num_chunks, caller())
        return self

    def __exit__(self, *error: object) -> None:
        get_program().recorder.loop = None
