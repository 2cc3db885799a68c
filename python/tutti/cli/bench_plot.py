"""The plot of ``tutti bench``: median time over size, a panel a collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tutti._pictures import pyplot
from tutti._units import format_bytes
from tutti.plans.files import store_picture


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws ``report`` into ``path``. ImportError, naming the remedy, if matplotlib is missing."""
    plt = pyplot()

    collectives = list(dict.fromkeys(r["collective"] for r in report["results"] if r["bytes"] > 0))
    if not collectives:
        collectives = [report["results"][0]["collective"]]
    columns = min(3, len(collectives))
    lines = -(-len(collectives) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.5 * columns, 3.4 * lines), squeeze=False)
    for index, axis in enumerate(axes.flat):
        if index >= len(collectives):
            axis.axis("off")
            continue
        rows = [r for r in report["results"] if r["collective"] == collectives[index]]
        for backend in report["backends"]:
            points = [(r["bytes"], r["backends"][backend].get("p50_us")) for r in rows]
            points = [(size, time) for size, time in points if time is not None]
            axis.plot([p[0] for p in points], [p[1] for p in points], marker="o", markersize=3, label=backend)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(collectives[index])
        axis.set_xticks([r["bytes"] for r in rows], [format_bytes(r["bytes"]) for r in rows], rotation=60, fontsize=7)
        axis.set_ylabel("us a call (median)")
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=8)
    figure.suptitle(f"{report['ranks']} ranks, {report['dtype']}, {report['conditions']['cores']} cores")
    figure.tight_layout()
    store_picture(figure, path, dpi=130)
    plt.close(figure)
