"""Plans whose ranks lie on several hosts: the two-level programs and small ones of these tests, run by processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conformance import run_sweep
from failures import DEATH_ON_HOSTS_S, call_until_error, check_death, check_survivors, connect_all, raised_in_time
from rank_pool import RankPool
from rank_worker import Context
from two_levels import KINDS, host_of, two_level

from tutti.language import AllGather, AllToAll
from tutti.language.channel import MemoryChannel, PortChannel
from tutti.language.program import CollectiveProgram
from tutti.language.rank import Rank
from tutti.language.vocabulary import SyncType

pytestmark = pytest.mark.tutti_only

World = Callable[..., RankPool]
Channel = MemoryChannel | PortChannel

SPLITS = {"2x2": (2, 2), "3+1": (3, 1), "2x1": (1, 1)}
EVERY = 40


def environment(groups: tuple[int, ...], plans: Path) -> Callable[[int], dict[str, str]]:
    return lambda rank: {"TUTTI_HOST_ID": f"host{host_of(groups, rank)}", "TUTTI_PLAN_PATH": str(plans)}


def algorithms(ctx: Context, collective: str) -> set[str]:
    import tutti

    return {row["algorithm"] for row in tutti.get_metrics()["rows"] if row["collective"] == collective}


def wrong_sums(ctx: Context) -> list[str]:
    """Reductions of small whole numbers, which any order gives exactly; rooted ones at another root use no plan."""
    n, wrong = ctx.size, []
    average = dist.ReduceOp.AVG
    for count in (0, 1, 3, 1000, 4099, 100_003):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
            base = torch.arange(n * count).reshape(n, count) % 5
            x = (base + ctx.rank).to(dtype)
            total = base * n + n * (n - 1) // 2
            calls: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
            reduced = x[0].clone()
            dist.all_reduce(reduced)
            calls["all_reduce"] = reduced, total[0].to(dtype)
            part = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(part, x)
            calls["reduce_scatter"] = part, total[ctx.rank].to(dtype)
            for root in (0, n - 1):
                rooted = x[0].clone()
                dist.reduce(rooted, root)
                if ctx.rank == root:
                    calls[f"reduce to {root}"] = rooted, total[0].to(dtype)
            if dtype == torch.float32:
                averaged = x[0].clone()
                dist.all_reduce(averaged, op=average)
                calls["average"] = averaged, total[0].to(dtype) / n
            wrong += [f"{name} {dtype}[{count}]" for name, (got, want) in calls.items() if not torch.equal(got, want)]
    return wrong


@pytest.mark.parametrize(("split", "in_place"), [("2x2", False), ("2x2", True), ("3+1", True), ("2x1", False)])
def test_two_level_programs(fresh_world: World, tmp_path: Path, seed: int, split: str, in_place: bool) -> None:
    groups = SPLITS[split]
    for kind in KINDS:
        two_level(tmp_path, kind, groups, in_place)
    pool = fresh_world(sum(groups), env_of=environment(groups, tmp_path))
    assert pool.call(wrong_sums, timeout_s=60) == [[]] * sum(groups)
    for collective in ("all_gather", "broadcast"):
        run_sweep(pool, collective, seed, EVERY)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        for ran in pool.call(algorithms, collective):
            assert "plan:two_level" in ran


class Net:
    """The channels of a program whose ranks lie on hosts: ports between them, memory within."""

    def __init__(self, groups: tuple[int, ...]) -> None:
        self.groups = groups
        self.made: dict[tuple[int, int], Channel] = {}

    def channel(self, here: int, there: int) -> Channel:
        if (here, there) not in self.made:
            far = host_of(self.groups, here) != host_of(self.groups, there)
            for source, target in ((here, there), (there, here)):
                self.made[source, target] = PortChannel(target, source) if far else MemoryChannel(target, source)
        return self.made[here, there]

    def flush(self) -> None:
        for channel in self.made.values():
            if isinstance(channel, PortChannel):
                channel.flush(tb=0)


def ring_all_gather(groups: tuple[int, ...]) -> CollectiveProgram:
    """Blocks go around the ring: a rank tells the one before that it has come, then passes on what it gets."""
    n = sum(groups)
    with CollectiveProgram("ring", AllGather(n, 1, False), n) as program:
        net = Net(groups)
        for rank in range(n):
            Rank(rank).copy(Rank(rank).get_output_buffer()[rank : rank + 1], Rank(rank).get_input_buffer()[:], tb=0)
            net.channel(rank, (rank - 1) % n).signal(tb=0)
            net.channel(rank, (rank + 1) % n).wait(tb=0, data_sync=SyncType.after)
        for step in range(n - 1):
            for rank in range(n):
                after, block = (rank + 1) % n, (rank - step) % n
                target, source = (Rank(r).get_output_buffer()[block : block + 1] for r in (after, rank))
                net.channel(rank, after).put(target, source, tb=0)
                net.channel(rank, after).signal(tb=0, data_sync=SyncType.before)
            for rank in range(n):
                net.channel(rank, (rank - 1) % n).wait(tb=0, data_sync=SyncType.after)
        net.flush()
    return program


def all_to_all(groups: tuple[int, ...]) -> CollectiveProgram:
    """Everyone puts a block into everyone's output."""
    n = sum(groups)
    with CollectiveProgram("pairs", AllToAll(n, 1, False), n) as program:
        net = Net(groups)
        pairs = [(rank, (rank + distance) % n) for distance in range(1, n) for rank in range(n)]
        for here, there in pairs:
            net.channel(here, there).signal(tb=0)
        for here, there in pairs:
            net.channel(here, there).wait(tb=0, data_sync=SyncType.after)
        for rank in range(n):
            own = slice(rank, rank + 1)
            Rank(rank).copy(Rank(rank).get_output_buffer()[own], Rank(rank).get_input_buffer()[own], tb=0)
        for here, there in pairs:
            target = Rank(there).get_output_buffer()[here : here + 1]
            net.channel(here, there).put(target, Rank(here).get_input_buffer()[there : there + 1], tb=0)
            net.channel(here, there).signal(tb=0, data_sync=SyncType.before)
        for here, there in pairs:
            net.channel(here, there).wait(tb=0, data_sync=SyncType.after)
        net.flush()
    return program


@pytest.mark.parametrize("split", ["2x2", "3+1"])
def test_programs_with_ports(fresh_world: World, tmp_path: Path, seed: int, split: str) -> None:
    groups = SPLITS[split]
    for make in (ring_all_gather, all_to_all):
        (tmp_path / f"{make.__name__}.json").write_text(make(groups).to_json())
    pool = fresh_world(sum(groups), env_of=environment(groups, tmp_path))
    for collective, name in (("all_gather", "ring"), ("all_to_all_single", "pairs")):
        run_sweep(pool, collective, seed, EVERY)
        counted = "all_to_all" if collective == "all_to_all_single" else collective
        for ran in pool.call(algorithms, counted):
            assert f"plan:{name}" in ran


def large_sums(ctx: Context) -> bool:
    for count in (3_000_001, 5):
        x = (torch.arange(count) % 7 + ctx.rank).to(torch.float32)
        dist.all_reduce(x)
        want = ((torch.arange(count) % 7) * ctx.size + ctx.size * (ctx.size - 1) // 2).to(torch.float32)
        if not torch.equal(x, want):
            return False
    return True


def test_messages_of_many_segments(fresh_world: World, tmp_path: Path) -> None:
    groups = SPLITS["3+1"]
    two_level(tmp_path, "allreduce", groups, in_place=True)
    pool = fresh_world(4, env_of=environment(groups, tmp_path))
    assert all(pool.call(large_sums, timeout_s=60))
    assert all(ran == {"plan:two_level"} for ran in pool.call(algorithms, "all_reduce"))


@pytest.mark.parametrize("victim", [0, 3])
def test_killed_rank(fresh_world: World, tmp_path: Path, victim: int) -> None:
    two_level(tmp_path, "allreduce", (2, 2), in_place=False)
    pool = fresh_world(4, env_of=environment((2, 2), tmp_path))
    survivors = [rank for rank in range(4) if rank != victim]
    pool.call(connect_all)
    pending = pool.begin(
        call_until_error, "all_reduce", 30_000, victim, each=lambda rank: (0.04 if rank == victim else None,)
    )
    death = pending.wait(20, [victim])[victim]
    messages = raised_in_time(pending.wait(15, survivors), death.seconds, DEATH_ON_HOSTS_S, pool)
    check_death(messages, victim, "all_reduce")
    check_survivors(pool, survivors)
