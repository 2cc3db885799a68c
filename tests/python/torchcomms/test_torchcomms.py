"""The backend of TorchComms, through the interface of torchcomms (torchcomms_interface.py says which)."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from counting_store import CountingStore
from launching import SUPPORT, free_port
from rank_pool import RankPool, unique_name
from rank_worker import Context
from torchcomms_interface import (
    CPU,
    NEEDS_TORCHCOMMS,
    batch_limit,
    given_to_torch,
    interface,
    new_comm,
    refused,
    same,
)
from torchcomms_sweep import sweep as sweep_of_collectives
from torchcomms_sweep import sweep_of_large

World = Callable[..., RankPool]
PLUGIN = SUPPORT / "plugins" / "algorithms.cc"
pytestmark = [pytest.mark.tutti_only, NEEDS_TORCHCOMMS]


def sweep(ctx: Context, name: str) -> None:
    """Sizes, dtypes, operations, layouts; in place and again; synchronous and not."""
    comm = new_comm(ctx, name)
    op = interface().ReduceOp
    total = sum(range(1, ctx.size + 1))
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64):
        for count in (1, 7, 1000, 70_000):
            tensor = torch.full((count,), ctx.rank + 1, dtype=dtype)
            comm.all_reduce(tensor, op.SUM, False)
            same(tensor, torch.tensor(total))
            work = comm.all_reduce(tensor, op.MAX, True)
            work.wait()
            assert work.is_completed()
            same(tensor, torch.tensor(total))
    for count in (2 << 20, 8 << 20):  # 8 and 32 MB
        large = torch.arange(count, dtype=torch.float32)
        comm.all_reduce(large, op.SUM, True).wait()
        same(large, torch.arange(count, dtype=torch.float32) * ctx.size)
        mine = slice(ctx.rank * (count // ctx.size), (ctx.rank + 1) * (count // ctx.size))
        comm.reduce_scatter_single(large[mine], large, op.MAX, False)  # in place, and back again
        wanted = large.clone()
        large[: mine.start] = large[mine.stop :] = 0
        comm.all_gather_single(large, large[mine], False)
        same(large, wanted)
    for reduce, value in ((op.AVG, total / ctx.size), (op.MIN, 1.0), (op.PREMUL_SUM(0.5), total / 2)):
        tensor = torch.full((5,), float(ctx.rank + 1))
        comm.all_reduce(tensor, reduce, False)
        same(tensor, torch.tensor(value))
    bits = torch.tensor([1 << ctx.rank])
    comm.all_reduce(bits, op.BOR, False)
    assert int(bits) == (1 << ctx.size) - 1
    # The result is in the caller's tensor, and only where the view is.
    for asynchronous in (False, True):
        whole = torch.full((6, 8), float(ctx.rank + 1))
        comm.all_reduce(whole[:, ::2], op.SUM, asynchronous).wait()
        same(whole[:, ::2], torch.tensor(float(total)))
        same(whole[:, 1::2], torch.tensor(float(ctx.rank + 1)))
        rows = torch.zeros(ctx.size * 2, 3).t()
        comm.all_gather_single(rows, torch.full((3, 2), float(ctx.rank)), asynchronous).wait()
        assert rows.sum() == 6 * sum(range(ctx.size))
    comm.finalize()


def collectives(ctx: Context, name: str) -> None:
    """Every collective, synchronous and not."""
    comm = new_comm(ctx, name)
    op, rank, size = interface().ReduceOp, ctx.rank, ctx.size
    ones = torch.ones(3)
    assert (comm.get_rank(), comm.get_size(), comm.get_backend(), comm.get_name()) == (rank, size, "tutti", name)
    for asynchronous in (False, True):
        for root in range(size):
            tensor = ones * rank
            comm.broadcast(tensor, root, asynchronous).wait()
            same(tensor, ones * root)
            tensor = ones * rank
            comm.reduce(tensor, root, op.SUM, asynchronous).wait()
            same(tensor, ones * (sum(range(size)) if rank == root else rank))
            out = torch.zeros(3)
            parts = [ones * (10 * root + r) for r in range(size)] if rank == root else []
            comm.scatter(out, parts, root, asynchronous).wait()
            same(out, ones * (10 * root + rank))
            outs = [torch.zeros(3) for _ in range(size)] if rank == root else []
            comm.gather(outs, ones * rank, root, asynchronous).wait()
            for r, out in enumerate(outs):
                same(out, ones * r)
            out = torch.zeros(3 * size)
            comm.gather_single(out, ones * rank, root, asynchronous).wait()
            same(out, torch.arange(size).repeat_interleave(3) if rank == root else torch.zeros(()))
        outs = [torch.zeros(3) for _ in range(size)]
        comm.all_gather(outs, ones * rank, asynchronous).wait()
        same(torch.stack(outs), torch.arange(size).unsqueeze(1))
        outs = [torch.zeros(r + 1) for r in range(size)]
        comm.all_gather_v(outs, torch.full((rank + 1,), float(rank)), asynchronous).wait()
        for r, out in enumerate(outs):
            same(out, torch.tensor(float(r)))
        out = torch.zeros(3)
        comm.reduce_scatter(out, [ones * (rank + r) for r in range(size)], op.SUM, asynchronous).wait()
        same(out, ones * (sum(range(size)) + size * rank))
        out = torch.zeros(rank + 1)
        comm.reduce_scatter_v(out, [torch.ones(r + 1) for r in range(size)], op.SUM, asynchronous).wait()
        same(out, torch.tensor(float(size)))
        out = torch.zeros(2)
        comm.reduce_scatter_single(out, torch.arange(2.0 * size), op.SUM, asynchronous).wait()
        same(out, torch.tensor([2.0 * rank, 2.0 * rank + 1]) * size)
        outs = [torch.zeros(2) for _ in range(size)]
        comm.all_to_all(outs, [torch.full((2,), 10.0 * rank + r) for r in range(size)], asynchronous).wait()
        same(torch.stack(outs), (10.0 * torch.arange(size) + rank).unsqueeze(1))
        out = torch.zeros(size)
        comm.all_to_all_single(out, 10.0 * rank + torch.arange(size), asynchronous).wait()
        same(out, 10.0 * torch.arange(size) + rank)
        # A row to every rank, more to the last one; the tensors end later than the splits do.
        splits = [1] * (size - 1) + [2]
        mine = [splits[rank]] * size
        out = torch.full((sum(mine) + 1, 2), -1.0)
        comm.all_to_all_v_single(out, torch.full((sum(splits) + 3, 2), float(rank)), mine, splits, asynchronous).wait()
        same(out[:-1, 0], torch.arange(size).repeat_interleave(splits[rank]))
        same(out[-1], torch.tensor(-1.0))
        comm.barrier(asynchronous).wait()
    comm.finalize()


def dtypes(ctx: Context, name: str) -> None:
    """Every collective in every dtype."""
    comm = new_comm(ctx, name)
    sweep_of_collectives(comm, [1, 1000, 70_001], CPU)
    comm.finalize()


def large(ctx: Context, name: str) -> None:
    """Every collective on megabytes."""
    comm = new_comm(ctx, name)
    sweep_of_large(comm, CPU)
    comm.finalize()


def messages(ctx: Context, name: str) -> None:
    """A ring of sends and receives, and the same in a batch, in the order that would deadlock."""
    comm = new_comm(ctx, name)
    after, before = (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size
    got = torch.zeros(100_000)
    sent = comm.send(torch.full_like(got, float(ctx.rank)), after, True)
    comm.recv(got, before, False)
    sent.wait()
    same(got, torch.tensor(float(before)))
    for asynchronous in (False, True):
        batch = comm.batch_op_create()
        pair = torch.zeros(2, 2)
        batch.recv(pair[:, 0], before)
        batch.recv(pair[0, 1:], before)
        batch.send(torch.full((2,), float(ctx.rank)), after)
        batch.send(torch.full((1,), 10.0 + ctx.rank), after)
        batch.issue(asynchronous).wait()
        same(pair, torch.tensor([[before, 10.0 + before], [before, 0.0]]))
    refused("batch_op_issue.*empty", lambda: comm.batch_op_create().issue(False))
    comm.finalize()


def one_limit_for_a_batch(ctx: Context, name: str) -> None:
    """Messages that come one after another, each within the limit, but not all of them."""
    comm = new_comm(ctx, name)
    limit = 0.6
    if ctx.rank == 0:
        batch = comm.batch_op_create()
        for _ in range(6):
            batch.recv(torch.zeros(1), 1)
        refused(".", lambda: batch.issue(False, batch_limit(timedelta(seconds=limit))))
    else:
        never = threading.Event()
        for _ in range(6):
            never.wait(limit / 2)
            comm.send(torch.ones(1), 0, False)
    comm.barrier(False)  # the messages went on
    comm.finalize()


def errors(ctx: Context, name: str) -> None:
    """What is wrong is named, on the rank where it is, and nothing was sent: the next call is right."""
    comm = new_comm(ctx, name)
    op, size = interface().ReduceOp, ctx.size
    one = torch.ones(1)
    refused(
        rf"broadcast on communicator '{name}': root {size} .*0 to {size - 1}", lambda: comm.broadcast(one, size, False)
    )
    refused("send.*destination -1", lambda: comm.send(one, -1, False))
    refused("all_gather.*all_gather_v", lambda: comm.all_gather([torch.ones(2)] * size, one, False))
    refused(
        f"tutti: all_gather_single on communicator '{name}': .* has {size + 1} elements where {size} are needed",
        lambda: comm.all_gather_single(torch.ones(size + 1), one, False),
    )
    refused("reduce_scatter.*reduce_scatter_v", lambda: comm.reduce_scatter(one, [torch.ones(2)] * size, op.SUM, False))
    refused("one for each of", lambda: comm.all_to_all_v_single(one, one, [1], [1] * (size + 1), False))
    refused("more than the tensor's 1 rows", lambda: comm.all_to_all_v_single(one, one, [9] * size, [0] * size, True))
    refused("gather_single", lambda: comm.gather_single(torch.ones(size + 1), one, ctx.rank, False))
    refused("CPU and CUDA", lambda: comm.all_reduce(torch.ones(1, device="meta"), op.SUM, False))
    refused("share memory|written", lambda: comm.all_reduce(one.expand(4), op.SUM, True))
    comm.all_reduce(one, op.SUM, False)
    assert float(one) == size
    refused("tutti.nothing", lambda: new_comm(ctx, name + "hint", hints={"tutti.nothing": "1"}))
    refused("tutti.max_blocks|max_blocks", lambda: new_comm(ctx, name + "hint", hints={"tutti.max_blocks": "-1"}))
    refused("no_such", lambda: new_comm(ctx, name + "hint", hints={"tutti.algorithm": "no_such"}))
    forced = new_comm(ctx, name + "forced", hints={"tutti.algorithm": "staged", "other.backend": "1"})
    forced.all_reduce(torch.ones(10), op.SUM, False)
    forced.finalize()
    comm.finalize()
    refused("already finalized", comm.finalize)
    refused(f"all_reduce on communicator '{name}': it is finalized", lambda: comm.all_reduce(one, op.SUM, False))


def splits(ctx: Context, name: str) -> None:
    """Parts, parts of parts, ranks without one; mistakes disturb no later split. They and windows ask no store."""
    store = CountingStore(ctx.store("torchcomms"))
    comm = new_comm(ctx, name, store=store)
    assert store.asked
    store.asked.clear()
    op, rank, size = interface().ReduceOp, ctx.rank, ctx.size

    def sum_of_ranks(part: Any) -> float:
        tensor = torch.tensor([float(rank)])
        part.all_reduce(tensor, op.SUM, False)
        return float(tensor)

    if rank == 0:  # on one rank alone
        refused("Duplicate ranks", lambda: comm.split([0, 0], "twice"))
        refused(f"{size} is no rank", lambda: comm.split([0, size], "beyond"))
        refused("Current rank 0 is not included", lambda: comm.split([1], "without"))
    ranks = [r for r in range(size) if r % 2 == rank % 2]
    part = comm.split(ranks, "parity")
    assert sum_of_ranks(part) == sum(ranks) and (part.get_rank(), part.get_size()) == (ranks.index(rank), len(ranks))
    again = comm.split(ranks, "parity")
    assert sum_of_ranks(again) == sum(ranks)
    backwards = comm.split(list(reversed(range(size))), "backwards")
    assert backwards.get_rank() == size - 1 - rank and sum_of_ranks(backwards) == sum(range(size))
    alone = comm.split([0] if rank == 0 else [], "alone")
    assert (alone is None) == (rank != 0)
    deeper = backwards.split([backwards.get_rank()], "self")
    assert sum_of_ranks(deeper) == rank and sum_of_ranks(comm) == sum(range(size))
    comm.new_window(torch.zeros(3)).tensor_deregister()
    assert not store.asked
    for one in (part, again, backwards, alone, deeper, comm):
        if one is not None:
            one.finalize()


def several(ctx: Context, name: str, port: int) -> None:
    """Several at a time, made by threads over one store, and by a process that was given none."""
    op = interface().ReduceOp
    made: dict[int, Any] = {}

    def make(i: int) -> None:
        made[i] = new_comm(ctx, f"{name}{i}")

    # In another order on each rank. "1" and "11" are told apart.
    threads = [threading.Thread(target=make, args=(i,)) for i in ((1, 11, 111) if ctx.rank % 2 else (111, 11, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    made[2] = new_comm(ctx, f"{name}2", stored=False)
    made[3] = new_comm(ctx, f"{name}3", stored=False)
    # Parts of it at the same time, which meet where it has met.
    part = made[2].split([rank for rank in range(ctx.size) if rank % 2 == ctx.rank % 2], "part")
    one = torch.ones(1)
    part.all_reduce(one, op.SUM, False)
    assert float(one) == part.get_size()
    part.finalize()
    tensors = {i: torch.full((1000,), float(i)) for i in made}
    works = [made[i].all_reduce(tensors[i], op.SUM, True) for i in made if i > 3] + [
        made[i].all_reduce(tensors[i], op.SUM, True) for i in (3, 1, 2)
    ]
    for work in reversed(works):
        work.wait()
    for i, tensor in tensors.items():
        same(tensor, torch.tensor(float(i * ctx.size)))
        made[i].finalize()


def failures(ctx: Context, name: str) -> None:
    """A peer that does not come: a time limit raises on the ranks that wait, nothing aborts the process."""
    sizes, store = new_comm(ctx, f"{name}.sizes"), ctx.store(name)
    if ctx.rank == 1:
        sizes.send(torch.ones(5), 0, True)
        store.set("sent", "1")
    elif ctx.rank == 0:
        store.wait(["sent"])
        refused(".", lambda: sizes.recv(torch.ones(4), 1, False))  # it has failed before it is waited for
    comm = new_comm(ctx, name)
    op = interface().ReduceOp
    hooks: list[int] = []
    outstanding: list[Any] = []

    def drain() -> None:
        hooks.append(1)
        for other in outstanding:
            refused(".", other.wait)

    comm.register_abort_hook(drain)
    if ctx.rank == 0:
        work = comm.all_reduce(torch.ones(4), op.SUM, True, timeout=timedelta(milliseconds=200))
        outstanding.append(comm.all_reduce(torch.ones(4), op.SUM, True, timeout=timedelta(milliseconds=200)))
        refused("all_reduce", work.wait)
        assert hooks == [1] and not work.is_completed()
        refused(".", lambda: comm.all_reduce(torch.ones(4), op.SUM, False))
    else:
        refused(".", lambda: comm.recv(torch.ones(4), 0, False, timeout=timedelta(seconds=20)))


def aborted(ctx: Context, name: str) -> None:
    """abort() ends what waits; reconfigure() makes another group, of fewer ranks too."""
    comm = new_comm(ctx, name, enable_reconfigure=True)
    op = interface().ReduceOp
    refused("enable_reconfigure", lambda: comm.barrier(False))
    store = ctx.store(name)
    store.set(f"handle{ctx.rank}", comm.get_init_handle())
    handles = [store.get(f"handle{r}").decode() for r in range(ctx.size)]
    refused("not among those", lambda: comm.reconfigure(1, ["tutti:other"]))
    comm.reconfigure(1, handles).wait()
    assert (comm.get_rank(), comm.get_size()) == (ctx.rank, ctx.size)
    refused("uuid 1 has been used", lambda: comm.reconfigure(1, handles))
    work = comm.recv(torch.ones(4), (ctx.rank + 1) % ctx.size, True)
    store.set(f"waits{ctx.rank}", "1")
    store.wait([f"waits{r}" for r in range(ctx.size)])
    comm.abort()
    assert comm.is_aborted()
    refused("abort", work.wait)
    refused("reconfigure", lambda: comm.barrier(False))
    last = ctx.size - 1
    if ctx.rank < last:
        comm.reconfigure(2, handles[:last][::-1]).wait()
        assert comm.get_rank() == last - 1 - ctx.rank
        tensor = torch.ones(10)
        comm.all_reduce(tensor, op.SUM, False)
        same(tensor, torch.tensor(float(last)))
        comm.finalize()


def training(ctx: Context, name: str) -> None:
    """Steps of data-parallel training equal those of one process on the whole batch."""
    comm = new_comm(ctx, name)
    op = interface().ReduceOp
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    data, target = torch.randn(ctx.size * 4, 8), torch.randn(ctx.size * 4, 1)
    mine = slice(4 * ctx.rank, 4 * ctx.rank + 4)
    for _ in range(5):
        for model, part in ((models[0], mine), (models[1], slice(None))):
            model.zero_grad()
            torch.nn.functional.mse_loss(model(data[part]), target[part]).backward()
        gradients = [parameter.grad for parameter in models[0].parameters()]
        for work in [comm.all_reduce(gradient, op.AVG, True) for gradient in gradients]:
            work.wait()
        with torch.no_grad():
            for model in models:
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)
    comm.finalize()


def user_algorithms(ctx: Context, name: str) -> None:
    """What the process's builder holds takes the calls of communicators made afterwards, or they fail and say why."""
    import tutti
    from tutti.dist import torchcomms as face
    from tutti.language import AlgoSpec, AllReduce
    from tutti.language.builtins import ring_all_reduce

    groups = []
    make_group = face.make_group

    def remember(*arguments: Any) -> Any:
        groups.append(make_group(*arguments))
        return groups[-1]

    face.make_group = remember
    builder = tutti.AlgorithmCollectionBuilder()
    try:
        spec = AlgoSpec("mine", AllReduce(ctx.size, 1))
        builder.add_algorithm_builder(tutti.compile(ring_all_reduce, spec, ctx.rank))
        comm = new_comm(ctx, name)
        op = interface().ReduceOp
        tensor = torch.ones(1000)
        comm.all_reduce(tensor, op.SUM, False)
        same(tensor, torch.tensor(float(ctx.size)))
        assert "plan:mine" in {row["algorithm"] for row in groups[0][0].metrics()["rows"]}
        comm.finalize()
        tutti.AlgorithmCollectionBuilder.reset()

        native = tutti.compile_native("algorithms", PLUGIN)
        for made, error in ((native.create_reduce(), ""), (native.create_throwing(), "no luck today")):
            tutti.AlgorithmCollectionBuilder().add_algorithm_builder(tutti.Algorithm.create_from_native_capsule(made))
            comm = new_comm(ctx, f"{name}.native{bool(error)}")
            tensor = torch.ones(1000)
            if error:
                refused(error if ctx.rank == 0 else ".", functools.partial(comm.all_reduce, tensor, op.SUM, False))
            else:
                comm.all_reduce(tensor, op.SUM, False)
                same(tensor, torch.tensor(float(ctx.size)))
                assert "root_all_reduce" in str(groups[-1][0].metrics()["rows"])
                comm.finalize()
            tutti.AlgorithmCollectionBuilder.reset()

        def selector(algorithms: Any, request: Any) -> Any:
            raise KeyError("no such algorithm")

        tutti.AlgorithmCollectionBuilder().set_algorithm_selector(selector)
        comm = new_comm(ctx, name)
        refused("no such algorithm", lambda: comm.all_reduce(tensor, op.SUM, False))
        comm.finalize()
    finally:
        tutti.AlgorithmCollectionBuilder.reset()
        face.make_group = make_group


def everything(ctx: Context, name: str, port: int) -> None:
    """In one pool: to start one takes longer than most of these."""
    for function in (sweep, collectives, messages, one_limit_for_a_batch, errors, splits, training):
        function(ctx, f"{name}.{function.__name__}")
    several(ctx, f"{name}.several", port)


def what_depends_on_the_ranks(ctx: Context, name: str, port: int) -> None:
    for function in (collectives, messages, splits):
        function(ctx, f"{name}.{function.__name__}")
    several(ctx, f"{name}.several", port)


@pytest.mark.parametrize(("ranks", "function"), [(2, everything), (4, what_depends_on_the_ranks)])
def test_on_cpu_tensors(fresh_world: World, ranks: int, function: Callable[..., None]) -> None:
    fresh_world(ranks, open_group=False).call(function, unique_name("tc"), free_port())


@pytest.mark.parametrize(
    ("ranks", "function"), [(2, dtypes), (3, dtypes), (2, large), (2, user_algorithms), (2, failures), (3, aborted)]
)
def test_in_a_world_of_its_own(fresh_world: World, ranks: int, function: Callable[..., None]) -> None:
    fresh_world(ranks, open_group=False).call(function, unique_name("tc"), timeout_s=120)


def through_c10d(ctx: Context, name: str) -> None:
    """What TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 does: torch.distributed's groups are TorchComms' communicators."""
    os.environ.update(RANK=str(ctx.rank), WORLD_SIZE=str(ctx.size))  # TorchComms asks for them
    given_to_torch()
    dist.init_process_group("cpu:tutti", store=ctx.store(name), rank=ctx.rank, world_size=ctx.size)
    world = dist.group.WORLD
    assert world is not None and "BackendWrapper" in type(world._get_backend(CPU)).__name__
    assert world._get_backend(CPU).get_comm().get_backend() == "tutti"
    one = torch.ones(1000)
    dist.all_reduce(one)
    same(one, torch.tensor(float(ctx.size)))
    part = dist.new_group([0, 1])
    if ctx.rank < 2:
        dist.all_reduce(one, group=part)
        same(one, torch.tensor(2.0 * ctx.size))
    got = torch.zeros(ctx.size)
    dist.all_gather_into_tensor(got, torch.tensor([float(ctx.rank)]))
    same(got, torch.arange(ctx.size))
    request = dist.irecv(one, (ctx.rank - 1) % ctx.size)
    assert request is not None
    dist.send(torch.full((1000,), float(ctx.rank)), (ctx.rank + 1) % ctx.size)
    request.wait()
    same(one, torch.tensor(float((ctx.rank - 1) % ctx.size)))
    objects: list[Any] = [None] * ctx.size
    dist.all_gather_object(objects, {"rank": ctx.rank})
    assert objects == [{"rank": rank} for rank in range(ctx.size)]
    dist.barrier()
    dist.destroy_process_group()


def test_through_c10d(fresh_world: World) -> None:
    fresh_world(3, open_group=False).call(through_c10d, unique_name("tc"))
