"""One rank of ``tutti bench``: measures what the plan says and reports line by line."""

from __future__ import annotations

import gc
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import tutti
from tutti._units import format_bytes
from tutti.cli.bench_cases import CASES, Case, World
from tutti.cli.local_ranks import Reports, TooLarge

TIMEOUT = timedelta(seconds=120)
BLOCKS = 3  # the backends take turns this often at each size, so that a disturbance meets all of them


@dataclass(frozen=True)
class Plan:
    """What to measure; the same on all ranks."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    backends: tuple[str, ...]
    ranks: int
    dtype: str
    seconds: float


def library_of(backend: str) -> str:
    """The ``torch.distributed`` backend behind a name of the plan: ``tutti-mapped`` is tutti on mapped tensors."""
    return backend.removesuffix("-mapped")


class Rank:
    """The groups of one rank, and its part of every measurement."""

    def __init__(self, plan: Plan, rank: int, store_file: str) -> None:
        self.plan = plan
        self.rank = rank
        self.dtype: torch.dtype = getattr(torch, plan.dtype)
        self.store = dist.FileStore(store_file, plan.ranks)
        libraries = list(dict.fromkeys(library_of(backend) for backend in plan.backends))
        dist.init_process_group(
            libraries[0],
            store=dist.PrefixStore("groups", self.store),
            rank=rank,
            world_size=plan.ranks,
            timeout=TIMEOUT,
        )
        world = dist.group.WORLD
        assert world is not None
        self.groups: dict[str, dist.ProcessGroup] = {libraries[0]: world}
        for library in libraries[1:]:
            self.groups[library] = dist.new_group(backend=library, timeout=TIMEOUT)

    def world(self, backend: str) -> World:
        """The group and the allocator that ``backend`` names."""

        def mapped(elements: int) -> torch.Tensor:
            return tutti.empty(elements, dtype=self.dtype)

        def plain(elements: int) -> torch.Tensor:
            return torch.empty(elements, dtype=self.dtype)

        allocate: Callable[[int], torch.Tensor] = mapped if backend.endswith("-mapped") else plain
        return World(self.rank, self.plan.ranks, self.groups[library_of(backend)], allocate)

    def measure(self, collective: str, size: int) -> dict[str, dict[str, Any]]:
        """All backends at one size: ``{"tutti": {"p50_us": ..., ...}, "gloo": {"refused": "..."}}``.

        DistError, which is no refusal, if a call began and failed; TooLarge if there is no room for its tensors.
        """
        elements = max(1, size // self.dtype.itemsize)
        results: dict[str, dict[str, Any]] = {}
        cases: dict[str, Case] = {}
        runs: dict[str, int] = {}
        for backend in self.plan.backends:
            topic = f"{collective}/{size}/{backend}"
            try:
                case = CASES[collective](self.world(backend), elements)
                case.fill()
            except NotImplementedError:
                raise
            except (RuntimeError, ValueError, MemoryError) as error:
                what, why = f"{collective} of {format_bytes(size)} over {backend}", str(error).partition("\n")[0]
                raise TooLarge(f"no room for the tensors of {what}: {why}") from None
            # No more than the call: what fails beside it is not the backend's refusal.
            try:
                case.call()
            except dist.DistError:
                raise
            except (RuntimeError, ValueError) as error:
                results[backend] = {"refused": str(error).partition("\n")[0]}
                continue
            results[backend] = {"right": self._agree(f"{topic}/right", float(case.check())) == self.plan.ranks}
            runs[backend] = self._runs(topic, case)
            cases[backend] = case
        times: dict[str, list[float]] = {backend: [] for backend in cases}
        for _ in range(BLOCKS):
            for backend, case in cases.items():
                times[backend] += self._block(case, self.groups[library_of(backend)], runs[backend])
        for backend, samples in times.items():
            results[backend].update(self._summary(f"{collective}/{size}/{backend}", samples))
        return results

    def _runs(self, topic: str, case: Case) -> int:
        """How often to run a case in a block: rank 0 tries and decides for all."""
        for _ in range(2):
            case.call()
        start = time.perf_counter()
        tries = 5
        for _ in range(tries):
            case.call()
        once = (time.perf_counter() - start) / tries
        if self.rank == 0:
            self.store.set(f"{topic}/runs", str(max(3, int(self.plan.seconds / BLOCKS / max(once, 1e-7)))))
        return int(self.store.get(f"{topic}/runs"))

    def _block(self, case: Case, group: dist.ProcessGroup, runs: int) -> list[float]:
        """Microseconds of each call of a block."""
        case.fill()
        samples = [0.0] * runs
        clock = time.perf_counter_ns
        gc.disable()
        dist.barrier(group=group)
        for index in range(runs):
            start = clock()
            case.call()
            samples[index] = (clock() - start) / 1e3 / case.calls_per_run
        gc.enable()
        return samples

    def _summary(self, topic: str, samples: list[float]) -> dict[str, float]:
        """The slowest rank's minimum, median, 99th percentile and mean."""
        samples.sort()
        own = {
            "min_us": samples[0],
            "p50_us": statistics.median(samples),
            "p99_us": samples[min(len(samples) - 1, int(len(samples) * 0.99))],
            "mean_us": statistics.fmean(samples),
        }
        summary = {name: max(self._gather(f"{topic}/{name}", value)) for name, value in own.items()}
        summary["calls"] = len(samples)
        return summary

    def _gather(self, topic: str, value: float) -> list[float]:
        """Every rank's value, through the store: not through what is being measured."""
        self.store.set(f"{topic}/{self.rank}", repr(value))
        return [float(self.store.get(f"{topic}/{rank}")) for rank in range(self.plan.ranks)]

    def _agree(self, topic: str, value: float) -> float:
        return sum(self._gather(topic, value))


def main(rank: int, plan: Plan, store_file: str, reports: Reports) -> None:
    """Body of the process: runs the plan; rank 0 reports every result, any rank its failure."""
    try:
        torch.set_num_threads(1)
        tutti.register()
        own = Rank(plan, rank, store_file)
        for collective in plan.collectives:
            for size in sizes_of(collective, plan):
                result = own.measure(collective, size)
                if rank == 0:
                    reports.put(("result", {"collective": collective, "bytes": size, "backends": result}))
        dist.destroy_process_group()
        reports.put(("done", rank))
    except TooLarge as error:
        reports.put(("too large", str(error)))
    except BaseException:
        reports.put(("failed", f"rank {rank}: {traceback.format_exc()}"))
        raise


def sizes_of(collective: str, plan: Plan) -> tuple[int, ...]:
    """The sizes at which a collective is measured: a barrier has none."""
    return (0,) if collective == "barrier" else plan.sizes
