"""The calls of inference engines, made of an all-reduce and PyTorch's own operators.

For CPU tensors, and on a GPU for the shapes and dtypes that no kernel takes. The arithmetic is that of the kernels
(``include/tutti/serving.h``); sums of squares are added in PyTorch's order, so a norm may differ in the last bit.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["CODES", "LEAST_ROW_SCALE", "add_rms_norm", "all_reduce_quantized", "row_scales", "to_fp8"]

FP8_MOST = 448.0
LEAST_ROW_SCALE = 1.0 / (FP8_MOST * 512.0)
CODES = {"fp8": FP8_MOST, "int8": 127.0}
"""The largest code of each kind."""


def add_rms_norm(
    total: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``s = total + residual``; returns ``(rms_norm(s) * weight, s)``, the norm rounded before the product."""
    s = total + residual
    wide = s if s.dtype == torch.float64 else s.float()
    inverse = 1.0 / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse).to(s.dtype) * weight, s


def row_scales(y: torch.Tensor) -> torch.Tensor:
    """The scale of each row of fp8 codes, shape (..., 1): its largest magnitude becomes the largest code."""
    most = torch.full((), FP8_MOST, device=y.device)  # on the GPU, a division by a number of Python's is a product
    return (y.abs().amax(-1, keepdim=True).float() / most).clamp(min=LEAST_ROW_SCALE)


def to_fp8(y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``y / scale`` as float8_e4m3fn, saturated."""
    return (y.float() / scale).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)


def _through_codes(blocks: torch.Tensor, bits: str) -> torch.Tensor:
    """What is left of fp32 rows that were sent as codes with one scale a row."""
    peak = blocks.abs().amax(-1, keepdim=True)
    tiny = torch.finfo(torch.float32).tiny
    scale = torch.where(peak.isfinite(), (peak / CODES[bits]).clamp(min=tiny), torch.nan)
    codes = (blocks * (1.0 / scale)).clamp(-CODES[bits], CODES[bits])
    return (codes.to(torch.float8_e4m3fn).float() if bits == "fp8" else codes.round()) * scale


def all_reduce_quantized(communicator: Any, out: torch.Tensor, x: torch.Tensor, bits: str, block: int) -> torch.Tensor:
    """The sum of what is left of each rank's blocks, itself sent as codes. It saves no bytes: fp32 is what is sent."""
    flat = x.reshape(-1).float()
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % block)).view(-1, block)
    total = torch.empty_like(padded)
    communicator.all_reduce_into(total, _through_codes(padded, bits))
    result = _through_codes(total, bits).view(-1)[: flat.numel()]
    return out.copy_(result.view(out.shape).to(out.dtype))
