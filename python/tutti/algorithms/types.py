"""Element types, reductions and the kinds of algorithms, by the names that MSCCL++ gives them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

__all__ = ["AlgorithmType", "CollectiveBufferMode", "DataType", "PacketType", "ReduceOp"]


class DataType(Enum):
    """An element type. The value is its short name in Tutti's messages."""

    bool = "bool"
    uint8 = "u8"
    int8 = "i8"
    uint16 = "u16"
    int16 = "i16"
    uint32 = "u32"
    int32 = "i32"
    uint64 = "u64"
    int64 = "i64"
    float8_e4m3fn = "f8e4m3fn"
    float8_e4m3fnuz = "f8e4m3fnuz"
    float8_e5m2 = "f8e5m2"
    float8_e5m2fnuz = "f8e5m2fnuz"
    bfloat16 = "bf16"
    float16 = "f16"
    float32 = "f32"
    float64 = "f64"
    complex64 = "c64"
    complex128 = "c128"

    @classmethod
    def of(cls, array: Any) -> DataType:
        """That of a NumPy array, of a torch tensor, or of whatever else has a ``dtype``. ``ValueError`` if none."""
        name = str(array.dtype).removeprefix("torch.")
        name = {"bool_": "bool"}.get(name, name)
        if name not in cls.__members__:
            raise ValueError(f"element type {name!r} has no DataType; there are {', '.join(cls.__members__)}")
        return cls[name]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        if self.name.startswith("float8"):
            return 1
        return 2 if self is DataType.bfloat16 else int(np.dtype(self.name).itemsize)


class ReduceOp(Enum):
    """How elements are combined. ``NOP`` is for collectives that combine nothing, and for plans, which know it."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    NOP = ""


class CollectiveBufferMode(Enum):
    """What an algorithm is made for: one buffer for input and output, two, or either.

    Tutti runs a call of either kind by any algorithm; one that is not made for it costs a copy.
    """

    ANY = "any"
    IN_PLACE = "in_place"
    OUT_OF_PLACE = "out_of_place"


class AlgorithmType(Enum):
    """Whether an algorithm is C++ code or a plan."""

    NATIVE = "native"
    DSL = "dsl"


class PacketType(Enum):
    """Layouts of packets on a GPU. On CPU ranks a packet is 4 bytes of data and 4 of flag, whatever is asked for."""

    LL8 = "ll8"
    LL16 = "ll16"
