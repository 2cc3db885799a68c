"""Subgroups form over the group that their ranks are in: what the job's store sees of it, orders, deaths, failures."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from counting_store import CountingStore
from rank_pool import RankPool, unique_name
from rank_worker import Context

pytestmark = pytest.mark.tutti_only

World = Callable[..., RankPool]

SOON_S = 5.0  # of what takes a second at most, on a busy machine
LONG_S = 600  # behind every watchdog


def host_id(rank: int) -> dict[str, str]:
    return {"TUTTI_HOST_ID": f"host{rank // 2}"}


HOSTS = pytest.mark.parametrize("hosts", [1, 2])


def on_hosts(hosts: int) -> dict[str, Any]:
    return {"env_of": host_id} if hosts > 1 else {}


def reduce_ranks(group: Any) -> float:
    tensor = torch.full((10,), float(dist.get_rank()))
    dist.all_reduce(tensor, group=group)
    return float(tensor[-1])


def count_keys(ctx: Context, name: str) -> dict[str, Any]:
    """What this rank asks of the store for its default group, and for subgroups of every kind."""
    from torch.distributed.device_mesh import init_device_mesh

    import tutti

    store = CountingStore(ctx.store(name))
    dist.init_process_group(ctx.backend, store=store, rank=ctx.rank, world_size=ctx.size)
    answer: dict[str, Any] = {"default": sorted(store.keys)}
    store.asked.clear()
    everyone = list(range(ctx.size))
    assert reduce_ranks(dist.new_group()) == sum(everyone)
    for ranks in (everyone[:2], everyone[1:], everyone[:1], everyone[::-1]):
        for local in (False, True):
            group = dist.new_group(ranks, use_local_synchronization=local)
            if ctx.rank in ranks:
                assert reduce_ranks(group) == sum(ranks)
                dist.destroy_process_group(group)  # the name of the hashed ones comes again
    for _ in range(2):
        part = tutti.split_group([everyone[:1], everyone[1:]])
        assert reduce_ranks(part) == (0 if ctx.rank == 0 else sum(everyone[1:]))
    if ctx.rank > 0 and ctx.size > 2:
        nested = tutti.split_group([[0], everyone[1:-1]], group=part)
        assert nested is not None
        assert reduce_ranks(nested) == (1 if ctx.rank == 1 else sum(everyone[2:]))
    native = dist.distributed_c10d._get_default_group().split_group(everyone, timedelta(seconds=20), None, "native", "")
    native.allreduce([torch.ones(3)]).wait()
    if ctx.size == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        assert reduce_ranks(mesh["a"].get_group()) + reduce_ranks(mesh["b"].get_group()) > 0
    answer["subgroups"] = dict(store.asked)
    dist.destroy_process_group()
    return answer


@HOSTS
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_store_sees_no_subgroup(fresh_world: World, size: int, hosts: int) -> None:
    answers = fresh_world(size, open_group=False, **on_hosts(hosts)).call(count_keys, unique_name("counted"))
    for answer in answers:
        assert answer["subgroups"] == {}
    keys = {key for answer in answers for key in answer["default"]}
    assert len(keys) <= 5 * size, keys


def form_while_busy(ctx: Context) -> list[float]:
    """Calls and messages of the default group are under way, begun at different times on different ranks."""
    other = (ctx.rank + 1) % ctx.size
    received = torch.zeros(100_000)
    late = torch.ones(200_000)
    works: list[Any] = [dist.irecv(received, (ctx.rank - 1) % ctx.size)]
    if ctx.rank % 2 == 0:
        works.append(dist.all_reduce(late, async_op=True))
    pair = dist.new_group([0, 1] if ctx.rank < 2 else [2, 3], use_local_synchronization=True)
    if ctx.rank % 2 == 1:  # the others' is queued until now
        works.append(dist.all_reduce(late, async_op=True))
    everyone = dist.new_group()
    works.append(dist.isend(torch.full((100_000,), float(ctx.rank)), other))
    for work in works:
        work.wait()
    return [reduce_ranks(pair), reduce_ranks(everyone), float(late[-1]), float(received[-1])]


@HOSTS
def test_other_traffic_does_not_matter(fresh_world: World, hosts: int) -> None:
    answers = fresh_world(4, **on_hosts(hosts)).call(form_while_busy)
    assert answers == [[1.0 if r < 2 else 5.0, 6.0, 4.0, float((r - 1) % 4)] for r in range(4)]


def form_from_threads(ctx: Context, seed: int) -> list[str]:
    """Groups of the backend's own, as many threads as groups: they form as they come."""
    import tutti

    backend = tutti.get_communicator()
    parts = [[0, 1], [1, 2], [0, 1, 2, 3], [2, 3], [3, 0], [0, 2, 3]]
    problems: list[str] = []

    def work(index: int) -> None:
        try:
            ranks = parts[index]
            part = backend.make_part(ctx.store("none"), ranks, f"part {index}", tutti.Options())
            tensor = torch.full((5,), float(ctx.rank))
            part.allreduce([tensor], dist.AllreduceOptions()).wait()
            if float(tensor[0]) != sum(ranks):
                problems.append(f"{ranks}: {tensor[0]}")
        except Exception as error:
            problems.append(f"{parts[index]}: {error}")

    mine = [index for index, ranks in enumerate(parts) if ctx.rank in ranks]
    order = mine[(seed + ctx.rank) % len(mine) :] + mine[: (seed + ctx.rank) % len(mine)]
    threads = [threading.Thread(target=work, args=(index,)) for index in order]
    for thread in threads:
        thread.start()
    dist.all_reduce(torch.ones(1000))
    for thread in threads:
        thread.join()
    return problems


@HOSTS
def test_several_form_at_the_same_time(fresh_world: World, hosts: int, seed: int) -> None:
    pool = fresh_world(4, **on_hosts(hosts))
    for round_ in range(5):
        assert pool.call(form_from_threads, seed + round_) == [[]] * 4


def die_while_forming(ctx: Context, victim: int, delay_s: float) -> Any:
    """The victim never comes, or dies at a moment of it."""
    dist.barrier()
    if ctx.rank == victim:
        if delay_s >= 0:
            killer = threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGKILL))
            killer.start()
            while True:
                dist.new_group(timeout=timedelta(seconds=LONG_S))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            group = dist.new_group(timeout=timedelta(seconds=LONG_S))
            dist.barrier(group=group)
    except dist.DistBackendError as error:
        return str(error), time.time()


@HOSTS
@pytest.mark.parametrize("delay_s", [-1.0, 0.002, 0.01, 0.03])
def test_a_death_is_an_error_at_once(fresh_world: World, hosts: int, delay_s: float) -> None:
    pool = fresh_world(4, **on_hosts(hosts))
    start = time.time()
    outcomes = pool.begin(die_while_forming, 2, delay_s).wait(30)
    assert outcomes[2].kind == "died"
    for rank in (0, 1, 3):
        assert outcomes[rank].kind == "ok", pool.explain(outcomes)
        text, when = outcomes[rank].value
        assert "rank " in text and when - start < SOON_S, text
        if delay_s < 0:
            assert "rank 2" in text, text


def form_beside_a_death(ctx: Context) -> tuple[str, float]:
    """A rank outside of the new group dies, and a member does not come: those that wait hear of the death."""
    dist.barrier()
    if ctx.rank == 1:
        ctx.await_signal("begun", [0, 2])
        os.kill(os.getpid(), signal.SIGKILL)
    start, text = time.monotonic(), ""
    if ctx.rank != 3:
        ctx.signal("begun")
        try:
            dist.new_group([0, 2, 3], use_local_synchronization=True, timeout=timedelta(seconds=LONG_S))
        except dist.DistBackendError as error:
            text = str(error)
    took = time.monotonic() - start
    ctx.meet("told", [0, 2, 3])
    return text, took


@HOSTS
def test_a_death_beside_it_is_told_to_all_hosts(fresh_world: World, hosts: int) -> None:
    pool = fresh_world(4, **on_hosts(hosts))
    outcomes = pool.begin(form_beside_a_death).wait(60)
    for rank in (0, 2):
        assert outcomes[rank].kind == "ok", pool.explain(outcomes)
        text, took = outcomes[rank].value
        assert "rank 1" in text and took < SOON_S, (text, took)


def form_with_one_that_died(ctx: Context) -> Any:
    """Its death is known before a group is asked for. Without it one forms, though the default group has failed."""
    if ctx.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(10))
    except dist.DistBackendError:
        pass
    start = time.monotonic()
    try:
        dist.new_group(timeout=timedelta(seconds=LONG_S))
        text = ""
    except dist.DistBackendError as error:
        text = str(error)
    took = time.monotonic() - start
    survivors = dist.new_group([0, 1, 3], timeout=timedelta(seconds=20))
    return "rank 2" in text, took < SOON_S, reduce_ranks(survivors)


def test_after_a_death(fresh_world: World) -> None:
    """The last group forms over the store: the default group cannot carry messages any more."""
    pool = fresh_world(4)
    outcomes = pool.begin(form_with_one_that_died).wait(60)
    for rank in (0, 1, 3):
        assert outcomes[rank].kind == "ok", pool.explain(outcomes)
        assert outcomes[rank].value == (True, True, 4.0)


def refuse_on_one(ctx: Context) -> tuple[str, float]:
    """A setting of one rank alone keeps the group from forming, on all ranks; the next one forms."""
    if ctx.rank == 1:
        os.environ["TUTTI_STAGE_BYTES"] = "nonsense"
    try:
        dist.new_group(timeout=timedelta(seconds=LONG_S))
        text = ""
    except (ValueError, dist.DistBackendError) as error:
        text = str(error)
    os.environ.pop("TUTTI_STAGE_BYTES", None)
    return text, reduce_ranks(dist.new_group())


@HOSTS
def test_why_a_rank_cannot_join_is_told(fresh_world: World, hosts: int) -> None:
    for text, total in fresh_world(4, **on_hosts(hosts)).call(refuse_on_one):
        assert "TUTTI_STAGE_BYTES" in text and total == 6.0
        assert "rank 1" in text or "nonsense" in text


def abort_the_parent(ctx: Context) -> tuple[str, bool]:
    import tutti

    if ctx.rank == 1:
        dist.all_reduce(torch.ones(1), group=None, async_op=True)
        tutti.abort(reason="of a whim")
    start = time.monotonic()
    try:
        dist.new_group(timeout=timedelta(seconds=20))
        text = ""
    except dist.DistBackendError as error:
        text = str(error)
    ctx.meet("told")
    return text, time.monotonic() - start < SOON_S


@HOSTS
def test_an_abort_of_the_parent_ends_it(fresh_world: World, hosts: int) -> None:
    """Whoever knew of it before goes to the store, and hears there that the others have given up; or all go."""
    for text, soon in fresh_world(4, **on_hosts(hosts)).call(abort_the_parent):
        assert soon, text


class Enough(Exception):
    """What a handler of a signal raises."""


def interrupt_forming(ctx: Context) -> tuple[str, float]:
    """A handler that raises ends rank 0's forming, and the other hears of it; the next group forms."""

    def raise_enough(*_: Any) -> None:
        raise Enough

    text = ""
    if ctx.rank == 0:
        signal.signal(signal.SIGALRM, raise_enough)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Enough):
            dist.new_group(timeout=timedelta(seconds=LONG_S))
        ctx.signal("interrupted")
    else:
        ctx.await_signal("interrupted", [0])
        with pytest.raises(dist.DistBackendError) as caught:
            dist.new_group(timeout=timedelta(seconds=LONG_S))
        text = str(caught.value)
    return text, reduce_ranks(dist.new_group())


@pytest.mark.parametrize("hosts", [1, 2])
def test_an_interruption_is_told(fresh_world: World, hosts: int) -> None:
    places = {"env_of": lambda rank: {"TUTTI_HOST_ID": f"host{rank}"}} if hosts > 1 else {}
    answers = fresh_world(2, **places).call(interrupt_forming)
    assert [total for _, total in answers] == [1.0, 1.0]
    assert "rank 0 cannot join" in answers[1][0] and "interrupted" in answers[1][0], answers[1][0]


def fork_while_forming(ctx: Context) -> tuple[float, int]:
    """A handler forks in the midst of it: the child's wait raises, and the parent's goes on."""
    children: list[int] = []

    def fork(*_: Any) -> None:
        children.append(os.fork())

    if ctx.rank == 1:
        ctx.await_signal("forked", [0])
        return reduce_ranks(dist.new_group()), 0
    signal.signal(signal.SIGALRM, fork)
    signal.setitimer(signal.ITIMER_REAL, 0.3)

    def tell() -> None:
        while not children:
            time.sleep(0.01)
        ctx.signal("forked")

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        group = dist.new_group(timeout=timedelta(seconds=60))
    except BaseException:
        if children == [0]:
            os._exit(7)
        raise
    if children == [0]:
        os._exit(8)
    teller.join()
    _, status = os.waitpid(children[0], 0)
    return reduce_ranks(group), os.waitstatus_to_exitcode(status)


def test_a_fork_in_the_midst(fresh_world: World) -> None:
    assert fresh_world(2).call(fork_while_forming) == [(1.0, 7), (1.0, 0)]


def form_beside_gloo(ctx: Context, name: str) -> tuple[float, bool]:
    """The default group is another backend's: the store is asked, as ever."""
    store = CountingStore(ctx.store(name))
    dist.init_process_group("gloo", store=store, rank=ctx.rank, world_size=ctx.size)
    store.asked.clear()
    total = reduce_ranks(dist.new_group(backend="tutti"))
    asked = store.asked["set"] > 0
    dist.destroy_process_group()
    return total, asked


def test_without_a_parent_the_store_is_asked(fresh_world: World) -> None:
    answers = fresh_world(2, open_group=False).call(form_beside_gloo, unique_name("gloo"))
    assert answers == [(1.0, True)] * 2
