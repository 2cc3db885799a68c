"""The dependency graph of a rank as a picture."""

from __future__ import annotations

import html

from tutti.plans.graph import BARRIER, PROGRAM, Graph, Node
from tutti.plans.timeline import COLOURS, KIND_OF

# More are no picture any more.
MOST_NODES = 5_000

WIDE, HIGH, LEFT, TOP = 250, 34, 50, 40  # of a cell, and the margins
LONGEST = 28  # characters in a cell
EDGES = {PROGRAM: "#999", BARRIER: "#1d3557", "semaphore": "#c1121f"}
SYNCHRONISES = "#f1f1f1"


def label(node: Node) -> str:
    """What an operation does; of signals and waits the arrows say with whom, so the words need not."""
    return node.text.split(" through ")[0] if node.sends or node.receives else node.text


def svg_of(graph: Graph) -> str:
    """A picture that needs nothing else: grey arrows are a thread block's order, red semaphores, blue barriers."""
    nodes = list(graph.nodes.values())[:MOST_NODES]
    shown = {node.where for node in nodes}
    width = LEFT + graph.blocks * WIDE + 60
    height = TOP + graph.rows * HIGH + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for kind, colour in EDGES.items():
        parts.append(
            f'<marker id="{kind}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        )
    parts.append(f'<text x="8" y="18" font-weight="bold">rank {graph.rank}</text>')
    for block in range(graph.blocks):
        parts.append(f'<text x="{LEFT + block * WIDE + 60}" y="18" fill="#555">thread block {block}</text>')
    for one, other, why in graph.edges:
        if one in shown and other in shown:
            parts.append(_edge(graph.nodes[one], graph.nodes[other], why))
    parts += [_box(node) for node in nodes]
    return "\n".join([*parts, "</svg>\n"])


def _corner(node: Node) -> tuple[int, int]:
    return LEFT + node.where.block * WIDE, TOP + node.row * HIGH


def _edge(one: Node, other: Node, why: str) -> str:
    (x, y), (u, v) = _corner(one), _corner(other)
    wide, high = WIDE - 60, HIGH - 12
    if why == PROGRAM:
        path = f"M{x + wide / 2} {y + high}L{u + wide / 2} {v}"
    else:
        begin, end = (x + wide, u) if x < u else (x, u + wide)
        bend = (end - begin) / 2
        path = f"M{begin} {y + high / 2}C{begin + bend} {y + high / 2} {end - bend} {v + high / 2} {end} {v + high / 2}"
    arrow = "" if why == BARRIER else f' marker-end="url(#{why})"'
    return f'<path d="{path}" fill="none" stroke="{EDGES[why]}"{arrow}/>'


def _box(node: Node) -> str:
    x, y = _corner(node)
    wide, high = WIDE - 60, HIGH - 12
    colour = COLOURS.get(KIND_OF.get(node.name, ""), SYNCHRONISES)
    text = label(node) if len(label(node)) <= LONGEST else label(node)[: LONGEST - 1] + "…"
    out = (
        f"<g><title>{html.escape(f'operation {node.where.op}: {node.text}')}</title>"
        f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="3" fill="{colour}" stroke="#777"/>'
        f'<text x="{x + 6}" y="{y + 15}">{html.escape(text)}</text>'
    )
    if node.receives:
        ranks = ",".join(map(str, node.receives))
        out += f'<text x="{x - 4}" y="{y + 15}" text-anchor="end" fill="#c1121f">r{ranks} ▶</text>'
    if node.sends:
        out += f'<text x="{x + wide + 4}" y="{y + 15}" fill="#c1121f">▶ r{",".join(map(str, node.sends))}</text>'
    return out + "</g>"
