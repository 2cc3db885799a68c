"""Algorithms that a program chooses itself: ranks are processes without torch unless a test says otherwise."""

from __future__ import annotations

import pickle
import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from launching import SUPPORT, free_port, launch
from rank_worker import Context
from running_examples import run_example

import tutti
import tutti.utils
from tutti import _core
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce

RANK = SUPPORT / "algorithms_rank.py"
REGISTRATION = SUPPORT / "registration_rank.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("TEST_PORT", str(free_port()))
    return tmp_path


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_programs_and_files(folder: Path, ranks: int) -> None:
    launch(ranks, "programs", "files", "refusals", script=RANK)


def test_arrays_that_are_no_numbers_of_this_machine_are_no_buffers() -> None:
    for array, why in ((np.array([1, "a"], object), "of Python objects"), (np.array([1.0], ">f8"), "other byte order")):
        with pytest.raises(ValueError, match=why):
            tutti.RawBuffer.from_dlpack(array)
    with pytest.raises(ValueError, match="at most"):
        tutti.GpuBuffer((2**33, 2**33))


class MadeWhenAsked:
    """An array that makes its memory when somebody asks for it, and keeps none of it."""

    def __init__(self, value: float, count: int) -> None:
        self.value, self.count = value, count

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        return np.full(self.count, self.value).__dlpack__()


@pytest.mark.parametrize("count", [40, 1 << 17, 1 << 20])  # what is freed stays mapped, or does not
def test_arrays_that_make_their_memory_when_asked(count: int) -> None:
    lazy = MadeWhenAsked(3.0, count)
    assert (tutti.RawBuffer.from_dlpack(lazy).numpy(np.float64) == 3).all()
    with tutti.Communicator(rank=0, size=1) as comm:
        defaults = tutti.AlgorithmCollectionBuilder().build_default_algorithms()
        algorithm = defaults.for_collective("allreduce")["one_shot_allreduce"]
        out = np.zeros(count)
        algorithm.execute(comm, lazy, out, dtype=tutti.DataType.float64, op=tutti.ReduceOp.SUM)
        assert (out == 3).all()


def test_default_algorithms_are_each_callers_own() -> None:
    """What one group registers or limits, another does not have."""
    with tutti.Communicator(rank=0, size=1) as one, tutti.Communicator(rank=0, size=1) as other:
        builders = [tutti.AlgorithmCollectionBuilder(comm) for comm in (one, other)]
        mine, theirs = (builder.build_default_algorithms() for builder in builders)
        spec = AlgoSpec(name="mine", collective=AllReduce(1, 1))
        mine.register_algorithm("allreduce", "mine", tutti.compile(ring_all_reduce, spec, 0))
        ring = mine.for_collective("allreduce")["ring"]
        whole = ring.message_size_range
        ring.set_message_size_range(0, 1024)
        ring.tags["mine"] = 1
        again = builders[0].build_default_algorithms()
        for names in (theirs.for_collective("allreduce"), again.for_collective("allreduce")):
            assert "mine" not in names
            assert (names["ring"].message_size_range, names["ring"].tags) == (whole, {})


@pytest.mark.parametrize("ranks", [2, 3])
def test_algorithms_that_come_with_tutti(ranks: int) -> None:
    launch(ranks, "defaults", script=RANK)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_algorithms_that_fit_no_such_number_of_ranks(ranks: int) -> None:
    launch(ranks, "unfitting", script=RANK)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_native_and_buffers(ranks: int) -> None:
    launch(ranks, "native", "buffers", script=RANK)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_kernels_in_main_memory(ranks: int) -> None:
    launch(ranks, "kernels", script=RANK)


def test_memory_stays_until_peers_have_ended() -> None:
    launch(2, "leaving", script=RANK)


def test_native_failures() -> None:
    launch(2, "broken", script=RANK)
    launch(2, "waiting", script=RANK)
    launch(2, "forgetting", script=RANK)


@pytest.mark.parametrize("ranks", [1, 3])
def test_registered_algorithms(ranks: int) -> None:
    launch(ranks, "registered", "selected", "by_default", script=REGISTRATION)


@pytest.mark.parametrize("ranks", [1, 2])
def test_groups(folder: Path, ranks: int) -> None:
    launch(ranks, "groups", script=REGISTRATION)


class Mpi:
    """Of mpi4py what CommGroup asks for, between two threads."""

    def __init__(self, rank: int, said: queue.Queue[Any]) -> None:
        self.rank, self.said = rank, said

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return 2

    def bcast(self, what: Any, root: int) -> Any:
        if self.rank != root:
            return pickle.loads(self.said.get(timeout=20))
        self.said.put(pickle.dumps(what))
        return what


def over_mpi(rank: int, said: queue.Queue[Any], timeout: float) -> BaseException:
    try:
        tutti.CommGroup(mpi_comm=Mpi(rank, said), timeout=timeout)
    except Exception as error:
        return error
    raise AssertionError("a group was made")


@pytest.mark.parametrize(("variable", "timeout"), [("TUTTI_LOG_LEVEL", 20), ("", -1)])
def test_ranks_of_mpi_hear_that_rank_0_could_not_begin(
    monkeypatch: pytest.MonkeyPatch, variable: str, timeout: float
) -> None:
    """Else they wait in a broadcast, which has no deadline."""
    if variable:
        monkeypatch.setenv(variable, "loudly")
    said: queue.Queue[Any] = queue.Queue()
    with ThreadPoolExecutor(2) as threads:
        own, told = threads.map(lambda rank: over_mpi(rank, said, timeout), range(2))
    assert isinstance(own, ValueError) and (variable or "timeout") in str(own)
    assert type(told) is RuntimeError
    assert str(told) == f"rank 0 could not begin the group: ValueError: {own}"


@pytest.mark.parametrize("host", ["10.0.0.1", "[fd00::1]", "fd00::1"])
def test_an_address_is_looked_up_without_its_brackets(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(Exception):
        pass

    def tcp_store(host: str, port: int, serve: bool, timeout: float) -> None:
        raise Named(host, port)

    monkeypatch.setattr(_core, "tcp_store", tcp_store)
    with pytest.raises(Named) as named:
        tutti.CommGroup(interfaceIpPortTrio=f"eth0:{host}:29500", rank=0, size=2)
    assert named.value.args == (host.strip("[]"), 29500)


@pytest.mark.parametrize("how", ["choice", "plan", "asking", "registering"])
def test_ranks_that_differ_say_in_what(how: str) -> None:
    launch(2, f"differ_in_{how}", script=REGISTRATION)


def test_several_hosts() -> None:
    launch(2, "hosts", hosts=2, script=REGISTRATION)


def beside_torch(ctx: Context) -> list[list[float]]:
    """On torch's tensors, narrow types and mapped memory among them, in a group made of torch's."""
    group = tutti.CommGroup(torch_group=dist.group.WORLD, timeout=20)
    again = tutti.CommGroup(torch_group=dist.group.WORLD, timeout=20)
    assert again.communicator.size == group.nranks == ctx.size
    algorithm = tutti.compile(ring_all_reduce, AlgoSpec("ring", AllReduce(ctx.size, 1)), ctx.rank)
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.float8_e5m2):
        tensor = torch.full((40,), 1.0).to(dtype)
        out = torch.empty_like(tensor)
        algorithm.execute(group, tensor, out, accum_dtype=tutti.utils.torch_dtype_to_mscclpp_dtype(dtype))
        results.append(sorted(set(out.float().tolist())))
    buffer = tutti.RawBuffer(2 << 10)
    mapped = torch.utils.dlpack.from_dlpack(buffer.to_dlpack(data_type=str(torch.bfloat16)))
    assert mapped.dtype == torch.bfloat16 and mapped.shape == (1024,) and tutti.is_mapped(mapped)
    mapped.fill_(1)
    algorithm.execute(group, mapped, mapped)
    results.append(sorted(set(mapped.float().tolist())))
    square = torch.utils.dlpack.from_dlpack(buffer.to_dlpack("torch.float32", (4, 4), (8, 1)))
    assert square.stride() == (8, 1) and square.data_ptr() == buffer.data()
    assert torch.equal(
        torch.from_dlpack(tutti.RawBuffer.from_dlpack(torch.arange(4, dtype=torch.uint8))), torch.arange(4)
    )
    for bad in (torch.ones(4, 4).t(), torch.ones(4, device="meta")):
        with pytest.raises(ValueError, match=r"not contiguous|main memory"):
            algorithm.execute(group, bad, out)
    lazy = torch.full((40,), 1j).conj()
    for bad, remedy in ((lazy, "resolve_conj"), (lazy.imag, "resolve_neg")):
        for ends in ((bad, torch.zeros(40, dtype=bad.dtype)), (torch.zeros(40, dtype=bad.dtype), bad)):
            with pytest.raises(ValueError, match=remedy):
                algorithm.execute(group, *ends)
        with pytest.raises(ValueError, match=remedy):
            tutti.RawBuffer.from_dlpack(bad)
    weights, result = torch.ones(40, requires_grad=True), torch.zeros(40)
    with pytest.raises(ValueError, match="detach"):
        algorithm.execute(group, weights, weights)
    algorithm.execute(group, weights, result)
    assert result.tolist() == [ctx.size] * 40
    dist.barrier()
    return results


@pytest.mark.tutti_only
def test_beside_torch(fresh_world: Any) -> None:
    for results in fresh_world(2).call(beside_torch):
        assert results == [[2.0]] * 7


def backend_takes(ctx: Context, port: int) -> list[str]:
    """The process's builder before init_process_group; then a builder of the group's own."""
    spec = AlgoSpec("early", AllReduce(ctx.size, 1), max_message_size=1000)
    tutti.AlgorithmCollectionBuilder().add_algorithm_builder(tutti.compile(ring_all_reduce, spec, ctx.rank))
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("tutti", store=store, rank=ctx.rank, world_size=ctx.size)
    tutti.AlgorithmCollectionBuilder.reset()
    names: list[str] = []

    def call(tensor: torch.Tensor) -> None:
        tutti.reset_metrics()
        dist.all_reduce(tensor)
        assert tensor.tolist() == [ctx.size] * len(tensor)
        names.extend(row["algorithm"] for row in tutti.get_metrics()["rows"] if row["calls"])

    call(torch.ones(10))
    call(torch.ones(1000))
    late = tutti.AlgorithmCollectionBuilder(dist.group.WORLD)
    late.add_algorithm_builder(tutti.compile(ring_all_reduce, AlgoSpec("late", AllReduce(ctx.size, 1)), ctx.rank))
    late.set_algorithm_selector(lambda algorithms, request: algorithms["allreduce"]["late"])
    late.build()
    work = dist.all_reduce(torch.ones(3), async_op=True)  # asked on the progress thread
    assert work is not None
    work.wait()
    call(torch.ones(1000))
    pieces = [torch.empty(2) for _ in range(ctx.size)]
    dist.all_gather(pieces, torch.ones(2))
    late.reset()
    call(torch.ones(10))
    dist.destroy_process_group()
    return names


@pytest.mark.tutti_only
def test_the_backend_takes_what_is_registered(fresh_world: Any, store_port: int) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for names in fresh_world(2, open_group=False).call(backend_takes, store.port):
        early, native, late, back = names
        assert (early, late) == ("plan:early", "plan:late")
        assert not native.startswith("plan:") and not back.startswith("plan:")


@pytest.mark.tutti_only
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_example(fresh_world: Any, ranks: int) -> None:
    environment = {"TUTTI_MASTER_ADDR": "127.0.0.1", "TUTTI_MASTER_PORT": str(free_port())}
    pool = fresh_world(ranks, open_group=False, env=environment)
    pool.call(run_example, "customized_comm.py", 0, ["--bytes", "4", "100000"])


def test_collection_refuses_what_does_not_belong() -> None:
    ring = tutti.compile(ring_all_reduce, AlgoSpec("ring", AllReduce(2, 1)), 0)
    collection = tutti.AlgorithmCollection()
    collection.register("all_reduce", "ring", ring)
    assert collection.for_collective("allreduce") == {"ring": ring}
    assert collection.to_mapping() == {"allreduce": {"ring": ring}}
    for arguments, text in (
        (("allgather", "ring", ring), "not allgather"),
        (("allreduce", "other", ring), "not 'other'"),
        (("allreduce", "ring", ring), "already"),
    ):
        with pytest.raises(ValueError, match=text):
            collection.register_algorithm(*arguments)


def test_names_that_programs_for_mscclpp_import() -> None:
    import tutti.default_algos
    import tutti.ext

    assert tutti.ext.AlgorithmCollectionBuilder is tutti.AlgorithmCollectionBuilder
    for name, kind in (("allreduce", AllReduce), ("allgather", None), ("reducescatter", None)):
        assert callable(getattr(tutti.default_algos, f"{name}_multi_nodes")), (name, kind)
    spec = AlgoSpec("two", AllReduce(4, 1), nranks_per_node=2)
    assert tutti.compile(tutti.default_algos.allreduce_multi_nodes, spec, 0, thread_block_group_size=2).name == "two"
    with pytest.raises(ValueError, match="thread block"):
        tutti.compile(tutti.default_algos.allreduce_multi_nodes, spec, 0, thread_block_group_size=0)
    assert tutti.utils.torch_dtype_to_mscclpp_dtype(torch.bfloat16) is tutti.DataType.bfloat16
    with pytest.raises(ValueError, match="Unknown data type"):
        tutti.utils.torch_dtype_to_mscclpp_dtype(torch.complex32)
    assert tutti.utils.is_torch_tensor(torch.ones(1)) and not tutti.utils.is_torch_tensor(3)
    assert tutti.utils.pack(7, b"ab", torch.ones(1))[:6] == b"\x07\0\0\0ab"
    assert tutti.utils.get_device_arch()
