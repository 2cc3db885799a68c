"""Sizes of tensors from tutti.empty and tutti.zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tutti


@pytest.mark.tutti_only
def test_sizes_are_read_as_torch_reads_them() -> None:
    numbers: list[Any] = [
        (np.int64(3),),
        (np.uint8(2), 3),
        ([np.int32(2)],),
        (torch.tensor(3),),
        ([torch.tensor(2), 5],),
    ]
    for size in [(3,), (2, 3), ((2, 3),), ([],), ([2, 0],), (torch.Size([4]),), *numbers]:
        assert tutti.empty(*size).shape == tutti.zeros(*size).shape == torch.empty(*size).shape
    for size in [
        ("12",),
        ("",),
        (b"ab",),
        ("2", "3"),
        (["2"],),
        (3.0,),
        ([3.7],),
        (np.float32(3),),
        (torch.tensor(3.5),),
    ]:
        for make in (torch.empty, tutti.empty, tutti.zeros):
            with pytest.raises(TypeError):
                make(*size)
