"""What collectives must compute: seeded inputs of every rank, and results from 64-bit arithmetic.

Inputs are either "exact" (small integers, whose results every type holds exactly) or "random" (rounding is then
allowed for as documented: one rounding to the type, after accumulation in fp32, or fp64 for fp64). Every rank makes the
inputs of all ranks from the seed, so nothing but the collective under test crosses between ranks.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
]
FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
FLOATS8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
# A power of two has no sum of its own kind: this type is only moved.
MOVED_ONLY = [torch.float8_e8m0fnu]
REDUCED = [torch.bool, *INTEGERS, *FLOATS8, *FLOATS, *COMPLEX]
ALL = REDUCED + MOVED_ONLY

PREMUL_FACTOR = 0.5
UNITS = {torch.float64: 2.0**-53, torch.complex128: 2.0**-53}  # of the accumulator; others accumulate in fp32


def is_integral(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def ops_of(dtype: torch.dtype) -> list[str]:
    """The operations that make sense for a type."""
    if is_integral(dtype):
        bits = ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
        return bits if dtype == torch.bool else [*bits, "AVG"]
    if dtype.is_complex:
        return ["SUM", "AVG", "PRODUCT", "PREMUL_SUM"]
    return ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM"]


def reduce_op(name: str) -> object:
    """torch's operation of that name."""
    if name == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(PREMUL_FACTOR)
    return getattr(dist.ReduceOp, name)


def _integers(rows: int, count: int, low: int, high: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(low, high, (rows, count), generator=generator)


def inputs(dtype: torch.dtype, op: str, rows: int, count: int, exact: bool, seed: int) -> torch.Tensor:
    """One row of `count` elements a rank."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return _integers(rows, count, 0, 2, generator).to(torch.bool)
    if dtype == torch.float8_e8m0fnu:
        bits = _integers(rows, count, 100, 150, generator).to(torch.uint8)
        return bits.view(dtype)
    if is_integral(dtype):
        wide = _integers(rows, count, -(2**62), 2**62, generator)
        if dtype == torch.uint64 and op in ("MIN", "MAX"):
            wide = wide.abs()  # the oracle compares as int64
        return wide.to(dtype)
    small = (-1, 2)
    if dtype.is_complex:
        wide_type = torch.complex128
        parts = [
            _integers(rows, count, *small, generator) if exact else torch.randn(rows, count, generator=generator)
            for _ in range(2)
        ]
        return torch.complex(parts[0].double(), parts[1].double()).to(wide_type).to(dtype)
    if not exact:
        return torch.randn(rows, count, generator=generator).to(dtype)
    values = _integers(rows, count, *small, generator)
    if op == "PRODUCT":
        # Eight factors of two are more than a type of eight bits holds.
        values = torch.where(values == 0, 1 if dtype in FLOATS8 else 2, values)
    wide = values.double()
    if op in ("MIN", "MAX") and count:
        wide[seed % rows, seed % count] = float("nan")
    return wide.to(dtype)


def widen(values: torch.Tensor) -> torch.Tensor:
    """The same values in 64 bits a number."""
    dtype = values.dtype
    if dtype.is_complex:
        return values.to(torch.complex128)
    if dtype.is_floating_point:
        return values.to(torch.float64)
    return values.to(torch.int64)


def reduced(values: torch.Tensor, op: str) -> torch.Tensor:
    """The reduction over the rows, in 64 bits; integers wrap when they are narrowed."""
    wide = widen(values)
    if values.dtype == torch.bool:
        return wide.amax(0) if op in ("SUM", "MAX", "BOR") else wide.sum(0) % 2 if op == "BXOR" else wide.amin(0)
    if op == "SUM":
        return wide.sum(0)
    if op == "AVG" and is_integral(values.dtype):  # the sum wraps, the quotient is cut towards zero
        total = wide.sum(0).to(values.dtype)
        if values.dtype == torch.uint64:
            return torch.from_numpy((total.numpy() // np.uint64(wide.shape[0])).astype(np.int64))
        return total.to(torch.int64).div(wide.shape[0], rounding_mode="trunc")
    if op == "AVG":
        return wide.sum(0) / wide.shape[0]
    if op == "PREMUL_SUM":
        return (wide * PREMUL_FACTOR).sum(0)
    if op == "PRODUCT":
        return wide.prod(0)
    if op in ("MIN", "MAX"):
        return wide.amin(0) if op == "MIN" else wide.amax(0)
    bits = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
    result = wide[0]
    for row in wide[1:]:
        result = bits(result, row)
    return result


def _rounding(dtype: torch.dtype) -> tuple[float, float]:
    """Half a unit in the last place, relative, and half the smallest step."""
    if dtype.is_complex:
        dtype = {torch.complex32: torch.float16, torch.complex64: torch.float32}.get(dtype, torch.float64)
    info = torch.finfo(dtype)
    # torch 2.13 reports the precision of e4m3 for this one.
    eps = 0.25 if dtype == torch.float8_e5m2fnuz else info.eps
    return eps / 2, info.smallest_normal * eps


def difference(
    got: torch.Tensor, want: torch.Tensor, values: torch.Tensor, op: str, exact: bool, roundings: int
) -> str | None:
    """None if `got` is a right result of reducing `values`, whose 64-bit result is `want`; else what is wrong."""
    dtype = values.dtype
    if is_integral(dtype):
        right = got.to(torch.int64) == want.to(dtype).to(torch.int64)  # torch does not compare all unsigned types
        wide = got.to(torch.int64)
    else:
        wide = widen(got)
        if exact and op != "AVG":
            right = (wide == want) | (wide.isnan() & want.isnan())
        else:
            relative, step = _rounding(dtype)
            unit = UNITS.get(dtype, 2.0**-24)
            terms = widen(values).abs()
            size = terms.prod(0) if op == "PRODUCT" else terms.sum(0)
            if dtype.is_complex and op == "PRODUCT":
                size = size * 4
            rows = values.shape[0]
            # A narrow type's own rounding, at the end and of partial results before (`roundings` in all, once a level
            # of hosts), and the accumulator's.
            scaled = rows if op == "PREMUL_SUM" else 0  # scale() rounds every input once
            bound = (want.abs() + size * (roundings - 1 + scaled)) * relative * 1.01 + size * (rows + 2) * 2 * unit
            right = ((wide - want).abs() <= bound + step * (roundings + scaled)) | (wide.isnan() & want.isnan())
    if bool(right.all()):
        return None
    wrong = (~right).nonzero().flatten()
    first = int(wrong[0])
    return f"{len(wrong)} of {len(right)} wrong, first at {first}: got {wide[first]}, want {want[first]}"


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bitwise equality, NaNs included."""
    if left.numel() != right.numel() or left.dtype != right.dtype:
        return False
    return torch.equal(as_bytes(left), as_bytes(right))


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().reshape(-1).view(torch.uint8)
