"""The `tutti` command with numbers, files and plans that nobody means: a line and an exit status, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from commands import invoke

from tutti import _core
from tutti._units import parse_bytes
from tutti.cli.tune import cells_of, make_settings
from tutti.language import AlgoSpec, AllReduce, AllToAll
from tutti.language.builtins import BUILTINS
from tutti.topology import PRESETS, nvswitch

pytestmark = pytest.mark.tutti_only


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("plans") / "ring.json"
    file.write_text(BUILTINS["allreduce", "ring"](AlgoSpec("ring", AllReduce(4, 1, False))).to_json())
    return str(file)


@pytest.mark.parametrize(
    "words",
    [
        "run {} --size 16777216T",
        "run {} --size 99999999999999999999",
        "run {} --size 1048576T --repeat 1",
        "run {} --timeout inf",
        "run {} --timeout 1e300",
        "run {} --seed 18446744073709551616",
        "run {} --repeat 2147483648",
        "simulate {} --topology ring --size 16777215T",
        "simulate {} --topology ring --size 1048576T",
        "simulate --generate ring --ranks 2147483648 --topology ring --size 1KB",
        "check --generate ring --ranks 2147483648",
        "generate ring --ranks 2147483648",
        "generate two-level --ranks 8 --ranks-per-host 2147483648",
        "generate double-tree --ranks 8 --pieces 2147483648",
        "fold {} --dims 2147483648",
        "fold {} --dims 2,,2",
        "fold {} --input-blocks 2147483648",
        "compile {} --emit-cuda --rank 2147483648",
    ],
)
def test_numbers_that_are_too_large_are_refused(words: str, ring: str) -> None:
    code, output = invoke("plan", *words.format(ring).split())
    assert code == 2, output
    assert output.strip()


def test_sizes_are_exact() -> None:
    assert parse_bytes("9007199254740993") == 9007199254740993
    assert parse_bytes("8388607.5T") == 2**63 - 2**39
    with pytest.raises(ValueError, match="more than a size can be"):
        parse_bytes("8388608T")


@pytest.mark.parametrize("size", [2**63 - 4, 2**62, 2**61 + 16])
def test_a_message_whose_buffers_would_overflow_is_refused(size: int) -> None:
    plan = BUILTINS["alltoall", "pairwise"](AlgoSpec("pairwise", AllToAll(4, 1, False))).to_json()
    for call in (lambda: _core.run_plan(plan, size), lambda: _core.simulate_plan(plan, json.dumps(nvswitch(4)), size)):
        with pytest.raises(NotImplementedError, match="is too large: a buffer of it would pass"):
            call()


def test_times_that_would_overflow_are_refused(ring: str) -> None:
    text = Path(ring).read_text()
    with pytest.raises(NotImplementedError, match="a time beyond 26 days"):
        _core.simulate_plan(text, json.dumps(nvswitch(4, bandwidth_gbs=1.0)), 2**56)
    with pytest.raises(NotImplementedError, match="a time beyond 26 days"):
        _core.simulate_plan(text, json.dumps(nvswitch(4, bandwidth_gbs=1e-150)), 4096)
    with pytest.raises(ValueError, match="must be above 0"):
        _core.simulate_plan(text, json.dumps(nvswitch(4, bandwidth_gbs=5e-324)), 4096)


def test_a_path_of_slow_links_is_no_short_one(ring: str) -> None:
    """Links of a thousand seconds each: their sum once passed 63 bits, and came out below that of any other path."""
    names = [f"rank{i}" for i in range(4)]
    between = [f"far{i}" for i in range(3000)]
    chain = [names[0], *between, names[1]]
    links = [{"from": a, "to": b, "latency_us": 1e9, "bandwidth_gbs": 1.0} for a, b in pairwise(chain)]
    links += [
        {"from": names[i], "to": names[(i + 1) % 4], "latency_us": 1.0, "bandwidth_gbs": 1.0} for i in range(1, 4)
    ]
    topology = {"nodes": [*names, *between], "ranks": names, "links": links}
    with pytest.raises(NotImplementedError, match="a time beyond 26 days"):
        _core.simulate_plan(Path(ring).read_text(), json.dumps(topology), 4096)


def test_no_topology_is_made_for_ranks_that_no_plan_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "ring", lambda ranks: pytest.fail(f"made for {ranks}"))
    ranks = ("--generate", "ring", "--ranks", "4000000")
    code, output = invoke("plan", "simulate", *ranks, "--topology", "ring", "--size", "1KB")
    assert code == 2
    assert "2 to 65536 ranks" in output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan show {} --svg picture.svg", "--graph"),
        ("plan check {} --gpu a100", "--device cuda"),
        ("plan calibrate -o file.json --png picture.png", "--check"),
        ("plan calibrate -o file.json --check --png picture.text", "no picture is of the kind text"),
        ("bench --png picture.text", "no picture is of the kind text"),
        ("bench --seconds inf", "--seconds"),
        ("bench --ranks 1025", "--ranks 1025: a host has at most 1024"),
        ("bench --sizes 8:64:x", '"x" is no whole number'),
        ("tune --minutes inf", "--minutes"),
        ("tune --ranks 2,x", '"x" is no whole number'),
    ],
)
def test_what_would_mean_nothing_is_refused_at_once(words: str, said: str, ring: str) -> None:
    if "png" in words and "no picture" in said:
        pytest.importorskip("matplotlib")
    code, output = invoke(*words.format(ring).split())
    assert code == 2
    assert said in output


@pytest.mark.parametrize("words", ["--help", "--version", "plan --help", "info"])
def test_a_full_disk_is_a_line(words: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        run = subprocess.run([sys.executable, "-m", "tutti", *words.split()], stdout=full, stderr=subprocess.PIPE)
    assert run.returncode == 2
    assert run.stderr.decode().splitlines() == ["tutti: [Errno 28] No space left on device"]


def test_the_debugger_without_an_input(ring: str) -> None:
    command = f"exec {sys.executable} -m tutti plan step {ring} <&-"
    run = subprocess.run(["sh", "-c", command], capture_output=True)
    assert run.returncode == 2
    assert b"standard input, which is closed" in run.stderr and b"Traceback" not in run.stderr


def test_a_rank_without_thread_blocks(ring: str, tmp_path: Path) -> None:
    plan = json.loads(Path(ring).read_text())
    plan["collective"] = "test"
    for gpu in plan["gpus"]:
        gpu["threadblocks"], gpu["semaphores"] = [], []
    file = tmp_path / "idle.json"
    file.write_text(json.dumps(plan))
    code, output = invoke("plan", "show", "--graph", "0", str(file))
    assert (code, output) == (0, "rank 0 has no thread blocks\n")
    code, output = invoke("plan", "step", str(file), lines="next\nlist\n")
    assert code == 0
    assert output.count("rank 0 has no task 0: thread blocks come first") == 2


def test_cells_of_tune_are_whole_elements() -> None:
    settings = make_settings("2", "all_reduce", "3,5,8,17", "f32", "private", 1, Path("table.json"), True, [], False)
    assert settings.sizes == (8, 16)
    assert [cell.bytes for cell in cells_of(settings, 2)] == [8, 16]


@pytest.mark.parametrize(
    "words",
    [
        "generate ring --ranks 4 -o {}",
        "export --mscclpp {} -o {}",
        "simulate {} --topology ring --size 1KB --html {}",
        "simulate {} --topology ring --size 1KB --trace {}",
        "show {} --graph 0 --svg {}",
        "compile {} --emit-cuda -o {}",
        "fold --dims 4 --input-blocks 4 --output-blocks 4 {} -o {}",
    ],
)
def test_what_is_written_is_said_and_what_cannot_be_is_refused(words: str, ring: str, tmp_path: Path) -> None:
    for output, expected in ((tmp_path / "out", 0), (tmp_path / "no folder" / "out", 2), (Path("/dev/full"), 2)):
        if not os.path.exists("/dev/full") and output == Path("/dev/full"):
            continue
        files = iter([ring, str(output)] if words.count("{}") == 2 else [str(output)])
        code, said = invoke("plan", *(next(files) if word == "{}" else word for word in words.split()))
        assert code == expected, said
        assert str(output) in said
        assert output.exists() or expected


def test_a_template_is_stepped_as_all_its_ranks(tmp_path: Path) -> None:
    file = tmp_path / "ring.json"
    file.write_text(_core.generate_plan("ring", 4))
    code, output = invoke("plan", "step", str(file), lines="continue\nbuffers 3\n")
    assert code == 0, output
    assert "r0-3" in output


def test_the_debugger_removes_no_breakpoint_that_is_not_there(ring: str) -> None:
    code, output = invoke("plan", "step", ring, lines="b put\nb 1\ndelete 0\nb\ncounters ²\n")
    assert code == 0
    assert "there is no breakpoint 0" in output
    assert output.count("2: rank 1") == 2
    assert '"²" is no number' in output


def test_a_file_with_a_byte_order_mark_is_read_by_all(ring: str, tmp_path: Path) -> None:
    file = tmp_path / "marked.json"
    file.write_bytes(b"\xef\xbb\xbf" + Path(ring).read_bytes())
    for words in (["check"], ["run", "--repeat", "1"], ["show", "--graph", "0"], ["diff", ring], ["step"]):
        code, output = invoke("plan", *words, str(file))
        assert code == 0, output


def test_a_shrunk_plan_loads_whatever_its_name(ring: str, tmp_path: Path) -> None:
    plan = json.loads(Path(ring).read_text())
    plan["name"] = "x" * 4096
    operations = plan["gpus"][0]["threadblocks"][0]["ops"]
    operations[:] = [op for op in operations if op["name"] != "signal"]
    for gpu in plan["gpus"][1:]:
        gpu["threadblocks"][0]["ops"] = gpu["threadblocks"][0]["ops"]
    file, small = tmp_path / "named.json", tmp_path / "small.json"
    file.write_text(json.dumps(plan))
    code, output = invoke("plan", "shrink", str(file), "-o", str(small))
    assert code == 0, output
    _core.plan_info(small.read_text())
