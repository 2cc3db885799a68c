"""The dependency graph of a rank on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tutti.plans.graph import Graph, Node
from tutti.plans.graph_picture import MOST_NODES, label

if TYPE_CHECKING:
    from rich.console import Console


def _marked(node: Node) -> str:
    incoming = "".join(f"◀ r{rank} " for rank in node.receives)
    outgoing = "".join(f" ▶ r{rank}" for rank in node.sends)
    return f"{incoming}{label(node)}{outgoing}"


def print_graph(graph: Graph, console: Console) -> None:
    """Columns are thread blocks, rows go forward in time: what an operation waits for on this rank stands above it."""
    from rich.table import Table
    from rich.text import Text

    if not graph.blocks:
        console.print(f"rank {graph.rank} has no thread blocks")
        return
    table = Table(box=None, pad_edge=False, title=f"rank {graph.rank}", title_justify="left")
    table.add_column("", justify="right", style="dim")
    for block in range(graph.blocks):
        table.add_column(f"thread block {block}", overflow="fold")
    rows: list[list[list[str]]] = [[[] for _ in range(graph.blocks)] for _ in range(graph.rows)]
    for node in graph.nodes.values():
        if node.name != "nop":
            rows[node.row][node.where.block].append(_marked(node))
    shown = [row for row in rows if any(row)]
    for number, row in enumerate(shown[:MOST_NODES]):
        table.add_row(str(number), *(Text("\n".join(cell)) for cell in row))
    console.print(table)
