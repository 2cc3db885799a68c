"""What can be seen from outside: metrics, profiler events, the flight recorder."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context

import tutti

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]


def count_metrics(ctx: Context) -> dict[str, Any]:
    import tutti

    tutti.reset_metrics()
    other = 1 - ctx.rank
    for _ in range(1000):
        dist.all_reduce(torch.ones(2))
    for _ in range(7):
        dist.all_reduce(torch.ones(100_000), async_op=True).wait()
    for _ in range(3):
        dist.all_gather_into_tensor(torch.empty(2 * 4096), torch.ones(4096))
    dist.broadcast(torch.ones(10), 0)
    dist.barrier()
    for work in (dist.isend(torch.ones(25), other), dist.irecv(torch.ones(25), other)):
        work.wait()
    metrics = tutti.get_metrics()
    calls, sizes, bytes_moved = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    for row in metrics["rows"]:
        calls[row["collective"]] += row["calls"]
        sizes[row["collective"], row["size_class"]] += row["calls"]
        bytes_moved[row["collective"]] += row["bytes"]
        assert row["algorithm"], row
        assert row["timed_calls"] <= row["calls"] and row["wait_ns"] <= row["total_ns"], row
    tutti.reset_metrics()
    after = sum(row["calls"] for row in tutti.get_metrics()["rows"])
    return {"calls": calls, "sizes": sizes, "bytes": bytes_moved, "errors": metrics["errors"], "after": after}


def test_metrics_count_exactly(world: World) -> None:
    for seen in world(2).call(count_metrics):
        assert seen["calls"] == {
            "all_reduce": 1007,
            "all_gather": 3,
            "broadcast": 1,
            "barrier": 1,
            "send": 1,
            "recv": 1,
        }
        assert seen["sizes"]["all_reduce", "<=64B"] == 1000
        assert seen["sizes"]["all_reduce", "<=512KB"] == 7
        assert seen["sizes"]["all_gather", "<=64KB"] == 3
        assert seen["bytes"]["all_reduce"] == 1000 * 8 + 7 * 400_000
        assert seen["bytes"]["all_gather"] == 3 * 4 * 4096
        assert seen["bytes"]["send"] == 100
        assert seen["errors"] == 0 and seen["after"] == 0


def log_metrics(ctx: Context) -> str:
    import logging

    import tutti

    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tutti")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    dist.all_reduce(torch.ones(2))
    tutti.log_metrics()
    logger.removeHandler(handler)
    return "\n".join(records)


def test_log_metrics(world: World) -> None:
    assert all("all_reduce" in text for text in world(2).call(log_metrics))


def profile(ctx: Context) -> list[tuple[str, list[list[int]]]]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as recorded:
        dist.all_reduce(torch.ones(5, 4))
        dist.all_reduce(torch.ones(7), async_op=True).wait()
        dist.broadcast(torch.ones(3), 0)
        gathered = [torch.empty(6) for _ in range(ctx.size)]
        dist.all_gather(gathered, torch.ones(6))
        if ctx.rank == 0:
            dist.send(torch.ones(9), 1)
        else:
            dist.recv(torch.ones(9), 0)
        dist.barrier()
    return [(event.name, event.input_shapes) for event in recorded.events() if event.name.startswith("tutti:")]


def test_profiler_events(world: World) -> None:
    for rank, events in enumerate(world(2).call(profile)):
        names = Counter(name for name, _ in events)
        assert names["tutti:all_reduce"] == 2 and names["tutti:broadcast"] == 1 and names["tutti:all_gather"] == 1
        assert names["tutti:barrier"] == 1 and names["tutti:recv" if rank else "tutti:send"] == 1, names
        shapes = [shape for name, shape in events if name == "tutti:all_reduce"]
        assert [[5, 4]] in shapes and [[7]] in shapes, shapes


def profile_less(ctx: Context) -> list[bool]:
    if ctx.rank == 1:
        dist.recv(torch.ones(1), 0)
        works = [dist.all_reduce(torch.ones(3), async_op=True), dist.isend(torch.ones(1), 0)]
        return [bool(work.wait()) for work in works]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        works = [dist.all_reduce(torch.ones(3), async_op=True), dist.irecv(torch.ones(1), 1)]
    dist.send(torch.ones(1), 1)  # the other rank's calls come only now
    events = {event.name: event.time_range.elapsed_us() for event in recorded.events()}
    done = [bool(work.wait()) for work in works]
    return [*done, *(0 <= events[name] < 10**9 for name in ("tutti:all_reduce", "tutti:recv"))]


def test_events_of_calls_that_end_after_the_profiler(world: World) -> None:
    """They are over when it ends, which frees what they would write to."""
    assert world(2).call(profile_less) == [[True] * 4, [True] * 2]


def record_flight(ctx: Context, folder: str) -> dict[str, Any]:
    import tutti

    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    dist.broadcast(torch.ones(10, dtype=torch.int64), 1)
    dist.barrier()
    record: dict[str, Any] = json.loads(tutti.flight_record())
    path = tutti.dump_flight_record(Path(folder, "flight.{rank}.json"))
    assert json.loads(path.read_text())["entries"]
    return record


def test_flight_recorder_has_torchs_schema(fresh_world: World, tmp_path: Path) -> None:
    for record in fresh_world(2).call(record_flight, str(tmp_path)):
        assert {"version", "entries", "pg_config"} <= set(record)
        assert len(record["entries"]) == 5
        for entry in record["entries"]:
            assert entry["state"] == "completed", entry
            wanted = {"profiling_name", "collective_seq_id", "pg_id", "process_group", "input_sizes", "input_dtypes"}
            assert wanted <= set(entry), set(entry)


def analyse(folder: Path) -> list[Any]:
    """What `torchfrtrace` makes of the traces in a folder."""
    from torch.distributed.flight_recorder import fr_trace

    output = folder.parent / "database"
    try:
        fr_trace.main([str(folder), "-o", str(output)])
    except AssertionError as error:
        if "gloo != 'nccl' or 'xccl'" in str(error):
            pytest.skip("this torch's analyser reads the traces of NCCL and XCCL only")
        raise
    _, database = pickle.loads(output.read_bytes())
    return list(database.collectives)


def trace_groups(ctx: Context, folder: str) -> None:
    """Calls of two groups, and messages, of which the ranks have different numbers."""
    import tutti

    pair = dist.new_group([1, 2])
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    if ctx.rank == 1:
        for _ in range(4):
            dist.send(torch.ones(3), 2)
    elif ctx.rank == 2:
        for _ in range(4):
            dist.recv(torch.ones(3), 1)
    if ctx.rank != 0:
        dist.broadcast(torch.ones(10, dtype=torch.int64), 2, group=pair)
        dist.all_gather_into_tensor(torch.empty(8), torch.ones(4), group=pair)
        tutti.dump_flight_trace(Path(folder, "pair"), pair)
    dist.all_to_all_single(torch.empty(6), torch.ones(6))
    dist.barrier()
    assert tutti.dump_flight_trace(Path(folder, "world")) == Path(folder, "world", f"trace_{ctx.rank}")


def test_analyser_reads_a_groups_traces(fresh_world: World, tmp_path: Path) -> None:
    fresh_world(3).call(trace_groups, str(tmp_path))
    ranks_and_calls = {
        "world": ({0, 1, 2}, ["all_reduce"] * 3 + ["all_to_all", "all_reduce_barrier"]),
        "pair": ({1, 2}, ["broadcast", "all_gather"]),
    }
    for folder, (ranks, calls) in ranks_and_calls.items():
        collectives = analyse(tmp_path / folder)
        assert [call.collective_name.removeprefix("gloo:") for call in collectives][-len(calls) :] == calls
        assert all(call.pass_check and not call.missing_ranks for call in collectives), collectives
        assert all(call.expected_ranks == ranks for call in collectives), "a group's ranks are those of the job"


def trace_what_is_kept(ctx: Context, folder: str) -> None:
    """More calls than a record keeps, after messages that one of the ranks had no part in."""
    import tutti

    for _ in range(40):
        if ctx.rank == 0:
            dist.send(torch.ones(1), 2)
        elif ctx.rank == 2:
            dist.recv(torch.ones(1), 0)
    for _ in range(2100):
        dist.all_reduce(torch.ones(1))
    tutti.dump_flight_trace(folder)


def test_analyser_leaves_out_what_a_rank_has_forgotten(fresh_world: World, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    fresh_world(3).call(trace_what_is_kept, str(folder))
    collectives = analyse(folder)
    assert len(collectives) == 2000
    assert all(call.pass_check and not call.missing_ranks for call in collectives), collectives[0]


def trace_mismatch(ctx: Context, folder: str, kind: str) -> None:
    import tutti

    dist.all_reduce(torch.ones(10))
    try:
        if kind == "size":
            dist.all_reduce(torch.ones(10 + ctx.rank))
        elif ctx.rank == 0:
            dist.all_reduce(torch.ones(10))
        else:
            dist.broadcast(torch.ones(10), 0)
    except dist.DistBackendError:
        tutti.dump_flight_trace(folder)


@pytest.mark.parametrize(("kind", "state"), [("size", "SIZE_OR_SYNTAX"), ("call", "COLLECTIVE_TYPE")])
def test_analyser_finds_the_mismatch(fresh_world: World, tmp_path: Path, kind: str, state: str) -> None:
    folder = tmp_path / "traces"
    fresh_world(2).call(trace_mismatch, str(folder), kind)
    first, second = sorted(analyse(folder), key=lambda call: int(call.collective_seq_id))
    assert first.pass_check and not second.pass_check, (first, second)
    assert set(second.mismatch_collectives) == {1}, second
    other = second.mismatch_collectives[1]
    assert f"{state}_MISMATCH" in str(other.type_of_mismatch), other
    assert other.input_sizes == [[11]] if kind == "size" else other.collective_name == "gloo:broadcast"


def explain_every_collective(ctx: Context) -> dict[str, str]:
    import tutti
    from tutti import _core

    communicator = tutti.get_communicator()
    answers = {name: communicator.explain(name, 16_384) for name in _core.collectives()}
    answers["empty"] = communicator.explain("all_reduce", 0, torch.bfloat16)
    with pytest.raises(ValueError, match="all_reduc"):
        communicator.explain("all_reduc", 8)
    return answers


def test_a_group_explains_its_choices(world: World) -> None:
    answers = world(2).call(explain_every_collective)
    assert answers[0] == answers[1]
    for name, answer in answers[0].items():
        chosen = [line for line in answer.splitlines() if line.startswith("-> ")]
        assert len(chosen) == 1, (name, answer)


def fail_with_standard_error_kept(ctx: Context, folder: str) -> str:
    path = Path(folder) / f"standard_error.{ctx.rank}"
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        if ctx.rank == 0:
            tutti.abort(reason="the test says so")
        with pytest.raises(dist.DistBackendError, match="aborted"):
            for _ in range(1000):  # the other rank learns of it in one of its next calls
                dist.barrier()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return path.read_text()


@pytest.mark.parametrize("level", ["warning", "info"])
def test_a_failure_is_said_once(fresh_world: Callable[..., RankPool], tmp_path: Path, level: str) -> None:
    """By the exception; in the log only for those who ask for more."""
    texts = fresh_world(2, env={"TUTTI_LOG_LEVEL": level}).call(fail_with_standard_error_kept, str(tmp_path))
    assert ("rank 0" in texts[1]) == (level == "info"), texts
