"""Collectives over all GPUs of one process by NCCL under libraries of arrays: LIBRARY (cupy, jax). Prints ``done``."""

from __future__ import annotations

import sys
from typing import Any


def cupy() -> None:
    """Calls of all ranks in one group, as one thread with several GPUs makes them."""
    import cupy as cp
    from cupy.cuda import nccl

    size = min(cp.cuda.runtime.getDeviceCount(), 4)
    comms = nccl.NcclCommunicator.initAll(list(range(size)))
    streams = []
    for r in range(size):
        with cp.cuda.Device(r):
            streams.append(cp.cuda.Stream(non_blocking=True))

    def arrays(count: int, dtype: str, value: Any) -> list[Any]:
        made = []
        for r in range(size):
            with cp.cuda.Device(r):
                made.append(cp.full(count, value(r), dtype=dtype))
                cp.cuda.Device(r).synchronize()
        return made

    def each(call: Any) -> None:
        nccl.groupStart()
        for r in range(size):
            with cp.cuda.Device(r):
                call(r, comms[r], streams[r].ptr)
        nccl.groupEnd()
        for r in range(size):
            with cp.cuda.Device(r):
                streams[r].synchronize()

    def check(got: list[Any], value: float) -> None:
        for r, array in enumerate(got):
            with cp.cuda.Device(r):
                assert bool((array == value).all()), (r, array[:8], value)

    def address(array: Any) -> int:
        return int(array.data.ptr)

    def case(dtype: str, kind: int, count: int) -> None:
        own, other = arrays(count, dtype, lambda r: r + 1), arrays(count, dtype, lambda r: 0)
        whole = arrays(count * size, dtype, lambda r: r + 1)
        a, total = address, size * (size + 1) / 2
        each(lambda r, c, s: c.allReduce(a(own[r]), a(other[r]), count, kind, nccl.NCCL_SUM, s))
        check(other, total)
        each(lambda r, c, s: c.allReduce(a(own[r]), a(other[r]), count, kind, nccl.NCCL_MAX, s))
        check(other, size)
        each(lambda r, c, s: c.reduceScatter(a(whole[r]), a(other[r]), count, kind, nccl.NCCL_SUM, s))
        check(other, total)
        each(lambda r, c, s: c.broadcast(a(own[r]), a(other[r]), count, kind, 1, s))
        check(other, 2)
        each(lambda r, c, s: c.allGather(a(own[r]), a(whole[r]), count, kind, s))
        for r, array in enumerate(whole):
            with cp.cuda.Device(r):
                assert [float(array[q * count]) for q in range(size)] == [q + 1 for q in range(size)]

    for dtype, kind in {"float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64, "int32": nccl.NCCL_INT32}.items():
        for count in (1, 1000, 70_001, 1 << 20):
            case(dtype, kind, count)


def jax() -> None:
    """What XLA makes of reductions over devices."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    size = min(jax.device_count(), 4)
    devices = jax.devices()[:size]
    for count in (1, 1000, 70_001, 1 << 20):
        x = np.tile(np.arange(size, dtype=np.float32)[:, None] + 1, (1, count))
        summed = jax.pmap(lambda v: jax.lax.psum(v, "i"), "i", devices=devices)(x)
        assert np.array_equal(np.asarray(summed), np.full((size, count), size * (size + 1) / 2, np.float32))
        most = jax.pmap(lambda v: jax.lax.pmax(v, "i"), "i", devices=devices)(x)
        assert np.array_equal(np.asarray(most), np.full((size, count), size, np.float32))
        gathered = jax.pmap(lambda v: jax.lax.all_gather(v, "i"), "i", devices=devices)(x)
        assert np.array_equal(np.asarray(gathered), np.broadcast_to(x, (size, size, count)))
    assert bool(jnp.isfinite(summed).all())


if __name__ == "__main__":
    {"cupy": cupy, "jax": jax}[sys.argv[1]]()
    print("done", flush=True)
