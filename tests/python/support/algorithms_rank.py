"""One rank of the tests of algorithms: a process without torch. Its arguments name what it does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tutti
from tutti.language import (
    AlgoSpec,
    AllReduce,
    Broadcast,
    BufferType,
    CollectiveProgram,
    MemoryChannel,
    Rank,
    SwitchChannel,
    SyncType,
)
from tutti.language.builtins import binomial_broadcast, ring_all_gather, ring_all_reduce

PLUGIN = Path(__file__).with_name("plugins") / "algorithms.cc"
KERNELS = Path(__file__).resolve().parents[2] / "cpp/cuda/native_kernels.cu"


def spec(comm: tutti.Communicator, name: str = "mine", **more: Any) -> AlgoSpec:
    return AlgoSpec(name=name, collective=AllReduce(comm.size, 1, True), world_size=comm.size, **more)


def switch(spec: AlgoSpec, *, relaxed: bool = True, wait: bool = True) -> CollectiveProgram:
    """The all-reduce of MSCCL++'s guide; ``wait`` leaves out what makes it right."""
    ranks = range(spec.world_size)
    with CollectiveProgram.from_spec(spec) as program:
        channel = SwitchChannel(rank_list=list(ranks), buffer_type=BufferType.input)
        channels = {(peer, rank): MemoryChannel(peer, rank) for rank in ranks for peer in ranks if peer != rank}

        def meet(signal: SyncType, then: SyncType) -> None:
            for rank in ranks:
                for peer in ranks:
                    if peer != rank:
                        channels[peer, rank].signal(tb=0, relaxed=relaxed, data_sync=signal)
                for peer in ranks:
                    if peer != rank:
                        channels[peer, rank].wait(tb=0, relaxed=relaxed, data_sync=then)

        meet(SyncType.none, SyncType.after)
        for rank in ranks:
            mine = Rank(rank).get_input_buffer()[rank : rank + 1]
            channel.at_rank(rank).reduce(buffer_offset=rank, size=1, dst_chunk=mine, tb=0)
            channel.at_rank(rank).broadcast(src_chunk=mine, buffer_offset=rank, size=1, tb=0)
        if wait:
            meet(SyncType.before, SyncType.none)
    return program


def data(rank: int, count: int, dtype: Any = np.float32) -> Any:
    """What a rank gives: small whole numbers, so that sums are exact in every type."""
    return ((np.arange(count) + 3 * rank) % 5 + 1).astype(dtype)


def total(comm: tutti.Communicator, count: int, dtype: Any = np.float32) -> Any:
    return np.sum([data(r, count, dtype) for r in range(comm.size)], axis=0, dtype=dtype)


def check(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(got, wanted)


def refused(error: type[Exception], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except error as caught:
        assert text in str(caught), f"{caught!r} does not say {text!r}"
        return
    raise AssertionError(f"not refused: {text}")


def programs(comm: tutti.Communicator) -> None:
    """Compiled from the language, by addresses and by arrays, in place and not, between calls of other kinds."""
    algorithm = tutti.compile(algo=switch, algo_spec=spec(comm, tags={"nvls": 1}), rank=comm.rank)
    assert (algorithm.name, algorithm.collective, algorithm.tags) == ("mine", "allreduce", {"nvls": 1})
    assert algorithm.is_dsl_algorithm() and not algorithm.is_native_algorithm()
    assert algorithm.buffer_mode is tutti.CollectiveBufferMode.IN_PLACE
    assert algorithm.constraint == tutti.Algorithm.Constraint(comm.size, comm.size)
    assert algorithm.message_size_range == (0, 2**64 - 1)
    executor = tutti.Executor(comm)
    for count in (0, 1, 7, 5000, 200_000):
        for dtype in (np.float32, np.int32, np.float16):
            mine, wanted = data(comm.rank, count, dtype), total(comm, count, dtype)
            out = np.empty_like(mine)
            assert algorithm.execute(comm, mine, out, executor=executor) == 0
            check(out, wanted)
            check(comm.all_reduce(mine.copy()), wanted)
            place, size = mine.ctypes.data, mine.nbytes
            algorithm.execute(
                comm=comm,
                executor=executor,
                input_buffer=place,
                output_buffer=place,
                input_size=size,
                output_size=size,
                dtype=tutti.DataType.of(mine),
                stream=0,
                nblocks=4,
                nthreads_per_block=32,
                accum_dtype=tutti.DataType.of(mine),
            )
            check(mine, wanted)
    again = tutti.compile(switch, spec(comm, tags={"nvls": 1}), comm.rank)
    assert again._source.identity == algorithm._source.identity
    gather = tutti.compile(ring_all_gather, AlgoSpec("g", tutti_gather(comm)), comm.rank)
    whole = np.empty(comm.size * 3, np.int64)
    gather.execute(comm, data(comm.rank, 3, np.int64), whole)
    check(whole, np.concatenate([data(r, 3, np.int64) for r in range(comm.size)]))
    root = comm.size - 1
    send = tutti.compile(binomial_broadcast, AlgoSpec("b", Broadcast(comm.size, 1, True, root)), comm.rank)
    array = data(comm.rank, 9)
    send.execute(comm, array, array)
    check(array, data(root, 9))


def tutti_gather(comm: tutti.Communicator) -> Any:
    from tutti.language import AllGather

    return AllGather(comm.size, 1)


def files(comm: tutti.Communicator) -> None:
    """Plans from files, by the executor itself."""
    text = ring_all_reduce(AlgoSpec("from_a_file", AllReduce(comm.size, 1), min_message_size=8)).to_json()
    path = Path(os.environ["TEST_FOLDER"]) / f"{comm.rank}.json"
    path.write_text(text)
    plan = tutti.ExecutionPlan(str(path), comm.rank)
    assert (plan.name, plan.collective, plan.min_message_size) == ("from_a_file", "allreduce", 8)
    mine = data(comm.rank, 100)
    out = np.empty_like(mine)
    tutti.Executor(comm).execute(
        comm.rank, mine.ctypes.data, out.ctypes.data, 400, 400, tutti.DataType.float32, plan, 0, tutti.PacketType.LL8
    )
    check(out, total(comm, 100))
    refused(ValueError, "other sizes", lambda: tutti.Executor(comm).execute(comm.rank, out[:1], out[:1], plan=plan))
    np.save(path.with_suffix(".npy"), mine)
    on_disk = np.load(path.with_suffix(".npy"), mmap_mode="r")
    refused(ValueError, "read-only", lambda: tutti.Executor(comm).execute(comm.rank, mine, on_disk, plan=plan))
    refused(ValueError, "is none of plan", lambda: tutti.ExecutionPlan(str(path), comm.size))
    path.write_text(text[:-30])
    refused(ValueError, f"{path}: ", lambda: tutti.ExecutionPlan(str(path), comm.rank))


def defaults(comm: tutti.Communicator) -> None:
    """Every algorithm that comes with Tutti and can run among so many ranks does its collective."""
    algorithms = tutti.AlgorithmCollectionBuilder(comm).build_default_algorithms(0, 0, comm.rank)
    ran = 0
    for algorithm in algorithms:
        n, width = comm.size, 6
        parts = np.concatenate([data(comm.rank + block, width) for block in range(n)])
        first = data(comm.rank, width)
        everyone = [np.concatenate([data(r + b, width) for b in range(n)]) for r in range(n)]
        ends: dict[str, tuple[Any, int, Any]] = {
            "allreduce": (first, width, total(comm, width)),
            "reduce": (first, width, total(comm, width)),
            "allgather": (first, n * width, np.concatenate([data(r, width) for r in range(n)])),
            "gather": (first, n * width, np.concatenate([data(r, width) for r in range(n)])),
            "reducescatter": (parts, width, np.sum(everyone, axis=0)[comm.rank * width : (comm.rank + 1) * width]),
            "scatter": (parts, width, everyone[0][comm.rank * width : (comm.rank + 1) * width]),
            "alltoall": (
                parts,
                n * width,
                np.concatenate([everyone[r][comm.rank * width : (comm.rank + 1) * width] for r in range(n)]),
            ),
            "broadcast": (first, width, data(0, width)),
        }
        source, count, wanted = ends[algorithm.collective]
        out = np.zeros(count, np.float32)
        if algorithm.collective == "broadcast":
            out = source = source.copy()
        try:
            algorithm.execute(comm, source, out, op=tutti.ReduceOp.SUM)
        except (ValueError, NotImplementedError):  # what it refuses it refuses on all ranks
            check(comm.all_reduce(np.ones(1)), [comm.size])
            continue
        ran += 1
        if comm.rank == 0 or algorithm.collective not in ("reduce", "gather"):
            check(out, wanted)
    assert ran > 30, ran


def native(comm: tutti.Communicator) -> None:
    """In C++: all that a plug-in may do, and all that it may get wrong without harm."""
    module = tutti.compile_native("algorithms", PLUGIN)
    made = {
        name: tutti.Algorithm.create_from_native_capsule(getattr(module, name)())
        for name in dir(module)
        if name[:7] == "create_"
    }
    gather, reduce, turn = made["create_gather"], made["create_reduce"], made["create_rotate"]
    assert gather.is_native_algorithm() and gather.collective == "allgather" and gather.name == "plain_all_gather"
    for count in (0, 1, 1000, 50_000):
        mine, whole = data(comm.rank, count), np.empty(comm.size * count, np.float32)
        gather.execute(comm, mine, whole)
        check(whole, np.concatenate([data(r, count) for r in range(comm.size)]))
        whole[:] = -1
        own = whole[comm.rank * count : (comm.rank + 1) * count]
        own[:] = mine
        gather.execute(comm, own, whole)  # in place
        check(whole, np.concatenate([data(r, count) for r in range(comm.size)]))
    for op in (tutti.ReduceOp.SUM, tutti.ReduceOp.MAX, tutti.ReduceOp.AVG):
        mine = data(comm.rank, 300)
        reduce.execute(comm, mine, mine, op=op)
        stack = np.stack([data(r, 300) for r in range(comm.size)])
        wanted = {"SUM": stack.sum(0), "MAX": stack.max(0), "AVG": stack.sum(0) / np.float32(comm.size)}[op.name]
        np.testing.assert_allclose(mine, wanted, rtol=1e-6)
    mapped, out = tutti.RawBuffer(4000), tutti.RawBuffer(4000)
    mapped.numpy(np.float32)[:] = data(comm.rank, 1000)
    for by in (1, comm.size + 1, 0):
        turn.execute(comm, mapped, out, dtype=tutti.DataType.float32, op=tutti.ReduceOp.SUM, extras={"by": by})
        check(out.numpy(np.float32), data((comm.rank + by) % comm.size, 1000))
    if comm.size == 1:
        return  # nothing below is run by a rank on its own
    refused(
        ValueError,
        "only floats",
        lambda: reduce.execute(comm, np.ones(4, np.int32), np.ones(4, np.int32), op=tutti.ReduceOp.SUM),
    )
    refused(ValueError, "needs an op", lambda: reduce.execute(comm, mine, mine))
    refused(ValueError, "other sizes", lambda: gather.execute(comm, np.ones(1 << 18), np.ones(comm.size << 18)))
    chatty = made["create_chatty"]  # leaves signals behind that nobody has awaited
    for _ in range(3):
        chatty.execute(comm, mine, mine, op=tutti.ReduceOp.SUM)
        gather.execute(comm, mine, np.empty(300 * comm.size, np.float32))
    check(comm.all_reduce(np.ones(4)), np.full(4, comm.size))
    gather.set_message_size_range(0, 100)
    assert gather.message_size_range == (0, 100)
    refused(
        ValueError,
        "other sizes",
        lambda: gather.execute(comm, np.ones(26, np.float32), np.ones(26 * comm.size, np.float32)),
    )


def kernels(comm: tutti.Communicator) -> None:
    """Kernels of a .cu file, which in main memory are functions: signals, packets, reductions, a rooted one."""
    n, module = comm.size, tutti.compile_native("kernels", KERNELS)
    made = {
        name: tutti.Algorithm.create_from_native_capsule(getattr(module, f"create_{name}")())
        for name in ("all_gather", "all_reduce", "reduce_scatter", "broadcast")
    }
    assert made["all_reduce"].is_native_algorithm() and made["all_reduce"].name == "kernel_all_reduce"
    for count in (1, 3, 1000, 2047):
        everything = np.concatenate([data(r, count) for r in range(n)])
        mine, whole = data(comm.rank, count), np.empty(n * count, np.float32)
        made["all_gather"].execute(comm, mine, whole)
        check(whole, everything)
        out = np.empty(count, np.float32)
        made["all_reduce"].execute(comm, mine, out, op=tutti.ReduceOp.SUM)
        check(out, total(comm, count))
        made["all_reduce"].execute(comm, mine, mine, op=tutti.ReduceOp.MAX)  # in place
        check(mine, np.max([data(r, count) for r in range(n)], axis=0))
        bytes_in = data(comm.rank, count, np.int8)
        made["all_reduce"].execute(comm, bytes_in, bytes_in, op=tutti.ReduceOp.SUM)
        check(bytes_in, total(comm, count, np.int8))
        made["reduce_scatter"].execute(comm, whole, out, op=tutti.ReduceOp.AVG)
        check(out, everything[comm.rank * count : (comm.rank + 1) * count])
        for root in range(n):
            given = data(comm.rank, count)
            made["broadcast"].execute(comm, given, given, root=root)
            check(given, data(root, count))
    if n == 1:
        return
    long = np.ones(1 << 14)
    refused(ValueError, "other sizes", lambda: made["all_reduce"].execute(comm, long, long, op=tutti.ReduceOp.SUM))


def forgetting(comm: tutti.Communicator) -> None:
    """A kernel that waits for packets that do not come ends at the deadline, and says of whom."""
    module = tutti.compile_native("kernels", KERNELS)
    stuck = tutti.Algorithm.create_from_native_capsule(module.create_forgetful())
    mine = data(comm.rank, 8)

    def call() -> None:
        stuck.execute(comm, mine, mine, op=tutti.ReduceOp.SUM, timeout=2)

    comm.barrier()  # so that both are in the call before its time is over
    if comm.rank == 0:
        refused(TimeoutError, 'plug-in "kernel_forgetful" waits for packets of call 1 of rank 1', call)
    else:
        call()
        refused(RuntimeError, "rank 0", comm.barrier)


def leaving(comm: tutti.Communicator) -> None:
    """A rank that leaves at once after its last call takes nothing away from peers that still read from it."""
    module = tutti.compile_native("algorithms", PLUGIN)
    algorithm = tutti.Algorithm.create_from_native_capsule(module.create_late())
    for number in range(3):
        other = tutti.Communicator(comm.store, comm.rank, comm.size, name=f"leaving{number}")
        out = np.zeros(1000)
        algorithm.execute(other, np.full(1000, comm.rank + 1.0), out, op=tutti.ReduceOp.SUM)
        other.close()
        del other
        check(out, np.ones(1000))
    comm.barrier()


def broken(comm: tutti.Communicator) -> None:
    """A plug-in that throws fails the call on all ranks, with what it said."""
    module = tutti.compile_native("algorithms", PLUGIN)
    algorithm = tutti.Algorithm.create_from_native_capsule(module.create_throwing())
    text = "no luck today" if comm.rank == 0 else "rank 0"
    refused(RuntimeError, text, lambda: algorithm.execute(comm, np.ones(1), np.ones(1), op=tutti.ReduceOp.SUM))
    refused(RuntimeError, "", lambda: comm.barrier())


def waiting(comm: tutti.Communicator) -> None:
    """A signal that never comes is a timeout that names who waits for what."""
    module = tutti.compile_native("algorithms", PLUGIN)
    algorithm = tutti.Algorithm.create_from_native_capsule(module.create_waiting())
    comm.barrier()  # so that both are in the call before its time is over
    try:
        algorithm.execute(comm, np.ones(1), np.ones(1), op=tutti.ReduceOp.SUM, timeout=2)
    except TimeoutError as error:
        assert "waits for signal 1 of rank" in str(error) and "stuck_all_reduce" in str(error), error
    except RuntimeError as error:  # the other has timed out first
        assert "timed out" in str(error), error


def buffers(comm: tutti.Communicator) -> None:
    """RawBuffer and GpuBuffer."""
    buffer = tutti.RawBuffer(4096)
    assert (buffer.bytes(), buffer.nelems(), len(buffer), buffer.device_id()) == (4096, 4096, 4096, 0)
    array = np.from_dlpack(buffer)
    assert array.dtype == np.uint8 and array.ctypes.data == buffer.data() == np.asarray(buffer).ctypes.data
    floats = buffer.numpy(np.float32, (32, 32))
    floats[:] = 3
    assert buffer.numpy(np.float32)[-1] == 3 and buffer.numpy(np.complex128).size == 256
    del buffer
    floats += 1  # lives as long as an array of it does
    copy = tutti.RawBuffer.from_dlpack(floats)
    check(copy.numpy(np.float32), np.full(1024, 4.0))
    on_gpu = tutti.RawGpuBuffer(16)
    assert on_gpu.bytes() == 16
    if on_gpu.__dlpack_device__()[0] != 1:
        return  # test_cuda_communicator.py goes on
    on_gpu.numpy()[:] = 5
    check(tutti.RawGpuBuffer.from_dlpack(on_gpu).numpy(), np.full(16, 5, np.uint8))
    shared = tutti.GpuBuffer((3, 5), dtype=np.int64)
    shared[:] = comm.rank
    comm.all_reduce(shared)
    check(shared, np.full((3, 5), sum(range(comm.size))))
    for bad in (lambda: tutti.RawBuffer(0), lambda: tutti.GpuBuffer((2, 0)), lambda: tutti.GpuBuffer(None)):
        refused(ValueError, "", bad)
    for shape, whole in ((-1, (1024,)), ((-1, 100), (10, 100)), ((4, -1), (4, 256)), (np.int64(7), (7,))):
        assert copy.numpy(np.float32, shape).shape == whole
    refused(ValueError, "do not fit", lambda: copy.numpy(np.float64, 513))
    for wrong in (-3, (-1, -1), (-1, 0), (2, -3), (-2, -2)):
        refused(ValueError, "at most one -1", lambda wrong=wrong: copy.numpy(np.float32, wrong))
    for dtype in (object, [("x", object)], "S"):
        refused(ValueError, "a type of numbers", lambda dtype=dtype: tutti.GpuBuffer(512, dtype))
        refused(ValueError, "a type of numbers", lambda dtype=dtype: copy.numpy(dtype))
    assert tutti.GpuBuffer(np.int64(4)).shape == (4,) and tutti.GpuBuffer(np.array([2, 3])).shape == (2, 3)
    refused(ValueError, "needs 8192 bytes", lambda: copy.to_dlpack("torch.float32", (2048,)))
    # What a product of 64 bits does not hold, too.
    for shape, strides in ((2**32, 2**32), ()), ((4,), (2**62,)), ((2**62, 4), (0, 0)), ((2**63,), (0,)):
        refused(ValueError, "needs more than", lambda s=shape, t=strides: copy.to_dlpack("torch.float32", s, t))
    refused(NotImplementedError, "float8", lambda: copy.to_dlpack("torch.float8_e5m2"))
    refused(RuntimeError, "TUTTI_ARENA_BYTES", lambda: tutti.RawBuffer(1 << 55))


def refusals(comm: tutti.Communicator) -> None:
    """What is refused for its arguments sends nothing, and the group stays usable."""
    algorithm = tutti.compile(switch, spec(comm, max_message_size=4096), comm.rank)
    ones = np.ones(8, np.float32)
    f32 = tutti.DataType.float32
    frozen = np.ones(8, np.float32)
    frozen.flags.writeable = False

    class Other:
        pass

    class Offered:
        """An array of somebody who has DLPack only."""

        def __init__(self, array: Any) -> None:
            self.array, self.dtype = array, array.dtype

        def __dlpack__(self, **how: Any) -> Any:
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    for error, text, call in (
        (ValueError, "not contiguous", lambda: algorithm.execute(comm, np.ones((4, 4))[:, 1], np.ones(4))),
        (ValueError, "differ in size", lambda: algorithm.execute(comm, ones, ones[:4])),
        (ValueError, "holds float64", lambda: algorithm.execute(comm, ones, np.ones(8))),
        (ValueError, "other sizes", lambda: algorithm.execute(comm, np.ones(1024), np.ones(1024))),
        (ValueError, "the output is read-only", lambda: algorithm.execute(comm, ones, frozen)),
        (ValueError, "the output is read-only", lambda: algorithm.execute(comm, frozen, frozen)),
        (ValueError, "the output is read-only", lambda: algorithm.execute(comm, ones, Offered(frozen))),
        (ValueError, "not contiguous", lambda: algorithm.execute(comm, ones, Offered(np.ones(16, np.float32)[::2]))),
        (ValueError, "op says", lambda: algorithm.execute(comm, ones, ones, op="sum")),
        (ValueError, "whole number", lambda: algorithm.execute(comm, 1 << 20, 1 << 20, 7, 7, f32)),
        (TypeError, "the input is True", lambda: algorithm.execute(comm, True, True, 8, 8, f32)),
        (ValueError, "neither input nor output", lambda: algorithm.execute(comm, None, None, 8, 8, f32)),
        (ValueError, "is null", lambda: algorithm.execute(comm, 0, 0, 8, 8, f32)),
        (ValueError, "pass input_size", lambda: algorithm.execute(comm, 1 << 20, ones, dtype=f32)),
        (ValueError, "32 bytes", lambda: algorithm.execute(comm, ones, ones, 33, 33)),
        (ValueError, "of which type", lambda: algorithm.execute(comm, 1 << 20, 1 << 20, 8, 8)),
        (ValueError, "no streams", lambda: algorithm.execute(comm, ones, ones, stream=7)),
        (ValueError, "not negative", lambda: algorithm.execute(comm, ones, ones, nblocks=-1)),
        (ValueError, "not accumulate", lambda: algorithm.execute(comm, ones, ones, accum_dtype=tutti.DataType.float16)),
        (ValueError, "timeout", lambda: algorithm.execute(comm, ones, ones, timeout=-1)),
        (TypeError, "comm is", lambda: algorithm.execute(Other(), ones, ones)),
        (TypeError, "the input is str", lambda: algorithm.execute(comm, "text", ones)),
        (TypeError, "comm is", lambda: tutti.Executor(Other())),
        (TypeError, "comes from no module", lambda: tutti.Algorithm.create_from_native_capsule(Other())),
        (TypeError, "has its range", lambda: algorithm.set_message_size_range(0, 1)),
        (ValueError, "is made of", tutti.Algorithm),
        (ValueError, "a function of an AlgoSpec", lambda: tutti.compile(3, spec(comm), 0)),
        (ValueError, "no CollectiveProgram", lambda: tutti.compile(lambda spec: 3, spec(comm), 0)),
        (ValueError, "is none of the", lambda: tutti.compile(switch, spec(comm), comm.size)),
        (ValueError, "ranks", lambda: tutti.compile(lambda _: switch(other_ranks(comm)), spec(comm), 0)),
    ):
        refused(error, text, call)
    if comm.size > 1:
        refused(ValueError, "cannot run", lambda: algorithm.execute(comm, ones, ones, op=tutti.ReduceOp.MAX))
        larger = tutti.compile(switch, other_ranks(comm), 0)
        refused(ValueError, f"is for {comm.size + 1} ranks", lambda: larger.execute(comm, ones, ones))
        refused(ValueError, "wrong result", lambda: tutti.compile(switch, spec(comm), comm.rank, wait=False))
        mapped = defaults_of(comm)["mapped"]
        refused(
            NotImplementedError,
            "not all ranks",
            lambda: mapped.execute(comm, ones, ones.copy(), op=tutti.ReduceOp.SUM),
        )
    other = tutti.Communicator(rank=0, size=1)
    refused(
        ValueError, "another communicator", lambda: algorithm.execute(comm, ones, ones, executor=tutti.Executor(other))
    )
    check(comm.all_reduce(np.ones(4)), np.full(4, comm.size))
    check(frozen, ones)
    out = np.empty(8, np.float32)
    algorithm.execute(comm, frozen, Offered(out))  # what is only read may be read-only
    check(out, np.full(8, comm.size))


def unfitting(comm: tutti.Communicator) -> None:
    """What comes with Tutti and cannot run among so many ranks leaves calls to what can, and to the library."""
    builder = tutti.AlgorithmCollectionBuilder(comm)
    for algorithm in builder.build_default_algorithms():
        builder.add_algorithm_builder(algorithm)
    builder.build()
    check(comm.all_reduce(data(comm.rank, 6)), total(comm, 6))
    builder.reset()
    asked = []

    def torus(algorithms: dict[str, Any], request: tutti.CollectiveRequest) -> tutti.Algorithm:
        asked.append(request.world_size)
        chosen: tutti.Algorithm = algorithms["allreduce"]["torus_bucket_allreduce"]
        return chosen

    builder.set_algorithm_selector(torus)
    builder.build()
    for _ in range(2):
        check(comm.all_reduce(data(comm.rank, 6)), total(comm, 6))
    assert asked == ([comm.size] * 2 if comm.size > 1 else [])  # alone there is nothing to choose
    builder.reset()
    builder.build()
    ones = np.ones(6, np.float32)
    chosen = defaults_of(comm)["torus_bucket_allreduce"]
    for _ in range(2):  # by name it says why there is none
        refused(
            ValueError, "needs two dimensions", lambda: chosen.execute(comm, ones, ones.copy(), op=tutti.ReduceOp.SUM)
        )


def defaults_of(comm: tutti.Communicator) -> dict[str, tutti.Algorithm]:
    return tutti.AlgorithmCollectionBuilder(comm).build_default_algorithms().for_collective("all_reduce")


def other_ranks(comm: tutti.Communicator) -> AlgoSpec:
    return AlgoSpec(name="larger", collective=AllReduce(comm.size + 1, 1, True))


def run(tasks: dict[str, Any]) -> None:
    """The tasks that the arguments name."""
    with tutti.Communicator(timeout=20) as communicator:
        for task in sys.argv[1:]:
            tasks[task](communicator)
    assert "torch" not in sys.modules, "torch was loaded"
    print("done")


if __name__ == "__main__":
    run(globals())
