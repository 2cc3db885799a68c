"""What can be seen from outside: metrics, profiler events, the flight recorder."""

from __future__ import annotations

import json
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


def record_flight(ctx: Context, folder: str) -> dict[str, Any]:
    import tutti

    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    dist.broadcast(torch.ones(10, dtype=torch.int64), 1)
    dist.barrier()
    record: dict[str, Any] = json.loads(tutti.flight_record())
    with Path(folder, f"trace_{ctx.rank}").open("wb") as out:  # torch's analyser reads pickles
        pickle.dump(record, out)
    path = tutti.dump_flight_record(Path(folder, "flight.{rank}.json"))
    assert json.loads(path.read_text())["entries"]
    return record


def test_flight_recorder_has_torchs_schema(fresh_world: World, tmp_path: Path, capsys: Any) -> None:
    from torch.distributed.flight_recorder import fr_trace

    records = fresh_world(2).call(record_flight, str(tmp_path))
    for record in records:
        assert {"version", "entries", "pg_config"} <= set(record)
        assert len(record["entries"]) == 5
        for entry in record["entries"]:
            assert entry["state"] == "completed", entry
            wanted = {"profiling_name", "collective_seq_id", "pg_id", "process_group", "input_sizes", "input_dtypes"}
            assert wanted <= set(entry), set(entry)
    for path in tmp_path.glob("flight.*"):
        path.unlink()
    fr_trace.main([str(tmp_path), "-p", "trace_", "-o", str(tmp_path / "database")])
    _, database = pickle.loads((tmp_path / "database").read_bytes())
    names = [collective.collective_name for collective in database.collectives]
    assert len(names) == 5 and any("all_reduce" in name for name in names), names


def mismatched_flight(ctx: Context, folder: str) -> None:
    import tutti

    dist.all_reduce(torch.ones(10))
    try:
        dist.all_reduce(torch.ones(10 + ctx.rank))
    except dist.DistBackendError:
        with Path(folder, f"trace_{ctx.rank}").open("wb") as out:
            pickle.dump(json.loads(tutti.flight_record()), out)


def test_analyser_finds_the_mismatch(fresh_world: World, tmp_path: Path) -> None:
    from torch.distributed.flight_recorder import fr_trace

    fresh_world(2).call(mismatched_flight, str(tmp_path))
    fr_trace.main([str(tmp_path), "-p", "trace_", "-o", str(tmp_path / "database")])
    _, database = pickle.loads((tmp_path / "database").read_bytes())
    states = [entry for entry in database.ncclcalls if "all_reduce" in str(entry)]
    assert states or database.collectives
