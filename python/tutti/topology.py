"""Topologies for the simulator of plans: generators of the values that a topology file holds.

The latencies and bandwidths are round figures of the kind of machine, not measurements, but those of :func:`h200`;
change them to yours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Topology = dict[str, Any]


def _link(a: str, b: str, latency_us: float, bandwidth_gbs: float) -> dict[str, Any]:
    return {"from": a, "to": b, "latency_us": latency_us, "bandwidth_gbs": bandwidth_gbs}


def _ranks(count: int) -> list[str]:
    if count < 1:
        raise ValueError("a topology needs at least one rank")
    return [f"rank{i}" for i in range(count)]


def _make(name: str, ranks: list[str], switches: list[str], links: list[dict[str, Any]], **more: Any) -> Topology:
    return {"name": name, "nodes": ranks + switches, "ranks": ranks, "links": links, **more}


def nvswitch(ranks: int, latency_us: float = 1.0, bandwidth_gbs: float = 400.0, multicast: bool = False) -> Topology:
    """A box whose GPUs have one fat link each to a switch; with ``multicast`` the switch copies and reduces."""
    names = _ranks(ranks)
    links = [_link(name, "switch", latency_us / 2, bandwidth_gbs) for name in names]
    local = {"latency_us": 0.5, "bandwidth_gbs": 1500.0}
    return _make(f"nvswitch {ranks}", names, ["switch"], links, local=local, multicast=multicast)


def h200(ranks: int, ranks_per_box: int = 8, network_latency_us: float = 5.0, network_gbs: float = 50.0) -> Topology:
    """Boxes of H200 joined by NVLink, such that compiled plans take in the simulator what they took there.

    Fitted to 163 measured times in one box: 35 plans on two GPUs, 18 on four, 1 KB to 16 MB (``docs/simulator.md``).
    What a transfer gets of the bandwidth has to do with how many multiprocessors run its thread block, so it does not
    rise steadily with its size. Between boxes each GPU has a card of its own; those figures are not measured.
    """
    names = _ranks(ranks)
    boxes = [names[i : i + ranks_per_box] for i in range(0, ranks, ranks_per_box)]
    switches = [f"switch{i}" for i in range(len(boxes))]
    links = [_link(name, switch, 0.42, 360.0) for box, switch in zip(boxes, switches, strict=True) for name in box]
    network = ["network"] if len(boxes) > 1 else []
    links += [_link(name, node, network_latency_us / 2, network_gbs) for node in network for name in names]
    parts = [[8 << 10, 1.0], [64 << 10, 0.4], [256 << 10, 0.64], [1 << 20, 0.6], [8 << 20, 0.54]]
    return _make(
        f"h200 {ranks}",
        names,
        switches + network,
        links,
        groups=[[switch, *box] for box, switch in zip(boxes, switches, strict=True)] if network else [],
        local={"latency_us": 0.0, "bandwidth_gbs": 4000.0, "block_gbs": 320.0},
        efficiency=parts,
        dispatch_us=0.68,
        packet_dispatch_us=0.3,
        call_us=2.25,
        agree_us=1.1,
    )


def pcie(ranks: int, latency_us: float = 2.0, bandwidth_gbs: float = 25.0) -> Topology:
    """A box with two PCIe switches, half of the GPUs under each, joined through the CPU's root."""
    names = _ranks(ranks)
    half = -(-ranks // 2)
    links = [_link(name, f"switch{i // half}", latency_us / 2, bandwidth_gbs) for i, name in enumerate(names)]
    switches = [f"switch{i}" for i in range(-(-ranks // half))]
    links += [_link(switch, "root", latency_us / 2, bandwidth_gbs) for switch in switches]
    groups = [[switch, *names[i * half : (i + 1) * half]] for i, switch in enumerate(switches)]
    local = {"latency_us": 0.5, "bandwidth_gbs": 600.0}
    return _make(f"pcie {ranks}", names, [*switches, "root"], links, groups=groups, local=local)


def ring(ranks: int, latency_us: float = 1.0, bandwidth_gbs: float = 50.0) -> Topology:
    """Ranks in a circle, a link each way between neighbours."""
    names = _ranks(ranks)
    pairs = ranks if ranks > 2 else ranks - 1
    links = [_link(names[i], names[(i + 1) % ranks], latency_us, bandwidth_gbs) for i in range(pairs)]
    return _make(f"ring {ranks}", names, [], links)


def fat_tree(
    ranks: int,
    ranks_per_leaf: int = 8,
    latency_us: float = 2.0,
    bandwidth_gbs: float = 50.0,
    oversubscription: float = 1.0,
    spines: int = 2,
) -> Topology:
    """Leaf switches of ``ranks_per_leaf`` ranks, each with a link to every spine; pairs spread over the spines."""
    if ranks_per_leaf < 1 or spines < 1 or oversubscription <= 0:
        raise ValueError("ranks a leaf, spines and oversubscription must be positive")
    names = _ranks(ranks)
    leaves = [f"leaf{i}" for i in range(-(-ranks // ranks_per_leaf))]
    tops = [f"spine{i}" for i in range(spines)]
    links = [_link(name, leaves[i // ranks_per_leaf], latency_us / 4, bandwidth_gbs) for i, name in enumerate(names)]
    up = bandwidth_gbs * ranks_per_leaf / oversubscription / spines
    links += [_link(leaf, top, latency_us / 4, up) for leaf in leaves for top in tops]
    groups = [[leaf, *names[i * ranks_per_leaf : (i + 1) * ranks_per_leaf]] for i, leaf in enumerate(leaves)]
    return _make(f"fat tree {ranks}", names, [*leaves, *tops], links, groups=groups)


def torus(ranks: int, width: int | None = None, latency_us: float = 1.0, bandwidth_gbs: float = 50.0) -> Topology:
    """A torus of two dimensions, ``width`` ranks in a row; as square as it can be if it is not given."""
    names = _ranks(ranks)
    if width is None:
        width = next(w for w in range(math.isqrt(ranks), 0, -1) if ranks % w == 0)
    if width < 1 or ranks % width:
        raise ValueError(f"{ranks} ranks do not make rows of {width}")
    height = ranks // width
    pairs = set()
    for i in range(ranks):
        row, column = divmod(i, width)
        pairs.add(tuple(sorted((i, row * width + (column + 1) % width))))
        pairs.add(tuple(sorted((i, (row + 1) % height * width + column))))
    links = [_link(names[a], names[b], latency_us, bandwidth_gbs) for a, b in sorted(pairs) if a != b]
    return _make(f"torus {height} x {width}", names, [], links)


def thunderbolt(ranks: int = 2, latency_us: float = 10.0, bandwidth_gbs: float = 4.0) -> Topology:
    """Two machines on one Thunderbolt cable."""
    if ranks != 2:
        raise ValueError("a Thunderbolt pair has 2 ranks")
    return {**ring(2, latency_us, bandwidth_gbs), "name": "thunderbolt pair"}


def cpu_host(ranks: int, latency_us: float = 0.2, bandwidth_gbs: float = 15.0, memory_gbs: float = 30.0) -> Topology:
    """Processes of one host: each copies at most ``bandwidth_gbs``, all together ``memory_gbs``."""
    names = _ranks(ranks)
    links = [_link(name, "in", latency_us / 3, bandwidth_gbs) for name in names]
    for link in links:
        link["both"] = False
    links.append({**_link("in", "out", latency_us / 3, memory_gbs), "both": False})
    links += [{**_link("out", name, latency_us / 3, bandwidth_gbs), "both": False} for name in names]
    local = {"latency_us": 0.05, "bandwidth_gbs": bandwidth_gbs}
    return _make(f"cpu host {ranks}", names, ["in", "out"], links, local=local)


# By the name that ``tutti plan simulate --topology`` takes.
PRESETS: dict[str, Callable[[int], Topology]] = {
    "nvswitch": nvswitch,
    "h200": h200,
    "pcie": pcie,
    "ring": ring,
    "fat-tree": fat_tree,
    "torus": torus,
    "thunderbolt": thunderbolt,
    "cpu-host": cpu_host,
}
