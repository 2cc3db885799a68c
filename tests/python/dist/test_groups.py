"""Groups: several backends, subgroups, threads, split, merge, shrink, timeouts, numbering."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool, unique_name
from rank_worker import Context

World = Callable[..., RankPool]


def reduce_ones(group: Any = None) -> float:
    tensor = torch.ones(100)
    dist.all_reduce(tensor, group=group)
    return float(tensor[-1])


def several_backends(ctx: Context, name: str) -> list[Any]:
    # A wheel for CPUs has no NCCL; gloo stands in for the other device's backend there.
    other = "nccl" if dist.is_nccl_available() else "gloo"
    ctx.init(name, backend=f"cpu:{ctx.backend},cuda:{other}")
    group = dist.distributed_c10d._get_default_group()
    config = dist.distributed_c10d.BackendConfig(dist.Backend(f"cpu:{ctx.backend},cuda:nccl"))
    return [
        reduce_ones(),
        reduce_ones(dist.new_group([0, 1])),
        group._get_backend(torch.device("cpu")).name(),
        config.get_device_backend_map(),
    ]


def test_one_backend_a_device(fresh_world: World, backend: str) -> None:
    for answer in fresh_world(2, open_group=False).call(several_backends, unique_name("mixed")):
        assert answer == [2.0, 2.0, backend, {"cpu": backend, "cuda": "nccl"}]


def use_subgroups(ctx: Context) -> list[float]:
    """Overlapping groups, one of them of one rank, created in one order and used in another."""
    members = [[0, 1], [1, 2, 3], [0, 2], [3], [0, 1, 2, 3]]
    groups = [dist.new_group(ranks) for ranks in members]
    sums = []
    for ranks, group in reversed(list(zip(members, groups, strict=True))):
        if ctx.rank in ranks:
            tensor = torch.full((10,), float(ctx.rank))
            dist.all_reduce(tensor, group=group)
            assert float(tensor[0]) == sum(ranks), ranks
            sums.append(float(tensor[0]))
    with_enumeration, _ = dist.new_subgroups(2)
    sums.append(reduce_ones(with_enumeration))
    return sums


def test_subgroups(world: World) -> None:
    answers = world(4).call(use_subgroups)
    assert [len(answer) for answer in answers] == [4, 4, 4, 4]
    assert all(answer[-1] == 2.0 for answer in answers)


def use_from_threads(ctx: Context, threads: int, rounds: int) -> list[str]:
    """Every thread has a group of its own; they run at the same time."""
    groups = [dist.new_group(list(range(ctx.size))) for _ in range(threads)]
    problems: list[str] = []

    def work(index: int) -> None:
        try:
            for number in range(rounds):
                tensor = torch.full((number % 300 + 1,), float(index + ctx.rank))
                dist.all_reduce(tensor, group=groups[index], async_op=False)
                expected = ctx.size * index + sum(range(ctx.size))
                if not bool((tensor == expected).all()):
                    problems.append(f"thread {index} round {number}: {tensor[0]} is not {expected}")
        except Exception as error:
            problems.append(f"thread {index}: {error}")

    started = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return problems


def test_groups_of_several_threads(world: World) -> None:
    assert world(2).call(use_from_threads, 4, 100) == [[], []]


def split_world(ctx: Context) -> list[Any]:
    import tutti

    for wrong in ([[0], [7]], [[]], [[0], [0]]):
        with pytest.raises(ValueError, match="split_group"):
            tutti.split_group(wrong)
    part = tutti.split_group([[0, 2], [1]], timeout=20)
    answer: list[Any] = []
    if part is not None:
        tensor = torch.full((5,), float(ctx.rank))
        dist.all_reduce(tensor, group=part)
        answer = [float(tensor[0]), dist.get_rank(part), dist.get_process_group_ranks(part)]
    answer.append(reduce_ones())  # the parent goes on
    return answer


@pytest.mark.tutti_only
def test_split(world: World) -> None:
    assert world(4).call(split_world) == [[2.0, 0, [0, 2], 4.0], [1.0, 0, [1], 4.0], [2.0, 1, [0, 2], 4.0], [4.0]]


def split_by_process_group(ctx: Context) -> Any:
    """The route of C++: ProcessGroup::splitGroup, which torch.distributed.split_group calls for its own backends."""
    parent = dist.distributed_c10d._get_default_group()
    ranks = [0, 1] if ctx.rank < 2 else [2, 3]
    child = parent.split_group(ranks, timedelta(seconds=20), None, f"half{ranks[0]}", "a half")
    tensor = torch.full((5,), float(ctx.rank))
    child.allreduce([tensor]).wait()
    return float(tensor[0]), child.size()


@pytest.mark.tutti_only
def test_split_through_process_group(world: World) -> None:
    assert world(4).call(split_by_process_group) == [(1.0, 2), (1.0, 2), (5.0, 2), (5.0, 2)]


def merge_halves(ctx: Context, name: str) -> Any:
    """Two groups that never met become one."""
    import tutti

    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    backend = tutti.get_communicator(halves[ctx.rank // 2])
    merged = backend.merge_ranks(ctx.store(name), ctx.rank, 4)
    tensor = torch.full((5,), float(ctx.rank))
    options = dist.AllreduceOptions()
    merged.allreduce([tensor], options).wait()
    return float(tensor[0])


@pytest.mark.tutti_only
def test_merge(world: World) -> None:
    assert world(4).call(merge_halves, unique_name("merge")) == [6.0] * 4


def shrink_by_list(ctx: Context) -> Any:
    """Backend.shrink without the ranks that are named."""
    import tutti

    backend = tutti.get_communicator()
    if ctx.rank == 1:
        return None
    smaller = backend.shrink([1], 0)
    tensor = torch.full((5,), float(ctx.rank))
    smaller.allreduce([tensor], dist.AllreduceOptions()).wait()
    return float(tensor[0]), smaller.size(), smaller.rank()


@pytest.mark.tutti_only
def test_shrink_by_list(fresh_world: World) -> None:
    assert fresh_world(3).call(shrink_by_list) == [(2.0, 2, 0), None, (2.0, 2, 1)]


def refused_then_shrunk(ctx: Context) -> list[int]:
    import tutti

    if ctx.rank == 1:
        with pytest.raises(ValueError, match="shrink"):
            tutti.shrink(timeout=-1)
    return list(tutti.shrink(timeout=10)[1])


@pytest.mark.tutti_only
def test_a_shrink_that_one_rank_is_refused_counts_on_none(fresh_world: World) -> None:
    assert fresh_world(2).call(refused_then_shrunk) == [[0, 1]] * 2


def die_and_shrink(ctx: Context) -> Any:
    import os
    import signal

    import tutti

    dist.barrier()
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(10))
    except dist.DistBackendError:
        kind, text = tutti.get_error()
    group, members = tutti.shrink(timeout=10)
    tensor = torch.full((5,), float(ctx.rank))
    dist.all_reduce(tensor, group=group)
    return float(tensor[0]), members, kind, text is not None


@pytest.mark.tutti_only
def test_shrink_after_a_death(fresh_world: World) -> None:
    pool = fresh_world(4)
    outcomes = pool.begin(die_and_shrink).wait(30)
    assert outcomes[1].kind == "died"
    for rank in (0, 2, 3):
        assert outcomes[rank].kind == "ok", pool.explain(outcomes)
        total, members, kind, has_text = outcomes[rank].value
        assert (total, members, has_text) == (5.0, [0, 2, 3], True)
        assert kind in ("comm_error", "remote_error")


def timeouts(ctx: Context) -> list[Any]:
    """set_timeout and a call's own timeout shorten waits; Work.wait(timeout) gives up, the call does not."""
    group = dist.distributed_c10d._get_default_group()
    answers: list[Any] = []
    if ctx.rank == 0:
        receive = dist.irecv(torch.empty(3), 1)
        start = time.monotonic()
        try:
            receive.wait(timedelta(milliseconds=200))
        except RuntimeError:
            answers.append(0.15 < time.monotonic() - start < 5)
        ctx.signal("waited")
        receive.wait()
        answers.append(receive.is_completed())
    else:
        ctx.await_signal("waited", [0])
        dist.send(torch.ones(3), 0)
    group.set_timeout(timedelta(milliseconds=300))
    start = time.monotonic()
    try:
        if ctx.rank == 0:
            dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        answers.append("300 ms" in str(error) and time.monotonic() - start < 10)
    return answers


@pytest.mark.tutti_only
def test_timeouts(fresh_world: World) -> None:
    assert fresh_world(2).call(timeouts)[0] == [True, True, True]


def nonsense_times(ctx: Context, name: str) -> None:
    """Refused before anything is sent: the group goes on."""
    import tutti

    text = "the timeout of a group must be more than 0"
    for wrong in (timedelta(0), timedelta(seconds=-1), timedelta(microseconds=10)):
        with pytest.raises(ValueError, match=text):
            dist.init_process_group(
                ctx.backend, store=ctx.store(name), rank=ctx.rank, world_size=ctx.size, timeout=wrong
            )
    ctx.init(name + "/right")
    for wrong in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match=text):
            dist.new_group([0, 1], timeout=wrong)
        with pytest.raises(ValueError, match="timeout"):
            tutti.set_timeout(wrong)
        with pytest.raises(ValueError, match="at least a millisecond"):
            tutti.monitored_barrier(timeout=wrong)
    for endless in (float("inf"), float("nan"), 1e300, timedelta.max):
        for take in (tutti.set_timeout, lambda time: tutti.monitored_barrier(timeout=time)):
            with pytest.raises(ValueError, match="at most 100000 days"):
                take(endless)
    negative = timedelta(seconds=-1)
    call = dist.all_reduce(torch.ones(3), async_op=True)
    message = dist.isend(torch.ones(1), 1) if ctx.rank == 0 else dist.irecv(torch.ones(1), 0)
    barrier = dist.BarrierOptions()
    barrier.timeout = negative
    for refused in (
        lambda: call.wait(negative),
        lambda: message.wait(negative),
        lambda: dist.group.WORLD._get_backend(torch.device("cpu")).barrier(barrier),
        lambda: tutti.shrink(timeout=negative),
    ):
        with pytest.raises(ValueError, match="the timeout must not be negative"):
            refused()
    call.wait()
    message.wait()
    assert reduce_ones() == ctx.size


@pytest.mark.tutti_only
def test_nonsense_times_are_refused(fresh_world: World) -> None:
    fresh_world(2, open_group=False).call(nonsense_times, unique_name("times"))


@pytest.mark.tutti_only
def test_what_is_no_tensor_and_no_threshold_is_refused() -> None:
    import tutti

    for array in (torch.ones(3).numpy(), 3, None):
        with pytest.raises(TypeError, match="takes a torch tensor"):
            tutti.is_mapped(array)  # type: ignore[arg-type]
    for enabled in (1 << 20, "no", None):
        with pytest.raises(TypeError, match="enabled is True or False"):
            tutti.use_shared_allocator(enabled)  # type: ignore[arg-type]
    for threshold in (True, -1):
        with pytest.raises(ValueError, match="a number of bytes, 0 or more"):
            tutti.use_shared_allocator(True, threshold)
    assert not tutti.shared_allocator_enabled()


def no_groups(ctx: Context) -> None:
    import tutti

    none = dist.new_group([0])
    reads = (tutti.get_metrics, tutti.flight_record, tutti.sequence_number, tutti.get_error, tutti.abort, tutti.shrink)
    for read in reads:
        if ctx.rank == 1:
            with pytest.raises(ValueError, match="this rank is not in the group"):
                read(none)
        with pytest.raises(TypeError, match="a process group is wanted, not 'by hand'"):
            read("by hand")
    assert reduce_ones() == ctx.size


@pytest.mark.tutti_only
def test_what_is_no_group_is_refused(fresh_world: World) -> None:
    fresh_world(2).call(no_groups)


def monitored(ctx: Context, absent: list[int], wait_all: bool) -> Any:
    group = dist.distributed_c10d._get_default_group()
    if ctx.rank in absent:
        return None
    try:
        group.monitored_barrier(timedelta(seconds=1), wait_all_ranks=wait_all)
    except RuntimeError as error:
        return str(error)
    return ""


def test_monitored_barrier_passes(world: World) -> None:
    assert world(3).call(monitored, [], False) == ["", "", ""]


@pytest.mark.parametrize("wait_all", [False, True])
def test_monitored_barrier_names_who_is_missing(fresh_world: World, wait_all: bool) -> None:
    texts = fresh_world(4).call(monitored, [1, 3], wait_all)
    assert "1" in texts[0]
    if wait_all:
        assert "3" in texts[0], texts[0]
    assert texts[2], "rank 2 did not raise"


def count_calls(ctx: Context) -> list[int]:
    import tutti

    group = dist.distributed_c10d._get_default_group()
    numbers = [tutti.sequence_number()]
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    numbers.append(tutti.sequence_number())
    try:
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
    except ValueError:
        numbers.append(tutti.sequence_number())
    other = (ctx.rank + 1) % 2
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.ones(2), other), dist.P2POp(dist.irecv, torch.ones(2), other)]
    ):
        work.wait()
    # ProcessGroup's own method refuses every backend that torch does not know.
    numbers.append(group._get_backend(torch.device("cpu"))._get_sequence_number_for_group())
    if ctx.rank == 1:
        dist.recv(torch.ones(1), 0)
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(5)]
    numbers.append(tutti.sequence_number())
    if ctx.rank == 0:  # the other rank makes none of them before
        dist.send(torch.ones(1), 1)
    for work in works:
        work.wait()
    return [number - numbers[0] for number in numbers]


@pytest.mark.tutti_only
def test_sequence_numbers_count_collectives(world: World) -> None:
    """When they are issued. A refused call and messages do not count."""
    assert world(2).call(count_calls) == [[0, 2, 2, 2, 7]] * 2


def calls_compared_by_torch(ctx: Context) -> bool:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    ctx.init("detail")
    tensors = [torch.ones(8) for _ in range(200)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)]))
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    return all(bool((tensor == ctx.size).all()) for tensor in tensors)


@pytest.mark.tutti_only
def test_calls_overlap_where_torch_compares_them(fresh_world: World) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL compares the ranks' sequence numbers as each call is issued."""
    assert fresh_world(2, open_group=False).call(calls_compared_by_torch) == [True, True]


def say_error(ctx: Context) -> Any:
    import tutti

    before = tutti.get_error()
    tutti.abort(reason="the test says so")
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        return before, tutti.get_error()[0], "the test says so" in str(error)
    return None


@pytest.mark.tutti_only
def test_get_error(fresh_world: World) -> None:
    for before, after, said in fresh_world(1).call(say_error):
        assert before == ("success", None) and after != "success" and said


def end_in_cpp(ctx: Context) -> bool:
    """The last owner of a group is C++ code that holds Python's lock; a call that nobody else joins is under way."""
    group = dist.new_group()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1), process_group=group)
    reducer = model.reducer
    if ctx.rank == 0:
        dist.all_reduce(torch.ones(10), group=group, async_op=True)
    with mock.patch.object(dist.ProcessGroup, "shutdown", lambda _: None):
        dist.destroy_process_group(group)
    wrapper = weakref.ref(group)
    del model, group
    gc.collect()
    assert wrapper() is None  # Python's owner has gone
    del reducer
    return True


@pytest.mark.tutti_only
def test_groups_whose_last_owner_holds_pythons_lock(world: World) -> None:
    """Their threads take it to let go of a call's tensors: gloo's groups hang here."""
    assert world(2).call(end_in_cpp) == [True, True]
