"""One rank of the tests of arrays on GPUs, without a GPU: the plug-in's device memory is the host's (host_plugin.cc).

Its arguments name what it does.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
from group_tasks import run_apart

import tutti
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS


class _Tensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class ByDlpack:
    """An array "on GPU 0", by DLPack; ``streams`` are those that it was ordered before."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.streams: list[Any] = []
        self._kept: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        self.streams.append(stream)
        a = self.array
        sizes = ctypes.c_int64 * max(1, a.ndim)
        shape, strides = sizes(*a.shape), sizes(*(step // a.itemsize for step in a.strides))
        tensor = _Tensor(a.ctypes.data, 2, 0, a.ndim, _CODES[a.dtype.kind], a.itemsize * 8, 1, shape, strides, 0, 0, 0)
        self._kept.append((tensor, shape, strides))
        return _new_capsule(ctypes.addressof(tensor), b"dltensor", None)


class ByInterface:
    """The same by Numba's interface."""

    def __init__(self, array: Any, stream: int = 1) -> None:
        self.array = array
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        whole: dict[str, Any] = dict(self.array.__array_interface__)
        named = {key: whole[key] for key in ("shape", "typestr", "data", "strides")}
        return {**named, "version": 3, "stream": self.stream}


KINDS = (ByDlpack, ByInterface)


def data(rank: int, count: int, dtype: Any) -> Any:
    """Small whole numbers: sums are exact in every type."""
    return ((np.arange(count) + 3 * rank) % 5 + 1).astype(dtype)


def check(got: Any, expected: Any) -> None:
    np.testing.assert_array_equal(got.array, expected)


def every_collective(comm: tutti.Communicator) -> None:
    n, me = comm.size, comm.rank
    for kind in KINDS:
        for dtype in (np.float32, np.float16, np.int32, np.uint8, np.complex64):
            for count in (1, 7, 5000):
                parts = [data(r, count, dtype) for r in range(n)]
                whole, total = np.concatenate(parts), np.sum(parts, axis=0, dtype=dtype)
                mine = kind(parts[me])
                place = lambda size: kind(np.zeros(size, dtype))  # noqa: B023, E731
                check(comm.all_reduce(kind(parts[me].copy())), total)
                check(comm.all_reduce(mine, place(count), stream=7), total)
                check(comm.broadcast(kind(parts[me].copy()), root=n - 1), parts[n - 1])
                check(comm.all_gather(mine, place(count * n)), whole)
                check(comm.reduce_scatter(kind(np.tile(parts[me], n)), place(count)), total)
                check(comm.scatter(kind(whole) if me == 0 else None, place(count)), parts[me])
                gathered = comm.gather(mine, place(count * n) if me == 0 else None)
                if me == 0:
                    check(gathered, whole)
                blocks = np.concatenate([data(me * n + r, count, dtype) for r in range(n)])
                mixed = np.concatenate([data(r * n + me, count, dtype) for r in range(n)])
                check(comm.all_to_all(kind(blocks), place(count * n)), mixed)


def ordered(comm: tutti.Communicator) -> None:
    """Whoever made an array is asked to order what it has enqueued before the stream of the call."""

    class Stream:
        cuda_stream = 4711

    class OfCupy:
        ptr = 815

    class OfTheProtocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 99

    for stream, asked in ((Stream(), 4711), (OfCupy(), 815), (OfTheProtocol(), 99), (12, 12), (0, 1), (None, 1)):
        part = ByDlpack(np.ones(3, np.float32))
        comm.all_reduce(part, stream=stream)
        assert part.streams == [asked], (part.streams, asked)


def buffers(comm: tutti.Communicator) -> None:
    """RawGpuBuffer, whose memory the plug-in gives."""

    def view(buffer: tutti.RawGpuBuffer) -> Any:
        return np.ctypeslib.as_array((ctypes.c_uint8 * buffer.bytes()).from_address(buffer.data()))

    buffer = tutti.RawGpuBuffer(100)
    assert (buffer.bytes(), len(buffer), buffer.device_id(), buffer.__dlpack_device__()) == (100, 100, 0, (2, 0))
    view(buffer)[:] = comm.rank + 1
    comm.all_reduce(buffer, op="max")
    assert (view(buffer) == comm.size).all()
    capsule = buffer.to_dlpack("float32", (5, 5))
    kept = tutti._core.DeviceArray.from_dlpack(capsule, "array", True)
    assert (kept.address, kept.nbytes, kept.dtype, kept.device) == (buffer.data(), 100, "f32", 0)
    for source in (buffer, ByDlpack(view(buffer)), view(buffer)):
        copy = tutti.RawGpuBuffer.from_dlpack(source)
        assert copy.data() != buffer.data() and (view(copy) == comm.size).all()
    refused(lambda: buffer.numpy(), ValueError, "on a GPU")
    refused(lambda: np.asarray(buffer), ValueError, "on a GPU")
    refused(lambda: tutti.RawBuffer.from_dlpack(buffer), ValueError, "on a GPU")
    refused(lambda: buffer.to_dlpack("float64", (100,)), ValueError, "needs 800 bytes")
    refused(lambda: tutti.RawGpuBuffer(0), ValueError, "at least one byte")
    refused(lambda: tutti.GpuBuffer((2, 3)), ImportError, "CuPy")


def producers(comm: tutti.Communicator) -> None:
    """The stream that an interface names is waited for, whatever the group has made so far."""
    failed = ByInterface(np.ones(3, np.float32), stream=0xFA11)  # of the plug-in: what made the array has failed
    refused(lambda: comm.all_reduce(failed, stream=3), RuntimeError, "what made the array")
    refused(lambda: comm.send(failed, 1 - comm.rank, stream=3), RuntimeError, "what made the array")


def forgotten(comm: tutti.Communicator) -> None:
    """A communicator with a builder and a selector function ends with its last reference, and they with it."""
    other = tutti.Communicator(comm.store, comm.rank, comm.size, name="other")
    spec = AlgoSpec(name="my_ring", collective=AllReduce(comm.size, 1))
    builder = tutti.AlgorithmCollectionBuilder(other)
    builder.add_algorithm_builder(tutti.compile(BUILTINS["allreduce", "ring"], spec, comm.rank))

    def select(known: Any, request: Any) -> Any:
        return known["allreduce"]["my_ring"]

    builder.set_algorithm_selector(select)
    builder.build()
    check(other.all_reduce(ByDlpack(np.ones(9, np.float32))), np.full(9, comm.size, np.float32))
    ends = [weakref.ref(other), weakref.ref(select)]
    other.barrier()
    del other, select
    kept = builder
    gc.collect()
    assert ends[0]() is None, "the builder keeps its communicator"
    refused(kept.build, ValueError, "the communicator of this builder is gone")
    del builder, kept
    gc.collect()
    assert [end() for end in ends] == [None] * 2
    comm.barrier()


def messages(comm: tutti.Communicator) -> None:
    """All pairs, both directions, and in main memory meanwhile."""
    n, me = comm.size, comm.rank
    for count in (1, 5000):
        for step in range(1, n):
            to, source = (me + step) % n, (me - step) % n
            for first in (True, False) if me < to else (False, True):
                # The lower rank of a pair sends first: a message may wait for its receiver.
                if first:
                    comm.send(ByDlpack(data(me, count, np.int32)), to, tag=step)
                else:
                    got = ByInterface(np.zeros(count, np.int32))
                    assert comm.recv(got, source, tag=step) == source
                    check(got, data(source, count, np.int32))
    rows = {(row["device"], row["collective"]) for row in comm.metrics()["rows"]}
    assert rows == {("cuda", "send"), ("cuda", "recv")}, rows
    refused(lambda: comm.recv(ByDlpack(np.zeros(3, np.float32))), NotImplementedError, "needs a peer")
    refused(lambda: comm.send(ByDlpack(np.zeros(3, np.float32)), me), ValueError, "the peer is another rank")


def refused(call: Any, kind: type[Exception], text: str) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"nothing was raised: {text}")


def refusals(comm: tutti.Communicator) -> None:
    """Each leaves the group as it was."""
    ones = np.ones(6, np.float32)
    fixed = ones.copy()
    fixed.flags.writeable = False
    columns = np.ones((3, 4), np.float32)[:, ::2]
    for kind in KINDS:
        refused(lambda: comm.all_reduce(kind(ones), ones), ValueError, "not on a GPU")  # noqa: B023
        refused(lambda: comm.all_reduce(kind(columns)), ValueError, "not contiguous")  # noqa: B023
        refused(lambda: comm.all_gather(kind(ones), kind(ones)), ValueError, "")  # noqa: B023
    refused(lambda: comm.all_reduce(ByInterface(fixed)), ValueError, "read-only")
    refused(lambda: comm.all_reduce(ones, stream=3), ValueError, "not on a GPU")
    refused(lambda: comm.all_reduce(ByDlpack(ones), stream="fast"), TypeError, "stream is")
    check(comm.all_reduce(ByDlpack(ones)), np.full(6, comm.size, np.float32))


def algorithms(comm: tutti.Communicator) -> None:
    """What is given and what is named, by the same objects as in main memory; and how it is told."""
    n = comm.size
    made = {}
    for name in ("ring", "two_shot"):
        spec = AlgoSpec(name=f"my_{name}", collective=AllReduce(n, 1))
        made[name] = tutti.compile(BUILTINS["allreduce", name], spec, comm.rank)

    def ran() -> set[str]:
        rows = {row["algorithm"] for row in comm.metrics()["rows"] if row["device"] == "cuda"}
        comm.reset_metrics()
        return rows

    def sum_up() -> None:
        check(comm.all_reduce(ByDlpack(np.ones(1000, np.float32))), np.full(1000, n, np.float32))

    builder = tutti.AlgorithmCollectionBuilder(comm)
    builder.add_algorithm_builder(made["ring"])
    builder.build()  # before there is a communicator on GPUs
    sum_up()
    assert ran() == {"plan:my_ring"}
    builder.add_algorithm_builder(made["two_shot"])
    builder.set_algorithm_selector(lambda known, request: known["allreduce"]["my_two_shot"])
    builder.build()  # and when there is one
    sum_up()
    assert ran() == {"plan:my_two_shot"}
    builder.reset()
    builder.build()
    sum_up()
    assert not ran() & {"plan:my_ring", "plan:my_two_shot"}
    part, total = ByDlpack(np.ones(1000, np.float32)), ByInterface(np.zeros(1000, np.float32))
    made["ring"].execute(comm, part, total, dtype=tutti.DataType.float32, stream=3)
    assert part.streams == [3]
    check(total, np.full(1000, n, np.float32))
    assert ran() == {"plan:my_ring"}
    refused(lambda: made["ring"].execute(comm, part, np.zeros(1000, np.float32)), ValueError, "main memory")
    refused(
        lambda: made["ring"].execute(comm, part, total, dtype=tutti.DataType.int32), ValueError, "an array holds f32"
    )
    comm.all_reduce(np.ones(3))
    host, device = comm.flight_record("cpu"), comm.flight_record("cuda")
    assert len(host["entries"]) == 1, host
    assert len(device["entries"]) == 4, device
    names = [{entry["profiling_name"] for entry in record["entries"]} for record in (host, device)]
    assert names[0] == names[1], names
    both = comm.flight_record()
    assert [entry["device"] for entry in both["entries"]].count("cpu") == 5, both  # the plug-in's calls are the host's
    assert list(both["pg_status"]) == ["algorithms", "algorithms/cuda"], both
    times = [entry["time_created_ns"] for entry in both["entries"]]
    assert times == sorted(times), times
    refused(lambda: comm.flight_record("metal"), ValueError, "device must be")


def runs(comm: tutti.Communicator, algorithm: str) -> None:
    """A call of 40000 bytes, by this algorithm."""
    check(comm.all_reduce(ByDlpack(np.ones(10_000, np.float32))), np.full(10_000, comm.size, np.float32))
    assert {row["algorithm"] for row in comm.metrics()["rows"] if row["device"] == "cuda"} == {algorithm}


def runs_the_ring(comm: tutti.Communicator) -> None:
    """By a tuning table."""
    runs(comm, "plan:ring")


def runs_as_untuned(comm: tutti.Communicator) -> None:
    """By no table, for the ranks have different ones."""
    runs(comm, "ll_one_shot")


def captures(comm: tutti.Communicator) -> None:
    """First calls and messages are made in a capture as elsewhere, but for the first by an algorithm."""
    stream = 0xCA97  # of the plug-in: always being captured
    ones, peer = ByDlpack(np.ones(3, np.float32)), 1 - comm.rank
    spec = AlgoSpec(name="captured", collective=AllReduce(2, 1))
    ring = tutti.compile(BUILTINS["allreduce", "ring"], spec, comm.rank)

    def execute(on: int) -> None:
        ring.execute(comm, ones, ByDlpack(np.ones(3, np.float32)), dtype=tutti.DataType.float32, stream=on)

    def exchange() -> None:
        for sends in (True, False) if comm.rank == 0 else (False, True):
            if sends:
                comm.send(ones, peer)
            else:
                comm.recv(ByDlpack(np.zeros(3, np.float32)), peer)

    comm.all_reduce(ones, stream=stream)
    refused(lambda: execute(stream), ValueError, "the first call by an algorithm cannot be captured")
    execute(3)
    execute(stream)
    # First messages that cross: each waits for its peer's, whichever of its own that has come to.
    comm.send(ones, peer, stream=stream)
    comm.recv(ByDlpack(np.zeros(3, np.float32)), peer, stream=stream)
    exchange()


def aborted(comm: tutti.Communicator) -> None:
    """On both kinds of memory."""
    comm.all_reduce(ByDlpack(np.ones(3, np.float32)))
    comm.barrier()
    comm.abort("enough")
    for call in (lambda: comm.all_reduce(ByDlpack(np.ones(3, np.float32))), lambda: comm.all_reduce(np.ones(3))):
        refused(call, RuntimeError, "")


if __name__ == "__main__":
    run_apart(globals(), timeout=30)
