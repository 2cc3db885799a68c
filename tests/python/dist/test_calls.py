"""Ways to call: asynchronous work, messages in any order, objects, sparse tensors, tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context, raised

import tutti

World = Callable[..., RankPool]

LARGE = 2_000_000  # far more than any buffer between two ranks


def use_work(ctx: Context) -> list[bool]:
    tensor = torch.full((1000,), float(ctx.rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    waited = work.wait()
    return [
        waited,
        work.is_completed(),
        not raised(work),
        torch.equal(work.result()[0] if isinstance(work.result(), list) else work.result(), tensor),
        float(tensor[0]) == 3.0,
        float(doubled.wait()[0]) == 6.0,
        float(future.value()[0][0]) == 3.0,
    ]


def test_work(world: World) -> None:
    for answer in world(2).call(use_work):
        assert answer == [True] * 7


def communicate_in_a_callback(ctx: Context) -> list[float]:
    """On the progress thread: it must not wait for what this thread is to run."""
    import tutti

    group = dist.new_group(pg_options=tutti.Options(overlap_futures=True))
    tensors = [torch.ones(LARGE), *(torch.full((4,), float(number)) for number in (2, 3, 4))]

    def more(done: torch.futures.Future[list[torch.Tensor]]) -> None:
        dist.all_reduce(tensors[1], group=group)
        dist.all_reduce(tensors[2], group=group, async_op=True).wait()
        dist.all_reduce(tensors[3], group=group, async_op=True).get_future().wait()

    dist.all_reduce(tensors[0], group=group, async_op=True).get_future().then(more).wait()
    dist.destroy_process_group(group)
    return [float(tensor[0]) for tensor in tensors]


@pytest.mark.tutti_only
def test_callbacks_may_communicate_and_wait(world: World) -> None:
    assert world(2).call(communicate_in_a_callback) == [[2.0, 4.0, 6.0, 8.0]] * 2


def overlap(ctx: Context) -> bool:
    """Many asynchronous calls of mixed kinds and sizes, waited for against the order of issue."""
    works, tensors = [], []
    for number in range(200):
        tensor = torch.full((1 + number * 37 % 5000,), float(number + ctx.rank))
        if number % 3 == 2:
            works.append(dist.broadcast(tensor, number % ctx.size, async_op=True))
        else:
            works.append(dist.all_reduce(tensor, async_op=True))
        tensors.append(tensor)
    for work in reversed(works):
        work.wait()
    total = sum(range(ctx.size))
    wanted = [
        float(number + number % ctx.size) if number % 3 == 2 else float(number * ctx.size + total)
        for number in range(200)
    ]
    return all(bool((tensor == want).all()) for tensor, want in zip(tensors, wanted, strict=True))


def test_many_outstanding_calls(world: World) -> None:
    assert world(3).call(overlap) == [True] * 3


def receive_around_a_collective(ctx: Context) -> bool:
    """irecv; all_reduce; isend: the receive must not hold up the collective."""
    other = 1 - ctx.rank
    received = torch.zeros(LARGE)
    receive = dist.irecv(received, other)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    send = dist.isend(torch.full((LARGE,), float(ctx.rank)), other)
    send.wait()
    receive.wait()
    return bool((received == other).all()) and bool((tensor == 2).all())


def send_before_receive(ctx: Context) -> bool:
    """Both ranks send first, more than fits anywhere, then receive."""
    other = 1 - ctx.rank
    sent, received = torch.full((LARGE,), float(ctx.rank)), torch.zeros(LARGE)
    send = dist.isend(sent, other)
    receive = dist.irecv(received, other)
    receive.wait()
    send.wait()
    return bool((received == other).all())


def collective_between_messages(ctx: Context) -> bool:
    """An asynchronous collective is outstanding on both sides of every message."""
    other = 1 - ctx.rank
    tensors = [torch.full((LARGE // 10,), 1.0) for _ in range(4)]
    received = [torch.zeros(LARGE // 4) for _ in range(4)]
    works = []
    for number in range(4):
        works.append(dist.isend(torch.full((LARGE // 4,), float(number)), other, tag=number))
        works.append(dist.all_reduce(tensors[number], async_op=True))
    for number in (3, 1, 2, 0):
        works.append(dist.irecv(received[number], other, tag=number))
    for work in works:
        work.wait()
    return all(bool((received[n] == n).all()) and bool((tensors[n] == 2).all()) for n in range(4))


def crossed_tags(ctx: Context) -> bool:
    """Receives asked for in another order than the sends come; those of one tag keep their order."""
    if ctx.rank == 0:
        works = [dist.isend(torch.full((3,), value), 1, tag=tag) for value, tag in ((1, 5), (2, 6), (3, 5), (4, 7))]
        for work in works:
            work.wait()
        return True
    tensors = [torch.zeros(3, dtype=torch.int64) for _ in range(4)]
    works = [dist.irecv(tensor, 0, tag=tag) for tensor, tag in zip(tensors, (7, 5, 6, 5), strict=True)]
    for work in works:
        work.wait()
    return [int(tensor[0]) for tensor in tensors] == [4, 1, 2, 3]


@pytest.mark.parametrize(
    "order",
    [
        receive_around_a_collective,
        send_before_receive,
        collective_between_messages,
        crossed_tags,
    ],
)
def test_orders_that_must_not_deadlock(world: World, order: Callable[[Context], bool]) -> None:
    assert world(2).call(order, timeout_s=40) == [True, True]


def any_source(ctx: Context) -> list[int]:
    if ctx.rank:
        dist.send(torch.full((4,), float(ctx.rank)), 0, tag=9)
        return []
    seen = []
    for _ in range(ctx.size - 1):
        tensor = torch.zeros(4)
        source = dist.recv(tensor, tag=9)
        assert float(tensor[3]) == source
        seen.append(source)
    return sorted(seen)


def test_receive_from_any_source(world: World) -> None:
    assert world(4).call(any_source)[0] == [1, 2, 3]


def replace_while_reduced(ctx: Context) -> list[bool]:
    """A tensor that is given other memory while its call waits for a late rank."""
    kept = []
    for _ in range(20):
        tensor, other = torch.ones(100_000), torch.full((100_000,), 7.0)
        if ctx.rank == 1:
            dist.recv(torch.empty(1), 0)
        work = dist.all_reduce(tensor, async_op=True)
        tensor.data = other
        if ctx.rank == 0:
            later = [torch.full((100_000,), 5.0) for _ in range(4)]  # which may get the memory, were it free
            dist.send(torch.ones(1), 1)
        work.wait()
        kept.append(bool((other == 7.0).all()) and (ctx.rank == 1 or all(bool((t == 5.0).all()) for t in later)))
    return kept


def test_a_calls_memory_stays_when_its_tensor_is_given_another(world: World) -> None:
    assert world(2).call(replace_while_reduced) == [[True] * 20] * 2


def send_objects(ctx: Context) -> list[Any]:
    thing = {"rank": ctx.rank, "list": list(range(ctx.rank * 1000))}
    gathered: list[Any] = [None] * ctx.size
    dist.all_gather_object(gathered, thing)
    broadcast = [thing if ctx.rank == 1 else None, "x" if ctx.rank == 1 else None]
    dist.broadcast_object_list(broadcast, src=1)
    at_root: list[Any] | None = [None] * ctx.size if ctx.rank == 0 else None
    dist.gather_object(thing, at_root, dst=0)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {rank}" for rank in range(ctx.size)] if ctx.rank == 0 else None, src=0)
    passed = ["", None]
    if ctx.rank == 0:
        dist.send_object_list(["hello", thing], dst=1)
    elif ctx.rank == 1:
        dist.recv_object_list(passed, src=0)
    return [
        [len(item["list"]) for item in gathered],
        broadcast[0]["rank"],  # type: ignore[index]
        None if at_root is None else [item["rank"] for item in at_root],
        mine[0],
        passed[0],
    ]


def test_objects(world: World) -> None:
    answers = world(3).call(send_objects)
    assert answers[0] == [[0, 1000, 2000], 1, [0, 1, 2], "for 0", ""]
    assert answers[1] == [[0, 1000, 2000], 1, None, "for 1", "hello"]


def reduce_sparse(ctx: Context) -> bool:
    indices = torch.tensor([[ctx.rank, 3], [0, 1]])
    sparse = torch.sparse_coo_tensor(indices, torch.tensor([1.0, float(ctx.rank)]), (4, 2))
    dense = torch.zeros(4, 2)
    for rank in range(ctx.size):
        dense[rank, 0] += 1
        dense[3, 1] += rank
    dist.all_reduce(sparse)
    before = tutti.sequence_number()
    with pytest.raises(ValueError, match="would lose its fraction"):
        dist.all_reduce(sparse.to(torch.int64), op=dist._make_nccl_premul_sum(0.5))
    assert tutti.sequence_number() == before
    return torch.equal(sparse.to_dense(), dense)


def test_sparse(world: World) -> None:
    assert world(3).call(reduce_sparse) == [True] * 3


def functional(ctx: Context, compiled: bool) -> list[Any]:
    """Functional collectives, also traced into one graph without a break."""
    import torch.distributed._functional_collectives as fc

    group = dist.group.WORLD

    def step(x: torch.Tensor) -> torch.Tensor:
        y = fc.all_reduce(x * 2, "sum", group)
        y = fc.all_gather_tensor(y, 0, group)
        y = fc.reduce_scatter_tensor(y, "sum", 0, group)
        y = fc.all_to_all_single(y, None, None, group)
        return fc.broadcast(y + 1, 0, group)

    function = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
    result = function(torch.full((ctx.size * 2,), float(ctx.rank + 1)))
    return result.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_functional_collectives(world: World, compiled: bool) -> None:
    size = 2
    summed = 2.0 * (1 + 2)  # all_reduce
    assert world(size).call(functional, compiled, timeout_s=100) == [[summed * size + 1] * (size * 2)] * size


def large_message(ctx: Context) -> bool:
    """More elements than an int holds."""
    count = 2**31 + 5
    tensor = torch.zeros(count, dtype=torch.uint8)
    if ctx.rank == 0:
        tensor[-1] = 9
        tensor[0] = 3
    dist.broadcast(tensor, 0)
    return int(tensor[-1]) == 9 and int(tensor[0]) == 3 and int(tensor[2**31 - 1]) == 0


def available_bytes() -> int:
    with open("/proc/meminfo") as info:
        line = next(line for line in info if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


@pytest.mark.tutti_only
def test_more_than_two_to_the_31_elements(fresh_world: World) -> None:
    needed = 7 << 30
    if available_bytes() < needed:
        pytest.skip(f"needs {needed >> 30} GiB of memory")
    assert fresh_world(2).call(large_message, timeout_s=100) == [True, True]


def mapped_tensors(ctx: Context) -> list[Any]:
    """Calls on mapped tensors are right and counted; a mixture of mapped and plain ranks is right too."""
    import tutti

    answers: list[Any] = []
    tutti.reset_metrics()
    for mine in (True, ctx.rank == 0):
        tensor = tutti.empty(500_000) if mine else torch.empty(500_000)
        tensor.fill_(float(ctx.rank + 1))
        dist.all_reduce(tensor)
        answers.append(bool((tensor == 3).all()))
    part = tutti.zeros(1000, dtype=torch.float64)[3:998:5]
    part += ctx.rank
    dist.all_reduce(part)
    answers.append(bool((part == 1).all()))
    answers.append(tutti.get_metrics()["mapped_calls"] >= 1)
    with contextlib.suppress(ValueError):
        dist.all_reduce(tutti.zeros(0))
    return answers


@pytest.mark.tutti_only
def test_mapped_tensors(world: World) -> None:
    assert world(2).call(mapped_tensors) == [[True] * 4] * 2


def mapped_lists(ctx: Context) -> list[Any]:
    """Gather reads the other ranks' mapped tensors and scatter writes into them, whatever the root's lists are."""
    import tutti

    count, last = 100_000, ctx.size - 1
    mine = tutti.empty(count).fill_(float(ctx.rank))
    tutti.reset_metrics()
    parts = [torch.empty(count) for _ in range(ctx.size)]
    dist.gather(mine, parts if ctx.rank == last else None, dst=last)
    right = ctx.rank != last or all(bool((part == r).all()) for r, part in enumerate(parts))
    given = [torch.full((count,), 10.0 + r) for r in range(ctx.size)]
    dist.scatter(mine, given if ctx.rank == last else None, src=last)
    ran = {(row["collective"], row["algorithm"]) for row in tutti.get_metrics()["rows"]}
    return [right, bool((mine == 10.0 + ctx.rank).all()), ran == {("gather", "mapped"), ("scatter", "mapped")}]


@pytest.mark.tutti_only
def test_mapped_tensors_are_gathered_and_scattered_in_place(world: World) -> None:
    assert world(3).call(mapped_lists) == [[True] * 3] * 3


def allocate(ctx: Context) -> bool:
    """Backend.allocate_tensor gives mapped tensors."""
    import tutti
    from tutti.dist.backend import is_mapped

    backend = tutti.get_communicator()
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    tensor.fill_(1)
    dist.all_reduce(tensor)
    return is_mapped(tensor) and bool((tensor == ctx.size).all())


@pytest.mark.tutti_only
def test_allocate_tensor(world: World) -> None:
    assert world(2).call(allocate) == [True, True]


def factor_tensors(ctx: Context) -> list[bool]:
    """A factor on the CPU may have any dtype: its value counts."""
    answers = []
    for factor in (torch.tensor(0.5), torch.tensor([0.5], dtype=torch.float64), torch.tensor([[2]])):
        tensor = torch.full((9,), 3.0, dtype=torch.bfloat16)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
        answers.append(bool((tensor == 3 * float(factor) * ctx.size).all()))
    parts = torch.ones(4 * ctx.size)
    part = torch.empty(4)
    dist.reduce_scatter_tensor(part, parts, op=dist._make_nccl_premul_sum(torch.tensor(float(ctx.rank))))
    answers.append(bool((part == sum(range(ctx.size))).all()))
    return answers


@pytest.mark.tutti_only
def test_factors_that_are_tensors(world: World) -> None:
    assert world(2).call(factor_tensors) == [[True] * 4] * 2


def allocate_too_much(ctx: Context) -> list[bool]:
    import tutti

    backend = tutti.get_communicator()
    answers = []
    for tensor in (
        backend.allocate_tensor(1 << 20, dtype=torch.float32, device=torch.device("cpu")),
        tutti.empty(1 << 20),
    ):
        tensor.fill_(ctx.rank + 1)
        dist.all_reduce(tensor)
        answers.append(not tutti.is_mapped(tensor) and bool((tensor == 3).all()))
    answers.append(tutti.is_mapped(tutti.empty(1000)))
    with pytest.raises(ValueError, match="CPU and CUDA tensors"):
        backend.allocate_tensor(3, dtype=torch.float32, device=torch.device("meta"))
    with pytest.raises(ValueError, match="the size is -1"):
        backend.allocate_tensor(-1, dtype=torch.float32, device=torch.device("cpu"))
    return answers


@pytest.mark.tutti_only
def test_a_full_arena_gives_ordinary_tensors(fresh_world: World) -> None:
    """Training goes on where the arena has no room."""
    assert fresh_world(2, env={"TUTTI_ARENA_BYTES": str(2 << 20)}).call(allocate_too_much) == [[True] * 3] * 2


def both_devices(ctx: Context) -> list[bool]:
    import tutti

    ctx.init(f"{ctx.generation}.both", backend="cpu:tutti,cuda:tutti")
    group = dist.group.WORLD
    assert group is not None
    backend = tutti.get_communicator(group)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    before = backend.sequence
    answers = [tutti.get_communicator(group, "cuda") is backend, bool((tensor == ctx.size).all())]
    if not torch.cuda.is_available():
        # A call for the other device that cannot be made leaves the numbers of this one alone.
        with pytest.raises(RuntimeError):
            backend.eager_connect_single_device(torch.device("cuda:0"))
        answers.append(backend.sequence == before)
    dist.all_reduce(tensor)
    dist.barrier()
    objects = [None] * ctx.size
    dist.all_gather_object(objects, ctx.rank)
    return [*answers, objects == list(range(ctx.size)), bool((tensor == ctx.size**2).all())]


@pytest.mark.tutti_only
def test_one_backend_serves_both_devices(fresh_world: World) -> None:
    assert all(all(answers) for answers in fresh_world(2).call(both_devices))


@pytest.mark.tutti_only
def test_a_group_has_the_devices_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices() -> list[str]:
        return list(dist.BackendConfig(dist.Backend("tutti")).get_device_backend_map())

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert devices() == ["cpu"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices() == ["cpu", "cuda"]


def gather_a_sharded_tensor(ctx: Context) -> list[float]:
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in range(ctx.size)])
    tensor = sharded_tensor.full(spec, [4 * ctx.size], fill_value=1.5)
    whole = torch.zeros(4 * ctx.size) if ctx.rank == 0 else None
    tensor.gather(0, whole)
    return [] if whole is None else whole.tolist()


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it gathers CUDA tensors")
def test_a_sharded_tensor_is_gathered_where_there_is_no_gpu(world: World) -> None:
    """It puts its buffer on a device that the group's backend is registered for."""
    assert world(2).call(gather_a_sharded_tensor)[0] == [1.5] * 8
