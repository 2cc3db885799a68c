"""The tuning table as ``tutti tune`` writes it (docs/tuning.md), and the state of a run that was cut short."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tutti import __version__, _core
from tutti.cli.tune_plans import TunedPlan
from tutti.cli.tune_rank import Cell, Task
from tutti.plans.files import read_whole, replace

FORMAT = 1


def origin() -> dict[str, Any]:
    """What the figures hold for."""
    return {"version": FORMAT, "tutti": __version__, "machine": _core.machine()}


class NoTable(ValueError):
    """What lies in the place of a table is none, so it is not replaced."""

    def __init__(self, file: Path, reason: object) -> None:
        super().__init__(f"{file}: {reason}; remove the file, or name another by --output")


def write_whole(file: Path, content: dict[str, Any]) -> None:
    """Replaces a file, which a reader sees whole at any time."""
    replace((json.dumps(content, indent=1) + "\n").encode(), file)


def check_places(table: Path) -> None:
    """Before what takes long: OSError if the table or its state could not be written. Makes the folder."""
    for file in (table, Progress.place(table)):
        if file.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    probe = table.with_name(f"{table.name}.{os.getpid()}.probe")
    replace(b"", probe)
    probe.unlink()


def _is_ours(content: Any) -> bool:
    """Whether it was written on this machine by this version."""
    return isinstance(content, dict) and all(content.get(key) == value for key, value in origin().items())


def _parsed(text: bytes) -> Any:
    """What a JSON text says. ValueError if it is none."""
    try:
        return json.loads(text.decode())
    except RecursionError:
        raise ValueError("is no table: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is no JSON ({error})") from None


def read_table(file: Path) -> dict[str, Any]:
    """The table in a file, of whichever machine and version; empty if there is none.

    NoTable if something else is there, or a table of this machine and version that no group would take.
    """
    try:
        text = read_whole(file)
        content = _parsed(text) if text.strip() else {}
        if not isinstance(content, dict):
            raise ValueError("is no tuning table")
        if _is_ours(content):
            _core.check_tuning_table(text.decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NoTable(file, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise NoTable(file, error) from None
    return content


def plan_files(table: Path) -> set[Path]:
    """The files of plans that a table names, of whichever machine and version; none if there is no table."""
    plans = read_table(table).get("plans")
    entries = [entry for entry in plans if isinstance(entry, dict)] if isinstance(plans, list) else []
    names = [name for entry in entries if isinstance(name := entry.get("file"), str)]
    return {table.parent / name for name in names if "\0" not in name and name.encode(errors="ignore").decode() == name}


def _is_result(result: Any) -> bool:
    """Whether it is what a rank reports of a cell."""
    match result:
        case {
            "crowded": bool(),
            "default": str(),
            "gpus": str(),
            "choice": str(choice),
            "ns": dict(times),
            "refused": dict(reasons),
        } if not times or choice in times:
            numbers = all(type(ns) in (int, float) and 0 <= ns < 2**63 for ns in times.values())
            return numbers and all(isinstance(why, str) for why in reasons.values())
    return False


def _results(state: Path) -> dict[str, dict[str, Any]]:
    """What a state holds for this machine and version; what cannot be understood is measured again."""
    try:
        content = _parsed(read_whole(state))
    except (OSError, ValueError):
        return {}
    results = content.get("results") if _is_ours(content) else None
    return {key: one for key, one in results.items() if _is_result(one)} if isinstance(results, dict) else {}


class Progress:
    """The cells that a run has measured, kept in a file beside the table until the table is written."""

    def __init__(self, table: Path, resume: bool) -> None:
        self.file = self.place(table)
        self.results = _results(self.file) if resume else {}

    @staticmethod
    def place(table: Path) -> Path:
        """Where the state of a run for this table is kept."""
        return table.with_name(table.name + ".part")

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
    before = read_table(file)
    before = before if _is_ours(before) else {}
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
