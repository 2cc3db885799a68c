"""Small things that programs for MSCCL++ import under this name."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import TYPE_CHECKING, Any

from tutti import _core
from tutti.algorithms.buffers import memory_of
from tutti.algorithms.types import DataType

if TYPE_CHECKING:
    import torch

__all__ = [
    "get_device_arch",
    "is_torch_tensor",
    "pack",
    "torch_dtype_to_mscclpp_dtype",
    "torch_dtype_to_tutti_dtype",
]


def get_device_arch() -> str:
    """The instruction set that reductions run on: ``"AVX2"``, ``"NEON"``, ..."""
    return _core.simd_target()


def is_torch_tensor(tensor: Any) -> bool:
    """Whether it is one. Loads no torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def torch_dtype_to_tutti_dtype(dtype: torch.dtype) -> DataType:
    """The :class:`tutti.DataType` of torch's. ``ValueError`` if there is none."""
    name = str(dtype).removeprefix("torch.")
    if name not in DataType.__members__:
        raise ValueError(f"Unknown data type: {dtype}")
    return DataType[name]


torch_dtype_to_mscclpp_dtype = torch_dtype_to_tutti_dtype


def pack(*args: Any) -> bytes:
    """Arguments as a C function takes them one after another: ints of 4 bytes, ``ctypes.c_size_t``, bytes as they
    stand, and of arrays their addresses: of such as keep their memory, and are kept. ``RuntimeError`` for anything
    else.
    """
    packed = b""
    for arg in args:
        if isinstance(arg, int):
            packed += struct.pack("i", arg)
        elif isinstance(arg, ctypes.c_size_t):
            packed += struct.pack("N", arg.value)
        elif isinstance(arg, bytes):
            packed += arg
        else:
            try:
                packed += struct.pack("P", memory_of(arg, "argument").address)
            except TypeError:
                raise RuntimeError(f"Unsupported type: {type(arg)}") from None
    return packed
