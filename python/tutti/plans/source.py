"""Where a plan comes from: a file, or a family that the library generates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutti.language.limits import MOST_MESSAGE, MOST_RANKS
from tutti.plans.files import read_plan


@dataclass(frozen=True)
class PlanSource:
    """A plan file, or what is to be generated."""

    file: Path | None
    family: str | None = None
    ranks: int = 0
    ranks_per_host: int = 8
    pieces: int = 0

    def __post_init__(self) -> None:
        if (self.file is None) == (self.family is None):
            raise ValueError("a plan comes from a file or is generated: one of them")

    @property
    def name(self) -> str:
        """For messages."""
        return str(self.file) if self.file is not None else f"{self.family} of {self.ranks} ranks"

    def text(self) -> str:
        """The plan or template in JSON."""
        from tutti import _core

        if self.file is not None:
            return read_plan(self.file)
        assert self.family is not None
        return _core.generate_plan(self.family, self.ranks, self.ranks_per_host, self.pieces)

    def rank_count(self) -> int:
        """How many ranks it is for."""
        from tutti import _core

        # A number of ranks that no plan has is refused by whoever generates, before anything is made for so many.
        if self.file is None and 0 < self.ranks <= MOST_RANKS:
            return self.ranks
        return _core.ranks_of_plan(self.text())

    def sizes(self) -> tuple[int, int]:
        """The least and the most bytes of a rank's block that it is for."""
        plan = {} if self.file is None else json.loads(self.text())
        return plan.get("min_message_size", 0), plan.get("max_message_size", MOST_MESSAGE)

    def check(self, strict: bool) -> dict[str, Any]:
        """The verdict. ValueError if it is no plan."""
        from tutti import _core

        if self.family is None:
            return _core.check_plan(self.text(), strict)
        return _core.check_generated(self.family, self.ranks, self.ranks_per_host, self.pieces, strict)

    def simulate(self, topology: str, block_bytes: int, budget: float | None, timeline: bool) -> dict[str, Any]:
        """The result of the simulation. ValueError if it is no plan or gets stuck."""
        from tutti import _core

        if self.family is None:
            return _core.simulate_plan(self.text(), topology, block_bytes, budget, timeline)
        return _core.simulate_generated(
            self.family, self.ranks, topology, block_bytes, self.ranks_per_host, self.pieces, budget, timeline
        )
