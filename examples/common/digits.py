"""The data set and the model of the examples.

The data are the 1,797 images of 8x8 pixels that scikit-learn carries: the test set of "Optical Recognition of
Handwritten Digits" by E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, licensed CC BY 4.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

PIXELS, CLASSES = 64, 10


@dataclass(frozen=True)
class Digits:
    """Images as float32[n, 64] from 0 to 1, labels as int64[n]."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_digits() -> Digits:
    """Four fifths to train, one fifth to test; the same split in every process."""
    from sklearn.datasets import load_digits as load

    data = load()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    cut = len(images) * 4 // 5
    train, test = order[:cut], order[cut:]
    return Digits(images[train], labels[train], images[test], labels[test])


def make_model(millions: float, seed: int) -> nn.Module:
    """Three linear layers with about ``millions`` x 10^6 parameters in all."""
    # width^2 + (PIXELS + CLASSES + 2) width + CLASSES = parameters
    linear = PIXELS + CLASSES + 2
    width = max(1, round((-linear + math.sqrt(linear**2 + 4 * (millions * 1e6 - CLASSES))) / 2))
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


def batches(samples: int, per_rank: int, rank: int, ranks: int, seed: int) -> Iterator[torch.Tensor]:
    """This rank's indices, a batch at a time.

    A step takes ``per_rank * ranks`` samples from one shuffled order, and each rank its share of them: so one process
    with ``per_rank * ranks`` samples a batch sees the same steps. The rest of the order is left out.
    """
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    step = per_rank * ranks
    for start in range(0, samples - step + 1, step):
        yield order[start + rank * per_rank : start + (rank + 1) * per_rank]
