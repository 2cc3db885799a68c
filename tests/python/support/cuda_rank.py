"""One rank of the tests of tutti.Communicator on GPUs. Its arguments name what it does."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import torch
from group_tasks import run_apart

import tutti
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

KERNELS = Path(__file__).resolve().parents[2] / "cpp/cuda/native_kernels.cu"


def every_collective(comm: tutti.Communicator) -> None:
    """On a stream of the group and on torch's; against sums of whole numbers."""
    n, me = comm.size, comm.rank
    for count in (1, 1000, 300_000):
        mine = torch.full((count,), me + 1.0, device="cuda")
        whole = torch.arange(1.0, n + 1, device="cuda").repeat_interleave(count)
        for stream in (None, torch.cuda.current_stream(), torch.cuda.Stream()):
            place = torch.zeros(count, device="cuda")
            places = torch.zeros(n * count, device="cuda")
            torch.cuda.synchronize()
            comm.all_reduce(mine, place, stream=stream)
            comm.all_gather(mine, places, stream=stream)
            torch.cuda.synchronize()
            assert torch.equal(place, torch.full_like(place, n * (n + 1) / 2))
            assert torch.equal(places, whole)
            place.zero_()
            comm.reduce_scatter(whole, place)  # ordered behind zero_() without a wait here
            assert torch.equal(place, torch.full_like(place, n * (me + 1.0)))
            comm.broadcast(place, root=n - 1)
            assert torch.equal(place, torch.full_like(place, n * float(n)))


def graphs(comm: tutti.Communicator) -> None:
    """Captured calls, and replays with other data."""
    data = torch.ones(5000, device="cuda")
    comm.all_reduce(data)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        comm.all_reduce(data, stream=side)
    for value in (1.0, 3.0):
        data.fill_(value)
        torch.cuda.synchronize()
        comm.barrier()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(data, torch.full_like(data, value * comm.size))


def messages(comm: tutti.Communicator) -> None:
    """Both directions of all pairs, small and large."""
    for count in (3, 1_000_000):
        for step in range(1, comm.size):
            to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
            given, got = torch.full((count,), float(comm.rank), device="cuda"), torch.empty(count, device="cuda")
            for sends in (True, False) if comm.rank < to else (False, True):
                if sends:
                    comm.send(given, to)
                else:
                    assert comm.recv(got, source) == source
            assert torch.equal(got, torch.full_like(got, float(source)))


def algorithms(comm: tutti.Communicator) -> None:
    """Plans that are given and that a call names: arrays and addresses, eagerly and in a graph."""
    n = comm.size
    plans = {
        name: tutti.compile(
            BUILTINS["allreduce", name], AlgoSpec(name=f"my_{name}", collective=AllReduce(n, 1)), comm.rank
        )
        for name in ("ring", "two_shot")
    }

    def ran() -> set[str]:  # interpreted, or compiled: by what is kept on disk from the second call on
        rows = {row["algorithm"].removesuffix("+compiled") for row in comm.metrics()["rows"] if row["device"] == "cuda"}
        comm.reset_metrics()
        return rows

    builder = tutti.AlgorithmCollectionBuilder(comm)
    builder.add_algorithm_builder(plans["ring"])
    builder.build()
    data = torch.full((70_000,), comm.rank + 1.0, device="cuda")
    total = n * (n + 1) / 2
    out = comm.all_reduce(data, torch.empty_like(data))
    assert torch.equal(out, torch.full_like(out, total)) and ran() == {"plan:my_ring"}
    stream = torch.cuda.current_stream().cuda_stream
    plans["two_shot"].execute(comm, data, out.zero_(), stream=stream)
    assert torch.equal(out, torch.full_like(out, total)) and ran() == {"plan:my_two_shot"}
    plans["two_shot"].execute(
        comm, data.data_ptr(), out.zero_().data_ptr(), data.nbytes, out.nbytes, tutti.DataType.float32, stream=stream
    )
    assert torch.equal(out, torch.full_like(out, total)) and ran() == {"plan:my_two_shot"}
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        plans["two_shot"].execute(comm, data, out, stream=side)
    out.zero_()
    torch.cuda.synchronize()
    comm.barrier()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, torch.full_like(out, total))
    builder.reset()
    builder.build()
    comm.all_reduce(data.clone())
    assert "plan:my_ring" not in ran()
    comm.all_reduce(np.ones(3))
    assert all(comm.flight_record(device)["entries"] for device in ("cpu", "cuda"))


def kernels(comm: tutti.Communicator) -> None:
    """Kernels of a ``.cu`` file: named, given, launched as a call says, in a graph; and one that is wrong."""
    n, stream = comm.size, torch.cuda.current_stream().cuda_stream
    module = tutti.compile_native("kernels", KERNELS)
    made = {
        name: tutti.Algorithm.create_from_native_capsule(getattr(module, f"create_{name}")())
        for name in ("all_gather", "all_reduce", "reduce_scatter", "broadcast")
    }
    total = n * (n + 1) / 2
    for count in (1, 1000, 8000):
        mine = torch.full((count,), comm.rank + 1.0, device="cuda")
        whole = torch.empty(n * count, device="cuda")
        for launch in ({}, {"nblocks": 7, "nthreads_per_block": 64}):
            made["all_gather"].execute(comm, mine, whole.zero_(), stream=stream, **launch)
            assert torch.equal(whole, torch.arange(1.0, n + 1, device="cuda").repeat_interleave(count))
            made["all_reduce"].execute(comm, mine, out := mine.clone(), op=tutti.ReduceOp.SUM, stream=stream, **launch)
            assert torch.equal(out, torch.full_like(out, total))
            for dtype, op in ((torch.bfloat16, tutti.ReduceOp.SUM), (torch.int32, tutti.ReduceOp.MAX)):
                given = mine.to(dtype)
                made["all_reduce"].execute(comm, given, given, op=op, stream=stream, **launch)
                assert torch.equal(given, torch.full_like(given, total if op == tutti.ReduceOp.SUM else n))
            made["reduce_scatter"].execute(comm, whole, out.zero_(), op=tutti.ReduceOp.AVG, stream=stream, **launch)
            assert torch.equal(out, torch.full_like(out, comm.rank + 1.0))
            made["broadcast"].execute(comm, out, out, root=n - 1, stream=stream, **launch)
            assert torch.equal(out, torch.full_like(out, float(n)))
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        made["all_reduce"].execute(comm, mine, out, op=tutti.ReduceOp.SUM, stream=side)
    for value in (1.0, 4.0):
        mine.fill_(value)
        torch.cuda.synchronize()
        comm.barrier()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, torch.full_like(out, value * n))
    builder = tutti.AlgorithmCollectionBuilder(comm)
    builder.add_algorithm_builder(made["all_reduce"])
    builder.build()
    comm.reset_metrics()
    comm.all_reduce(mine)
    torch.cuda.synchronize()
    rows = {row["algorithm"] for row in comm.metrics()["rows"] if row["device"] == "cuda"}
    assert rows == {"native:kernel_all_reduce"}, rows
    with NamedTemporaryFile("w", suffix=".cu") as file:
        file.write(KERNELS.read_text() + "#if defined(__CUDACC__)\nint wrong = unknown;\n#endif\n")
        file.flush()
        broken = tutti.compile_native("broken", file.name).create_all_reduce()
        try:
            tutti.Algorithm.create_from_native_capsule(broken).execute(comm, mine, out, op=tutti.ReduceOp.SUM)
        except NotImplementedError as error:
            assert 'identifier "unknown" is undefined' in str(error), error
        else:
            raise AssertionError("what the compiler refuses has run")
    comm.all_reduce(mine)
    torch.cuda.synchronize()


class Stop(Exception):
    """What a handler raises."""


def signal_asleep() -> threading.Thread:
    """Sends SIGUSR2 once the main thread has been seen asleep again and again: it is in the call that follows."""

    def watch() -> None:
        seen = 0
        while seen < 10:
            state = Path(f"/proc/self/task/{os.getpid()}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
            seen = seen + 1 if state == "S" else 0
            threading.Event().wait(0.002)
        os.kill(os.getpid(), signal.SIGUSR2)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def signals(comm: tutti.Communicator) -> None:
    """A handler runs while a call waits for the GPU: the other rank comes only then. What one raises ends the call."""
    data, word = torch.ones(1000, device="cuda"), np.ones(3)
    comm.all_reduce(data)
    side = tutti.Communicator(comm.store, comm.rank, comm.size, name="side", timeout=60)
    if comm.rank == 0:
        signal.signal(signal.SIGUSR2, lambda *_: side.send(word, 1))
        thread = signal_asleep()
        comm.all_reduce(data)
        thread.join()
    else:
        side.recv(word, 0)
        comm.all_reduce(data)
    assert data.eq(comm.size**2).all()
    if comm.rank == 0:

        def stop(*_: object) -> None:
            raise Stop

        signal.signal(signal.SIGUSR2, stop)
        thread = signal_asleep()
        try:
            comm.all_reduce(data)
        except Stop:
            thread.join()
        else:
            raise AssertionError("the handler's exception was lost")
        try:
            comm.all_reduce(data)
        except RuntimeError as error:
            assert "interrupted by Stop" in str(error), error
        else:
            raise AssertionError("the group goes on")
    side.barrier()
    side.close()


def buffers(comm: tutti.Communicator) -> None:
    """Memory of the current GPU by DLPack: it lives as long as an array of it does."""
    device = torch.cuda.current_device()
    buffer = tutti.RawGpuBuffer(4 << 20)
    assert (buffer.bytes(), buffer.device_id(), buffer.__dlpack_device__()) == (4 << 20, device, (2, device))
    x = torch.utils.dlpack.from_dlpack(buffer.to_dlpack(data_type=str(torch.bfloat16)))
    assert x.device == torch.device("cuda", device) and x.data_ptr() == buffer.data() and x.numel() == 2 << 20
    square = torch.utils.dlpack.from_dlpack(buffer.to_dlpack("torch.float32", (4, 4), (8, 1)))
    assert square.stride() == (8, 1)
    del buffer, square
    x.fill_(comm.rank + 1)
    comm.all_reduce(x, stream=torch.cuda.current_stream())
    assert torch.equal(x, torch.full_like(x, comm.size * (comm.size + 1) / 2))
    for array in (x[:1000], x[:1000].cpu().view(torch.int16).numpy()):
        copy = torch.from_dlpack(tutti.RawGpuBuffer.from_dlpack(array))
        assert torch.equal(copy.view(torch.bfloat16), x[:1000])
    assert tutti.RawGpuBuffer.from_dlpack(np.empty(0, np.uint8)).bytes() == 1
    given = tutti.RawGpuBuffer.from_dlpack(np.full(64, comm.rank, np.uint8))
    comm.all_reduce(given, op="max")  # bytes
    assert torch.from_dlpack(given).eq(comm.size - 1).all()
    try:
        given.numpy()
    except ValueError as error:
        assert "on a GPU" in str(error)
    else:
        raise AssertionError("NumPy took memory of a GPU")


if __name__ == "__main__":
    run_apart(globals(), timeout=60, prepare=lambda rank: torch.cuda.set_device(rank % torch.cuda.device_count()))
