"""Every plan that the tests use has the verdict that the table says: its outcome and the first reason against it.

The table is verdicts.tsv: source, plan, ranks, outcome, kind of fault, first reason. Where it is meant to change,
``TUTTI_WRITE_VERDICTS=1 pytest tests/python/language/test_verdicts.py`` writes it anew.

The plans of MSCCL++'s own programs need a checkout of microsoft/mscclpp, as in test_language_peer.py.
"""

from __future__ import annotations

import csv
import json
import os
from typing import NamedTuple

import pytest
from table_plans import CHECKOUT, HERE, SOURCES

from tutti import _core

pytestmark = pytest.mark.tutti_only

TABLE = HERE / "verdicts.tsv"
WRITE = os.environ.get("TUTTI_WRITE_VERDICTS") == "1"
COLUMNS = ("source", "plan", "ranks", "outcome", "fault", "reason")


class Row(NamedTuple):
    """A line of the table."""

    source: str
    plan: str
    ranks: str
    outcome: str
    fault: str
    reason: str


def row_of(source: str, name: str, text: str) -> Row:
    """What the loader or the verifier says about a plan."""
    ranks = str(len(json.loads(text)["gpus"]))
    try:
        verdict = _core.check_plan(text)
    except ValueError as error:
        return Row(source, name, ranks, "refused", "structure", str(error))
    fault = verdict["fault"] or {"kind": "", "message": ""}
    return Row(source, name, ranks, verdict["outcome"], fault["kind"], fault["message"])


def table() -> list[Row]:
    with TABLE.open(newline="") as file:
        lines = list(csv.reader(file, delimiter="\t"))
    assert tuple(lines[0]) == COLUMNS
    return [Row(*line) for line in lines[1:]]


def rewrite(source: str, found: list[Row]) -> None:
    order = list(SOURCES)
    known = [row for row in table() if row.source != source] if TABLE.exists() else []
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(known + found, key=lambda row: (order.index(row.source), row.plan, int(row.ranks))))


@pytest.mark.parametrize("source", list(SOURCES))
def test_verdicts_are_those_of_the_table(source: str) -> None:
    if source == "mscclpp" and not CHECKOUT:
        pytest.skip("TUTTI_TEST_MSCCLPP names no checkout of microsoft/mscclpp")
    found = [row_of(source, name, text) for name, text in SOURCES[source]()]
    if WRITE:
        rewrite(source, found)
    wanted = [row for row in table() if row.source == source]
    keys = [(row.plan, row.ranks) for row in wanted]
    assert len(keys) == len(set(keys))
    assert sorted(found) == sorted(wanted)


def test_the_table_has_every_kind_of_verdict() -> None:
    rows = table()
    assert {row.source for row in rows} == set(SOURCES)
    assert {row.outcome for row in rows} >= {"proven", "proven after repair", "rejected"}
    assert all(row.outcome == "proven" for row in rows if row.source in ("builtins", "examples/plans"))
