"""How long a DDP model's all-reduces take: measured alike for every backend, by a communication hook."""

# No "from __future__ import annotations" here: DDP compares the hook's annotations with the types themselves.
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class CommunicationTimes:
    """A DDP communication hook that averages as DDP does by itself and notes when each all-reduce began and ended."""

    def __init__(self) -> None:
        self.intervals: list[tuple[int, int]] = []  # nanoseconds
        self.bytes = 0

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Averages one bucket over all ranks."""
        gradient = bucket.buffer().div_(dist.get_world_size())
        self.bytes += gradient.nbytes
        start = time.perf_counter_ns()
        work = dist.all_reduce(gradient, async_op=True)
        assert work is not None

        def ended(future: torch.futures.Future[Any]) -> torch.Tensor:
            self.intervals.append((start, time.perf_counter_ns()))
            tensors = future.value()
            mean: torch.Tensor = tensors[0] if isinstance(tensors, list) else tensors
            return mean

        averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(ended)
        return averaged

    def summary(self, elapsed_s: float) -> dict[str, float]:
        """Median and mean of an all-reduce, and the share of ``elapsed_s`` in which at least one was under way."""
        times = [(end - start) / 1e3 for start, end in self.intervals]
        return {
            "all_reduces": len(times),
            "bytes": self.bytes,
            "all_reduce_p50_us": statistics.median(times),
            "all_reduce_mean_us": statistics.fmean(times),
            "share_of_time": _covered_ns(self.intervals) / 1e9 / elapsed_s,
        }


def _covered_ns(intervals: list[tuple[int, int]]) -> int:
    """Length of the union of the intervals: overlapping all-reduces count once."""
    covered, reached = 0, 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def watch(model: DDP) -> CommunicationTimes:
    """Measures the all-reduces of ``model`` from now on. A model takes one hook in its life."""
    times = CommunicationTimes()
    model.register_comm_hook(None, times.hook)
    return times
