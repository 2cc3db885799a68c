"""`tutti plan simulate`: presets, what is printed, drawn and refused."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import commands
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti import _core
from tutti.language import AllGather, AllReduce
from tutti.language.builtins import BUILTINS
from tutti.language.errors import ProgramError
from tutti.language.utils import AlgoSpec
from tutti.plans.timeline import _ticks
from tutti.topology import PRESETS, cpu_host, fat_tree, h200, nvswitch, ring, torus

pytestmark = pytest.mark.tutti_only

PLANS = Path(__file__).resolve().parents[2] / "cpp" / "plan" / "plans"
RING = PLANS / "ring_all_reduce_3.json"
TREE = PLANS / "tree_all_reduce_7.json"
STUCK = PLANS / "both_wait_first.json"
invoke = partial(commands.invoke, "plan", "simulate")


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "thunderbolt"])
@pytest.mark.parametrize("plan", [RING, TREE], ids=lambda path: path.stem)
def test_every_preset_runs_a_plan_above_its_bounds(plan: Path, preset: str) -> None:
    code, output = invoke(plan, "--topology", preset, "--size", "1MB", "--json")
    assert code == 0
    result = json.loads(output)
    assert result["complete"]
    assert result["time_us"] >= result["bandwidth_bound_us"] > 0
    assert result["time_us"] >= result["latency_bound_us"] > 0
    assert 0 < result["links"][0]["share"] <= 1
    path = result["critical_path"]
    topology = PRESETS[preset](2)
    call = topology.get("call_us", 0)
    assert path[0]["turn_us"] in (pytest.approx(call), pytest.approx(call + topology.get("agree_us", 0)))
    assert all(before["begin_us"] <= after["begin_us"] for before, after in itertools.pairwise(path))
    assert path[-1]["seen_us"] == pytest.approx(result["time_us"])


@settings(max_examples=40, deadline=None)
@given(small=st.integers(0, 1 << 20), more=st.integers(0, 1 << 20), gbs=st.floats(1, 400), factor=st.floats(1, 10))
def test_time_grows_with_size_and_falls_with_bandwidth(small: int, more: int, gbs: float, factor: float) -> None:
    plan = RING.read_text()

    def time_of(size: int, bandwidth: float) -> float:
        return _core.simulate_plan(plan, json.dumps(ring(3, 1.0, bandwidth)), size)["time_us"]

    slack = 1e-4  # of rounding to picoseconds, in us
    assert time_of(small, gbs) <= time_of(small + more, gbs) + slack
    assert time_of(small, gbs * factor) <= time_of(small, gbs) + slack


# Microseconds that compiled programs took on so many H200 (docs/performance.md), in so many instances: of 1 KB, 64 KB,
# 256 KB, 1 MB and 16 MB.
ON_H200 = {
    (2, "allgather", "bine", 4): [7.4, 7.3, None, 12.2, None],
    (2, "allgather", "bruck", 4): [7.4, 7.3, None, 11.4, None],
    (2, "allgather", "pat", 4): [7.3, 7.2, None, 11.3, None],
    (2, "allgather", "ring", 1): [None, None, 10.5, 12.8, 65.8],
    (2, "allgather", "ring", 4): [7.3, 7.3, 9.6, 11.3, 51.2],
    (2, "allgather", "two_level", 4): [7.4, 7.3, None, 12.2, None],
    (2, "allreduce", "bine", 4): [8.9, 9.1, None, 14.8, None],
    (2, "allreduce", "double_tree", 4): [8.8, 9.2, None, 14.8, None],
    (2, "allreduce", "one_shot", 1): [None, None, 7.7, 15.6, 236],
    (2, "allreduce", "one_shot", 4): [2.9, 4.1, 6.4, 11.8, 163],
    (2, "allreduce", "rabenseifner", 4): [8.8, 9.1, None, 14.5, None],
    (2, "allreduce", "recursive_doubling", 1): [None, None, 11.2, 18.2, 166],
    (2, "allreduce", "recursive_doubling", 4): [6.6, 7.2, None, 13, None],
    (2, "allreduce", "recursive_multiplying", 4): [6.7, 7.2, None, 13, None],
    (2, "allreduce", "ring", 1): [None, None, 13.2, 17.5, 122],
    (2, "allreduce", "ring", 4): [8.8, 9.1, None, 14.4, None],
    (2, "allreduce", "swing", 4): [8.9, 9.1, None, 14.5, None],
    (2, "allreduce", "two_level", 4): [8.8, 9.1, None, 14.9, None],
    (2, "allreduce", "two_shot", 1): [None, None, 7.8, 13.9, 207],
    (2, "allreduce", "two_shot", 4): [4.1, 4.5, 7.2, 11.7, 197],
    (4, "allgather", "bine", 4): [10.2, 10.3, None, None, None],
    (4, "allgather", "bruck", 4): [10.3, 10.7, None, None, None],
    (4, "allgather", "pat", 4): [10.4, 10.7, None, None, None],
    (4, "allgather", "ring", 1): [None, None, 16, 18.4, 78.9],
    (4, "allgather", "ring", 4): [12.1, 12.2, 13.9, 19.2, 71.6],
    (4, "allgather", "two_level", 4): [10.2, 10.4, None, None, None],
    (4, "allreduce", "bine", 4): [14.5, 14.9, None, None, None],
    (4, "allreduce", "double_tree", 4): [17.5, 18.9, None, None, None],
    (4, "allreduce", "one_shot", 1): [None, None, 13.8, 49, 645],
    (4, "allreduce", "one_shot", 4): [3.7, 6.2, 11.4, 38.7, 524],
    (4, "allreduce", "rabenseifner", 4): [14.8, 15.2, None, None, None],
    (4, "allreduce", "recursive_doubling", 1): [None, None, 15.9, 28.3, 300],
    (4, "allreduce", "recursive_doubling", 4): [9.2, 10.4, None, None, None],
    (4, "allreduce", "recursive_multiplying", 4): [9.5, 10.8, None, None, None],
    (4, "allreduce", "ring", 4): [17.7, 18.7, None, None, None],
    (4, "allreduce", "swing", 4): [14.4, 14.8, None, None, None],
    (4, "allreduce", "torus_bucket", 4): [14.4, 14.8, None, None, None],
    (4, "allreduce", "two_shot", 1): [None, None, 9.7, 22.7, 345],
}


def program(ranks: int, collective: str, name: str, instances: int) -> str:
    """A built-in program, of the fewest chunks that it can have."""
    kinds = (
        [AllGather(ranks, 1, False)] if collective == "allgather" else [AllReduce(ranks, n, False) for n in (1, ranks)]
    )
    for kind in kinds:
        with contextlib.suppress(ProgramError):
            return BUILTINS[collective, name](AlgoSpec(name, kind, instances=instances)).to_json()
    raise AssertionError(name)


def test_h200_gives_back_the_times_that_it_was_fitted_to() -> None:
    off = []
    for (ranks, collective, name, instances), measured in ON_H200.items():
        text = program(ranks, collective, name, instances)
        for size, us in zip([1 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20], measured, strict=True):
            if us is None:
                continue
            block = size // ranks if collective == "allgather" else size
            predicted = _core.simulate_plan(text, json.dumps(h200(ranks)), block)["time_us"]
            off.append(abs(predicted / us - 1))
    assert statistics.median(off) <= 0.08
    assert sum(error <= 0.2 for error in off) >= 0.9 * len(off)
    assert max(off) <= 0.32


def test_boxes_of_h200_reach_each_other_by_their_cards() -> None:
    plan = RING.read_text()  # three ranks

    def time_of(per_box: int, **network: float) -> float:
        return _core.simulate_plan(plan, json.dumps(h200(3, per_box, **network)), 64 << 20)["time_us"]

    one = time_of(8)
    assert time_of(2) > 3 * one  # two of the ring's three steps cross the network
    assert time_of(8, network_gbs=1.0) == one
    assert time_of(2, network_gbs=25.0) > 1.5 * time_of(2)
    assert _core.simulate_plan(plan, json.dumps(h200(3, 2)), 64 << 20)["bandwidth_bound_us"] > 0


def test_presets_are_as_they_are_called() -> None:
    assert [len(preset(2)["ranks"]) for preset in PRESETS.values()] == [2] * len(PRESETS)
    assert len(nvswitch(8)["links"]) == 8
    assert len(torus(12)["links"]) == 24
    assert torus(12)["name"] == "torus 4 x 3"
    assert len(torus(2)["links"]) == len(ring(2)["links"]) == 1
    assert len(fat_tree(20, 8, spines=3)["groups"]) == 3
    assert not any(link["both"] for link in cpu_host(4)["links"])
    for wrong in (lambda: torus(7, 2), lambda: PRESETS["thunderbolt"](3), lambda: ring(0), lambda: fat_tree(4, 0)):
        with pytest.raises(ValueError):
            wrong()


def test_topology_files_are_read_and_their_faults_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(ring(3)))
    code, output = invoke(RING, "--topology", file, "--size", "64KB")
    assert code == 0
    for line in ("time ", "bandwidth bound", "latency bound", "critical path", "busiest links"):
        assert line in output
    broken = ring(3)
    broken["links"][1]["to"] = "nowhere"
    file.write_text(json.dumps(broken))
    code, output = invoke(RING, "--topology", file, "--size", "64KB")
    assert code == 2
    assert '/links/1/to: there is no node "nowhere"' in output
    assert invoke(RING, "--topology", "moebius", "--size", "64KB")[0] == 2
    assert invoke(TREE, "--topology", "thunderbolt", "--size", "64KB")[0] == 2


def test_a_stuck_plan_is_an_error_that_names_the_operations() -> None:
    code, output = invoke(STUCK, "--topology", "ring", "--size", "4KB")
    assert code == 2
    assert "stuck after" in output
    assert "(wait" in output


def test_over_budget_states_an_estimate() -> None:
    plan = json.loads(RING.read_text())
    block = plan["gpus"][0]["threadblocks"][0]
    block["ops"] = [{"name": "nop"}] + block["ops"]
    # Enough events that the clock is looked at: copies of nothing but time.
    copy = {"name": "copy", "src_buff": [{"type": "i", "index": 0, "size": 1}]}
    copy["dst_buff"] = [{"type": "s", "index": 0, "size": 1}]
    block["ops"] += [copy] * 2000
    result = _core.simulate_plan(json.dumps(plan), json.dumps(nvswitch(3)), 1 << 16, 0.0)
    assert not result["complete"]
    assert 0 < result["done"] < 1
    assert result["time_us"] > 0


class Tags(HTMLParser):
    """Counts the tags of a page and remembers what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [value for name, value in attrs if name in ("src", "href") and value]


def test_the_timeline_is_drawn_and_traced(tmp_path: Path) -> None:
    page, picture, trace = tmp_path / "t.html", tmp_path / "t.png", tmp_path / "t.json"
    code, _ = invoke(
        RING, "--topology", "ring", "--size", "1MB", "--html", page, "--png", picture, "--trace", trace, "--json"
    )
    assert code == 0
    tags = Tags()
    tags.feed(page.read_text())
    assert tags.loads == []
    assert tags.counts["rect"] > 10
    assert 5 < tags.counts["line"] <= 13  # of the time's axis
    assert picture.read_bytes().startswith(b"\x89PNG")
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        "rank 0",
        "rank 1",
        "rank 2",
    }
    work = [event for event in events if event["ph"] == "X" and event["name"] == "put"]
    assert len(work) == 3 * 4  # two steps of reduce-scatter, two of all-gather, on each rank
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in work)


def test_the_axis_of_time_has_round_ticks() -> None:
    assert _ticks(16.9) == pytest.approx([0, 2, 4, 6, 8, 10, 12, 14, 16])
    assert _ticks(0.05) == pytest.approx([0, 0.01, 0.02, 0.03, 0.04, 0.05])
    assert _ticks(0) == [0]
    assert all(6 <= len(_ticks(1.07**n)) <= 13 for n in range(-200, 200))
