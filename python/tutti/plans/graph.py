"""What orders the operations of one rank: thread blocks, semaphores and barriers, and signals of other ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from tutti.plans.resolved import MEMORY, PORT, SIGNALS, WAITS, Json, Resolver, Where, channel_kind, describe

# In the order of time: a row is the longest chain of operations of this rank that come before.
PROGRAM, SEMAPHORE, BARRIER = "program", "semaphore", "barrier"


@dataclass
class Node:
    """An operation: ``row`` from 0, ``sends`` and ``receives`` are ranks that it signals or waits for."""

    where: Where
    name: str
    text: str
    row: int = 0
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()


@dataclass
class Graph:
    """Nodes by place, in the order of thread blocks, and edges (from, to, why)."""

    rank: int
    blocks: int
    nodes: dict[Where, Node] = field(default_factory=dict)
    edges: list[tuple[Where, Where, str]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return 1 + max((node.row for node in self.nodes.values()), default=-1)


def graph_of(plan: Json, rank: int) -> Graph:
    """The graph of a rank of a plan that the core has read. A pipeline is a node for each operation of its body."""
    resolver = Resolver(plan)
    blocks = plan["gpus"][rank]["threadblocks"]
    graph = Graph(rank, len(blocks))
    released: dict[int, list[Where]] = {}
    acquired: dict[int, list[Where]] = {}
    met: dict[int, list[list[Where]]] = {}  # barrier: of each thread block, where it comes to it
    for block, entry in enumerate(blocks):
        last: Where | None = None
        came: dict[int, list[Where]] = {}
        for where, operation in _flat(entry, rank, block):
            graph.nodes[where] = _node(where, operation, resolver)
            if last is not None:
                graph.edges.append((last, where, PROGRAM))
            last = where
            for number in operation.get("semaphore_ids", ()):
                (released if operation["name"] == "sem_release" else acquired).setdefault(number, []).append(where)
            if operation["name"] == "barrier":
                came.setdefault(operation["barrier_id"], []).append(where)
        for number, places in came.items():
            met.setdefault(number, []).append(places)
    for number, takers in acquired.items():
        credit = plan["gpus"][rank]["semaphores"][number]["init_value"]
        graph.edges += [(a, b, SEMAPHORE) for a, b in zip(released.get(number, ()), takers[credit:], strict=False)]
    joined = [list(places) for rounds in met.values() for places in zip(*rounds, strict=False)]
    for places in joined:
        graph.edges += [(a, b, BARRIER) for a, b in pairwise(places)]
    _place(graph, joined)
    return graph


def _flat(block: Json, rank: int, number: int) -> list[tuple[Where, Json]]:
    out = []
    for index, operation in enumerate(block["ops"]):
        if "ops" in operation:
            out += [(Where(rank, number, index, inner), body) for inner, body in enumerate(operation["ops"])]
        else:
            out.append((Where(rank, number, index), operation))
    return out


def _node(where: Where, operation: Json, resolver: Resolver) -> Node:
    kind = channel_kind(operation)
    peers = tuple(resolver.peer(where, kind, own) for own in operation.get("channel_ids", ()) if kind in (MEMORY, PORT))
    text = describe(
        operation,
        where,
        resolver,
        lambda at, what, own: f"to rank {resolver.peer(at, what, own)}",
        lambda _, what, number: f"{what} {number}",
    )
    return Node(
        where,
        operation["name"],
        text,
        sends=peers if operation["name"] in SIGNALS else (),
        receives=peers if operation["name"] in WAITS else (),
    )


def _place(graph: Graph, joined: list[list[Where]]) -> None:
    """Longest paths; what meets at a barrier shares a row. A cycle, which only a deadlock has, ends the search."""
    together = {place: tuple(places) for places in joined for place in places}
    before: dict[Where, list[Where]] = {where: [] for where in graph.nodes}
    after: dict[Where, list[Where]] = {where: [] for where in graph.nodes}
    for one, other, why in graph.edges:
        if why != BARRIER:
            before[other].append(one)
            after[one].append(other)
    waiting = {where: len(before[where]) for where in graph.nodes}
    ready = [where for where, count in waiting.items() if count == 0]
    pending: dict[tuple[Where, ...], int] = {}
    while ready:
        where = ready.pop()
        group = together.get(where, (where,))
        pending[group] = pending.get(group, 0) + 1
        if pending[group] < len(group):
            continue
        row = max((graph.nodes[one].row + 1 for member in group for one in before[member]), default=0)
        for member in group:
            graph.nodes[member].row = row
            for other in after[member]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    ready.append(other)
    stuck = [where for where, count in waiting.items() if count > 0]
    for number, where in enumerate(sorted(stuck), graph.rows):
        graph.nodes[where].row = number
