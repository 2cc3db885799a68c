"""Arrays in the memory of GPUs, by DLPack or ``__cuda_array_interface__``, and the streams of calls on them.

A call on a stream of the caller's is enqueued there. One without a stream runs on a stream of the group and returns
when it is done. Either way whoever made an array orders what it has enqueued before the stream of the call: by
DLPack's ``stream`` argument; for the interface of Numba, which has none, its stream is waited for.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tutti import _core
from tutti._arrays import tensor_refusal

__all__ = ["lies_on_device", "recv", "run", "send", "stream_handle", "take"]

_CUDA = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged
_IN_MAIN_MEMORY = (np.ndarray, int, type(None))  # told without asking further: small calls are made often
_NAMES = {
    "bool": "bool",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
    **{f"{kind}int{bits}": f"{kind or 'i'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
}


def lies_on_device(array: Any) -> bool:
    """Whether this is an array in the memory of a GPU."""
    if isinstance(array, _IN_MAIN_MEMORY):
        return False
    if hasattr(array, "__dlpack_device__"):
        try:
            return int(array.__dlpack_device__()[0]) in _CUDA
        except ValueError:  # on a device that DLPack does not know
            return False
    return hasattr(array, "__cuda_array_interface__")


def stream_handle(stream: Any) -> int | None:
    """The ``cudaStream_t`` of a stream: an integer, torch's, CuPy's, or what has ``__cuda_stream__``; None of None."""
    if stream is None or isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise TypeError(f"stream is a handle or a stream of torch or CuPy, not {type(stream).__name__}")


def take(
    devices: _core.DeviceCommunicator | None, array: Any, which: str, written: bool, stream: int
) -> _core.DeviceArray | None:
    """The memory of an array, ordered before ``stream``; None of None. ``ValueError`` if it cannot be taken.

    ``devices`` waits for streams; without, what names one of its own cannot be taken.
    """
    if array is None:
        return None
    if (why := tensor_refusal(array, which, True)) is not None:  # of which DLPack refuses but some
        raise ValueError(why)
    if hasattr(array, "__dlpack__"):
        try:
            # 0 is ambiguous there; 1 is the same stream, the legacy default one.
            capsule = array.__dlpack__(stream=stream or 1)
        except (BufferError, RuntimeError) as error:
            raise ValueError(f"the {which} cannot be taken: {error}") from None
        return _core.DeviceArray.from_dlpack(capsule, which, written)
    interface = array.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    address, read_only = interface["data"]
    if written and read_only:
        raise ValueError(f"the {which} is read-only and would be written: pass a copy")
    if not dtype.isnative or dtype.name not in _NAMES:
        raise ValueError(f"the {which} is an array of {dtype}: pass numbers in the machine's byte order")
    dense = tuple(dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if strides is not None and tuple(strides) != dense and 0 not in shape:
        raise ValueError(f"the {which} is not contiguous: pass a contiguous copy")
    device = _device_of(array)
    if interface.get("stream") is not None:
        if devices is None:
            raise ValueError(f"the {which} has a stream of its own: pass an array with DLPack")
        devices.synchronize(device, int(interface["stream"]))
    return _core.DeviceArray.from_address(int(address or 0), prod(shape), _NAMES[dtype.name], device, array)


def _device_of(*arrays: Any) -> int:
    for array in arrays:
        if array is None:
            continue
        if hasattr(array, "__dlpack_device__"):
            return int(array.__dlpack_device__()[1])
        if hasattr(array, "__cuda_array_interface__"):
            device = _core.device_of(int(array.__cuda_array_interface__["data"][0] or 0))
            if device is not None:
                return device
    return -1


def _check(*ends: tuple[str, Any]) -> None:
    for which, array in ends:
        if array is not None and not lies_on_device(array):
            raise ValueError(
                f"the {which} ({type(array).__name__}) is not on a GPU, where the call is to run: "
                "pass arrays on one device, and a stream for those on GPUs only"
            )


def run(
    devices: _core.DeviceCommunicator,
    size: int,
    collective: str,
    input: Any,
    output: Any,
    op: str,
    root: int,
    timeout: float,
    stream: Any,
) -> None:
    """A collective on arrays on a GPU."""
    _check(("input", input), ("output", output))
    handle = stream_handle(stream)
    order = devices.own_stream(_device_of(input, output)) if handle is None else handle
    same = input is output
    source = take(devices, input, "array" if same else "input", same, order)
    target = source if same else take(devices, output, "output", True, order)
    devices.run(size, collective, source, target, op, root, timeout, handle)


def send(devices: _core.DeviceCommunicator, array: Any, peer: int, tag: int, timeout: float, stream: Any) -> None:
    """A message from a GPU."""
    _check(("message", array))
    handle = stream_handle(stream)
    order = devices.message_stream(_device_of(array), peer, True) if handle is None else handle
    message = take(devices, array, "message", False, order)
    assert message is not None
    devices.send(message, peer, tag, timeout, handle)


def recv(devices: _core.DeviceCommunicator, array: Any, peer: int, tag: int, timeout: float, stream: Any) -> int:
    """A message to a GPU; the sender."""
    _check(("message", array))
    if peer < 0:
        raise NotImplementedError("recv into memory of a GPU needs a peer: no message from whoever sends first")
    handle = stream_handle(stream)
    order = devices.message_stream(_device_of(array), peer, False) if handle is None else handle
    message = take(devices, array, "message", True, order)
    assert message is not None
    devices.recv(message, peer, tag, timeout, handle)
    return peer
