"""The plans that ``tutti tune`` tries: those of the built-in programs, and those that it is given."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tutti import _core
from tutti.language import (
    AlgoSpec,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Gather,
    ProgramError,
    Reduce,
    ReduceScatter,
    Scatter,
)
from tutti.language.builtins import BUILTINS
from tutti.plans.files import read_file, replace

# Tutti's collectives in the words of the DSL; all_reduce and broadcast are in place, as in torch.
KINDS: dict[str, tuple[type[Collective], bool]] = {
    "all_reduce": (AllReduce, True),
    "reduce": (Reduce, False),
    "broadcast": (Broadcast, True),
    "all_gather": (AllGather, False),
    "gather": (Gather, False),
    "scatter": (Scatter, False),
    "reduce_scatter": (ReduceScatter, False),
    "all_to_all": (AllToAll, False),
}


@dataclass(frozen=True)
class TunedPlan:
    """A plan in a file, and what it is for."""

    algorithm: str  # "plan:ring"
    collective: str
    ranks: int
    file: Path
    sha256: str


def built_in_plans(collective: str, ranks: int, folder: Path) -> list[TunedPlan]:
    """Writes the built-in programs for this collective among ``ranks`` ranks, those that can be, into ``folder``."""
    if collective not in KINDS:
        return []
    kind, in_place = KINDS[collective]
    plans = []
    for (name, algorithm), build in BUILTINS.items():
        if name != kind.name:
            continue
        try:
            program = build(AlgoSpec(name=algorithm, collective=kind(ranks, 1, in_place)))
        except ProgramError:
            continue  # not for this number of ranks
        text = program.to_json(indent=None, origin=False)
        plans.append(_store(text, f"plan:{algorithm}", collective, ranks, folder))
    return plans


def given_plans(places: list[Path], ranks: int, collective: str, folder: Path) -> list[TunedPlan]:
    """Copies of the plans in these files and folders that are for this. ValueError names a file that is no plan."""
    plans = []
    for file in files_in(places):
        try:
            text = read_file(file).decode(errors="replace")
            info = _core.plan_info(text)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        kind = next((ours for ours, (theirs, _) in KINDS.items() if theirs.name == info["collective"]), None)
        if kind == collective and len(info["ranks"]) == ranks:
            plans.append(_store(text, f"plan:{info['name']}", collective, ranks, folder))
    return plans


def files_in(places: Iterable[Path]) -> list[Path]:
    """These files, and the plans in those of them that are folders."""
    files = []
    for place in places:
        files += sorted(place.glob("*.json")) if place.is_dir() else [place]
    return files


def _store(text: str, algorithm: str, collective: str, ranks: int, folder: Path) -> TunedPlan:
    data = text.encode()
    digest = hashlib.sha256(data).hexdigest()
    stem = re.sub(r"[^\w.-]", "_", algorithm.removeprefix("plan:"))[:60]
    file = folder / f"{collective}-{stem}-{ranks}-{digest[:12]}.json"
    if not file.exists() or file.read_bytes() != data:
        replace(data, file)
    return TunedPlan(algorithm, collective, ranks, file, digest)
