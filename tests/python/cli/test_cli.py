"""The `tutti` command: what it prints, what it saves, how it ends."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from commands import invoke
from rich.console import Console

import tutti
from tutti import _core
from tutti._units import format_bytes, format_simd, format_us, parse_bytes
from tutti.cli import bench, bench_rank, doctor
from tutti.cli.bench_cases import CASES, World, bus_factor
from tutti.cli.dtypes import short_name, torch_name
from tutti.cli.local_ranks import LocalRanks
from tutti.plans import calibration

pytestmark = pytest.mark.tutti_only


def test_version() -> None:
    assert invoke("--version") == (0, f"tutti {tutti.__version__}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("64KB", 65536), ("64k", 65536), (" 1.5 MiB ", 3 << 19), ("8B", 8), ("2G", 2 << 30)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "KB", "1.3", "-1", "64 parsecs", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size|whole"):
        parse_bytes(text)


def test_units_are_written() -> None:
    assert [format_bytes(n) for n in (0, 8, 65536, 3 << 19, 1 << 40)] == ["0 B", "8 B", "64 KB", "1.5 MB", "1 TB"]
    assert [format_simd(name) for name in ("AVX3_ZEN4", "AVX2")] == ["AVX-512 ZEN4", "AVX2"]
    assert [format_us(t) for t in (0.5, 42, 1350, 2.1e6)] == ["0.5 us", "42 us", "1.35 ms", "2.1 s"]


def test_info_shows_settings_but_no_secret() -> None:
    settings = {"TUTTI_SECRET": "opensesame", "TUTTI_SPINS": "12345", "RANK": "1", "WORLD_SIZE": "4"}
    code, output = invoke("info", env=settings)
    assert code == 0
    assert "12345" in output
    assert "1 of 4" in output
    assert "opensesame" not in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("all_reduce", "64B"), "slots"),
        (("all_reduce", "4MB", "--ranks", "3", "--dtype", "bf16", "--op", "max"), "staged"),
        (("all_reduce", "1MB", "--mapped"), "mapped"),
        (("barrier",), "slots"),
        (("broadcast", "1GB"), "staged"),
    ],
)
def test_explain_names_the_algorithm_and_the_call(arguments: tuple[str, ...], expected: str) -> None:
    code, output = invoke("explain", *arguments, env={"TUTTI_CROSS_MEMORY": "0"})  # not everywhere
    assert code == 0, output
    assert output.startswith(arguments[0])
    chosen = [line for line in output.splitlines() if line.startswith("-> ")]
    assert len(chosen) == 1
    assert chosen[0].startswith(f"-> {expected}: ")


def test_explain_prints_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TUTTI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TUTTI_TUNING_PATH", "none")
    page = (Path(__file__).resolve().parents[3] / "docs" / "command_line.md").read_text()
    sample = page.partition("    $ tutti explain all_reduce 64KB\n")[2].partition("\n\n")[0]
    assert invoke("explain", "all_reduce", "64KB") == (0, textwrap.dedent(sample) + "\n")


def test_one_rank_is_one() -> None:
    assert "; 1 rank on this machine:" in invoke("explain", "all_reduce", "64KB", "-n", "1")[1]


def test_explain_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is the library's own, settings included: a forced algorithm is the one explained."""
    monkeypatch.setenv("TUTTI_ALGORITHM", "all_reduce=ring")
    code, output = invoke("explain", "all_reduce", "64KB")
    assert code == 0, output
    assert "-> ring: " in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all_reduc", "64KB"), "there are all_reduce"),
        (("all_reduce", "64 parsecs"), "no size"),
        (("all_reduce", "64KB", "--dtype", "f33"), "there are"),
        (("all_reduce", "64KB", "--op", "xor"), "there are"),
        (("all_reduce", "64KB", "--ranks", "0"), "ranks"),
        (("all_reduce", "64KB", "--op", "band"), ""),
    ],
)
def test_explain_refuses_nonsense(arguments: tuple[str, ...], said: str) -> None:
    code, output = invoke("explain", *arguments)
    assert code == 2
    assert said in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("short", "long"),
    [("f32", "float32"), ("bf16", "bfloat16"), ("u8", "uint8"), ("i64", "int64"), ("f8e5m2", "float8_e5m2")],
)
def test_element_types_have_two_names(short: str, long: str) -> None:
    """PyTorch's and the short one, both wherever a type is asked for."""
    assert (short_name(long), torch_name(short)) == (short, long)
    assert (short_name(short), torch_name(long)) == (short, long)
    assert invoke("explain", "all_reduce", "64", "-d", long) == invoke("explain", "all_reduce", "64", "-d", short)
    for name in (short, long):
        assert bench.make_plan("all_reduce", "8", "tutti", 2, name, 0.1).dtype == long


def test_every_element_type_has_pytorchs_name() -> None:
    for name in _core.dtypes():
        assert name == "byte" or isinstance(getattr(torch, torch_name(name)), torch.dtype)
        assert short_name(torch_name(name)) == name


HELP = [(), ("run",), ("info",), ("doctor",), ("bench",), ("tune",), ("explain",), ("plan",), ("plan", "check")]


@pytest.mark.parametrize("command", HELP)
def test_help_is_whole_in_80_columns(command: tuple[str, ...]) -> None:
    code, output = invoke(*command, "-h", env={"COLUMNS": "80"})
    assert code == 0
    assert output == invoke(*command, "--help", env={"COLUMNS": "80"})[1]
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= 80


def test_doctor_finds_this_machine_usable() -> None:
    code, output = invoke("doctor", "--quick")
    assert code == 0, output
    for check in ("cores", "shared memory", "peers' memory", "futex", "pidfd", "memory locks", "interface lo"):
        assert check in output


def test_doctor_fails_on_what_makes_groups_impossible() -> None:
    code, output = invoke("doctor", "--quick", env={"TUTTI_SPINS": "many"})
    assert code == 1
    assert "TUTTI_SPINS" in output


def test_settings_that_are_no_text_are_named() -> None:
    environment = os.environb | {b"TUTTI_SPINS": b"\xff"}
    command = [sys.executable, "-m", "tutti", "info"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "TUTTI_SPINS" in done.stdout and "\\xff" in done.stdout, done


def test_info_tells_what_is_wrong_with_a_launch() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RANK"} | {"WORLD_SIZE": "4"}
    command = [sys.executable, "-m", "tutti", "info"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "WORLD_SIZE is set but RANK is not" in done.stdout, done


def test_doctor_tells_how_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check that fails has a meaning and a remedy, and only some of them are fatal."""

    class Refused:
        works, detail, value, unit = False, "Operation not permitted", 0.0, ""

    for name in dir(_core):
        if name.startswith("probe_") and name != "probe_interfaces":
            monkeypatch.setattr(_core, name, Refused)
    findings = doctor.examine(quick=True, console=Console(quiet=True))
    troubled = [f for f in findings if f.verdict is not doctor.Verdict.GOOD]
    assert len(troubled) >= 10
    assert all(f.meaning and f.remedy for f in troubled)
    assert all(f.verdict is doctor.Verdict.SLOWER for f in troubled)


def test_doctor_tells_of_names_that_are_looked_up_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    monkeypatch.setattr(doctor.socket, "getnameinfo", lambda address, flags: asked.wait(30))
    finding = doctor._names()
    asked.set()
    assert finding.verdict is doctor.Verdict.SLOWER and "more than 2" in finding.found, finding
    monkeypatch.setattr(doctor.socket, "getnameinfo", lambda address, flags: ("localhost", "0"))
    assert doctor._names().verdict is doctor.Verdict.GOOD


def test_probes_measure_real_transfers() -> None:
    assert _core.probe_memfd().works
    futex = _core.probe_futex()
    assert futex.works
    assert 0 < futex.value < 50_000
    assert _core.probe_pidfd().works
    assert "of another process" in _core.probe_cross_memory().detail  # however fast
    loopback = [probe for probe in _core.probe_interfaces() if probe.loopback]
    assert loopback
    assert loopback[0].transfer.value > 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("", 0, 1, -1)),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, ("environment", 2, 4, 0)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, ("SLURM", 1, 2, 1)),
    ],
)
def test_launch_info(environment: dict[str, str], expected: tuple[str, int, int, int]) -> None:
    launch = _core.launch_info(environment)
    assert (launch.launcher, launch.rank, launch.size, launch.local_rank) == expected


def test_launch_info_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        _core.launch_info({"RANK": "1", "WORLD_SIZE": "two"})


def test_bench_compares_and_checks(tmp_path: Path) -> None:
    table, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    code, output = invoke(
        *("bench", "-c", "all_reduce,reduce_scatter,barrier", "-s", "8,3000", "-b", "tutti,tutti-mapped,gloo"),
        *("--seconds", "0.005", "--json", str(table), "--png", str(plot)),
    )
    assert code == 0, output
    report: dict[str, Any] = json.loads(table.read_text())
    assert [(r["collective"], r["bytes"]) for r in report["results"]] == [
        ("all_reduce", 8),
        ("all_reduce", 3000),
        ("reduce_scatter", 8),
        ("reduce_scatter", 3000),
        ("barrier", 0),
    ]
    for result in report["results"]:
        assert set(result["backends"]) == {"tutti", "tutti-mapped", "gloo"}
        for numbers in result["backends"].values():
            assert numbers["right"] is True
            assert 0 < numbers["min_us"] <= numbers["p50_us"] <= numbers["p99_us"]
            assert numbers["ratio"] > 0
    assert report["conditions"]["torch"]
    narrow = Console(width=80)
    with narrow.capture() as captured:
        narrow.print(bench._table(report))
    assert "…" not in captured.get()
    assert max(map(len, captured.get().splitlines())) <= 80
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "wrong: 0" in output


def test_bench_tells_of_a_wrong_result() -> None:
    """What the table says when a backend's sums are not right."""
    assert "WRONG" in bench._cell({"right": False, "p50_us": 1.0})
    assert bench._cell({"refused": "no"}) == "refused"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-c", "all_reduc"), "no collective"),
        (("-s", "8:4"), "range"),
        (("-b", "gloo-mapped"), "there are tutti, tutti-mapped, gloo"),
        (("-b", "foo"), "no backend foo here; there are tutti, tutti-mapped, gloo"),
        (("-b", "tutti,mpi"), "no backend mpi here"),
        (("-d", "float33"), "dtype"),
        (("-d", "quint8"), "no dtype quint8"),
        (("-b", ","), "at least one"),
        (("-s", ""), "at least one size"),
        (("-s", ","), "at least one size"),
    ],
)
def test_bench_refuses_nonsense(options: tuple[str, ...], said: str) -> None:
    code, output = invoke("bench", *options)
    assert code == 2
    assert said in output


def test_bench_checks_numbers_of_every_kind() -> None:
    """Sums of complex numbers and of 8 bits, which torch neither adds nor compares as they are."""
    for dtype in ("c64", "c32", "f8e5m2", "f8e4m3fnuz", "u8"):
        collectives = "all" if dtype == "c64" else "all_reduce,reduce_scatter"
        options = ("-c", collectives, "-s", "100", "-b", "tutti", "-d", dtype, "--seconds", "0.001")
        code, output = invoke("bench", *options)
        assert code == 0, output
        assert f"Results checked: {len(CASES) if dtype == 'c64' else 2}, wrong: 0." in output
        assert "refused" not in output


@pytest.mark.parametrize("name", _core.dtypes())
def test_bench_sees_a_wrong_element_of_any_dtype(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = getattr(torch, torch_name(name), None)
    if dtype is None:
        pytest.skip(f"torch has no {name}")
    world = World(0, 3, None, lambda elements: torch.empty(elements, dtype=dtype))  # type: ignore[arg-type]
    tensors: list[torch.Tensor] = []

    def all_reduce(tensor: torch.Tensor, group: object) -> None:
        tensors.append(tensor)
        tensor.copy_(world.total(9))

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    case = CASES["all_reduce"](world, 9)
    case.fill()
    case.call()
    assert case.check()
    tensors[0][8] = 0 if dtype == torch.bool else 32
    assert not case.check()


def test_bench_counts_what_was_checked() -> None:
    options = ("-c", "all_reduce", "-s", "16", "-b", "tutti,gloo", "-d", "float8_e4m3fn", "--seconds", "0.001")
    code, output = invoke("bench", *options)
    assert code == 0, output
    assert "gloo refused all_reduce: " in output and "tutti refused" not in output
    assert "Results checked: 1, wrong: 0." in output


def main_of_a_failing_call(*arguments: Any) -> None:
    real = dist.all_reduce

    def all_reduce(*arguments: Any, **options: Any) -> Any:
        tutti.abort(reason="a plug was pulled")
        return real(*arguments, **options)

    dist.all_reduce = all_reduce
    bench_rank.main(*arguments)


def main_of_a_failing_check(*arguments: Any) -> None:
    def total(world: World, elements: int) -> torch.Tensor:
        raise RuntimeError("a plug was pulled")

    World.total = total  # type: ignore[method-assign]
    bench_rank.main(*arguments)


@pytest.mark.parametrize("main", [main_of_a_failing_call, main_of_a_failing_check])
def test_bench_takes_no_failure_for_a_refusal(main: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "main", main)
    code, output = invoke("bench", "-c", "all_reduce", "-s", "8", "-b", "tutti", "--seconds", "0.001")
    assert code == 1
    assert "tutti bench:" in output and "a plug was pulled" in output
    assert "refused" not in output and "Results checked" not in output


def test_bench_says_in_a_line_that_there_is_no_room() -> None:
    code, output = invoke("bench", "-c", "all_reduce", "-s", "9223372036854775807", "-b", "tutti", "-n", "1")
    assert code == 2
    (line,) = output.strip().splitlines()
    assert line.startswith("tutti bench: no room for the tensors of all_reduce of "), line


def test_a_rank_that_ends_without_a_word_is_missed() -> None:
    reports: queue.Queue[tuple[str, int]] = queue.Queue()
    for report in (("result", 7), ("done", 0)):
        reports.put(report)
    results = LocalRanks([SimpleNamespace(exitcode=0)] * 2, reports).results(5)
    assert next(results) == 7
    with pytest.raises(RuntimeError, match="rank 1 died with exit code 0"):
        next(results)


def test_the_last_words_of_a_rank_count() -> None:
    """Also where it ends between two looks: at the queue and at the rank."""
    reports: queue.Queue[tuple[str, int]] = queue.Queue()

    class Rank:
        @property
        def exitcode(self) -> int:
            reports.put(("done", 0))
            return 0

    assert list(LocalRanks([Rank()], reports).results(5)) == []


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "-c", "barrier", "--json", "{}.json"),
        ("bench", "-c", "barrier", "--png", "{}.png"),
        ("plan", "calibrate", "-o", "{}.json"),
        ("plan", "calibrate", "-o", "{kept}", "--json", "{}.json"),
        ("plan", "calibrate", "-o", "{kept}", "--check", "--png", "{}"),
    ],
    ids=" ".join,
)
def test_what_measures_looks_first_whether_it_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    if "--png" in words:
        pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench, "_launch", lambda plan, console: pytest.fail("measured"))
    monkeypatch.setattr(calibration, "measure", lambda timer, tick: pytest.fail("measured"))
    for folder in (tmp_path / "nowhere", Path("/proc")):
        arguments = [word.format(folder / "out", kept=tmp_path / "kept.json") for word in words]
        code, output = invoke(*arguments)
        assert code == 2, words
        assert arguments[-1] in output, output


def test_a_file_of_results_is_only_replaced_by_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = invoke("bench", "-c", "barrier", "--json", str(tmp_path))
    assert code == 2
    assert str(tmp_path) in output

    def fails(plan: object, console: object) -> None:
        raise RuntimeError("no results")

    monkeypatch.setattr(bench, "_launch", fails)
    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        assert invoke("bench", "-c", "barrier", "--json", str(tmp_path / name))[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]  # nothing came, and nothing was lost
    assert (tmp_path / "old.json").read_text() == "old"


@pytest.mark.parametrize("arguments", [("bench", "-c", "barrier", "-n", "1"), ("tune", "-n", "2", "--minutes", "0.01")])
def test_a_setting_that_is_none_is_refused_before_ranks_start(arguments: tuple[str, ...]) -> None:
    code, output = invoke(*arguments, env={"TUTTI_STAGE_BYTES": "x"})
    assert code == 2
    assert "TUTTI_STAGE_BYTES=x is not valid" in output
    assert "Traceback" not in output


def test_bench_ranges_and_bus_bandwidth() -> None:
    plan = bench.make_plan("all", "8:1KB:4", "gloo", 4, "bfloat16", 0.1)
    assert plan.sizes == (8, 32, 128, 512)
    assert plan.collectives == tuple(CASES)
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1.0
