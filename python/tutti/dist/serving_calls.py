"""The calls of inference engines on any device: checks, the kernel where there is one, else the composition.

``communicator`` is a :class:`tutti._torch.ProcessGroupTutti`. Used by the operators of :mod:`tutti.ops` and by
:class:`tutti.serving.CustomAllReduce`.
"""

from __future__ import annotations

from typing import Any

import torch

from tutti.dist import compositions

__all__ = ["add_rms_norm_into", "quantized_into"]

_KERNEL_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_MOST_ROW_BYTES = 512 << 10


def _kernel_takes(x: torch.Tensor) -> bool:
    row_bytes = x.shape[-1] * x.element_size()
    return x.is_cuda and x.dtype in _KERNEL_TYPES and row_bytes % 16 == 0 and 0 < row_bytes <= _MOST_ROW_BYTES


def _check_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, residual_out: torch.Tensor
) -> None:
    shapes_fit = x.dim() > 0 and all(t.shape == x.shape for t in (residual, out, residual_out))
    if not shapes_fit or weight.shape != x.shape[-1:]:
        raise ValueError(
            f"all_reduce_add_rms_norm: x {tuple(x.shape)} needs a residual and outputs of its shape, which have "
            f"{tuple(residual.shape)}, {tuple(out.shape)} and {tuple(residual_out.shape)}, and a weight of its last "
            f"dimension, which is {tuple(weight.shape)}"
        )
    if any(t.dtype != x.dtype for t in (residual, weight, residual_out)):
        raise TypeError(
            f"all_reduce_add_rms_norm: x is {x.dtype}, so residual, weight and the residual's output must be, which "
            f"are {residual.dtype}, {weight.dtype} and {residual_out.dtype}"
        )


def add_rms_norm_into(
    communicator: Any,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    residual_out: torch.Tensor,
    scale: torch.Tensor | None = None,
    scales_out: torch.Tensor | None = None,
) -> None:
    """``residual_out = s = all_reduce(x) + residual``, ``out = rms_norm(s) * weight``.

    ``x`` and its like have the shape (..., hidden), ``weight`` (hidden,). With ``scale`` (one fp32 value), or with
    ``scales_out`` (..., 1), which is written, ``out`` is float8_e4m3fn. ``out`` may be ``x`` and ``residual_out``
    ``residual``.
    """
    _check_norm(x, residual, weight, out, residual_out)
    fp8 = scale is not None or scales_out is not None
    if out.dtype != (torch.float8_e4m3fn if fp8 else x.dtype):
        raise TypeError(f"all_reduce_add_rms_norm: the output is {out.dtype}, which fits neither x nor its scale")
    if _kernel_takes(x) and out.is_contiguous() and residual_out.is_contiguous():
        communicator.all_reduce_add_rms_norm(
            x.contiguous(), residual.contiguous(), weight.contiguous(), eps, residual_out, out, scale, scales_out
        )
        return
    total = torch.empty_like(x, memory_format=torch.contiguous_format)
    communicator.all_reduce_into(total, x)
    y, s = compositions.add_rms_norm(total, residual, weight, eps)
    residual_out.copy_(s)
    if scales_out is not None:
        scale = scales_out.copy_(compositions.row_scales(y).view(scales_out.shape))
    if scale is None:
        out.copy_(y)
    else:
        out.copy_(compositions.to_fp8(y, scale))


def quantized_into(communicator: Any, out: torch.Tensor, x: torch.Tensor, bits: str, block: int) -> None:
    """``out`` = the sum of ``x`` over all ranks, sent as blocks of codes; it may be ``x``."""
    if bits not in compositions.CODES:
        raise ValueError(f'all_reduce_quantized: bits must be "fp8" or "int8", not {bits!r}')
    if block not in (32, 64, 128, 256, 512):
        raise ValueError(f"all_reduce_quantized: a block has 32, 64, 128, 256 or 512 elements, not {block}")
    if x.dtype not in _KERNEL_TYPES or out.dtype != x.dtype:
        raise TypeError(f"all_reduce_quantized: x and out must be bfloat16, float16 or float32: {x.dtype}, {out.dtype}")
    if out.shape != x.shape:
        raise ValueError(f"all_reduce_quantized: x has the shape {tuple(x.shape)}, out {tuple(out.shape)}")
    if x.is_cuda and out.is_contiguous():
        communicator.all_reduce_quantized(out, x.contiguous(), bits, block)
    else:
        compositions.all_reduce_quantized(communicator, out, x, bits, block)
