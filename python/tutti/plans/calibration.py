"""Measures this machine by short plans and fits the topology of ranks that are threads or processes of it.

What is measured is the least of many runs: other work on the machine only ever adds. Copies, signals and transfers have
plans of their own (:mod:`tutti.plans.probes`); the fit takes apart what a transfer of fresh data between two
cores consists of: the signal's latency, the receiver's own copy, and the rest, which is the link's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tutti.plans import probes
from tutti.plans.probes import Json
from tutti.topology import Topology, cpu_host

SIZES = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]  # bytes
MOST_ROUNDS = 32
LEAST_PART = 0.1  # of a measured time that is put down to the bytes, where the other costs are as large as all of it
FEWEST_CALLS, MOST_CALLS = 12, 10_000
BYTES_A_CALL = 512 << 10  # a call's rounds move about that much
# Times a call of a plan with blocks of so many bytes: microseconds.
Timer = Callable[[Json, int], float]


@dataclass
class Measured:
    """Microseconds: of an operation's dispatch, of a signal, and by size of a copy and of a transfer of fresh data.

    ``both`` is the time of two transfers at once, one each way, copies included.
    """

    dispatch_us: float
    signal_us: float
    copies: dict[int, float]
    transfers: dict[int, float]
    both: dict[int, float]


def least_of(tries: int, seconds: float = 0.02) -> Timer:
    """A timer that runs a plan ``tries`` times anew, a thread a rank, and takes the fastest call of all.

    Each try takes ``seconds`` or 12 calls, whichever is longer: until the scheduler has given each thread a core of
    its own, and data are where they stay.
    """
    from tutti import _core

    def time(plan: Json, block_bytes: int) -> float:
        text = json.dumps(plan)
        best, calls = float("inf"), FEWEST_CALLS
        for _ in range(tries + 1):
            report = _core.run_plan(text, block_bytes, threads=True, invocations=calls)
            if report["fault"] is not None:
                raise ValueError(f"{plan['name']}: {report['fault']}")
            best = min(best, min(report["nanoseconds"]) / 1e3)
            calls = min(MOST_CALLS, max(FEWEST_CALLS, round(seconds * 1e6 / best)))
        return best

    return time


def rounds_of(size: int) -> int:
    """How often a probe repeats a transfer of that size in a call."""
    return max(1, min(MOST_ROUNDS, BYTES_A_CALL // size))


def measure(timer: Timer, sizes: list[int] | None = None, tick: Callable[[], None] = lambda: None) -> Measured:
    """Runs all probes; ``tick`` is called after each."""
    out = Measured(0, 0, {}, {}, {})

    def per_round(plan: Json, size: int, hops: int) -> float:
        time = timer(plan, size) / hops
        tick()
        return time

    # Two lengths of a chain, so that beginning and ending a call is not counted as dispatch.
    short, long = 64, 1024
    out.dispatch_us = (timer(probes.alone(probes.COPY, long), 16) - timer(probes.alone(probes.COPY, short), 16)) / (
        long - short
    )
    tick()
    out.signal_us = per_round(probes.ping_pong(MOST_ROUNDS), 16, 2 * MOST_ROUNDS)
    for size in sizes or SIZES:
        rounds = rounds_of(size)
        out.copies[size] = per_round(probes.alone(probes.COPY, rounds), size, rounds)
        there_and_back = probes.ping_pong(rounds, [probes.put("s")], [probes.TAKE])
        out.transfers[size] = per_round(there_and_back, size, 2 * rounds)
        at_once = probes.exchange(rounds, [probes.put("s")], [probes.TAKE])
        out.both[size] = per_round(at_once, size, rounds)
    return out


def fit(found: Measured, ranks: int, name: str) -> Topology:
    """The topology in which the simulator gives the measured times back, as near as its model comes."""
    dispatch = max(found.dispatch_us, 1e-4)
    latency = max(found.signal_us - 2 * dispatch, 1e-3)
    local = {size: size / 1e3 / max(time - dispatch, LEAST_PART * time) for size, time in found.copies.items()}
    # A hop: put, signal, latency, wait, copy; the simulator dispatches four operations.
    link = {
        size: size / 1e3 / max(time - latency - 4 * dispatch - size / 1e3 / local[size], LEAST_PART * time)
        for size, time in found.transfers.items()
    }
    shared = _shared_gbs(found, latency, dispatch, local, link)
    topology = cpu_host(ranks, latency, max(link.values()), max(shared, max(link.values())))
    topology["name"] = name
    topology["local"] = {"latency_us": 0, **_by_size(local)}
    topology["efficiency"] = _by_size(link)["efficiency"]
    topology["dispatch_us"] = dispatch
    return topology


def _shared_gbs(
    found: Measured, latency: float, dispatch: float, local: dict[int, float], link: dict[int, float]
) -> float:
    """What two ranks move together at the best size: twice the link's bandwidth where they do not collide."""
    best = max(link.values())
    ratios = []
    for size, time in found.both.items():
        both = time - 2 * latency - 7 * dispatch - size / 1e3 / local[size]
        if both > 0 and size >= 64 << 10:  # below, latencies decide
            ratios.append(2 * size / 1e3 / both / link[size])
    together = sorted(ratios)[len(ratios) // 2] if ratios else 2.0
    return best * min(2.0, max(1.0, together))


def _by_size(bandwidths: dict[int, float]) -> dict[str, Any]:
    best = max(bandwidths.values())
    points = [[size, float(f"{gbs / best:.4g}")] for size, gbs in sorted(bandwidths.items())]
    return {"bandwidth_gbs": best, "efficiency": points}


def usable_ranks(wanted: int) -> int:
    """``wanted``, if each of so many ranks has a core of its own. ValueError otherwise: nothing here models sharing."""
    cores = len(os.sched_getaffinity(0))
    if wanted > cores:
        raise ValueError(
            f"{wanted} ranks on {cores} cores would share them, and the simulator has no model of that: "
            f"calibrate with --ranks {cores}"
        )
    return wanted


def as_json(found: Measured) -> Json:
    """The measurements, to keep beside the topology."""
    return asdict(found)
