"""Measures this machine by short plans and fits the topology of ranks that are threads or processes of it.

What is measured is the least of many runs: other work on the machine only ever adds. Copies, signals and transfers have
plans of their own (:mod:`tutti.plans.probes`); the fit takes apart what a transfer of fresh data between two
cores consists of: the signal's latency, the receiver's own copy, and the rest, which is the link's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

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
    """Microseconds: of a call beside its operations, of an operation's dispatch, of a signal, and by size of a copy and
    of a transfer of fresh data.

    ``both`` is the time of two transfers at once, one each way, copies included; ``unread`` that of a transfer that
    nobody reads. ``packed`` is the time of packing and unpacking packets of that payload, ``packets`` that of packets
    to each other at once, unpacking included; ``reduced`` and ``packets_reduced`` are as ``copies`` and ``packed``, of
    reductions.
    """

    call_us: float = 0
    dispatch_us: float = 0
    signal_us: float = 0
    copies: dict[int, float] = field(default_factory=dict)
    transfers: dict[int, float] = field(default_factory=dict)
    both: dict[int, float] = field(default_factory=dict)
    unread: dict[int, float] = field(default_factory=dict)
    packed: dict[int, float] = field(default_factory=dict)
    packets: dict[int, float] = field(default_factory=dict)
    reduced: dict[int, float] = field(default_factory=dict)
    packets_reduced: dict[int, float] = field(default_factory=dict)


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
    out = Measured()

    def per_round(plan: Json, size: int, hops: int, call_us: float | None = None) -> float:
        time = timer(plan, size)
        tick()
        return max(time - (out.call_us if call_us is None else call_us), LEAST_PART * time) / hops

    # Two lengths of a chain, so that beginning and ending a call is not counted as dispatch.
    short, long = 64, 1024
    of_short = timer(probes.alone(probes.COPY, short), 16)
    out.dispatch_us = max((timer(probes.alone(probes.COPY, long), 16) - of_short) / (long - short), 1e-4)
    alone_us = max(of_short - short * out.dispatch_us, 0)  # of a call in which nobody waits for another
    tick()
    one, many = (timer(probes.exchange(rounds, [], []), 16) for rounds in (1, MOST_ROUNDS))
    out.call_us = max((MOST_ROUNDS * one - many) / (MOST_ROUNDS - 1), 0)
    tick()
    out.signal_us = per_round(probes.ping_pong(MOST_ROUNDS), 16, 2 * MOST_ROUNDS)
    for size in sizes or SIZES:
        rounds = rounds_of(size)
        for times, operation in ((out.copies, probes.COPY), (out.reduced, probes.REDUCE)):
            times[size] = per_round(probes.alone(operation, rounds), size, rounds, alone_us)
        there_and_back = probes.ping_pong(rounds, [probes.put("s")], [probes.TAKE])
        out.transfers[size] = per_round(there_and_back, size, 2 * rounds)
        at_once = probes.exchange(rounds, [probes.put("s")], [probes.TAKE])
        out.both[size] = per_round(at_once, size, rounds)
        into_output = probes.ping_pong(rounds, [probes.put("o")])
        out.unread[size] = per_round(into_output, size, 2 * rounds)
        for times, taken_by in ((out.packed, "upkt"), (out.packets_reduced, "repkt")):
            times[size] = per_round(probes.by_packets("cpkt", taken_by, rounds), size, rounds, alone_us)
        out.packets[size] = per_round(probes.by_packets("ppkt", "upkt", rounds), size, rounds)
    return out


def fit(found: Measured, ranks: int, name: str) -> Topology:
    """The topology in which the simulator gives the measured times back, as near as its model comes."""
    dispatch = found.dispatch_us
    latency = max(found.signal_us - dispatch, 1e-3)

    def gbs(by_size: dict[int, float], besides: Callable[[int], float], wire: int = 1) -> dict[int, float]:
        """By the bytes that move, ``wire`` of them for one of payload; ``besides``: what else takes time."""
        least, out = float("inf"), {}
        for size, time in sorted(by_size.items(), reverse=True):
            least = min(least, time)  # less takes no longer
            out[wire * size] = wire * size / 1e3 / max(least - besides(size), LEAST_PART * least)
        return out

    # What a hop consists of besides the transfer; the receiver's wait is dispatched meanwhile.
    local = gbs(found.copies, lambda size: dispatch)
    link = gbs(found.transfers, lambda size: latency + 3 * dispatch + size / 1e3 / local[size])
    unread = gbs(found.unread, lambda size: latency + 2 * dispatch)
    # Packing takes the payload in, unpacking the packets: at one rate, that of the packets' bytes.
    thirds = gbs(found.packed, lambda size: 2 * dispatch, 3)
    packed = {2 * size: thirds[3 * size] for size in found.packed}
    packing = {size: size / 1e3 / packed[2 * size] for size in found.packed}
    reduced = gbs(found.reduced, lambda size: dispatch, 2)
    packets_reduced = gbs(found.packets_reduced, lambda size: 2 * dispatch + packing[size], 3)
    together = _together(found, latency, dispatch, local, link)
    each = gbs(found.packets, lambda size: latency + 2 * dispatch + 2 * packing[size], 2)
    packets = {size: 2 / together * rate for size, rate in each.items()}  # of one alone

    best = max([*link.values(), *unread.values(), *packets.values()])
    topology = cpu_host(ranks, latency, best, best * together)
    copied = max([*local.values(), *reduced.values(), *packed.values(), *packets_reduced.values()])
    topology["name"] = name
    topology["local"] = {
        "latency_us": 0,
        "bandwidth_gbs": copied,
        "efficiency": _parts(local, copied),
        "reduce_efficiency": _parts(reduced, copied),
        "packet_efficiency": _parts(packed, copied),
        "packet_reduce_efficiency": _parts(packets_reduced, copied),
        "in_turn": True,
    }
    topology["efficiency"] = _parts(link, best)
    topology["unread_efficiency"] = _parts(unread, best)
    topology["packet_efficiency"] = _parts(packets, best)
    topology["call_us"] = found.call_us
    topology["dispatch_us"] = dispatch
    return topology


def _together(
    found: Measured, latency: float, dispatch: float, local: dict[int, float], link: dict[int, float]
) -> float:
    """What two transfers at once move over what one does: 2 where they do not collide."""
    ratios = []
    for size, time in found.both.items():
        both = time - 2 * latency - 4 * dispatch - size / 1e3 / local[size]
        if both > 0 and size >= 64 << 10:  # below, latencies decide
            ratios.append(2 * size / 1e3 / both / link[size])
    together = sorted(ratios)[len(ratios) // 2] if ratios else 2.0
    return min(2.0, max(1.0, together))


def _parts(bandwidths: dict[int, float], best: float) -> list[list[float]]:
    return [[size, float(f"{gbs / best:.4g}")] for size, gbs in sorted(bandwidths.items())]


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
