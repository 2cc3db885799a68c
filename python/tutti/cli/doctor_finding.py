"""A line of ``tutti doctor``'s report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How a finding stands: only BROKEN makes Tutti unusable."""

    GOOD = "[green]ok[/green]"
    SLOWER = "[yellow]note[/yellow]"
    BROKEN = "[red]FAIL[/red]"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str
    verdict: Verdict
    found: str
    meaning: str = ""
    remedy: str = ""
