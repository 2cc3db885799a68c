"""Predicted against measured: built-in plans on a calibrated topology and on the machine itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tutti.plans.calibration import Timer
from tutti.topology import Topology

# What is compared: two forms of synchronisation (signals, packets), few and many steps, three collectives.
PLANS = [
    ("allreduce", "ring"),
    ("allreduce", "recursive_doubling"),
    ("allreduce", "one_shot"),
    ("allreduce", "two_shot"),
    ("allgather", "ring"),
    ("alltoall", "pairwise"),
]
SIZES = [256, 4 << 10, 64 << 10, 1 << 20, 4 << 20]


@dataclass
class Row:
    """Microseconds of one call of a plan."""

    plan: str
    size: int
    predicted_us: float
    measured_us: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_us / self.measured_us


def built_in(collective: str, name: str, ranks: int) -> str:
    """The JSON of a built-in plan, in as few chunks as it needs."""
    from tutti.language import AllGather, AllReduce, AllToAll, Collective
    from tutti.language.builtins import BUILTINS
    from tutti.language.utils import AlgoSpec

    wanted: Collective = AllReduce(ranks, 1 if name == "one_shot" else ranks, False)
    if collective == "allgather":
        wanted = AllGather(ranks, 1, False)
    elif collective == "alltoall":
        wanted = AllToAll(ranks, 1, False)
    spec = AlgoSpec(f"{collective}_{name}", wanted, ranks, ranks)
    text: str = BUILTINS[collective, name](spec).to_json()
    return text


def compare(
    topology: Topology,
    ranks: int,
    timer: Timer,
    sizes: list[int] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[Row]:
    """A row for every plan and size (of a rank block, in bytes)."""
    from tutti import _core

    rows = []
    place = json.dumps(topology)
    for collective, name in PLANS:
        text = built_in(collective, name, ranks)
        for size in sizes or SIZES:
            predicted = _core.simulate_plan(text, place, size)["time_us"]
            rows.append(Row(f"{collective} {name}", size, predicted, timer(json.loads(text), size)))
            tick()
    return rows
