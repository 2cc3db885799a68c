"""The tuning table as ``tutti tune`` writes it (docs/tuning.md), and the state of a run that was cut short."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tutti import __version__, _core
from tutti.cli.tune_plans import TunedPlan
from tutti.cli.tune_rank import Cell, Task

FORMAT = 1


def origin() -> dict[str, Any]:
    """What the figures hold for."""
    return {"version": FORMAT, "tutti": __version__, "machine": _core.machine()}


def write_whole(file: Path, content: dict[str, Any]) -> None:
    """Replaces a file: a reader sees the old one or the new one, whenever this process ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.new")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)


def _read(file: Path) -> dict[str, Any]:
    """A file of ours for this machine and version; empty if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    here = origin()
    same = isinstance(content, dict) and all(content.get(key) == value for key, value in here.items())
    return content if same else {}


def plan_files(table: Path) -> set[Path]:
    """The files of plans that a table names, of whichever machine and version; none if there is no table."""
    try:
        plans = json.loads(table.read_text(encoding="utf-8"))["plans"]
        return {table.parent / entry["file"] for entry in plans}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


class Progress:
    """The cells that a run has measured, kept in a file beside the table until the table is written."""

    def __init__(self, table: Path, resume: bool) -> None:
        self.file = table.with_name(table.name + ".part")
        self.results: dict[str, dict[str, Any]] = {}
        if resume:
            self.results = _read(self.file).get("results", {})

    @staticmethod
    def _key(task: Task) -> str:
        # What is tried is part of it: a cell that was measured without a plan that is now there is measured again.
        tried = [[c.algorithm, Path(c.plan_path).name] for c in task.candidates]
        return json.dumps([asdict(task.cell), tried], sort_keys=True)

    def find(self, task: Task) -> dict[str, Any] | None:
        """What an earlier run has measured."""
        return self.results.get(self._key(task))

    def add(self, task: Task, result: dict[str, Any]) -> None:
        """Takes a result, and writes all of them."""
        self.results[self._key(task)] = result
        write_whole(self.file, {**origin(), "results": self.results})

    def remove(self) -> None:
        """The run is complete."""
        self.file.unlink(missing_ok=True)


def cell_entry(cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    """A cell as it stands in the table."""
    times = sorted(result["ns"].items(), key=lambda item: item[1])
    return {
        "ranks": cell.ranks,
        "crowded": result["crowded"],
        **({"gpus": result["gpus"]} if cell.device == "cuda" else {}),
        "collective": cell.collective,
        "dtype": cell.dtype,
        "tensors": "mapped" if cell.mapped else "private",
        "bytes": cell.bytes,
        "default": result["default"],
        "choice": result["choice"],
        "measured": [{"algorithm": name, "ns": round(ns)} for name, ns in times],
    }


def make_table(file: Path, cells: list[dict[str, Any]], plans: list[TunedPlan]) -> dict[str, Any]:
    """A table of these cells and of those of the table in ``file`` that were not measured again.

    Only plans that some cell chooses are in it.
    """
    before = _read(file)
    new = {_cell_key(cell) for cell in cells}
    kept = [cell for cell in before.get("cells", []) if _cell_key(cell) not in new]
    wanted = {(cell["choice"], cell["ranks"], cell["collective"]) for cell in cells}
    chosen = [
        {
            "name": plan.algorithm,
            "collective": plan.collective,
            "ranks": plan.ranks,
            "file": os.path.relpath(plan.file, file.parent),
            "sha256": plan.sha256,
        }
        for plan in plans
        if (plan.algorithm, plan.ranks, plan.collective) in wanted
    ]
    files = {entry["file"] for entry in chosen}
    still_wanted = {(cell["choice"], cell["ranks"], cell["collective"]) for cell in kept}
    chosen += [
        entry
        for entry in before.get("plans", [])
        if (entry["name"], entry["ranks"], entry["collective"]) in still_wanted and entry["file"] not in files
    ]
    return {
        **origin(),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "plans": chosen,
        "cells": kept + cells,
    }


def _cell_key(cell: dict[str, Any]) -> tuple[Any, ...]:
    alike = tuple(cell[key] for key in ("ranks", "collective", "dtype", "tensors", "bytes"))
    return *alike, cell.get("gpus", cell["crowded"])
