"""`tutti tune`: what it measures, how it goes on after it was killed, what the library then chooses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from direct_plan import direct_all_reduce
from test_cli import invoke

from tutti import _core
from tutti.cli import tune
from tutti.cli.tune_plans import built_in_plans
from tutti.cli.tune_rank import Candidate, Cell, FolderStore, Task
from tutti.cli.tune_table import Progress, cell_entry, make_table, origin, plan_files, read_table, write_whole

pytestmark = pytest.mark.tutti_only

SIZES = "64,128,256,512,1024,2048,4096,8192"
QUICK = ("--ranks", "2", "--sizes", "64,40000", "--minutes", "0.001")


def table_of(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    _core.check_tuning_table(file.read_text())
    return content


def test_measures_every_algorithm_and_writes_a_table(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    code, output = invoke("tune", *QUICK, "-c", "all_reduce,broadcast,barrier", "-o", str(file))
    assert code == 0, output
    assert "wrong: 0" in output
    table = table_of(file)
    cells = {(cell["collective"], cell["tensors"], cell["bytes"]): cell for cell in table["cells"]}
    assert len(cells) == 9, "two sizes, private and mapped, twice, and a barrier"
    large = {entry["algorithm"] for entry in cells["all_reduce", "mapped", 40_000]["measured"]}
    assert {"mapped", "staged", "ring", "plan:ring", "plan:swing", "plan:switch"} <= large
    assert "mapped" not in {entry["algorithm"] for entry in cells["all_reduce", "private", 40_000]["measured"]}
    assert cells["all_reduce", "private", 64]["default"] == "slots"
    assert all(cell["choice"] in {entry["algorithm"] for entry in cell["measured"]} for cell in table["cells"])
    # Plans that nothing chooses are not kept.
    kept = {(file.parent / plan["file"]).resolve() for plan in table["plans"]}
    assert kept == {path.resolve() for path in (tmp_path / "table.plans").glob("*")}
    assert not (tmp_path / "table.json.part").exists()


def choose(file: Path, algorithm: str, size: int = 40_000) -> None:
    """Lets a table choose an algorithm for all-reduces of a size, whatever was the fastest."""
    table = table_of(file)
    for cell in table["cells"]:
        if cell["collective"] == "all_reduce" and cell["bytes"] == size:
            cell["choice"] = algorithm
    file.write_text(json.dumps(table))


def test_explain_shows_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "table.json"
    assert invoke("tune", *QUICK, "-c", "all_reduce", "--no-built-in", "-o", str(file))[0] == 0
    choose(file, "ring")
    monkeypatch.setenv("TUTTI_TUNING_PATH", str(file))
    code, output = invoke("explain", "all_reduce", "40000")
    assert code == 0, output
    lines = {line[3:].split(":")[0]: line for line in output.splitlines()}
    assert lines["ring"].startswith("-> ring: ")
    assert lines["ring"].endswith(("us", "ms"))
    assert "would work" in lines["staged"] and lines["staged"].endswith(("us", "ms"))
    assert lines["slots"].startswith("   slots: not here")
    assert "40000 bytes, f32, private" in output
    assert "-> staged" in invoke("explain", "all_reduce", "40000", "--ranks", "3")[1], "measured for 2 ranks only"
    monkeypatch.setenv("TUTTI_TUNING_PATH", "none")
    assert "-> staged" in invoke("explain", "all_reduce", "40000")[1]


def test_a_table_in_the_users_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUTTI_TUNING_PATH", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert invoke("tune", *QUICK, "-c", "all_reduce", "--no-built-in")[0] == 0
    (file,) = (tmp_path / "tutti").glob("tuning-*.json")
    assert str(file) == _core.default_tuning_file()
    choose(file, "direct")
    assert "-> direct" in invoke("explain", "all_reduce", "40000")[1]


def test_a_broken_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({**origin(), "plans": [], "cells": [{"ranks": "two"}]}))
    monkeypatch.setenv("TUTTI_TUNING_PATH", str(file))
    code, output = invoke("explain", "all_reduce", "64KB")
    assert code == 2
    assert f"{file}: /cells/0/ranks: an integer is expected" in output


def killed_after(cells: int, file: Path) -> set[str]:
    """Starts a run, kills it when so many cells are in its state, and returns which these are."""
    part = file.with_name(file.name + ".part")
    options = ("--ranks", "2", "-c", "all_reduce", "--no-built-in", "-s", SIZES, "--minutes", "0.05", "-o", str(file))
    run = subprocess.Popen(
        [sys.executable, "-m", "tutti", "tune", *options],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not part.exists() or len(json.loads(part.read_text())["results"]) < cells:
            assert run.poll() is None and time.monotonic() < deadline, "it ended before it could be killed"
            time.sleep(0.005)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    return set(json.loads(part.read_text())["results"])


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    before = killed_after(3, file)
    assert not file.exists()
    part = json.loads((tmp_path / "table.json.part").read_text())
    marked = sorted(before)[0]
    part["results"][marked]["ns"]["staged"] = 123_456_789.0  # what is not measured again stays so
    (tmp_path / "table.json.part").write_text(json.dumps(part))
    arguments = ("tune", "--ranks", "2", "-c", "all_reduce", "--no-built-in", "--minutes", "0.001", "-o", str(file))
    code, output = invoke(*arguments, "-s", SIZES)
    assert code == 0, output
    assert f"Going on after {len(before)} of 16 cells" in output
    times = {entry["ns"] for cell in table_of(file)["cells"] for entry in cell["measured"]}
    assert 123_456_789 in times
    assert len(table_of(file)["cells"]) == 16


CELL = Cell(2, "all_reduce", "f32", False, 1024)
RESULT = {
    "crowded": False,
    "gpus": "",
    "default": "staged",
    "choice": "ring",
    "ns": {"ring": 10.4, "staged": 20.0},
    "refused": {},
}


def test_the_state_counts_only_for_what_it_was(tmp_path: Path) -> None:
    table, task = tmp_path / "t.json", Task(CELL, (Candidate("ring"), Candidate("staged")))
    Progress(table, True).add(task, RESULT)
    assert Progress(table, True).find(task) == RESULT
    assert Progress(table, False).find(task) is None
    more = Task(CELL, (*task.candidates, Candidate("plan:new", "/somewhere/new-1.json")))
    assert Progress(table, True).find(more) is None, "a plan has been added: the cell is measured again"
    part = tmp_path / "t.json.part"
    state = json.loads(part.read_text())
    part.write_text(json.dumps({**state, "tutti": "another"}))
    assert Progress(table, True).find(task) is None
    part.write_text("{ half a")
    assert Progress(table, True).find(task) is None


def test_what_is_not_measured_again_stays_in_the_table(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(make_table(file, [cell_entry(CELL, RESULT)], [])))
    other = Cell(4, "all_reduce", "f32", False, 1024)
    again = {**RESULT, "choice": "staged"}
    table = make_table(file, [cell_entry(other, RESULT), cell_entry(CELL, again)], [])
    assert [(cell["ranks"], cell["choice"]) for cell in table["cells"]] == [(4, "ring"), (2, "staged")]
    table = make_table(file, [cell_entry(other, RESULT)], [])
    assert [cell["ranks"] for cell in table["cells"]] == [2, 4]
    _core.check_tuning_table(json.dumps(table))


def table_text(**parts: Any) -> str:
    return json.dumps({**origin(), "plans": [], "cells": [], **parts})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (table_text(cells=3), "/cells: "),
        (table_text(cells=[3]), "/cells/0: "),
        (table_text(cells=[{**cell_entry(CELL, RESULT), "foo": 1}]), "/cells/0"),
        (table_text(plans=[{"name": 3}]), "/plans/0/name: "),
        (table_text(plans={}), "/plans: "),
        ("[" * 100_000, "nested too deeply"),
        ("{ half a", "is no JSON"),
        ("[]", "is no tuning table"),
        ("a pipe", "is no regular file"),
    ],
)
def test_what_is_no_table_stays_and_stops_the_run_before_it(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "measure", lambda *arguments: pytest.fail("measured"))
    file = tmp_path / "t.json"
    if content == "a pipe":
        os.mkfifo(file)
    else:
        file.write_text(content)
    code, output = invoke("tune", *QUICK, "-c", "barrier", "-o", str(file))
    assert code == 2
    assert output.startswith(f"tutti tune: {file}: ") and output.count("\n") == 1, output
    assert said in output and output.endswith("; remove the file, or name another by --output\n"), output
    assert list(tmp_path.iterdir()) == [file]
    assert file.is_fifo() or file.read_text() == content


@pytest.mark.parametrize("folder", ["t.json", "t.json.part"])
def test_a_place_that_cannot_be_written_is_seen_before_measuring(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "measure", lambda *arguments: pytest.fail("measured"))
    (tmp_path / folder).mkdir()
    code, output = invoke("tune", *QUICK, "-c", "barrier", "-o", str(tmp_path / "t.json"))
    assert code == 2
    assert str(tmp_path / folder) in output and output.count("\n") == 1, output
    assert [path.name for path in tmp_path.iterdir()] == [folder]


def test_what_cannot_be_put_in_its_place_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.json").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "t.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_a_file_with_nothing_in_it_is_no_table_yet(tmp_path: Path) -> None:
    (tmp_path / "t.json").touch()
    assert read_table(tmp_path / "t.json") == read_table(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    "results",
    [
        [],
        {"a": 3},
        {"a": {**RESULT, "ns": []}},
        {"a": {**RESULT, "ns": {"ring": "fast"}}},
        {"a": {**RESULT, "choice": "tree"}},
        {"a": {**RESULT, "refused": {"tree": 3}}},
        {"a": {key: value for key, value in RESULT.items() if key != "gpus"}},
    ],
)
def test_a_state_that_is_none_counts_for_nothing(results: Any, tmp_path: Path) -> None:
    (tmp_path / "t.json.part").write_text(json.dumps({**origin(), "results": results}))
    assert Progress(tmp_path / "t.json", True).results == {}


def test_names_in_an_older_table_are_only_names(tmp_path: Path) -> None:
    plans = [3, {"file": 3}, {"file": "a\0b"}, {"file": "\ud800"}, {"file": "t.plans/folder"}, {"file": "t.plans/a"}]
    (tmp_path / "t.json").write_text(json.dumps({"version": 0, "plans": plans}))
    written, folder = plan_files(tmp_path / "t.json"), tmp_path / "t.plans"
    assert written == {folder / "folder", folder / "a"}
    (folder / "folder").mkdir(parents=True)
    (folder / "a").touch()
    tune._remove_unused(folder, written, set(), set())
    assert list(folder.iterdir()) == [folder / "folder"]


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ([[10.0] * 9, [9.8] * 9], 0),  # too close
        ([[10.0] * 9, [9.0] * 9], 1),
        ([[10.0] * 9, [12.0] * 9, [5.0] * 9], 2),
        ([[10.0] * 9, [9.0] * 6 + [30.0] * 3], 0),  # faster in the median, not often enough
        ([[10.0] * 8 + [1.0], [9.0] * 9], 1),  # one lucky round of the default changes nothing
    ],
)
def test_only_a_clear_gain_replaces_the_default(times: list[list[float]], best: int) -> None:
    assert _core.best_candidate(times, 0) == best


def test_plans_of_the_same_name_are_refused(tmp_path: Path) -> None:
    for name, in_place in (("a", False), ("b", True)):
        (tmp_path / f"{name}.json").write_text(json.dumps(direct_all_reduce(2, in_place)))
    code, output = invoke("tune", *QUICK, "-c", "all_reduce", "--plans", str(tmp_path), "-o", str(tmp_path / "t.json"))
    assert code == 2
    assert "are called" in output and "direct" in output


def test_a_users_plan_is_measured(tmp_path: Path) -> None:
    plan, file = tmp_path / "direct.json", tmp_path / "out" / "t.json"
    plan.write_text(json.dumps(direct_all_reduce(2, True)))
    options = ("--ranks", "2", "-s", "4096", "--minutes", "0.001", "--tensors", "mapped", "--no-built-in")
    code, output = invoke("tune", *options, "-c", "all_reduce", "--plans", str(plan), "-o", str(file))
    assert code == 0, output
    (cell,) = table_of(file)["cells"]
    assert "plan:direct" in {entry["algorithm"] for entry in cell["measured"]}


def test_only_files_of_a_table_are_removed(tmp_path: Path) -> None:
    """What else lies in the folder of its plans is the user's."""
    file, outside = tmp_path / "out" / "mine.json", tmp_path / "outside.json"
    folder = file.with_suffix(".plans")
    folder.mkdir(parents=True)
    for mine in (outside, folder / "notes.json", folder / "text", old := folder / "old.json"):
        mine.write_text("{}")
    file.write_text(json.dumps({"plans": [{"file": "mine.plans/old.json"}, {"file": "../outside.json"}]}))
    code, output = invoke("tune", *QUICK, "-c", "all_reduce", "-o", str(file))
    assert code == 0, output
    kept = {file.parent / plan["file"] for plan in table_of(file)["plans"]}
    assert set(folder.iterdir()) == {folder / "notes.json", folder / "text"} | kept
    assert outside.exists() and not old.exists()


def test_plans_that_are_given_stay(tmp_path: Path) -> None:
    """Also where a run would write them under the same names."""
    file = tmp_path / "mine.json"
    given = {plan.file for plan in built_in_plans("all_reduce", 2, tmp_path / "mine.plans")}
    code, output = invoke("tune", *QUICK, "-c", "all_reduce", "--plans", str(tmp_path / "mine.plans"), "-o", str(file))
    assert code == 0, output
    assert set((tmp_path / "mine.plans").iterdir()) == given


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-c", "all_reduc"), "there is no"),
        (("-d", "f33"), "there is no"),
        (("--tensors", "public"), "there is no"),
        (("--ranks", "1"), "between 2 and 64"),
        (("--sizes", "1 parsec"), "no size"),
        (("--sizes", ","), "at least one"),
    ],
)
def test_nonsense_is_refused(options: tuple[str, ...], said: str) -> None:
    code, output = invoke("tune", *options)
    assert code == 2
    assert said in output


def test_default_numbers_of_ranks_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, ranks in ((1, (2,)), (2, (2,)), (6, (2, 4, 6)), (8, (2, 4, 8))):
        monkeypatch.setattr(_core, "usable_cores", lambda cores=cores: cores)
        assert tune.default_ranks() == ranks


def test_a_store_of_files(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    store.set("a/b", b"\x00one")
    store.wait(["a/b"], timedelta(seconds=1))
    assert store.get("a/b") == b"\x00one"
    assert [store.add("n", 2), store.add("n", 3)] == [2, 5]
    with pytest.raises(TimeoutError, match="missing"):
        store.wait(["a/b", "missing"], timedelta(milliseconds=5))
    store.delete_key("a/b")
    store.delete_key("a/b")
    assert not any(path.name.startswith("a") for path in tmp_path.iterdir())
