"""`tutti plan calibrate`: the fit gives back what was measured, and the command writes what the simulator reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tutti import _core
from tutti.cli.app import app
from tutti.plans import calibration, probes
from tutti.plans.calibration import SIZES, Timer, fit, least_of, measure, usable_ranks
from tutti.plans.comparison import PLANS, built_in, compare
from tutti.topology import cpu_host

pytestmark = pytest.mark.tutti_only


def machine(latency_us: float, gbs: float, memory_gbs: float, dispatch_us: float) -> dict[str, Any]:
    """A topology to be found again: small transfers slow, the largest slower than those that fit a cache."""
    out = cpu_host(2, latency_us, gbs, memory_gbs)
    out["dispatch_us"] = dispatch_us
    out["efficiency"] = [[64, 0.2], [4096, 0.5], [262144, 1], [4194304, 0.75]]
    out["local"] = {"latency_us": 0, "bandwidth_gbs": 60, "efficiency": [[64, 0.25], [16384, 1], [4194304, 0.3]]}
    out["local"]["packet_efficiency"] = [[128, 0.1], [8192, 0.25]]
    out["local"] |= {"reduce_efficiency": [[128, 0.2], [8192, 0.4]], "packet_reduce_efficiency": [[128, 0.08]]}
    out["local"]["in_turn"] = True
    out["packet_efficiency"] = [[128, 0.1], [65536, 0.5]]
    out["unread_efficiency"] = [[64, 0.3], [65536, 1]]
    out["call_us"] = 0.25
    return out


@pytest.mark.parametrize("memory", [8.0, 30.0])
@pytest.mark.parametrize(("latency", "dispatch"), [(0.15, 0.005), (1.5, 0.05)])
def test_the_fit_finds_a_known_machine(latency: float, dispatch: float, memory: float) -> None:
    """The simulator stands in for the machine, so that all is known and nothing depends on this one."""
    known = json.dumps(machine(latency, 8.0, memory, dispatch))

    def timer(plan: dict[str, Any], size: int) -> float:
        time: float = _core.simulate_plan(json.dumps(plan), known, size)["time_us"]
        return time

    found = measure(timer)
    assert found.call_us == pytest.approx(0.25, rel=0.2)
    assert found.dispatch_us == pytest.approx(dispatch, abs=0.0012)  # with a copy of 16 bytes
    fitted = fit(found, 2, "found")
    own = next(link for link in fitted["links"] if link["from"] == "rank0")
    assert 3 * own["latency_us"] == pytest.approx(latency, rel=0.15)
    assert own["bandwidth_gbs"] == pytest.approx(8.0, rel=0.15)
    shared = next(link for link in fitted["links"] if link["from"] == "in")
    assert shared["bandwidth_gbs"] == pytest.approx(min(memory, 16.0), rel=0.25)
    for size in SIZES:  # the probes take as long there
        rounds = calibration.rounds_of(size)
        for plan in (
            probes.alone(probes.COPY, rounds),
            probes.alone(probes.REDUCE, rounds),
            probes.by_packets("cpkt", "upkt", rounds),
            probes.by_packets("cpkt", "repkt", rounds),
            probes.by_packets("ppkt", "upkt", rounds),
            probes.ping_pong(rounds, [probes.put("s")], [probes.TAKE]),
            probes.ping_pong(rounds, [probes.put("o")]),
        ):
            time = _core.simulate_plan(json.dumps(plan), json.dumps(fitted), size)["time_us"]
            assert time == pytest.approx(timer(plan, size), rel=0.1), (plan["name"], size)
    rows = compare(fitted, 2, timer)
    assert len(rows) == len(PLANS) * 5
    for row in rows:
        assert 0.75 < row.ratio < 1.33, row


def test_the_plans_compared_are_proven() -> None:
    for ranks in (2, 4):
        for collective, name in PLANS:
            assert _core.check_plan(built_in(collective, name, ranks))["outcome"] != "rejected"


def test_ranks_need_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert usable_ranks(cores) == cores
    with pytest.raises(ValueError, match="no model of that"):
        usable_ranks(cores + 1)
    result = CliRunner().invoke(app, ["plan", "calibrate", "-o", "unused.json", "--ranks", str(cores + 1)])
    assert (result.exit_code, Path("unused.json").exists()) == (2, False)


def test_the_least_of_real_runs() -> None:
    """One thread a rank, however many cores there are: slow at worst."""
    assert 0 < least_of(1, seconds=1e-4)(probes.ping_pong(2, [probes.put("s")], [probes.TAKE]), 64) < 1e7


def test_the_command_writes_a_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated(tries: int) -> Timer:
        assert tries == 3
        return lambda plan, size: _core.simulate_plan(json.dumps(plan), place, size)["time_us"]

    place = json.dumps(machine(0.2, 8.0, 30.0, 0.01))
    monkeypatch.setattr(calibration, "least_of", simulated)
    monkeypatch.setattr(calibration, "usable_ranks", lambda ranks: ranks)
    target, figures, picture = tmp_path / "here.json", tmp_path / "figures.json", tmp_path / "here.png"
    command = ["plan", "calibrate", "-o", str(target), "--tries", "3", "--check"]
    command += ["--json", str(figures), "--png", str(picture)]
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "signal " in result.output
    assert "allreduce ring" in result.output
    assert "off by a factor of 1." in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(figures.read_text())
    assert sorted(map(int, found["measured"]["transfers"])) == SIZES
    assert len(found["compared"]) == len(PLANS) * 5
    assert found["topology"] == json.loads(target.read_text())
    ring = built_in("allreduce", "ring", 2)
    assert _core.simulate_plan(ring, target.read_text(), 1 << 16)["time_us"] > 0
