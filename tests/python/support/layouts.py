"""Tensors of every layout, with guards around them: what a collective writes outside its tensor is seen.

They lie on the device that TUTTI_TEST_DEVICE names ("cpu" or "cuda": the rank's own); values are compared on the CPU.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import torch

LAYOUTS = ["contiguous", "strided", "transposed", "offset", "odd_address"]
GUARD = 3  # elements on both sides of an offset view


def on_device(values: torch.Tensor) -> torch.Tensor:
    """A copy of the values on the device under test."""
    return values.to(os.environ.get("TUTTI_TEST_DEVICE", "cpu"), copy=True)


def _zeros(dtype: torch.dtype, count: int) -> torch.Tensor:
    return on_device(torch.zeros(count * dtype.itemsize, dtype=torch.uint8)).view(dtype)


@dataclass
class Placed:
    """A tensor under test and the memory around it."""

    tensor: torch.Tensor
    guards: list[torch.Tensor]
    memory: bytearray | None = None

    def read(self) -> torch.Tensor:
        """The tensor's values in one dimension, in memory of their own."""
        if self.memory is not None:
            # torch's own vector loops may fault on such addresses: copy the bytes.
            return torch.frombuffer(self.memory[1:-1], dtype=self.tensor.dtype)
        return self.tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).cpu()

    def intact(self) -> bool:
        """Whether nothing beside the tensor was written."""
        if self.memory is not None:
            return self.memory[0] == 0 and self.memory[-1] == 0
        return all(
            not bool(guard.clone(memory_format=torch.contiguous_format).view(torch.uint8).any())
            for guard in self.guards
            if guard.numel()
        )


def place(values: torch.Tensor, layout: str) -> Placed:
    """A tensor of this layout that holds `values` (one dimension)."""
    count, dtype = values.numel(), values.dtype
    if layout == "strided":
        base = _zeros(dtype, 2 * count)
        placed = Placed(base[::2], [base[1::2]])
    elif layout == "transposed":
        rows = next(r for r in (3, 2, 1) if count % r == 0)
        base = _zeros(dtype, count).view(count // rows, rows)
        placed = Placed(base.t(), [])
    elif layout == "offset":
        base = _zeros(dtype, count + 2 * GUARD)
        placed = Placed(base[GUARD : GUARD + count], [base[:GUARD], base[GUARD + count :]])
    elif layout == "odd_address" and count and dtype.itemsize > 1 and _zeros(dtype, 0).is_cpu:
        memory = bytearray(1) + bytearray(values.view(torch.uint8).numpy().tobytes()) + bytearray(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Placed(torch.frombuffer(memory, dtype=dtype, count=count, offset=1), [], memory)
    else:
        return Placed(on_device(values), [])
    placed.tensor.copy_(values.view(placed.tensor.shape))
    return placed
