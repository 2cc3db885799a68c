"""The timeline of a simulated plan as a picture, as a page and as a trace for Perfetto."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

from tutti._pictures import pyplot
from tutti._units import format_bytes, format_us
from tutti.plans.files import store, store_picture

# More lanes or steps than these are no picture any more; the trace takes all.
MOST_LANES = 200
MOST_STEPS = 100_000

COLOURS = {"put": "#2a9d8f", "get": "#457b9d", "reduce": "#e9a13b", "copy": "#8ab17d", "wait": "#d8d8d8"}
KINDS = {
    "put": ("put", "pws", "pwsf", "ppkt", "rppkt", "gstore", "gstorepkt"),
    "get": ("get", "glre"),
    "reduce": ("re", "res", "rre", "rres", "repkt", "respkt", "recpkt", "recspkt", "glres"),
    "copy": ("copy", "cpkt", "upkt"),
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}

Step = dict[str, Any]
Lane = tuple[int, int, int]


def lane_of(step: Step) -> Lane:
    """Rank, thread block, port channel (-1: the block itself)."""
    return step["rank"], -1 if step["port"] >= 0 else step["block"], step["port"]


def lane_name(lane: Lane) -> str:
    """``"rank 0 block 1"``, ``"rank 0 port 2"``."""
    rank, block, port = lane
    return f"rank {rank} port {port}" if port >= 0 else f"rank {rank} block {block}"


def spans(step: Step) -> list[tuple[str, float, float]]:
    """What a step spent its time on: kind, begin, end; a queue's own waiting is not shown."""
    out = []
    if step["begin_us"] > step["turn_us"] and step["port"] < 0:
        out.append(("wait", step["turn_us"], step["begin_us"]))
    if step["end_us"] > step["begin_us"]:
        out.append((KIND_OF.get(step["name"], "wait"), step["begin_us"], step["end_us"]))
    return out


def where(step: Step) -> str:
    """``"rank 0, thread block 1, operation 2.0 #3 (put, ring.py:7)"``."""
    inner = f".{step['inner']} #{step['iteration']}" if step["inner"] >= 0 else ""
    origin = f", {step['origin']}" if step["origin"] else ""
    queue = f", port channel {step['port']}" if step["port"] >= 0 else ""
    return (
        f"rank {step['rank']}, thread block {step['block']}{queue}, operation {step['op']}{inner}"
        f" ({step['name']}{origin})"
    )


def write_trace(result: dict[str, Any], path: Path) -> None:
    """Chrome's trace events, which Perfetto opens: a process a rank, a thread a block or port channel."""
    events: list[dict[str, Any]] = []
    lanes = sorted({lane_of(step) for step in result["timeline"]})
    threads = {lane: index for index, lane in enumerate(lanes)}
    for rank in sorted({lane[0] for lane in lanes}):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
    for lane, thread in threads.items():
        name = lane_name(lane).split(" ", 2)[2]
        events.append({"ph": "M", "name": "thread_name", "pid": lane[0], "tid": thread, "args": {"name": name}})
    for step in result["timeline"]:
        lane = lane_of(step)
        for kind, begin, end in spans(step):
            events.append(
                {
                    "ph": "X",
                    "name": f"{step['name']} (waiting)" if kind == "wait" else step["name"],
                    "cat": kind,
                    "pid": lane[0],
                    "tid": threads[lane],
                    "ts": begin,
                    "dur": end - begin,
                    "args": {"bytes": step["bytes"], "operation": where(step)},
                }
            )
    store(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), path)


def _drawable(result: dict[str, Any]) -> tuple[list[Lane], list[Step]]:
    steps = result["timeline"]
    lanes = sorted({lane_of(step) for step in steps})[:MOST_LANES]
    shown = set(lanes)
    return lanes, [step for step in steps if lane_of(step) in shown][:MOST_STEPS]


def write_png(result: dict[str, Any], path: Path) -> None:
    """Draws the timeline with matplotlib. ImportError, naming the remedy, if it is missing."""
    plt = pyplot()
    from matplotlib.patches import Patch

    lanes, steps = _drawable(result)
    rows = {lane: index for index, lane in enumerate(lanes)}
    figure, axis = plt.subplots(figsize=(11, 1.5 + 0.22 * len(lanes)))
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for step in steps:
        for kind, begin, end in spans(step):
            bars.setdefault((rows[lane_of(step)], kind), []).append((begin, end - begin))
    for (row, kind), pieces in bars.items():
        axis.broken_barh(pieces, (row - 0.4, 0.8), facecolors=COLOURS[kind], edgecolor="white", linewidth=0.2)
    axis.set_yticks(range(len(lanes)), [lane_name(lane) for lane in lanes], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("us")
    axis.set_title(_title(result), fontsize=9)
    patches = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    axis.legend(handles=patches, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    store_picture(figure, path, dpi=120)
    plt.close(figure)


def _title(result: dict[str, Any]) -> str:
    return (
        f"{result['plan']} on {result['topology']}, {format_bytes(result['block_bytes'])}: "
        f"{format_us(result['time_us'])}"
    )


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 1.5em; }} svg text {{ font: 11px system-ui, sans-serif; }}
td, th {{ padding: 2px 10px; text-align: left; }} .path {{ stroke: #c1121f; stroke-width: 1.5; }}
</style></head><body><h1>{title}</h1><p>{facts}</p>
<p>{legend} Red border: critical path. Point at a bar to see its operation.</p>
<svg width="{width}" height="{height}" role="img">{bars}</svg>
<h2>Critical path</h2><table><tr><th>until</th><th>operation</th><th>bytes</th></tr>{path}</table>
<h2>Links</h2><table><tr><th>link</th><th>bytes</th><th>use</th></tr>{links}</table></body></html>
"""


def _ticks(end_us: float) -> list[float]:
    """Round times from 0, six to thirteen of them."""
    if end_us <= 0:
        return [0.0]
    step: float = 10.0 ** math.floor(math.log10(end_us))
    step *= next((part for part in (1, 0.5) if end_us / (step * part) >= 5), 0.2)
    return [number * step for number in range(int(end_us / step) + 1)]


def write_html(result: dict[str, Any], path: Path) -> None:
    """One page that needs nothing else: the timeline, the critical path, the use of links."""
    lanes, steps = _drawable(result)
    rows = {lane: index for index, lane in enumerate(lanes)}
    left, across, high = 130, 1100, 18
    scale = across / max(result["time_us"], 1e-9)
    critical = {(lane_of(step), step["op"], step["inner"], step["iteration"]) for step in result["critical_path"]}
    bars = [f'<text x="0" y="{row * high + 13}">{lane_name(lane)}</text>' for lane, row in rows.items()]
    for time in _ticks(result["time_us"]):
        x, bottom = left + time * scale, len(lanes) * high
        bars.append(f'<line x1="{x:.2f}" y1="0" x2="{x:.2f}" y2="{bottom + 4}" stroke="#bbb"/>')
        bars.append(f'<text x="{x:.2f}" y="{bottom + 17}" text-anchor="middle">{format_us(time)}</text>')
    for step in steps:
        lane = lane_of(step)
        on_path = (lane, step["op"], step["inner"], step["iteration"]) in critical
        for kind, begin, end in spans(step):
            note = html.escape(f"{where(step)}: {kind}, {begin:.3f} to {end:.3f} us, {format_bytes(step['bytes'])}")
            mark = ' class="path"' if on_path and kind != "wait" else ""
            bars.append(
                f'<rect x="{left + begin * scale:.2f}" y="{rows[lane] * high + 2}" width="{(end - begin) * scale:.2f}"'
                f' height="{high - 4}" fill="{COLOURS[kind]}"{mark}><title>{note}</title></rect>'
            )
    path_rows = "".join(
        f"<tr><td>{format_us(step['end_us'])}</td><td>{html.escape(where(step))}</td>"
        f"<td>{format_bytes(step['bytes'])}</td></tr>"
        for step in result["critical_path"]
    )
    link_rows = "".join(
        f"<tr><td>{html.escape(use['name'])}</td><td>{format_bytes(use['bytes'])}</td><td>{use['share']:.1%}</td></tr>"
        for use in result["links"]
    )
    legend = " ".join(f'<span style="background:{colour}"> {kind} </span>' for kind, colour in COLOURS.items())
    facts = (
        f"{result['algorithm_gbs']:.3g} GB/s; bounds: latency {format_us(result['latency_bound_us'])}, "
        f"bandwidth {format_us(result['bandwidth_bound_us'])}"
    )
    page = PAGE.format(
        title=html.escape(_title(result)),
        facts=facts,
        legend=legend,
        width=left + across + 40,
        height=len(lanes) * high + 24,
        bars="".join(bars),
        path=path_rows,
        links=link_rows,
    )
    store(page, path)
