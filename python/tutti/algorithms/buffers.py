"""Memory that all ranks of the host map, and the addresses of arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np

from tutti import _core
from tutti.algorithms.types import DataType

__all__ = ["GpuBuffer", "RawBuffer", "RawGpuBuffer", "memory_of"]


class RawBuffer:
    """``nelems`` bytes that the other ranks of this host map, so that collectives on them need no copy.

    It is an array of bytes to NumPy and to whoever takes DLPack; :meth:`to_dlpack` gives it another type and shape. The
    memory lives as long as the buffer or an array of it does. What it holds at first is undefined.

    Raises ``RuntimeError`` if there is no room (``TUTTI_ARENA_BYTES``).
    """

    def __init__(self, nelems: int, granularity: object = None) -> None:
        """``granularity`` is taken for the sake of programs written for MSCCL++ and means nothing here."""
        self._buffer = _core.ArenaBuffer(nelems)

    @classmethod
    def from_dlpack(cls, array: Any) -> RawBuffer:
        """A buffer with the contents of a C-contiguous array: of NumPy's, torch's or whoever's has ``__dlpack__``."""
        address, count = memory_of(array, "array")
        buffer = cls(max(1, count))
        if count:
            ctypes.memmove(buffer.data(), address, count)
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
        """0: main memory."""
        return 0

    def numpy(self, dtype: Any = np.uint8, shape: int | tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
        """A NumPy array over it, of all elements that fit or of ``shape``."""
        size = np.dtype(dtype).itemsize
        whole = self._buffer.numpy()
        if shape is None:
            shape = whole.nbytes // size
        count = int(np.prod(shape))
        if count * size > whole.nbytes:
            raise ValueError(f"{count} elements of {size} bytes do not fit into a buffer of {whole.nbytes}")
        array: np.ndarray[Any, Any] = whole[: count * size].view(dtype).reshape(shape)
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


RawGpuBuffer = RawBuffer  # by the name that programs for MSCCL++ use


class GpuBuffer(np.ndarray[Any, Any]):
    """A NumPy array in memory that all ranks of the host map: ``GpuBuffer(shape, dtype)`` makes one.

    The name is that of programs written for MSCCL++, where it is memory of a GPU.
    """

    def __new__(
        cls,
        shape: int | Iterable[int],
        dtype: Any = float,
        strides: tuple[int, ...] | None = None,
        order: Any = "C",
        granularity: object = None,
    ) -> Any:
        """As ``numpy.ndarray``; ``ValueError`` for a shape with a dimension below 1."""
        if isinstance(shape, int):
            shape = (shape,)
        try:
            sizes = tuple(shape)
        except TypeError:
            raise ValueError("the shape is an integer or a tuple of them") from None
        if any(size <= 0 for size in sizes):
            raise ValueError(f"every dimension is at least 1, not {sizes}")
        buffer = RawBuffer(int(np.prod(sizes)) * np.dtype(dtype).itemsize)
        return np.ndarray(sizes, dtype=dtype, buffer=buffer.numpy(), strides=strides, order=order)


def _torch_memory(tensor: Any, what: str) -> tuple[int, int]:
    if tensor.device.type != "cpu":
        raise ValueError(f"the {what} is on {tensor.device}; this group's ranks compute in main memory")
    if not tensor.is_contiguous():
        raise ValueError(f"the {what} is not contiguous: pass its .contiguous()")
    return int(tensor.data_ptr()), int(tensor.nbytes)


def memory_of(buffer: Any, what: str) -> tuple[int, int]:
    """Address and bytes of an array in main memory: NumPy's, torch's, :class:`RawBuffer`, anything with DLPack.

    Raises ``ValueError`` if it lies elsewhere or is not C-contiguous, ``TypeError`` if it is none.
    """
    if isinstance(buffer, RawBuffer):
        return buffer.data(), buffer.bytes()
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise ValueError(f"the {what} is not contiguous: pass numpy.ascontiguousarray(it)")
        return int(buffer.ctypes.data), int(buffer.nbytes)
    if hasattr(buffer, "data_ptr"):
        return _torch_memory(buffer, what)
    if hasattr(buffer, "__dlpack__"):
        return memory_of(np.from_dlpack(buffer), what)
    raise TypeError(f"the {what} is {type(buffer).__name__}, neither an address nor an array")


def type_of(buffer: Any) -> DataType | None:
    """The element type of an array; None of what has none, such as an address."""
    return DataType.of(buffer) if hasattr(buffer, "dtype") else None
