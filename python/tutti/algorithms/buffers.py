"""Memory that all ranks of the host map, of the host or of a GPU, and the addresses of arrays."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Iterable
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from tutti import _core
from tutti._arrays import refusal, tensor_refusal
from tutti._units import MOST_BYTES
from tutti.algorithms.types import DataType

__all__ = ["GpuBuffer", "Memory", "RawBuffer", "RawGpuBuffer", "memory_of"]


class Memory(NamedTuple):
    """Where an array lies, and what keeps it there: some arrays make their memory when they are asked for it."""

    address: int
    bytes: int
    owner: Any


def _plain(dtype: Any) -> np.dtype[Any]:
    """An element type of numbers. ``ValueError`` if what lies in memory would be taken for addresses of objects."""
    found: np.dtype[Any] = np.dtype(dtype)
    if found.hasobject or not found.itemsize:
        raise ValueError(f"elements of type {found} do not lie in a buffer: take a type of numbers")
    return found


def _sizes(shape: Any) -> tuple[int, ...]:
    """The dimensions of a shape, which is an integer or several."""
    try:
        return tuple(map(index, shape)) if isinstance(shape, Iterable) else (index(shape),)
    except TypeError:
        raise ValueError("the shape is an integer or a tuple of them") from None


class RawBuffer:
    """``nelems`` bytes that the other ranks of this host map, so that collectives on them need no copy.

    It is an array of bytes to NumPy and to whoever takes DLPack; :meth:`to_dlpack` gives it another type and shape. The
    memory lives as long as the buffer or an array of it does. What it holds at first is undefined.

    Raises ``RuntimeError`` if there is no room (``TUTTI_ARENA_BYTES``).
    """

    def __init__(self, nelems: int, granularity: object = None) -> None:
        """``granularity`` is taken for the sake of programs written for MSCCL++ and means nothing here."""
        self._buffer: _core.ArenaBuffer | _core.DeviceBuffer = _core.ArenaBuffer(nelems)

    @classmethod
    def from_dlpack(cls, array: Any) -> RawBuffer:
        """A buffer with the contents of a C-contiguous array: of NumPy's, torch's or whoever's has ``__dlpack__``."""
        source = memory_of(array, "array")
        buffer = cls(max(1, source.bytes))
        if source.bytes:
            ctypes.memmove(buffer.data(), source.address, source.bytes)
        return buffer

    def data(self) -> int:
        """Its address."""
        return self._buffer.address

    def bytes(self) -> int:
        """How many bytes it has."""
        return self._buffer.bytes

    def nelems(self) -> int:
        """The same: its elements are bytes."""
        return self._buffer.bytes

    def device_id(self) -> int:
        """Which GPU; 0 for main memory."""
        return self._buffer.device

    def numpy(self, dtype: Any = np.uint8, shape: int | tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
        """A NumPy array over it, of ``shape``, in which -1 stands for as many as fit."""
        assert isinstance(self._buffer, _core.ArenaBuffer)
        dtype = _plain(dtype)
        size, whole = dtype.itemsize, self._buffer.numpy()
        sizes = list(_sizes(-1 if shape is None else shape))
        if sizes.count(-1) == 1:
            others = size * prod(length for length in sizes if length != -1)
            sizes[sizes.index(-1)] = whole.nbytes // others if others else -1
        if any(length < 0 for length in sizes):
            raise ValueError(f"a shape has at most one -1, for which the others leave a number, not {shape}")
        count = prod(sizes)
        if count * size > whole.nbytes:
            raise ValueError(f"{count} elements of {size} bytes do not fit into a buffer of {whole.nbytes}")
        array: np.ndarray[Any, Any] = whole[: count * size].view(dtype).reshape(sizes)
        return array

    def to_dlpack(self, data_type: str, shape: Iterable[int] = (), strides: Iterable[int] = ()) -> Any:
        """A DLPack capsule, for ``torch.utils.dlpack.from_dlpack``.

        ``data_type`` is a name such as ``"torch.bfloat16"`` or ``"float32"``; ``strides`` are in elements. Without a
        ``shape`` it has all elements that fit.
        """
        return self._buffer.to_dlpack(str(data_type).removeprefix("torch."), list(shape), list(strides))

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return self.to_dlpack("uint8")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return np.array(array, dtype=dtype) if copy or dtype is not None else array

    def __len__(self) -> int:
        return self._buffer.bytes


@functools.cache
def _gpu_is_here() -> bool:
    return bool(_core.cuda_report()["devices"])


class RawGpuBuffer(RawBuffer):
    """``nelems`` bytes of a GPU, of ``device`` or the current one; without a GPU in main memory, as :class:`RawBuffer`.

    To whoever takes DLPack it is an array of bytes there; :meth:`to_dlpack` gives it another type and shape. Groups can
    register it. The memory lives as long as the buffer or an array of it does, and its end waits for the device.

    Raises ``RuntimeError`` if there is no room.
    """

    def __init__(self, nelems: int, granularity: object = None, device: int | None = None) -> None:
        """``granularity`` is taken for the sake of programs written for MSCCL++ and means nothing here."""
        if not _gpu_is_here():
            super().__init__(nelems)
            return
        self._buffer = _core.DeviceBuffer(nelems, -1 if device is None else device)

    @classmethod
    def from_dlpack(cls, array: Any) -> RawGpuBuffer:
        """A buffer with the contents of a C-contiguous array in main memory or on a GPU; done when it returns."""
        from tutti._devices import lies_on_device, take

        if not _gpu_is_here():
            buffer = super().from_dlpack(array)
            assert isinstance(buffer, cls)
            return buffer
        if lies_on_device(array):
            taken = take(None, array, "array", False, 0)
            assert taken is not None
            source, device = Memory(taken.address, taken.nbytes, taken), taken.device
        else:
            source, device = memory_of(array, "array"), -1
        buffer = cls(max(1, source.bytes), device=device)
        assert isinstance(buffer._buffer, _core.DeviceBuffer)
        buffer._buffer.copy(source.address, source.bytes)
        return buffer

    def numpy(self, dtype: Any = np.uint8, shape: int | tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
        """As :meth:`RawBuffer.numpy` in main memory. ``ValueError`` on a GPU."""
        if isinstance(self._buffer, _core.DeviceBuffer):
            raise ValueError("the buffer is on a GPU, where NumPy has no arrays: take it by DLPack (torch, CuPy)")
        return super().numpy(dtype, shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        on_gpu = isinstance(self._buffer, _core.DeviceBuffer)
        return (2, self._buffer.device) if on_gpu else (1, 0)  # kDLCUDA, kDLCPU


class GpuBuffer(np.ndarray[Any, Any]):
    """An array in memory that the other ranks can map: ``GpuBuffer(shape, dtype)`` makes one.

    The name is that of programs written for MSCCL++. Where there is a GPU it is a CuPy array on the current one, made
    of a :class:`RawGpuBuffer`; without, a NumPy array in memory that all ranks of the host map.
    """

    def __new__(
        cls,
        shape: int | Iterable[int],
        dtype: Any = float,
        strides: tuple[int, ...] | None = None,
        order: Any = "C",
        granularity: object = None,
    ) -> Any:
        """As ``numpy.ndarray``; ``ValueError`` for a shape with a dimension below 1, ``ImportError`` without CuPy."""
        sizes = _sizes(shape)
        if any(size <= 0 for size in sizes):
            raise ValueError(f"every dimension is at least 1, not {sizes}")
        count = prod(sizes) * _plain(dtype).itemsize
        if count > MOST_BYTES:
            raise ValueError(f"an array has at most {MOST_BYTES} bytes, not {count}")
        if not _gpu_is_here():
            memory = RawBuffer(count).numpy()
            return np.ndarray(sizes, dtype=dtype, buffer=memory, strides=strides, order=order)
        try:
            cupy = importlib.import_module("cupy")
        except ImportError:
            raise ImportError("GpuBuffer is an array of CuPy's on a GPU: install it, or take RawGpuBuffer") from None
        raw = RawGpuBuffer(count)
        memory = cupy.cuda.UnownedMemory(raw.data(), count, raw, raw.device_id())
        return cupy.ndarray(sizes, dtype, cupy.cuda.MemoryPointer(memory, 0), strides=strides, order=order)


def _torch_memory(tensor: Any, what: str, written: bool) -> Memory:
    if tensor.device.type != "cpu":
        raise ValueError(f"the {what} is on {tensor.device}; this group's ranks compute in main memory")
    if (why := tensor_refusal(tensor, what, written)) is not None:
        raise ValueError(why)
    if not tensor.is_contiguous():
        raise ValueError(f"the {what} is not contiguous: pass its .contiguous()")
    return Memory(int(tensor.data_ptr()), int(tensor.nbytes), tensor)


def _dlpack_memory(buffer: Any, what: str, written: bool) -> Memory:
    found = _core.host_array(buffer)
    if found is None:
        raise ValueError(refusal(buffer, what, written))
    if not found.contiguous:
        raise ValueError(f"the {what} is not contiguous: pass a contiguous copy")
    if written and not found.writeable:
        raise ValueError(f"the {what} is read-only ({type(buffer).__name__}) and would be written: pass a copy")
    return Memory(found.address, found.bytes, found)


def memory_of(buffer: Any, what: str, written: bool = False) -> Memory:
    """That of an array in main memory: NumPy's, torch's, :class:`RawBuffer`, anything with DLPack. It is kept until it
    has been used.

    Raises ``ValueError`` if it lies elsewhere, is not C-contiguous, or is to be ``written`` and may not be;
    ``TypeError`` if it is none.
    """
    if isinstance(buffer, RawBuffer):
        if buffer.__dlpack_device__()[0] != 1:
            raise ValueError(f"the {what} is on a GPU, not in main memory")
        return Memory(buffer.data(), buffer.bytes(), buffer)
    if isinstance(buffer, np.ndarray):
        if buffer.dtype.hasobject or not buffer.dtype.isnative:
            raise ValueError(refusal(buffer, what, written))
        if not buffer.flags.c_contiguous:
            raise ValueError(f"the {what} is not contiguous: pass numpy.ascontiguousarray(it)")
        if written and not buffer.flags.writeable:
            raise ValueError(refusal(buffer, what, written))
        return Memory(int(buffer.ctypes.data), int(buffer.nbytes), buffer)
    if hasattr(buffer, "data_ptr"):
        return _torch_memory(buffer, what, written)
    if hasattr(buffer, "__dlpack__"):
        return _dlpack_memory(buffer, what, written)
    raise TypeError(f"the {what} is {type(buffer).__name__}, neither an address nor an array")


def type_of(buffer: Any) -> DataType | None:
    """The element type of an array; None of what has none, such as an address."""
    return DataType.of(buffer) if hasattr(buffer, "dtype") else None
